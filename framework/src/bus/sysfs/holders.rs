//! Processes that use a function through VFIO.
//!
//! Found by their open files: the group's node, the function's own node (/dev/vfio/devices), or a device descriptor without either,
//! which kernels from 6.17 on name in fdinfo. Processes of other users are seen by root only, and those of other PID namespaces
//! by nobody.

use super::{Function, Sysfs, names_in};
use std::fmt;
use std::fs;
use std::path::Path;

/// A process that has the function or its group open.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its id.
    pub pid: u32,
    /// Its command name.
    pub command: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "process {} ({})", self.pid, self.command)
    }
}

impl Sysfs {
    /// Who has the function or its group open.
    pub fn holders(&self, function: &Function) -> Vec<Holder> {
        let mut nodes: Vec<String> =
            function.group.iter().map(|group| format!("/dev/vfio/{group}")).collect();
        let own = names_in(&self.device(function.address).join("vfio-dev")).unwrap_or_default();
        nodes.extend(own.iter().map(|name| format!("/dev/vfio/devices/{name}")));
        let address = function.address.to_string();
        let processes = names_in(&self.path("proc")).unwrap_or_default();
        let mut holders: Vec<Holder> = processes
            .iter()
            .filter_map(|name| {
                let (pid, folder) = (name.parse().ok()?, self.path("proc").join(name));
                let holds = holds(&folder, &nodes, &address);
                let command = holds.then(|| super::text(&folder.join("comm")).unwrap_or_default())?;
                Some(Holder { pid, command })
            })
            .collect();
        holders.sort_by_key(|holder| holder.pid);
        holders
    }
}

fn holds(process: &Path, nodes: &[String], address: &str) -> bool {
    let files = names_in(&process.join("fd")).unwrap_or_default();
    files.iter().any(|file| {
        let Ok(target) = fs::read_link(process.join("fd").join(file)) else { return false };
        let target = target.to_string_lossy();
        nodes.iter().any(|node| *node == target)
            || target == "anon_inode:[vfio-device]" && is_device(&process.join("fdinfo").join(file), address)
    })
}

/// `vfio-device-syspath: /sys/devices/.../0000:01:00.0` (drivers/vfio/vfio_main.c).
fn is_device(fdinfo: &Path, address: &str) -> bool {
    let text = fs::read_to_string(fdinfo).unwrap_or_default();
    text.lines()
        .any(|line| line.starts_with("vfio-device-syspath:") && line.ends_with(&format!("/{address}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::sysfs::tests::Tree;

    #[test]
    fn processes_are_found_by_their_open_files() {
        let tree = Tree::new("holders");
        tree.add("0000:01:00.0", "0x020000", 0x10c9).driver("vfio-pci").group(7);
        fs::create_dir_all(tree.device("0000:01:00.0").join("vfio-dev/vfio3")).unwrap();
        tree.process(100, "sleep", &["/dev/null", "/dev/vfio/70", "/dev/vfio/vfio"]);
        tree.process(300, "qemu", &["/dev/null", "/dev/vfio/7"]);
        tree.process(200, "pollring", &["/dev/vfio/devices/vfio3"]);
        for (pid, address) in [(400, "0000:01:00.0"), (500, "0000:02:00.0")] {
            tree.process(pid, "child", &["anon_inode:[vfio-device]"]);
            let syspath = format!("pos:\t0\nvfio-device-syspath: /sys/devices/pci0000:00/{address}\n");
            tree.write(&format!("proc/{pid}/fdinfo/0"), &syspath);
        }
        let function = tree.sysfs().function("0000:01:00.0".parse().unwrap()).unwrap();
        let holders: Vec<String> = tree.sysfs().holders(&function).iter().map(ToString::to_string).collect();
        assert_eq!(holders, ["process 200 (pollring)", "process 300 (qemu)", "process 400 (child)"]);
    }
}
