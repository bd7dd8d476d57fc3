//! How a driver reaches a virtio device: over vhost-user or PCI, or whatever else can do these steps.
//!
//! The order is that of Virtio 1.2, 3.1.1: [`Transport::reset`], [`Transport::offered`], [`Transport::accept`],
//! [`Transport::set_queue`] for each queue, [`Transport::run`]; then [`Transport::end_dma`], and the next round begins with a reset.

use pollring::bus::{Health, Simulated, Status};
use pollring::inspect::Node;
use pollring::iova::AddressSpace;
use pollring::port::PortError;
use pollring::ring::virtqueue::QueuePlaces;
use std::sync::Arc;

/// Tells a device that a queue has something new.
pub trait Notifier: Send {
    /// Notifies; `data` is what the notification carries when NOTIFICATION_DATA was accepted.
    fn notify(&self, data: u32);
}

/// Which of a device's formats a queue takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layout {
    /// Split queues, whatever else the device has.
    Split,
    /// Packed queues; a device that has none is refused.
    Packed,
    /// Packed queues if the device has them.
    Offered,
}

/// What the driver asks of a device beyond what it always needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VirtioOptions {
    /// The format of its queues.
    pub layout: Layout,
    /// Feature bits that are not accepted, for tests and comparisons.
    pub without: u64,
}

impl Default for VirtioOptions {
    fn default() -> VirtioOptions {
        VirtioOptions { layout: Layout::Offered, without: 0 }
    }
}

/// What keeps a device to the memory that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Confinement {
    /// The IOMMU, and the device must say that it goes through it.
    AccessPlatform,
    /// The transport itself: it passes on nothing else.
    Transport,
}

/// Whether a device that was lost may come back by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is there, or gone for good.
    Settled,
    /// Its process went away; another one may take its place.
    Lost,
}

/// How a device is, as its queues see it.
pub trait Watch: Send + Sync {
    /// How it is.
    fn health(&self) -> Health;
}

impl Watch for Status {
    fn health(&self) -> Health {
        Status::health(self)
    }
}

/// One way to a device.
pub trait Transport: Send {
    /// Its URI.
    fn name(&self) -> &str;
    /// What it is, in words.
    fn model(&self) -> String;
    /// Whether the device is software.
    fn simulated(&self) -> Simulated;
    /// Where its memory is mapped.
    fn space(&self) -> &AddressSpace;
    /// How it is, for the queues.
    fn watch(&self) -> Arc<dyn Watch>;
    /// The device broke its contract.
    fn fail(&self, reason: &str);

    /// Resets the device and says that a driver is there. No queue runs and no DMA happens afterwards.
    ///
    /// # Errors
    /// It does not answer.
    fn reset(&mut self) -> Result<(), PortError>;
    /// Its features.
    fn offered(&self) -> u64;
    /// Features that the driver must not accept here.
    fn unusable(&self) -> u64;
    /// Whether what the device reaches is bounded only if it offers ACCESS_PLATFORM: without it a device on PCI takes addresses for
    /// its host's own and goes past the IOMMU (Virtio 1.2, 6.1).
    fn confinement(&self) -> Confinement;
    /// Accepts features.
    ///
    /// # Errors
    /// The device does not take them.
    fn accept(&mut self, features: u64) -> Result<(), PortError>;
    /// Queues, the control queue included.
    fn queues(&self) -> u16;
    /// The largest size of a queue.
    fn most_entries(&self, queue: u16) -> u16;
    /// Reads the device's config space; false where there is none.
    fn config(&self, into: &mut [u8]) -> bool;
    /// Tells the device where a queue is; gives how to notify it.
    ///
    /// # Errors
    /// The device refuses.
    fn set_queue(&mut self, queue: u16, places: &QueuePlaces) -> Result<Box<dyn Notifier>, PortError>;
    /// Lets the device work: everything that it was told of is valid.
    ///
    /// # Errors
    /// The device refuses or is gone.
    fn run(&mut self) -> Result<(), PortError>;
    /// Ends all DMA.
    ///
    /// # Errors
    /// The device did not answer; it is cut off all the same.
    fn end_dma(&mut self) -> Result<(), PortError>;
    /// Whether the device went away since it ran. Does not wait.
    fn presence(&mut self) -> Presence;
    /// Its registers, for reports.
    fn registers(&self) -> Node;
}
