//! `pollring devices`: what this machine has and what of it a run can open.
//!
//! It only reads: no device is opened, bound or touched. The list has three parts, the PCI network functions (class 02) with what is
//! missing until a run can open each, the simulated devices, and the copy engines that open without a device.

use crate::copy::ENGINE_FORMS;
use crate::error::AppError;
use crate::output::{self, Format};
use crate::ports::SIMULATED_FORMS;
use pollring::bus::sysfs::{Function, NotReady, Sysfs, Traffic};
use pollring_drivers::DriverEntry;
use serde::Serialize;

/// Arguments of `pollring devices`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A PCI network function.
#[derive(Debug, Serialize)]
struct Row {
    address: String,
    uri: String,
    vendor: u16,
    device: u16,
    /// The kernel driver that is bound to it.
    kernel_driver: Option<String>,
    /// Its IOMMU group.
    group: Option<u32>,
    numa_node: Option<u16>,
    interfaces: Vec<String>,
    /// The driver of this project that knows it.
    pollring_driver: Option<&'static str>,
    model: Option<&'static str>,
    /// Whether a run can open it now.
    usable: bool,
    state: State,
    /// The same for a table.
    #[serde(skip)]
    short: String,
    /// The same with the next step.
    reason: String,
}

/// How far a function is from a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum State {
    /// A run can open it.
    Ready,
    /// No driver of ours knows it.
    NoDriver,
    /// The host's default route leads through it.
    DefaultRoute,
    /// Other routes lead through it.
    InUse,
    /// It has no IOMMU group.
    NoIommu,
    /// Another driver has it, or none.
    NotBound,
    /// vfio-pci has it, and something else is missing.
    NotReady,
}

#[derive(Debug, Serialize)]
struct SimulatedDevice {
    uri: &'static str,
    model: &'static str,
}

#[derive(Debug, Serialize)]
struct Listing {
    pci: Vec<Row>,
    simulated: Vec<SimulatedDevice>,
    engines: Vec<SimulatedDevice>,
}

/// Prints the devices.
pub(crate) fn run(arguments: &Arguments) -> Result<(), AppError> {
    let pci = scan(&Sysfs::new(), pollring_drivers::builtin())?;
    let list = |forms: &[(&'static str, &'static str)]| {
        forms.iter().map(|(uri, model)| SimulatedDevice { uri, model }).collect()
    };
    let listing = Listing { pci, simulated: list(SIMULATED_FORMS), engines: list(ENGINE_FORMS) };
    match Format::from_switch(arguments.json) {
        Format::Json => output::write_json(&listing),
        Format::People => output::write_text(&listing.to_text()),
    }
}

/// The network functions, by address. A machine without PCI has none.
fn scan(sysfs: &Sysfs, drivers: &[DriverEntry]) -> Result<Vec<Row>, AppError> {
    let step = "list /sys/bus/pci/devices and the routes of /proc/net";
    let functions = sysfs.functions().map_err(|error| AppError::System { step, error })?;
    let network = functions.into_iter().filter(Function::is_network);
    Ok(network.map(|function| Row::new(sysfs, function, drivers)).collect())
}

impl Row {
    fn new(sysfs: &Sysfs, function: Function, drivers: &[DriverEntry]) -> Row {
        let known = pollring_drivers::find(drivers, function.vendor, function.device);
        let (state, short, reason) = match known {
            Some(_) => state(sysfs, &function),
            None => {
                let text = "no driver for it in pollring".to_owned();
                (State::NoDriver, text.clone(), text)
            }
        };
        Row {
            address: function.address.to_string(),
            uri: format!("pci:{}", function.address),
            vendor: function.vendor,
            device: function.device,
            kernel_driver: function.driver,
            group: function.group,
            numa_node: function.numa_node,
            interfaces: function.interfaces.into_iter().map(|interface| interface.name).collect(),
            pollring_driver: known.map(|entry| entry.driver),
            model: known.map(|entry| entry.model),
            usable: state == State::Ready,
            state,
            short,
            reason,
        }
    }

    fn cells(&self) -> Vec<String> {
        let dash = || "-".to_owned();
        let number = |number: Option<u32>| number.map_or_else(dash, |number| number.to_string());
        let model = self.pollring_driver.zip(self.model);
        vec![
            self.address.clone(),
            format!("{:04x}:{:04x}", self.vendor, self.device),
            model.map_or_else(dash, |(driver, model)| format!("{driver} ({model})")),
            self.kernel_driver.clone().unwrap_or_else(dash),
            number(self.group),
            number(self.numa_node.map(u32::from)),
            if self.interfaces.is_empty() { dash() } else { self.interfaces.join(" ") },
            self.short.clone(),
        ]
    }
}

