//! Intel I/OAT (QuickData, CBDMA) 3.2 and later, as in Xeon processors: one channel a function, copies and fills.
//!
//! In path order: [`regs`] and [`desc`] are the hardware's words, `init` the named steps of bring-up and halt, `channel` the
//! data path. Work is a chain of descriptors in a circle; one write of DMACOUNT lets the engine execute all that was written since the
//! last, and it reports by writing the address of a finished descriptor to memory. That address is checked against the
//! driver's own record before anything is handed back.
//!
//! Not there: interrupts (the channel is polled), XOR and RAID operations, DCA, I/OAT before 3.2.

mod channel;
pub mod desc;
mod init;
pub mod regs;

pub use channel::IoatChannel;

use crate::EngineEntry;

const fn entry(device: u16, model: &'static str, proof: &'static str) -> EngineEntry {
    EngineEntry { vendor: 0x8086, device, model, driver: "ioat", proof, open: channel::open }
}

/// What this driver knows (device ids: the kernel's `include/linux/pci_ids.h`).
pub const DEVICES: &[EngineEntry] = &[
    entry(
        0x2021,
        "I/OAT, Skylake Xeon",
        "software I/OAT of this project, in process and in a guest behind VFIO and an IOMMU",
    ),
    entry(0x0b00, "I/OAT, Ice Lake Xeon", "not run: only its id is known"),
];
