//! NICs, RDMA and copy engines from user space.
//!
//! The folders, in the order in which a packet's path needs them:
//!
//! - [`os`]: the few system calls that are not about devices or memory: affinity, eventfds, waiting.
//! - [`bus`]: a PCI function that this process owns: config space, registers, reset, health.
//! - [`iova`]: device addresses, and the translation tables that confine devices to mapped memory.
//! - [`buffer`]: frames, pools, bursts; and shared memory that a device or peer may write at any time.
//! - [`ring`]: descriptor rings and their shadows, fences, and the ring between two workers.
//! - [`port`]: a NIC port: control here, four operations on each queue there.
//! - [`copy`]: engines that move memory inside this host.
//! - [`rdma`]: the verbs.
//! - [`worker`]: one pinned thread that polls.
//! - [`inspect`]: the state tree.
//!
//! `unsafe` stands only in `os`, `bus`, `iova`, `buffer`, `ring` and `copy/memcpy.rs`.

pub mod buffer;
pub mod bus;
pub mod copy;
pub mod inspect;
pub mod iova;
pub mod os;
pub mod port;
pub mod rdma;
pub mod ring;
mod sync;
pub mod worker;

pub use pollring_hugepages as hugepages;
