//! Names of copy engines, and what opening one needs: a device, its address space, and memory that it reaches.

use crate::error::AppError;
use crate::ports::open_vfio_user;
use pollring::buffer::Shared;
use pollring::bus::simulated::{self, SimulatedIommu};
use pollring::bus::sysfs::Sysfs;
use pollring::bus::vfio::Container;
use pollring::bus::{Device, PciAddress};
use pollring::copy::{Channel, MemcpyChannel};
use pollring::hugepages::{Pages, Region, RegionConfig};
use pollring::iova::{AddressSpace, Direction, Placement};
use pollring_simulator::ioat::{Copies, Ioat, IoatSteps};
use pollring_simulator::serve::{Stepper, Steps, Waker};
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that descriptors may take beside the data, for the limit on locked memory.
const DESCRIPTOR_BYTES: usize = 4 << 20;

/// What opens without any device, for `pollring devices`.
pub(crate) const ENGINE_FORMS: &[(&str, &str)] =
    &[("memcpy", "this core, no device"), ("sim:ioat", "software model of Intel I/OAT (8086:2021)")];

/// An engine, as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum EngineName {
    /// The CPU.
    Memcpy,
    /// A software I/OAT of this process.
    Simulated,
    /// A PCI function, through VFIO.
    Pci(PciAddress),
    /// A PCI function that another process serves, by its socket.
    VfioUser(PathBuf),
}

impl FromStr for EngineName {
    type Err = String;

    fn from_str(text: &str) -> Result<EngineName, String> {
        match text.split_once(':') {
            None if text == "memcpy" => Ok(EngineName::Memcpy),
            Some(("sim", "ioat")) => Ok(EngineName::Simulated),
            Some(("sim", model)) => Err(format!("the simulator has no engine `{model}`; it has: ioat")),
            Some(("pci", address)) => {
                address.parse().map(EngineName::Pci).map_err(|error| format!("{error}"))
            }
            Some(("vfio-user", path)) if !path.is_empty() => Ok(EngineName::VfioUser(path.into())),
            _ => Err("write it as memcpy, sim:ioat, pci:ADDRESS or vfio-user:PATH".into()),
        }
    }
}

/// An engine that runs, with memory for its work. The channel is dropped first, the device's thread last.
pub(super) struct Opened {
    pub(super) channel: Box<dyn Channel>,
    pub(super) memory: Shared,
    _device: Option<Stepper>,
}

/// Opens the engine `uri` for `depth` operations, and maps `bytes` for it.
pub(super) fn open(uri: &str, name: &EngineName, depth: usize, bytes: usize) -> Result<Opened, AppError> {
    match name {
        EngineName::Memcpy => {
            let memory = Shared::local(region(bytes)?);
            Ok(Opened { channel: Box::new(MemcpyChannel::new(depth)), memory, _device: None })
        }
        EngineName::Simulated => open_simulated(uri, depth, bytes),
        EngineName::Pci(address) => {
            Sysfs::new().check_ready(*address, (bytes + DESCRIPTOR_BYTES) as u64)?;
            let container = Container::new()?;
            let space = AddressSpace::new(uri, container.clone());
            let device = Device::open(uri, container.open(*address)?)?;
            open_with_driver(uri, device, &space, depth, bytes)
        }
        EngineName::VfioUser(path) => {
            let (device, space) = open_vfio_user(uri, path)?;
            open_with_driver(uri, device, &space, depth, bytes)
        }
    }
}

fn open_simulated(uri: &str, depth: usize, bytes: usize) -> Result<Opened, AppError> {
    let ioat = Ioat::new(Copies::True, None);
    let iommu = Arc::new(SimulatedIommu::default());
    let space = AddressSpace::new(uri, iommu.clone());
    let device = Device::open(uri, simulated::backend(ioat.clone(), iommu))?;
    let opened = open_with_driver(uri, device, &space, depth, bytes)?;
    let system = |error| AppError::System { step: "start the device's thread", error };
    let waker = Waker::new().map_err(system)?;
    let stepper = Stepper::start(waker, vec![Box::new(Sleepless(IoatSteps(ioat)))]).map_err(system)?;
    Ok(Opened { _device: Some(stepper), ..opened })
}

fn open_with_driver(
    uri: &str,
    device: Device,
    space: &AddressSpace,
    depth: usize,
    bytes: usize,
) -> Result<Opened, AppError> {
    let (vendor, id) = device.id();
    let entry = pollring_drivers::find_engine(pollring_drivers::engines(), vendor, id).ok_or_else(|| {
        AppError::Usage(format!(
            "engine `{uri}` is {vendor:04x}:{id:04x}, for which there is no engine driver; see `pollring devices`"
        ))
    })?;
    let channel = (entry.open)(device, space, depth)?;
    let placement = Placement::new(region(bytes)?, &[space])?;
    let memory = Shared::mapped(Arc::new(space.map(&placement, Direction::Both)?));
    Ok(Opened { channel, memory, _device: None })
}

fn region(bytes: usize) -> Result<Arc<Region>, AppError> {
    let config = RegionConfig { name: "copies".into(), bytes, pages: Pages::Huge2M, node: None };
    let allocated = Region::allocate_or_small(&config);
    allocated.map(Arc::new).map_err(|error| AppError::Usage(format!("memory for the copies: {error}")))
}

/// A device whose registers are words of this process, so that nothing would wake its thread.
struct Sleepless(IoatSteps);

impl Steps for Sleepless {
    fn step(&mut self) -> usize {
        self.0.step()
    }

    fn rest(&self) -> Duration {
        Duration::ZERO
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn engines_are_named_or_refused() {
        assert_eq!("memcpy".parse(), Ok(EngineName::Memcpy));
        assert_eq!("sim:ioat".parse(), Ok(EngineName::Simulated));
        assert!(matches!("pci:01:00.0".parse(), Ok(EngineName::Pci(_))));
        assert_eq!("vfio-user:/a,b".parse(), Ok(EngineName::VfioUser("/a,b".into())));
        for bad in ["", "cpu", "sim:igb", "pci:x", "vfio-user:", "memcpy:1"] {
            assert!(bad.parse::<EngineName>().is_err(), "{bad}");
        }
    }
}
