//! virtio-net: the NIC of cloud guests on PCI, and a port to any virtual switch over vhost-user (Virtio 1.2, 5.1).
//!
//! [`VirtioPort`] knows no bus: a [`Transport`](transport::Transport) does. What it negotiates decides the format of its queues; the two halves of a pair
//! are the same for all. A backend that goes away over vhost-user is waited for: the queues give every frame back, and traffic goes on
//! with the next backend, as [`Port::link`](pollring::port::Port::link) is called.

mod control;
mod gate;
mod init;
mod pci;
mod port;
pub mod regs;
mod rx;
mod spread;
pub mod transport;
mod tx;
pub mod vhost_user;

pub use port::VirtioPort;
pub use transport::{Layout, VirtioOptions};

use crate::DriverEntry;
use regs::pci::{MODERN_NET, TRANSITIONAL_NET, VENDOR};

const fn entry(device: u16, model: &'static str, proof: &'static str) -> DriverEntry {
    DriverEntry { vendor: VENDOR, device, model, driver: "virtio", proof, open: pci::open }
}

/// The devices that this driver knows.
pub const DEVICES: &[DriverEntry] = &[
    entry(MODERN_NET, "virtio-net", "QEMU's virtio-net-pci; software virtio-net of this project"),
    entry(TRANSITIONAL_NET, "virtio-net, transitional", "not run"),
];
