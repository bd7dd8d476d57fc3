//! The PCI transport: a modern device behind its capabilities (Virtio 1.2, 4.1).
//!
//! [`PciTransport`] finds the common, notification and device structures once, by walking the capability list, and reaches them by
//! accesses of their own width. A reset writes status 0 and waits for it to read back; bus mastering goes on just before
//! DRIVER_OK and off after the reset that ends DMA. No interrupts: every vector is unset.

use super::VirtioPort;
use super::regs::pci::*;
use super::regs::{feature, status};
use super::transport::{Confinement, Notifier, Presence, Transport, VirtioOptions, Watch};
use pollring::bus::{Device, Doorbell, Health, Registers, Simulated, wait_until};
use pollring::inspect::Node;
use pollring::iova::AddressSpace;
use pollring::port::{Port, PortError};
use pollring::ring::virtqueue::QueuePlaces;
use std::sync::Arc;
use std::time::Duration;

/// QEMU resets at once; a device that gathers requests in flight takes longer.
const STEP_LIMIT: Duration = Duration::from_millis(500);

/// Capabilities of a function at most: 192 bytes hold no more.
const MOST_CAPABILITIES: usize = 48;

pub(crate) fn open(device: Device, space: &AddressSpace) -> Result<Box<dyn Port>, PortError> {
    let transport = PciTransport::open(device, space)?;
    Ok(Box::new(VirtioPort::open(Box::new(transport), VirtioOptions::default())?))
}

/// Where a structure lies.
#[derive(Clone)]
struct Structure {
    window: Registers,
    offset: usize,
    bytes: usize,
}

impl Structure {
    fn read8(&self, at: usize) -> u8 {
        self.window.read8(self.offset + at)
    }

    fn read16(&self, at: usize) -> u16 {
        self.window.read16(self.offset + at)
    }

    fn read32(&self, at: usize) -> u32 {
        self.window.read32(self.offset + at)
    }

    fn write16(&self, at: usize, value: u16) {
        self.window.write16(self.offset + at, value);
    }

    fn write32(&self, at: usize, value: u32) {
        self.window.write32(self.offset + at, value);
    }

    /// 64-bit fields are written in halves (4.1.3.1).
    fn write64(&self, at: usize, value: u64) {
        self.write32(at, value as u32);
        self.write32(at + 4, (value >> 32) as u32);
    }
}

/// A capability of the device: type, BAR, place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Capability {
    at: u16,
    kind: u8,
    bar: u8,
    offset: u32,
    bytes: u32,
}

/// A virtio device on PCI.
pub(super) struct PciTransport {
    device: Device,
    space: AddressSpace,
    common: Structure,
    notify: Structure,
    multiplier: usize,
    config: Option<Structure>,
    features: u64,
}

impl PciTransport {
    /// Takes the device and lets it join `space`.
    ///
    /// # Errors
    /// The bus or the space refuses, or the device is not a modern one.
    pub(super) fn open(mut device: Device, space: &AddressSpace) -> Result<PciTransport, PortError> {
        device.join(space, u64::MAX)?;
        let capabilities = capabilities(&device);
        let mut windows: [Option<Registers>; 6] = [const { None }; 6];
        let mut structure = |device: &mut Device, kind: u8, least: usize| {
            find(device, &capabilities, kind, least, &mut windows)
        };
        let common = structure(&mut device, COMMON, common::BYTES)?;
        let notify = structure(&mut device, NOTIFY, 2)?;
        let config = structure(&mut device, super::regs::pci::DEVICE, 8).ok();
        let at = capabilities.iter().find(|found| found.kind == NOTIFY).map_or(0, |found| found.at);
        let multiplier = device.config_read32(at + 16) as usize;
        Ok(PciTransport { device, space: space.clone(), common, notify, multiplier, config, features: 0 })
    }

    fn status(&self) -> u8 {
        self.common.read8(common::STATUS)
    }

    fn set_status(&self, bits: u8) {
        self.common.window.write8(self.common.offset + common::STATUS, bits);
    }

    fn timeout(&self, step: &'static str) -> PortError {
        let waited_ms = STEP_LIMIT.as_millis() as u64;
        PortError::Timeout { step, port: self.device.name().to_owned(), waited_ms }
    }

    fn refuse(&self, what: String) -> PortError {
        PortError::Config { port: self.device.name().to_owned(), what }
    }

