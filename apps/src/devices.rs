//! `pollring devices`: what this machine has and what of it a run can open.
//!
//! It only reads sysfs: no device is opened, bound or touched. The list has two parts, the PCI network functions (class 02) with the
//! driver that holds each, and the simulated devices, which are all that this version opens.

use crate::error::AppError;
use crate::output::{self, Format};
use crate::ports::SIMULATED_FORMS;
use pollring::bus::PciAddress;
use pollring_drivers::DriverEntry;
use serde::{Serialize, Serializer};
use std::fs;
use std::io;
use std::path::Path;

/// Where the kernel lists PCI functions (Documentation/ABI/testing/sysfs-bus-pci).
const PCI_DEVICES: &str = "/sys/bus/pci/devices";

/// Base class of network controllers (PCI Code and ID Assignment 1.3).
const CLASS_NETWORK: u32 = 0x02;

const NOT_USABLE: &str = "not usable in this version: needs VFIO";

/// Arguments of `pollring devices`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A PCI network function, as sysfs shows it.
#[derive(Debug, Serialize)]
struct Function {
    #[serde(serialize_with = "as_text")]
    address: PciAddress,
    vendor: u16,
    device: u16,
    /// The kernel driver that is bound to it.
    kernel_driver: Option<String>,
    numa_node: Option<u16>,
    /// The driver of this project that knows it.
    pollring_driver: Option<&'static str>,
    model: Option<&'static str>,
    usable: bool,
    reason: &'static str,
}

#[derive(Debug, Serialize)]
struct SimulatedDevice {
    uri: &'static str,
    model: &'static str,
}

#[derive(Debug, Serialize)]
struct Listing {
    pci: Vec<Function>,
    simulated: Vec<SimulatedDevice>,
}

/// Prints the devices.
pub(crate) fn run(arguments: &Arguments) -> Result<(), AppError> {
    let pci = scan(Path::new(PCI_DEVICES), pollring_drivers::builtin())
        .map_err(|error| AppError::System { step: "list /sys/bus/pci/devices", error })?;
    let simulated = SIMULATED_FORMS.iter().map(|(uri, model)| SimulatedDevice { uri, model }).collect();
    let listing = Listing { pci, simulated };
    match Format::from_switch(arguments.json) {
        Format::Json => output::write_json(&listing),
        Format::People => output::write_text(&listing.to_text()),
    }
}

