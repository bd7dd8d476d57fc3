//! NIC drivers, one folder each, all of the same files: `regs` and `desc` are tables, `init` is the bring-up as a list of steps,
//! `rx` and `tx` are the four operations, `port` is control.

pub mod igb;
pub mod virtio;
