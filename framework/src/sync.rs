//! The words that threads share, from `std`, or from `loom` under `--cfg loom`.
//!
//! Code whose memory orderings a loom test checks takes its atomics, cells and locks from here and from nowhere else.
//! The names are the same on both sides: [`atomic`], [`Arc`], [`Mutex`], [`UnsafeCell`] and, in tests, `thread`. Only
//! the cells' accessors differ: loom's are `with` and `with_mut` for one cell at a time, so code that copies a run of
//! cells has a second body for loom. Loom's types work only inside `loom::model`, so tests that run such code outside of
//! a model stand under `not(loom)`.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{Arc, Mutex, MutexGuard, atomic},
};

#[cfg(not(loom))]
pub(crate) use std::{
    cell::UnsafeCell,
    sync::{Arc, Mutex, MutexGuard, atomic},
};

#[cfg(all(test, loom))]
pub(crate) use loom::thread;
#[cfg(all(test, not(loom)))]
pub(crate) use std::thread;