/// How far a function is, in few words and in many. Packet memory is not known here, so the limit on locked memory is not looked at.
fn state(sysfs: &Sysfs, function: &Function) -> (State, String, String) {
    let address = function.address;
    let error = match sysfs.check_ready(address, 0) {
        Ok(_) => {
            let text = format!("ready: pci:{address}");
            return (State::Ready, text.clone(), text);
        }
        Err(error) => error,
    };
    let state = match &error {
        NotReady::NoGroup(_) => State::NoIommu,
        NotReady::NotBound { driver, .. } => return not_bound(function, driver.as_deref()),
        _ => State::NotReady,
    };
    (state, error.summary().to_owned(), error.to_string())
}

fn not_bound(function: &Function, driver: Option<&str>) -> (State, String, String) {
    let address = function.address;
    let routes = |state, short: String| {
        let long = format!(
            "{short}; binding it would cut that off: remove the routes, or `pollring bind --force {address}`"
        );
        (state, short, long)
    };
    match function.busiest().map(|interface| &interface.traffic) {
        Some(Traffic::DefaultRoute { interface }) => {
            routes(State::DefaultRoute, format!("default route through {interface}"))
        }
        Some(Traffic::Routes { interface }) => routes(State::InUse, format!("routes through {interface}")),
        Some(Traffic::None) | None => {
            let now = driver.map_or_else(|| "no driver".to_owned(), |driver| format!("bound to {driver}"));
            let text = format!("{now}: `pollring bind {address}`");
            (State::NotBound, text.clone(), text)
        }
    }
}

impl Listing {
    fn to_text(&self) -> String {
        let pci = if self.pci.is_empty() {
            "no PCI network functions (none in /sys/bus/pci/devices)".to_owned()
        } else {
            let header =
                ["PCI address", "id", "pollring", "kernel driver", "group", "node", "interface", "state"];
            output::table(&header, &[4, 5], self.pci.iter().map(Row::cells))
        };
        let table = |title, devices: &[SimulatedDevice]| {
            let rows = devices.iter().map(|device| vec![device.uri.to_owned(), device.model.to_owned()]);
            output::table(&[title, "what it is"], &[], rows)
        };
        let simulated = table("simulated", &self.simulated);
        let engines = table("copy engine", &self.engines);
        let open = "Open simulated ports with: pollring forward sim:igb sim:igb\n\
            Run a copy engine with: pollring copy sim:ioat --verify";
        format!("{pci}\n{}\n{simulated}\n\n{engines}\n\n{open}\n", self.notes())
    }