    /// Status 0, and it reads back so once the device is quiet (4.1.4.3.2). One that is gone is not waited for.
    fn quiesce(&self) -> bool {
        self.set_status(0);
        wait_until(STEP_LIMIT, || self.status() == 0 || self.device.status().health() == Health::Gone)
            && self.device.status().health() != Health::Gone
    }

    /// Where queue `queue` is notified; the device chose the place, so it is checked.
    fn notifier(&self, queue: u16) -> Result<Box<dyn Notifier>, PortError> {
        let at = usize::from(self.common.read16(common::QUEUE_NOTIFY_OFF)) * self.multiplier;
        let bytes = if self.features & feature::NOTIFICATION_DATA != 0 { 4 } else { 2 };
        if at + bytes > self.notify.bytes || !(self.notify.offset + at).is_multiple_of(bytes) {
            return Err(self.refuse(format!("queue {queue} is notified at {at}, outside its structure")));
        }
        let (window, offset) = (&self.notify.window, self.notify.offset + at);
        Ok(match bytes {
            4 => Box::new(WideBell(window.doorbell(offset))),
            _ => Box::new(NarrowBell(window.doorbell16(offset), queue)),
        })
    }
}

/// Without NOTIFICATION_DATA a notification is the queue's number, 16 bits (4.1.5.2).
struct NarrowBell(Doorbell, u16);

impl Notifier for NarrowBell {
    #[inline]
    fn notify(&self, _data: u32) {
        self.0.ring(u32::from(self.1));
    }
}

struct WideBell(Doorbell);

impl Notifier for WideBell {
    #[inline]
    fn notify(&self, data: u32) {
        self.0.ring(data);
    }
}

/// The virtio capabilities, in the order of the list (4.1.4). A list that loops ends all the same.
fn capabilities(device: &Device) -> Vec<Capability> {
    let mut found = Vec::new();
    if device.config_read32(pollring::bus::config::COMMAND) & HAS_CAPABILITIES == 0 {
        return found;
    }
    let mut at = device.config_read32(CAPABILITIES) as u8 & !3;
    for _ in 0..MOST_CAPABILITIES {
        if at < 0x40 {
            break;
        }
        let head = device.config_read32(u16::from(at));
        if head as u8 == VENDOR_CAPABILITY {
            found.push(Capability {
                at: u16::from(at),
                kind: (head >> 24) as u8,
                bar: device.config_read32(u16::from(at) + 4) as u8,
                offset: device.config_read32(u16::from(at) + 8),
                bytes: device.config_read32(u16::from(at) + 12),
            });
        }
        at = (head >> 8) as u8 & !3;
    }
    found
}

/// The first structure of a kind that lies in a BAR that can be opened; the device says where, so it is checked.
fn find(
    device: &mut Device,
    capabilities: &[Capability],
    kind: u8,
    least: usize,
    windows: &mut [Option<Registers>; 6],
) -> Result<Structure, PortError> {
    let fits = |found: &&Capability| found.kind == kind && found.bar < 6 && found.bytes as usize >= least;
    let missing = || PortError::Config {
        port: device.name().to_owned(),
        what: format!(
            "it has no structure of kind {kind} (4.1.4); is it a legacy device? use disable-legacy=on"
        ),
    };
    let found = *capabilities.iter().find(fits).ok_or_else(missing)?;
    let slot = &mut windows[usize::from(found.bar)];
    let window = match slot {
        Some(window) => window.clone(),
        None => slot.insert(device.window(found.bar)?).clone(),
    };
    let (offset, bytes) = (found.offset as usize, found.bytes as usize);
    if offset.checked_add(least).is_none_or(|end| end > window.bytes()) || !offset.is_multiple_of(4) {
        let what = format!("its structure of kind {kind} lies outside BAR {}", found.bar);
        return Err(PortError::Config { port: device.name().to_owned(), what });
    }
    Ok(Structure { bytes: bytes.min(window.bytes() - offset), window, offset })
}

impl Transport for PciTransport {
    fn name(&self) -> &str {
        self.device.name()
    }

    fn model(&self) -> String {
        "virtio-net (virtio)".to_owned()
    }

    fn simulated(&self) -> Simulated {
        self.device.simulated()
    }

    fn space(&self) -> &AddressSpace {
        &self.space
    }

    fn watch(&self) -> Arc<dyn Watch> {
        self.device.status().clone()
    }

    fn fail(&self, reason: &str) {
        self.device.status().fail(reason);
    }

