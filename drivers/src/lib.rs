//! Drivers for the framework, without unsafe code: whatever a driver gets wrong, the IOMMU and the ring shadows bound it.
//!
//! The driver table is a value that an app passes on: [`builtin`] is what this crate has, and an app adds its own entries
//! in front. What a driver can still get wrong: a length that is too long for its buffer's neighbour, a descriptor posted twice, a
//! field in the wrong place. Each stays inside memory that is mapped for its device.

#![forbid(unsafe_code)]

pub mod copy;
pub mod nic;
pub mod rdma;

use pollring::bus::Device;
use pollring::copy::{Channel, EngineError};
use pollring::iova::AddressSpace;
use pollring::port::{Port, PortError};

/// How a driver is made for a device that it knows; the device joins the space.
pub type OpenPort = fn(Device, &AddressSpace) -> Result<Box<dyn Port>, PortError>;

/// One device that a driver knows.
#[derive(Clone, Copy)]
pub struct DriverEntry {
    /// PCI vendor id.
    pub vendor: u16,
    /// PCI device id.
    pub device: u16,
    /// What the device is called.
    pub model: &'static str,
    /// The driver's name.
    pub driver: &'static str,
    /// What the entry was run on; the README's table is made from it.
    pub proof: &'static str,
    /// Makes the port.
    pub open: OpenPort,
}

/// Every device that the drivers of this crate know.
pub fn builtin() -> &'static [DriverEntry] {
    BUILTIN
}

const BUILTIN: &[DriverEntry] = &[
    nic::igb::DEVICES[0],
    nic::igb::DEVICES[1],
    nic::igb::DEVICES[2],
    nic::virtio::DEVICES[0],
    nic::virtio::DEVICES[1],
];

const _: () = assert!(BUILTIN.len() == nic::igb::DEVICES.len() + nic::virtio::DEVICES.len());

/// The entry for a device; the first that matches counts.
pub fn find(table: &[DriverEntry], vendor: u16, device: u16) -> Option<&DriverEntry> {
    table.iter().find(|entry| (entry.vendor, entry.device) == (vendor, device))
}

/// How a driver is made for an engine that it knows; the device joins the space. The number is how many operations may be outstanding.
pub type OpenEngine = fn(Device, &AddressSpace, usize) -> Result<Box<dyn Channel>, EngineError>;

/// One copy engine that a driver knows.
#[derive(Clone, Copy)]
pub struct EngineEntry {
    /// PCI vendor id.
    pub vendor: u16,
    /// PCI device id.
    pub device: u16,
    /// What the engine is called.
    pub model: &'static str,
    /// The driver's name.
    pub driver: &'static str,
    /// What the entry was run on; the README's table is made from it.
    pub proof: &'static str,
    /// Makes the channel.
    pub open: OpenEngine,
}

/// Every copy engine that the drivers of this crate know.
pub fn engines() -> &'static [EngineEntry] {
    ENGINES
}

const ENGINES: &[EngineEntry] = &[copy::ioat::DEVICES[0], copy::ioat::DEVICES[1], copy::edu::DEVICES[0]];

const _: () = assert!(ENGINES.len() == copy::ioat::DEVICES.len() + copy::edu::DEVICES.len());

/// The entry for an engine; the first that matches counts.
pub fn find_engine(table: &[EngineEntry], vendor: u16, device: u16) -> Option<&EngineEntry> {
    table.iter().find(|entry| (entry.vendor, entry.device) == (vendor, device))
}
