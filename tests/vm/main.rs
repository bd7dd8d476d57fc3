//! What runs in a machine of its own. Each test boots one, and they take turns: two cores are one machine's worth.
//!
//! `guest` boots and drives, `cable` is the traffic at the wires' far ends. The machine comes from `tools/machine/prepare`.

mod bar;
mod cable;
mod certify;
mod confine;
mod copy;
mod edu;
mod forward;
mod guest;
mod refused;
mod selftest;
mod trouble;
mod virtio;
