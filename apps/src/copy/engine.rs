//! Names of copy engines, and what opening one needs: a device, its address space, and memory that it reaches, which may be another
//! device's.

use crate::error::AppError;
use crate::ports::open_vfio_user;
use pollring::buffer::Shared;
use pollring::bus::simulated::{self, SimulatedIommu};
use pollring::bus::sysfs::Sysfs;
use pollring::bus::vfio::Container;
use pollring::bus::{Device, MappedBar, PciAddress};
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

/// A BAR that results go to: `pci:ADDRESS,bar=N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BarName {
    address: PciAddress,
    bar: u8,
}

impl FromStr for BarName {
    type Err = String;

    fn from_str(text: &str) -> Result<BarName, String> {
        let parts = text.strip_prefix("pci:").and_then(|rest| rest.split_once(",bar="));
        let (address, bar) = parts.ok_or("write it as pci:ADDRESS,bar=N")?;
        let address = address.parse().map_err(|error| format!("{error}"))?;
        match bar.parse() {
            Ok(bar @ 0..=5) => Ok(BarName { address, bar }),
            _ => Err(format!("bar={bar}: a function has BARs 0 to 5")),
        }
    }
}

/// What is asked for beside the engine.
pub(super) struct Wanted {
    /// Outstanding operations.
    pub(super) depth: usize,
    /// Bytes of all sources, and of all results.
    pub(super) bytes: usize,
    /// Where results go in place of this process's memory.
    pub(super) into: Option<BarName>,
}

/// An engine that runs, with memory for its work. The channel is dropped first, the devices last.
pub(super) struct Opened {
    pub(super) channel: Box<dyn Channel>,
    pub(super) sources: Shared,
    pub(super) results: Shared,
    _target: Option<Device>,
    _engine: Option<Stepper>,
}

/// Opens the engine `uri`, and gives it memory.
pub(super) fn open(uri: &str, name: &EngineName, wanted: &Wanted) -> Result<Opened, AppError> {
    match name {
        EngineName::Memcpy => wanted.open_memcpy(),
        EngineName::Simulated => open_simulated(uri, wanted),
        EngineName::Pci(address) => {
            Sysfs::new().check_ready(*address, (2 * wanted.bytes + DESCRIPTOR_BYTES) as u64)?;
            let container = Container::new()?;
            let space = AddressSpace::new(uri, container.clone());
            let device = Device::open(uri, container.open(*address)?)?;
            wanted.open_with_driver(uri, device, &space)
        }
        EngineName::VfioUser(path) => {
            let (device, space) = open_vfio_user(uri, path)?;
            wanted.open_with_driver(uri, device, &space)
        }
    }
}

fn open_simulated(uri: &str, wanted: &Wanted) -> Result<Opened, AppError> {
    let ioat = Ioat::new(Copies::True, None);
    let iommu = Arc::new(SimulatedIommu::default());
    let space = AddressSpace::new(uri, iommu.clone());
    let device = Device::open(uri, simulated::backend(ioat.clone(), iommu))?;
    let opened = wanted.open_with_driver(uri, device, &space)?;
    let system = |error| AppError::System { step: "start the device's thread", error };
    let waker = Waker::new().map_err(system)?;
    let stepper = Stepper::start(waker, vec![Box::new(Sleepless(IoatSteps(ioat)))]).map_err(system)?;
    Ok(Opened { _engine: Some(stepper), ..opened })
}

impl Wanted {
    fn open_memcpy(&self) -> Result<Opened, AppError> {
        let sources = Shared::local(region(self.bytes)?);
        let (results, target) = match self.open_target()? {
            Some((target, bar)) => (Shared::bar(bar), Some(target)),
            None => (Shared::local(region(self.bytes)?), None),
        };
        let channel = Box::new(MemcpyChannel::new(self.depth));
        Ok(Opened { channel, sources, results, _target: target, _engine: None })
    }

    fn open_with_driver(&self, uri: &str, device: Device, space: &AddressSpace) -> Result<Opened, AppError> {
        let (vendor, id) = device.id();
        let entry = pollring_drivers::find_engine(pollring_drivers::engines(), vendor, id).ok_or_else(|| {
            AppError::Usage(format!(
                "engine `{uri}` is {vendor:04x}:{id:04x}, for which there is no engine driver; see `pollring devices`"
            ))
        })?;
        let channel = (entry.open)(device, space, self.depth)?;
        let mapped = || -> Result<Shared, AppError> {
            let placement = Placement::new(region(self.bytes)?, &[space])?;
            Ok(Shared::mapped(Arc::new(space.map(&placement, Direction::Both)?)))
        };
        let (results, target) = match self.open_target()? {
            Some((target, bar)) => {
                (Shared::mapped_bar(Arc::new(space.map_bar(&bar, Direction::Both)?)), Some(target))
            }
            None => (mapped()?, None),
        };
        Ok(Opened { channel, sources: mapped()?, results, _target: target, _engine: None })
    }

    /// The device that results go to, in a container of its own: it starts no DMA.
    fn open_target(&self) -> Result<Option<(Device, Arc<MappedBar>)>, AppError> {
        let Some(BarName { address, bar }) = self.into else { return Ok(None) };
        Sysfs::new().check_ready(address, 0)?;
        let container = Container::new()?;
        let mut device = Device::open(&format!("pci:{address}"), container.open(address)?)?;
        let memory = device.memory(bar)?;
        if memory.bytes() < self.bytes {
            return Err(AppError::Usage(format!(
                "--into pci:{address},bar={bar}: it has {} bytes, size times depth are {}; make one smaller",
                memory.bytes(),
                self.bytes
            )));
        }
        Ok(Some((device, memory)))
    }
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

    #[test]
    fn a_bar_is_named_or_refused() {
        let address = "0000:01:00.0".parse().unwrap();
        assert_eq!("pci:01:00.0,bar=2".parse(), Ok(BarName { address, bar: 2 }));
        for bad in
            ["", "pci:01:00.0", "01:00.0,bar=2", "pci:x,bar=2", "pci:01:00.0,bar=6", "pci:01:00.0,bar="]
        {
            assert!(bad.parse::<BarName>().is_err(), "{bad}");
        }
    }
}