/// The network functions below `root`, by address. A machine without PCI has none.
fn scan(root: &Path, drivers: &[DriverEntry]) -> io::Result<Vec<Function>> {
    let entries = match fs::read_dir(root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut functions: Vec<Function> =
        entries.filter_map(|entry| function(&entry.ok()?.path(), drivers)).collect();
    functions.sort_by_key(|function| function.address);
    Ok(functions)
}

/// Reads one function; `None` when it is no network controller, or goes while it is read.
fn function(path: &Path, drivers: &[DriverEntry]) -> Option<Function> {
    let address = path.file_name()?.to_str()?.parse().ok()?;
    if hex(path, "class")? >> 16 != CLASS_NETWORK {
        return None;
    }
    let (vendor, device) = (hex(path, "vendor")? as u16, hex(path, "device")? as u16);
    let known = pollring_drivers::find(drivers, vendor, device);
    let kernel_driver = fs::read_link(path.join("driver")).ok();
    let kernel_driver = kernel_driver.and_then(|link| Some(link.file_name()?.to_str()?.to_owned()));
    // -1 says that the firmware does not know (Documentation/ABI/testing/sysfs-bus-pci).
    let numa_node = fs::read_to_string(path.join("numa_node")).ok().and_then(|text| text.trim().parse().ok());
    Some(Function {
        address,
        vendor,
        device,
        kernel_driver,
        numa_node,
        pollring_driver: known.map(|entry| entry.driver),
        model: known.map(|entry| entry.model),
        usable: false,
        reason: if known.is_some() { NOT_USABLE } else { "no driver for it in pollring" },
    })
}

fn hex(path: &Path, file: &str) -> Option<u32> {
    let text = fs::read_to_string(path.join(file)).ok()?;
    u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
}

fn as_text<S: Serializer>(address: &PciAddress, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(address)
}

impl Function {
    fn row(&self) -> Vec<String> {
        let dash = || "-".to_owned();
        let pollring = match (self.pollring_driver, self.model) {
            (Some(driver), Some(model)) => format!("{driver} knows it ({model}); {}", self.reason),
            _ => self.reason.to_owned(),
        };
        vec![
            self.address.to_string(),
            format!("{:04x}:{:04x}", self.vendor, self.device),
            self.kernel_driver.clone().unwrap_or_else(dash),
            self.numa_node.map_or_else(dash, |node| node.to_string()),
            pollring,
        ]
    }
}

impl Listing {
    fn to_text(&self) -> String {
        let pci = if self.pci.is_empty() {
            "no PCI network functions (none in /sys/bus/pci/devices)".to_owned()
        } else {
            let header = ["PCI address", "id", "kernel driver", "node", "pollring"];
            output::table(&header, &[3], self.pci.iter().map(Function::row))
        };
        let rows = self.simulated.iter().map(|device| vec![device.uri.to_owned(), device.model.to_owned()]);
        let simulated = output::table(&["simulated", "what it is"], &[], rows);
        format!("{pci}\n\n{simulated}\n\nOpen simulated ports with: pollring forward sim:igb sim:igb\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// A sysfs tree for one test, removed when dropped.
    struct Tree(std::path::PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let path = std::env::temp_dir().join(format!("pollring-devices-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).unwrap();
            Tree(path)
        }

        fn add(&self, address: &str, class: &str, device: &str, node: &str) -> std::path::PathBuf {
            let path = self.0.join(address);
            fs::create_dir_all(&path).unwrap();
            for (file, text) in
                [("class", class), ("vendor", "0x8086"), ("device", device), ("numa_node", node)]
            {
                fs::write(path.join(file), format!("{text}\n")).unwrap();
            }
            path
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
        let bound = tree.add("0000:02:00.0", "0x020000", "0x10c9", "1");
        symlink("../../../bus/pci/drivers/igb", bound.join("driver")).unwrap();
        tree.add("0000:01:00.1", "0x028000", "0xffff", "-1");
        tree.add("0000:00:1f.0", "0x060100", "0x10c9", "0");
        fs::create_dir(tree.0.join("not an address")).unwrap();
        let found = scan(&tree.0, pollring_drivers::builtin()).unwrap();
        let rows: Vec<_> = found.iter().map(Function::row).collect();
        assert_eq!(rows.len(), 2);
        assert_eq!(rows[0], ["0000:01:00.1", "8086:ffff", "-", "-", "no driver for it in pollring"]);
        assert_eq!(rows[1][..4], ["0000:02:00.0", "8086:10c9", "igb", "1"]);
        assert!(rows[1][4].contains("Intel 82576") && rows[1][4].contains("needs VFIO"), "{}", rows[1][4]);
    }

    #[test]
    fn a_machine_without_pci_has_none() {
        assert!(scan(Path::new("/nonexistent/pci"), &[]).unwrap().is_empty());
        let tree = Tree::new("empty");
        assert!(scan(&tree.0, &[]).unwrap().is_empty());
    }

    #[test]
    fn a_function_that_goes_while_it_is_read_is_left_out() {
        let tree = Tree::new("gone");
        fs::create_dir(tree.0.join("0000:03:00.0")).unwrap();
        assert!(scan(&tree.0, &[]).unwrap().is_empty());
    }

    #[test]
    fn the_text_names_simulated_devices_even_without_pci() {
        let simulated = vec![SimulatedDevice { uri: "sim:igb", model: "a model" }];
        let text = Listing { pci: Vec::new(), simulated }.to_text();
        assert!(text.contains("no PCI network functions") && text.contains("sim:igb"), "{text}");
    }
}
