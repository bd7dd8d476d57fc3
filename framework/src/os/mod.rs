//! The few system calls that the framework makes by itself, wrapped.
//!
//! Each file wraps one facility of the kernel, owns the descriptors that it opens and closes them when dropped. Nothing
//! here runs per packet: pinning happens once per thread, and a worker waits only when it has nothing to do.

mod affinity;
mod eventfd;
mod wait;

pub use affinity::{AffinityError, Cores, allowed_cores, pin_current_thread};
pub use eventfd::EventFd;
pub use wait::wait_any;