    fn reset(&mut self) -> Result<(), PortError> {
        self.device.stop_dma();
        if !self.quiesce() {
            // It may hang; the function's own reset takes it out of that.
            self.device.reset()?;
        }
        if matches!(self.device.status().health(), Health::Failed(_)) {
            self.device.reset()?;
        }
        if !self.quiesce() {
            return Err(self.timeout("reset the device"));
        }
        self.set_status(status::ACKNOWLEDGE);
        self.set_status(status::ACKNOWLEDGE | status::DRIVER);
        self.common.write16(common::CONFIG_VECTOR, common::NO_VECTOR);
        Ok(())
    }

    fn offered(&self) -> u64 {
        let half = |select| {
            self.common.write32(common::DEVICE_FEATURE_SELECT, select);
            u64::from(self.common.read32(common::DEVICE_FEATURE))
        };
        half(0) | half(1) << 32
    }

    fn unusable(&self) -> u64 {
        0
    }

    fn confinement(&self) -> Confinement {
        Confinement::AccessPlatform
    }

    fn accept(&mut self, features: u64) -> Result<(), PortError> {
        for (select, half) in [(0, features as u32), (1, (features >> 32) as u32)] {
            self.common.write32(common::DRIVER_FEATURE_SELECT, select);
            self.common.write32(common::DRIVER_FEATURE, half);
        }
        self.features = features;
        self.set_status(status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK);
        if self.status() & status::FEATURES_OK == 0 {
            return Err(self.refuse("it does not accept the features that it offered itself".to_owned()));
        }
        Ok(())
    }

    fn queues(&self) -> u16 {
        self.common.read16(common::QUEUES)
    }

    fn most_entries(&self, queue: u16) -> u16 {
        self.common.write16(common::QUEUE_SELECT, queue);
        self.common.read16(common::QUEUE_SIZE)
    }

    fn config(&self, into: &mut [u8]) -> bool {
        let Some(config) = &self.config else { return false };
        // Read until it did not change meanwhile (4.1.4.3.1), but not for ever.
        for _ in 0..16 {
            let before = self.common.read8(common::GENERATION);
            for (at, byte) in into.iter_mut().enumerate().take_while(|(at, _)| *at < config.bytes) {
                *byte = config.read8(at);
            }
            if self.common.read8(common::GENERATION) == before {
                break;
            }
        }
        true
    }

    fn set_queue(&mut self, queue: u16, places: &QueuePlaces) -> Result<Box<dyn Notifier>, PortError> {
        if queue >= self.queues() {
            return Err(self.refuse(format!("it has {} queues and none numbered {queue}", self.queues())));
        }
        let most = self.most_entries(queue);
        if places.entries > most {
            let entries = places.entries;
            return Err(self.refuse(format!("queue {queue} has at most {most} entries, not {entries}")));
        }
        self.common.write16(common::QUEUE_SIZE, places.entries);
        self.common.write16(common::QUEUE_VECTOR, common::NO_VECTOR);
        self.common.write64(common::QUEUE_DESCRIPTORS, places.descriptors.bits());
        self.common.write64(common::QUEUE_DRIVER, places.driver.bits());
        self.common.write64(common::QUEUE_DEVICE, places.device.bits());
        let notifier = self.notifier(queue)?;
        self.common.write16(common::QUEUE_ENABLE, 1);
        Ok(notifier)
    }

    fn run(&mut self) -> Result<(), PortError> {
        self.device.start_dma()?;
        let ready = status::ACKNOWLEDGE | status::DRIVER | status::FEATURES_OK | status::DRIVER_OK;
        self.set_status(ready);
        match self.status() {
            now if now & status::NEEDS_RESET != 0 => Err(self.timeout("start the device")),
            _ => Ok(()),
        }
    }

    fn end_dma(&mut self) -> Result<(), PortError> {
        let quiet = self.quiesce();
        self.device.stop_dma();
        match self.device.status().health() {
            Health::Gone => Ok(()),
            _ if quiet => Ok(()),
            _ => Ok(self.device.reset()?),
        }
    }

    fn presence(&mut self) -> Presence {
        // All ones are no status that a driver and a device can agree on.
        if self.status() & status::NEEDS_RESET != 0 && self.device.status().health() == Health::Running {
            self.device.status().fail("it asks for a reset (DEVICE_NEEDS_RESET)");
        }
        Presence::Settled
    }

    fn registers(&self) -> Node {
        Node::parts()
            .with("STATUS", format!("{:#04x}", self.status()))
            .with("offered features", format!("{:#018x}", self.offered()))
            .with("queues", u64::from(self.queues()))
            .with("notify multiplier", self.multiplier as u64)
    }
}
