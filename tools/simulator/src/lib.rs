//! Software devices that a driver cannot tell from silicon in what it uses, and what stands at the far ends of their wires.
//!
//! In path order:
//!
//! - [`traffic`]: seeded frames, and the check that each came out exactly once, in order, byte for byte.
//! - [`wire`]: a full-duplex cable between two ends; both ends may be devices, or one of them a test.
//! - [`igb`]: an Intel 82576 as a Rust value. It shares its register table and descriptor bits with the driver.
//! - [`ioat`]: an Intel I/OAT copy engine; it shares its registers' bits and descriptors with the driver.
//! - [`edu`]: QEMU's `edu`, a device with a DMA engine of 4 KiB.
//! - [`virtio`]: a virtio-net device on PCI; its split queues are the `virtio-queue` crate's.
//! - [`hostile`]: the lies that a device may be told to tell.
//! - [`rss`]: which of several queues a frame goes to: the hash that devices share.
//! - [`runner`]: a thread that steps devices and traffic until it is stopped.
//! - [`serve`]: the same for another process: a device behind a vfio-user socket, on a thread that sleeps when nothing happens.
//!
//! A device does nothing by itself: a test calls its `step`, or a [`runner::Runner`] does. From the same seed and the same steps
//! it does the same things. It reaches memory only through the simulated IOMMU, by device addresses.

#![forbid(unsafe_code)]

pub mod edu;
pub mod hostile;
pub mod igb;
pub mod ioat;
mod packet;
mod random;
pub mod rss;
pub mod runner;
pub mod serve;
pub mod traffic;
pub mod virtio;
pub mod wire;