    /// What is missing, in full, where a table has too little room; the same thing once.
    fn notes(&self) -> String {
        let missing = |row: &&Row| matches!(row.state, State::NotReady | State::NoIommu);
        let mut seen = Vec::new();
        let rows = self.pci.iter().filter(missing).filter(|row| {
            let new = !seen.contains(&&row.short);
            seen.push(&row.short);
            new
        });
        rows.map(|row| format!("\n{}\n", row.reason)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// A machine of files for one test, removed when dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let path = std::env::temp_dir().join(format!("pollring-devices-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("dev/vfio")).unwrap();
            fs::write(path.join("dev/vfio/vfio"), "").unwrap();
            Tree(path)
        }

        fn device(&self, address: &str) -> PathBuf {
            self.0.join("sys/bus/pci/devices").join(address)
        }

        fn add(&self, address: &str, class: &str, device: &str, driver: Option<&str>, group: Option<u32>) {
            let path = self.device(address);
            fs::create_dir_all(&path).unwrap();
            for (file, text) in
                [("class", class), ("vendor", "0x8086"), ("device", device), ("numa_node", "1")]
            {
                fs::write(path.join(file), format!("{text}\n")).unwrap();
            }
            if let Some(driver) = driver {
                symlink(format!("../../../bus/pci/drivers/{driver}"), path.join("driver")).unwrap();
            }
            if let Some(group) = group {
                symlink(format!("../../../../kernel/iommu_groups/{group}"), path.join("iommu_group"))
                    .unwrap();
                fs::write(self.0.join(format!("dev/vfio/{group}")), "").unwrap();
            }
        }

        fn interface(&self, address: &str, name: &str) {
            let path = self.device(address).join("net").join(name);
            fs::create_dir_all(&path).unwrap();
            fs::write(path.join("flags"), "0x1003\n").unwrap();
        }

        fn rows(&self) -> Vec<Vec<String>> {
            let rows = scan(&Sysfs::at(&self.0), pollring_drivers::builtin()).unwrap();
            rows.iter().map(Row::cells).collect()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn network_functions_are_listed_by_address_and_others_are_not() {
        let tree = Tree::new("list");
        tree.add("0000:02:00.0", "0x020000", "0x10c9", Some("igb"), Some(3));
        tree.add("0000:01:00.1", "0x028000", "0xffff", None, None);
        tree.add("0000:00:1f.0", "0x060100", "0x10c9", None, None);
        tree.interface("0000:02:00.0", "eth1");
        fs::create_dir(tree.device("not an address")).unwrap();
        let rows = tree.rows();
        assert_eq!(rows.len(), 2);
        let wanted = ["0000:01:00.1", "8086:ffff", "-", "-", "-", "1", "-", "no driver for it in pollring"];
        assert_eq!(rows[0], wanted);
        let state = "bound to igb: `pollring bind 0000:02:00.0`";
        let wanted = ["0000:02:00.0", "8086:10c9", "igb (Intel 82576)", "igb", "3", "1", "eth1", state];
        assert_eq!(rows[1], wanted);
    }

    #[test]
    fn the_state_says_what_is_missing() {
        let tree = Tree::new("states");
        tree.add("0000:01:00.0", "0x020000", "0x10c9", Some("vfio-pci"), Some(1));
        tree.add("0000:02:00.0", "0x020000", "0x10c9", Some("igb"), None);
        tree.add("0000:03:00.0", "0x020000", "0x10c9", None, Some(3));
        tree.add("0000:04:00.0", "0x020000", "0x10c9", Some("vfio-pci"), Some(4));
        tree.add("0000:05:00.0", "0x020000", "0x10c9", Some("igb"), Some(5));
        tree.add("0000:06:00.0", "0x020000", "0x10c9", Some("igb"), Some(6));
        fs::remove_file(tree.0.join("dev/vfio/4")).unwrap();
        tree.interface("0000:05:00.0", "eth5");
        tree.interface("0000:06:00.0", "eth6");
        fs::create_dir_all(tree.0.join("proc/net")).unwrap();
        let routes =
            "header\neth5 00000000 0 0003 0 0 0 00000000 0 0 0\neth6 000200C0 0 0001 0 0 0 00FFFFFF 0 0 0\n";
        fs::write(tree.0.join("proc/net/route"), routes).unwrap();
        let rows = tree.rows();
        let states: Vec<&str> = rows.iter().map(|row| &*row[7]).collect();
        let wanted = [
            "ready: pci:0000:01:00.0",
            "no IOMMU",
            "no driver: `pollring bind 0000:03:00.0`",
            "no node of its group in /dev/vfio",
            "default route through eth5",
            "routes through eth6",
        ];
        assert_eq!(states, wanted);
        let listing = scan(&Sysfs::at(&tree.0), pollring_drivers::builtin()).unwrap();
        assert_eq!(
            listing.iter().map(|row| row.usable).collect::<Vec<_>>(),
            [true, false, false, false, false, false]
        );
        assert!(listing[1].reason.contains("intel_iommu=on"), "{}", listing[1].reason);
        let json = serde_json::to_value(&listing[4]).unwrap();
        assert_eq!(
            (&json["state"], &json["group"], &json["uri"]),
            (&"default-route".into(), &5.into(), &"pci:0000:05:00.0".into())
        );
    }

    #[test]
    fn a_machine_without_pci_has_none() {
        assert!(scan(&Sysfs::at("/nonexistent"), &[]).unwrap().is_empty());
        let tree = Tree::new("empty");
        assert!(tree.rows().is_empty());
        fs::create_dir_all(tree.device("0000:03:00.0")).unwrap();
        assert!(tree.rows().is_empty(), "one that goes while it is read is left out");
    }

    #[test]
    fn the_text_names_simulated_devices_even_without_pci() {
        let simulated = vec![SimulatedDevice { uri: "sim:igb", model: "a model" }];
        let text = Listing { pci: Vec::new(), simulated, engines: Vec::new() }.to_text();
        assert!(text.contains("no PCI network functions") && text.contains("sim:igb"), "{text}");
    }

    #[test]
    fn what_is_missing_stands_below_the_table_once() {
        let tree = Tree::new("notes");
        tree.add("0000:01:00.0", "0x020000", "0x10c9", Some("igb"), None);
        tree.add("0000:02:00.0", "0x020000", "0x10c9", Some("igb"), None);
        let pci = scan(&Sysfs::at(&tree.0), pollring_drivers::builtin()).unwrap();
        let text = Listing { pci, simulated: Vec::new(), engines: Vec::new() }.to_text();
        assert_eq!(text.matches("intel_iommu=on").count(), 1, "{text}");
    }
}
