//! One PCI function, as sysfs shows it (Documentation/ABI/testing/sysfs-bus-pci).
//!
//! A [`Function`] is a copy of what was true when it was read; nothing in it is open.

use super::network::{Routes, Traffic};
use super::{Interface, Sysfs, link_name, text};
use crate::bus::PciAddress;
use std::fmt;
use std::path::Path;

/// Base class of network controllers (PCI Code and ID Assignment 1.3).
const CLASS_NETWORK: u32 = 0x02;
/// Base class of bridges.
const CLASS_BRIDGE: u32 = 0x06;

/// A PCI function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Where it is.
    pub address: PciAddress,
    /// Vendor id.
    pub vendor: u16,
    /// Device id.
    pub device: u16,
    /// Subsystem vendor and device id; zero where it has none.
    pub subsystem: (u16, u16),
    /// Base class, subclass and programming interface, in bits 23:0.
    pub class: u32,
    /// The kernel driver that has it.
    pub driver: Option<String>,
    /// The only driver that may take it.
    pub driver_override: Option<String>,
    /// The NUMA node next to it; `None` when the firmware does not say.
    pub numa_node: Option<u16>,
    /// Its IOMMU group.
    pub group: Option<u32>,
    /// Bytes of each BAR; 0 where there is none.
    pub bar_bytes: [u64; 6],
    /// Its network interfaces in this network namespace.
    pub interfaces: Vec<Interface>,
    /// The physical function, if it is a virtual one.
    pub physical: Option<PciAddress>,
    /// Virtual functions that are on now.
    pub virtual_functions: u16,
}

impl fmt::Display for Function {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = self.driver.as_deref().unwrap_or("no driver");
        write!(f, "{} ({:04x}:{:04x}, {driver})", self.address, self.vendor, self.device)
    }
}

impl Function {
    /// Whether it is a network controller.
    pub fn is_network(&self) -> bool {
        self.class >> 16 == CLASS_NETWORK
    }

    /// Whether other functions are behind it.
    pub fn is_bridge(&self) -> bool {
        self.class >> 16 == CLASS_BRIDGE
    }

    /// Whether a driver of VFIO has it.
    pub fn is_bound_to_vfio(&self) -> bool {
        self.driver.as_deref().is_some_and(is_vfio)
    }

    /// The interface that the host needs most.
    pub fn busiest(&self) -> Option<&Interface> {
        self.interfaces.iter().max_by_key(|interface| match interface.traffic {
            Traffic::None => 0,
            Traffic::Routes { .. } => 1,
            Traffic::DefaultRoute { .. } => 2,
        })
    }
}

/// Whether a kernel driver is vfio-pci or one of its variants for a vendor (mlx5_vfio_pci, hisi-acc-vfio-pci and the like).
pub fn is_vfio(driver: &str) -> bool {
    driver.ends_with("vfio-pci") || driver.ends_with("vfio_pci")
}

impl Sysfs {
    /// Reads one function; `None` when there is none, or when it goes meanwhile.
    pub(super) fn read_function(&self, address: PciAddress, routes: &Routes) -> Option<Function> {
        let path = self.device(address);
        let id = |file: &str| hex(&path.join(file)).unwrap_or_default() as u16;
        Some(Function {
            address,
            vendor: hex(&path.join("vendor"))? as u16,
            device: hex(&path.join("device"))? as u16,
            class: hex(&path.join("class"))?,
            subsystem: (id("subsystem_vendor"), id("subsystem_device")),
            driver: link_name(&path.join("driver")),
            driver_override: text(&path.join("driver_override")).filter(|name| is_override(name)),
            // -1 says that the firmware does not know.
            numa_node: text(&path.join("numa_node")).and_then(|node| node.parse().ok()),
            group: link_name(&path.join("iommu_group")).and_then(|group| group.parse().ok()),
            bar_bytes: bar_bytes(&text(&path.join("resource")).unwrap_or_default()),
            interfaces: self.interfaces(&path, routes),
            physical: link_name(&path.join("physfn")).and_then(|physical| physical.parse().ok()),
            virtual_functions: text(&path.join("sriov_numvfs")).and_then(|n| n.parse().ok()).unwrap_or(0),
        })
    }

