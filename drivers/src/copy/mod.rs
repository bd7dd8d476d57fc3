//! Copy engines: each folder is one, and each makes a [`Channel`](pollring::copy::Channel).

pub mod edu;
pub mod ioat;
