//! The strict conformance suite of RoCEv2, in virtual time: two stacks, and between them a wire that loses, repeats, reorders
//! and corrupts as its seed says. Nothing here waits, sleeps, or needs a port.

mod crc;
mod rig;

mod denied;
mod faults;
mod golden;
mod hostile;
mod life;
mod operations;
mod port;
mod services;
