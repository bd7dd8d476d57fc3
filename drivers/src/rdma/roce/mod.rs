//! RoCEv2 in software, over frames of any port: RC, UC and UD, strict where Linux's own is lenient, and driven by time that is
//! an argument.
//!
//! Read it so: [`wire`] is what a packet is; `engine` holds all queue pairs of a worker; `qp` is one of them, with `requester`
//! (sends, by `packets`; `answers`; `retry`) and `responder` (carries out, with `duplicates`, `replies` and `datagram`); `memory`
//! is keys and pieces; `stack` puts Ethernet, IP and neighbours around the engine; `endpoint` puts a port around the stack;
//! `device` and `handles` are the verbs.
//!
//! ```text
//! frames -> Stack::receive  -> Packet -> Engine::receive -> Qp::{request, answer, datagram} -> memory, completions
//! frames <- Stack::transmit <- Headers + Gather <- Engine::transmit <- Qp::{send_reply, send_request}
//! ```
//!
//! What a peer can do: nothing without a queue pair that is connected to its address, and then only what a valid key of the same
//! domain, the rights of region and queue pair, and the region's bounds allow. A packet that breaks a rule is a counter
//! ([`DropReason`]); an RC packet that is in sequence and wrong also ends its own queue pair, and no other.

mod answers;
mod counters;
mod datagram;
mod device;
mod duplicates;
mod endpoint;
mod engine;
mod handles;
mod memory;
mod neighbours;
mod packets;
mod qp;
mod replies;
mod requester;
mod responder;
mod retry;
mod stack;
pub mod wire;
mod world;

pub use counters::{Counters, DropReason, History, QpEvent};
pub use device::{Random, RoceConfig, RoceDevice};
pub use endpoint::{Endpoint, Others, RocePoller};
pub use memory::Gather;
pub use stack::{FrameSink, Peers, Stack, Verdict};
