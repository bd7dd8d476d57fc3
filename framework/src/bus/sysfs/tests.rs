//! A machine of files, for tests: the links are as in sysfs, and a kernel that reacts to what is written.

use super::{Kernel, Sysfs};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A tree, removed when dropped.
pub(super) struct Tree {
    root: PathBuf,
    kernel: Arc<Reacting>,
}

/// A kernel that binds and unbinds by moving links.
pub(super) struct Reacting {
    root: PathBuf,
    /// Which driver takes a function by itself.
    own_drivers: Mutex<HashMap<String, String>>,
    /// Drivers that take nothing.
    failing: Mutex<Vec<String>>,
    /// Ends of paths that are refused, with the errno.
    refused: Mutex<Vec<(String, i32)>>,
    /// Writes to such paths never return in time.
    hanging: Mutex<Option<String>>,
    /// Modules that can be loaded; a driver's folder appears.
    modules: Mutex<Vec<String>>,
    log: Mutex<Vec<String>>,
}

/// A function that was added just now.
pub(super) struct Added<'a> {
    tree: &'a Tree,
    address: String,
}

impl Tree {
    pub(super) fn new(name: &str) -> Tree {
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("pollring-sysfs-{name}-{}-{number}", std::process::id());
        let root = std::env::temp_dir().join(name);
        for folder in ["sys/bus/pci/devices", "sys/bus/pci/drivers", "proc", "dev", "run"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let kernel = Arc::new(Reacting {
            root: root.clone(),
            own_drivers: Mutex::default(),
            failing: Mutex::default(),
            refused: Mutex::default(),
            hanging: Mutex::default(),
            modules: Mutex::default(),
            log: Mutex::default(),
        });
        Tree { root, kernel }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    pub(super) fn sysfs(&self) -> Sysfs {
        Sysfs::with_kernel(&self.root, self.kernel.clone(), Duration::from_millis(300))
    }

    pub(super) fn device(&self, address: &str) -> PathBuf {
        self.root.join("sys/bus/pci/devices").join(address)
    }

    pub(super) fn write(&self, path: &str, text: &str) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    pub(super) fn add(&self, address: &str, class: &str, device: u16) -> Added<'_> {
        let real = self.root.join("sys/devices/pci0000:00").join(address);
        fs::create_dir_all(&real).unwrap();
        symlink(format!("../../../devices/pci0000:00/{address}"), self.device(address)).unwrap();
        for (file, text) in [
            ("class", class.to_owned()),
            ("vendor", "0x8086".to_owned()),
            ("device", format!("{device:#06x}")),
            ("driver_override", "(null)".to_owned()),
        ] {
            fs::write(real.join(file), format!("{text}\n")).unwrap();
        }
        Added { tree: self, address: address.to_owned() }
    }

    pub(super) fn add_driver(&self, driver: &str) {
        fs::create_dir_all(self.root.join("sys/bus/pci/drivers").join(driver)).unwrap();
    }

    pub(super) fn set_driver(&self, address: &str, driver: Option<&str>) {
        self.kernel.set_driver(address, driver);
    }

    pub(super) fn set_group(&self, address: &str, group: u32) {
        let folder = format!("sys/kernel/iommu_groups/{group}");
        fs::create_dir_all(self.root.join(&folder).join("devices")).unwrap();
        symlink(format!("../../../kernel/iommu_groups/{group}"), self.device(address).join("iommu_group"))
            .unwrap();
        let link = self.root.join(folder).join("devices").join(address);
        symlink(format!("../../../../devices/pci0000:00/{address}"), link).unwrap();
    }

    pub(super) fn upper(&self, lower: &str, upper: &str) {
        let folder = self.root.join("sys/class/net").join(lower);
        fs::create_dir_all(&folder).unwrap();
        symlink(format!("../../virtual/net/{upper}"), folder.join(format!("upper_{upper}"))).unwrap();
    }

    pub(super) fn process(&self, pid: u32, command: &str, files: &[&str]) {
        self.write(&format!("proc/{pid}/comm"), &format!("{command}\n"));
        let folder = self.root.join(format!("proc/{pid}/fd"));
        fs::create_dir_all(&folder).unwrap();
        for (number, file) in files.iter().enumerate() {
            symlink(file, folder.join(number.to_string())).unwrap();
        }
    }

    /// The function's own driver becomes another.
    pub(super) fn set_own_driver(&self, address: &str, driver: &str) {
        self.kernel.own_drivers.lock().unwrap().insert(address.to_owned(), driver.to_owned());
    }

    /// Gives this process a user, capabilities in hex, and a limit on locked memory; 8 KiB are locked.
    pub(super) fn rights(&self, user: u32, capabilities: &str, lock_bytes: Option<u64>) {
        let status = format!(
            "Name:\ttest\nUid:\t0\t{user}\t0\t0\nGid:\t0\t{user}\t0\t0\nGroups:\t36 1000 \nVmLck:\t       8 kB\n\
             CapEff:\t{capabilities}\n"
        );
        self.write("proc/self/status", &status);
        let limit = lock_bytes.map_or_else(|| "unlimited".to_owned(), |bytes| bytes.to_string());
        let header = "Limit                     Soft Limit           Hard Limit           Units     \n";
        let line = format!("Max locked memory         {limit:<20} 8388608              bytes     \n");
        self.write("proc/self/limits", &format!("{header}{line}"));
    }

    pub(super) fn driver_fails(&self, driver: &str) {
        self.kernel.failing.lock().unwrap().push(driver.to_owned());
    }

    pub(super) fn refuse(&self, path_end: &str, errno: i32) {
        self.kernel.refused.lock().unwrap().push((path_end.to_owned(), errno));
    }

    pub(super) fn hang(&self, path_end: &str) {
        *self.kernel.hanging.lock().unwrap() = Some(path_end.to_owned());
    }

    pub(super) fn module(&self, name: &str) {
        self.write("proc/sys/kernel/modprobe", "/sbin/modprobe\n");
        self.kernel.modules.lock().unwrap().push(name.to_owned());
    }

    /// What was written, as `file text`.
    pub(super) fn log(&self) -> Vec<String> {
        self.kernel.log.lock().unwrap().clone()
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

impl Added<'_> {
    /// The driver has it, and takes it by itself when nothing else is said.
    pub(super) fn driver(self, driver: &str) -> Self {
        self.tree.add_driver(driver);
        self.tree.set_driver(&self.address, Some(driver));
        let mut own = self.tree.kernel.own_drivers.lock().unwrap();
        own.insert(self.address.clone(), driver.to_owned());
        drop(own);
        self
    }

    pub(super) fn group(self, group: u32) -> Self {
        self.tree.set_group(&self.address, group);
        self
    }

    pub(super) fn interface(self, name: &str, flags: &str) -> Self {
        let path = format!("sys/bus/pci/devices/{}/net/{name}/flags", self.address);
        self.tree.write(&path, &format!("{flags}\n"));
        self
    }

    pub(super) fn physical(self, address: &str) -> Self {
        symlink(format!("../{address}"), self.tree.device(&self.address).join("physfn")).unwrap();
        self
    }
}

impl Reacting {
    fn device(&self, address: &str) -> PathBuf {
        self.root.join("sys/bus/pci/devices").join(address)
    }

    fn set_driver(&self, address: &str, driver: Option<&str>) {
        let link = self.device(address).join("driver");
        let _ = fs::remove_file(&link);
        if let Some(driver) = driver {
            symlink(format!("../../../bus/pci/drivers/{driver}"), link).unwrap();
        }
    }

    fn probe(&self, address: &str) {
        let device = self.device(address);
        if device.join("driver").exists() {
            return;
        }
        let wanted = fs::read_to_string(device.join("driver_override")).unwrap();
        let wanted = match wanted.trim() {
            "" | "(null)" => self.own_drivers.lock().unwrap().get(address).cloned(),
            name => Some(name.to_owned()),
        };
        let there = |driver: &String| self.root.join("sys/bus/pci/drivers").join(driver).exists();
        let takes = |driver: &String| there(driver) && !self.failing.lock().unwrap().contains(driver);
        self.set_driver(address, wanted.filter(takes).as_deref());
    }
}

impl Reacting {
    /// bind_store: the driver must know the device, by its ids or by the override.
    fn attach(&self, driver: &str, address: &str) -> io::Result<()> {
        let wanted = fs::read_to_string(self.device(address).join("driver_override")).unwrap();
        let own = self.own_drivers.lock().unwrap().get(address).is_some_and(|own| own == driver);
        if self.failing.lock().unwrap().iter().any(|failing| failing == driver)
            || !own && wanted.trim() != driver
        {
            return Err(io::Error::from_raw_os_error(libc::ENODEV));
        }
        self.set_driver(address, Some(driver));
        Ok(())
    }
}

impl Kernel for Reacting {
    fn write(&self, path: &Path, text: &str) -> io::Result<()> {
        let name = path.file_name().unwrap().to_str().unwrap();
        self.log.lock().unwrap().push(format!("{name} {}", text.trim()));
        let ends = |end: &String| path.to_str().unwrap().ends_with(end.as_str());
        if self.hanging.lock().unwrap().as_ref().is_some_and(ends) {
            std::thread::sleep(Duration::from_secs(2));
        }
        if let Some((_, errno)) = self.refused.lock().unwrap().iter().find(|(end, _)| ends(end)) {
            return Err(io::Error::from_raw_os_error(*errno));
        }
        match name {
            "unbind" => self.set_driver(text, None),
            "drivers_probe" => self.probe(text),
            "bind" => {
                return self.attach(path.parent().and_then(Path::file_name).unwrap().to_str().unwrap(), text);
            }
            _ => fs::write(path, text)?,
        }
        Ok(())
    }

    fn load_module(&self, name: &str) -> io::Result<()> {
        if !self.modules.lock().unwrap().iter().any(|module| module == name) {
            return Err(io::Error::other(format!("FATAL: Module {name} not found")));
        }
        fs::create_dir_all(self.root.join("sys/bus/pci/drivers").join(name))
    }
}
