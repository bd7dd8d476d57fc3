//! IOMMU groups: functions that the IOMMU cannot tell apart, so that one process has all of them or none.
//!
//! A group is viable when no function in it is held by a kernel driver that does DMA by itself (drivers/iommu/iommu.c,
//! `driver_managed_dma`): vfio-pci and its variants, pci-stub and pcieport are fine, and so is no driver. Bridges do no DMA.

use super::{IommuState, Sysfs, addresses_in, is_vfio, link_name, names_in, text};
use crate::bus::PciAddress;
use std::fmt;

/// A function in a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Where it is.
    pub address: PciAddress,
    /// Base class, subclass and programming interface.
    pub class: u32,
    /// The kernel driver that has it.
    pub driver: Option<String>,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = self.driver.as_deref().unwrap_or("no driver");
        write!(f, "{} (class {:04x}, {driver})", self.address, self.class >> 8)
    }
}

impl Member {
    /// Whether it is a bridge or a PCIe port.
    pub fn is_bridge(&self) -> bool {
        self.class >> 16 == 0x06
    }

    /// Whether the group cannot be opened because of it.
    pub fn blocks(&self) -> bool {
        let harmless = |driver: &str| is_vfio(driver) || matches!(driver, "pcieport" | "pci-stub");
        !self.is_bridge() && self.driver.as_deref().is_some_and(|driver| !harmless(driver))
    }
}

impl Sysfs {
    /// The functions of a group, by address; none when there is no such group.
    pub fn group(&self, group: u32) -> Vec<Member> {
        let folder = self.path("sys/kernel/iommu_groups").join(group.to_string()).join("devices");
        let member = |address| {
            let path = self.device(address);
            let class = text(&path.join("class"));
            let class = class.and_then(|class| u32::from_str_radix(class.trim_start_matches("0x"), 16).ok());
            Member { address, class: class.unwrap_or_default(), driver: link_name(&path.join("driver")) }
        };
        addresses_in(&folder).unwrap_or_default().into_iter().map(member).collect()
    }

    /// Whether the kernel uses an IOMMU.
    pub fn iommu(&self) -> IommuState {
        let any = |folder| !names_in(&self.path(folder)).unwrap_or_default().is_empty();
        if any("sys/class/iommu") || any("sys/kernel/iommu_groups") {
            IommuState::On
        } else {
            IommuState::Off
        }
    }

    /// `addresses` and what shares an IOMMU group with one of them, but for bridges; in order, each once.
    pub fn with_groups(&self, addresses: &[PciAddress]) -> Vec<PciAddress> {
        let mut all = addresses.to_vec();
        for address in addresses {
            let group = link_name(&self.device(*address).join("iommu_group"));
            let members = group.and_then(|group| group.parse().ok()).map(|group| self.group(group));
            let endpoints = members.into_iter().flatten().filter(|member| !member.is_bridge());
            all.extend(endpoints.map(|member| member.address));
        }
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::sysfs::tests::Tree;

    #[test]
    fn only_kernel_drivers_of_endpoints_block_a_group() {
        let tree = Tree::new("group");
        tree.add("0000:00:1c.0", "0x060400", 0x1).driver("pcieport").group(3);
        tree.add("0000:01:00.0", "0x020000", 0x10c9).driver("vfio-pci").group(3);
        tree.add("0000:01:00.1", "0x020000", 0x10c9).driver("igb").group(3);
        tree.add("0000:01:00.2", "0x0c0330", 0x2).group(3);
        tree.add("0000:01:00.3", "0x060400", 0x3).driver("shpchp").group(3);
        tree.add("0000:02:00.0", "0x020000", 0x10c9).driver("igb").group(4);
        let sysfs = tree.sysfs();
        let group = sysfs.group(3);
        assert_eq!(group.len(), 5);
        let blocking: Vec<String> =
            group.iter().filter(|one| one.blocks()).map(ToString::to_string).collect();
        assert_eq!(blocking, ["0000:01:00.1 (class 0200, igb)"]);
        let all = sysfs.with_groups(&["0000:01:00.1".parse().unwrap(), "0000:09:00.0".parse().unwrap()]);
        let all: Vec<String> = all.iter().map(ToString::to_string).collect();
        assert_eq!(all, ["0000:01:00.0", "0000:01:00.1", "0000:01:00.2", "0000:09:00.0"]);
        assert_eq!(sysfs.iommu(), IommuState::On);
        assert!(sysfs.group(99).is_empty());
        assert_eq!(Tree::new("no-iommu").sysfs().iommu(), IommuState::Off);
    }
}
