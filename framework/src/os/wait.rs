//! Sleep until one of a few descriptors is readable (ppoll(2)).
//!
//! The caller lends the descriptors for one wait. There is no set to keep up to date, as epoll(7) would need: a worker's
//! pollers come and go, they are few, and a worker that sleeps has time. The kernel reports a level, so a descriptor that
//! was readable before the wait ends it at once.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;
use std::time::Duration;

/// Waits until a descriptor is readable, in error or hung up, `at_most` has passed, or a signal handler ran. Returns how
/// many are ready, 0 for the other two.
///
/// # Errors
/// The errno of ppoll(2): EINVAL for more descriptors than `ulimit -n` allows, ENOMEM.
pub fn wait_any(fds: &[BorrowedFd<'_>], at_most: Duration) -> io::Result<usize> {
    let entry = |fd: &BorrowedFd<'_>| libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    let mut entries: Vec<libc::pollfd> = fds.iter().map(entry).collect();
    let timeout = libc::timespec {
        tv_sec: libc::time_t::try_from(at_most.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: at_most.subsec_nanos().into(),
    };
    // SAFETY: the entries are as many as we say and live through the call, like the timeout; a null mask changes nothing.
    let ready =
        unsafe { libc::ppoll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, &timeout, ptr::null()) };
    match usize::try_from(ready) {
        Ok(ready) => Ok(ready),
        Err(_) => match io::Error::last_os_error() {
            error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
            error => Err(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::EventFd;
    use std::os::fd::AsFd;
    use std::thread;
    use std::time::Instant;

    #[test]
    fn time_ends_a_wait_without_signals() {
        let event = EventFd::new().unwrap();
        let start = Instant::now();
        assert_eq!(wait_any(&[event.as_fd()], Duration::from_millis(20)).unwrap(), 0);
        assert!(start.elapsed() >= Duration::from_millis(20));
    }

    #[test]
    fn a_signal_before_or_during_the_wait_ends_it() {
        let (quiet, event) = (EventFd::new().unwrap(), EventFd::new().unwrap());
        event.signal().unwrap();
        assert_eq!(wait_any(&[quiet.as_fd(), event.as_fd()], Duration::MAX).unwrap(), 1);
        event.drain().unwrap();
        let other = event.try_clone().unwrap();
        let signaller = thread::spawn(move || {
            thread::sleep(Duration::from_millis(10));
            other.signal().unwrap();
        });
        assert_eq!(wait_any(&[quiet.as_fd(), event.as_fd()], Duration::MAX).unwrap(), 1);
        signaller.join().unwrap();
    }
}