    /// The driver that has the function now.
    pub(super) fn driver_of(&self, address: PciAddress) -> Option<String> {
        link_name(&self.device(address).join("driver"))
    }
}

/// The kernel prints `(null)` where no override is set.
fn is_override(name: &str) -> bool {
    !name.is_empty() && name != "(null)"
}

fn hex(path: &Path) -> Option<u32> {
    u32::from_str_radix(text(path)?.trim_start_matches("0x"), 16).ok()
}

/// The first six lines of `resource` are the BARs: first address, last address, flags; all zero where there is none.
fn bar_bytes(resource: &str) -> [u64; 6] {
    let mut bytes = [0; 6];
    for (size, line) in bytes.iter_mut().zip(resource.lines()) {
        let mut words =
            line.split_whitespace().map(|word| u64::from_str_radix(word.trim_start_matches("0x"), 16));
        if let (Some(Ok(first)), Some(Ok(last))) = (words.next(), words.next())
            && last > first
        {
            *size = (last - first).saturating_add(1);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::sysfs::tests::Tree;

    #[test]
    fn a_function_has_what_sysfs_says() {
        let tree = Tree::new("function");
        tree.add("0000:01:00.0", "0x020000", 0x10c9).driver("igb").group(7).interface("eth1", "0x1003");
        let path = tree.device("0000:01:00.0");
        for (file, text) in [
            ("subsystem_vendor", "0x8086"),
            ("subsystem_device", "0xa03c"),
            ("numa_node", "1"),
            ("sriov_numvfs", "2"),
            ("resource", "0xfe000000 0xfe01ffff 0x40200\n0x0 0x0 0x0\n0x1000 0x101f 0x40101"),
        ] {
            std::fs::write(path.join(file), format!("{text}\n")).unwrap();
        }
        let function = tree.sysfs().function("01:00.0".parse().unwrap()).unwrap();
        assert_eq!((function.vendor, function.device, function.class), (0x8086, 0x10c9, 0x02_0000));
        assert_eq!((function.subsystem, function.numa_node), ((0x8086, 0xa03c), Some(1)));
        assert_eq!((function.driver.as_deref(), function.driver_override), (Some("igb"), None));
        assert_eq!((function.group, function.virtual_functions, function.physical), (Some(7), 2, None));
        assert_eq!(function.bar_bytes, [0x2_0000, 0, 0x20, 0, 0, 0]);
        assert_eq!(function.interfaces.len(), 1);
        assert_eq!((&*function.interfaces[0].name, function.interfaces[0].up), ("eth1", true));
    }

    #[test]
    fn what_is_missing_is_none() {
        let tree = Tree::new("missing");
        tree.add("0000:02:00.0", "0x020000", 0x10ca).physical("0000:01:00.0");
        std::fs::write(tree.device("0000:02:00.0").join("numa_node"), "-1\n").unwrap();
        std::fs::create_dir_all(tree.root().join("sys/bus/pci/devices/0000:03:00.0")).unwrap();
        let functions = tree.sysfs().functions().unwrap();
        assert_eq!(functions.len(), 1, "one that has no files is on its way out");
        let function = &functions[0];
        assert_eq!((function.numa_node, function.group, &function.driver), (None, None, &None));
        assert_eq!(function.physical, Some("0000:01:00.0".parse().unwrap()));
        assert_eq!(function.driver_override, None);
        let error = tree.sysfs().function("0000:09:00.0".parse().unwrap()).unwrap_err().to_string();
        assert!(
            error.contains("0000:09:00.0") && error.contains("0000:02:00.0 (8086:10ca, no driver)"),
            "{error}"
        );
        assert!(Sysfs::at("/nonexistent").functions().unwrap().is_empty());
        let none = Sysfs::at("/nonexistent").function("0000:09:00.0".parse().unwrap()).unwrap_err();
        assert!(none.to_string().contains("no PCI network function"), "{none}");
    }

    #[test]
    fn variants_for_vendors_are_vfio_too() {
        for (driver, is) in [("vfio-pci", true), ("mlx5_vfio_pci", true), ("igb", false), ("pci-stub", false)]
        {
            assert_eq!(is_vfio(driver), is, "{driver}");
        }
    }
}
