//! A counter in the kernel that wakes who waits for it (eventfd(2)).
//!
//! Any thread may [`EventFd::signal`]; who waits sees the descriptor readable until somebody calls [`EventFd::drain`].
//! Signals that come before a drain add up and wake once, and a signal before the wait is not lost. Neither call blocks.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A non-blocking, close-on-exec eventfd, closed when dropped.
#[derive(Debug)]
pub struct EventFd(File);

impl EventFd {
    /// An eventfd without a signal.
    ///
    /// # Errors
    /// The errno of eventfd(2): EMFILE or ENFILE when descriptors run out (`ulimit -n`).
    pub fn new() -> io::Result<EventFd> {
        // SAFETY: the call takes two numbers and touches no memory of ours.
        let fd = unsafe { libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just opened the descriptor for us, and nobody else knows it.
        Ok(EventFd(File::from(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Makes the descriptor readable. What this thread wrote before is visible to who drains the signal.
    ///
    /// # Errors
    /// The errno of write(2). A full counter is none: it is readable already.
    pub fn signal(&self) -> io::Result<()> {
        match (&self.0).write(&1_u64.to_ne_bytes()) {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// Takes all signals and returns how many they were; 0 if none.
    ///
    /// # Errors
    /// The errno of read(2).
    pub fn drain(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        match (&self.0).read(&mut count) {
            Ok(_) => Ok(u64::from_ne_bytes(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Another descriptor of the same counter, for a thread or a kernel interface that keeps its own.
    ///
    /// # Errors
    /// The errno of fcntl(2).
    pub fn try_clone(&self) -> io::Result<EventFd> {
        self.0.try_clone().map(EventFd)
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_add_up_until_they_are_drained() {
        let event = EventFd::new().unwrap();
        assert_eq!(event.drain().unwrap(), 0);
        event.signal().unwrap();
        event.try_clone().unwrap().signal().unwrap();
        assert_eq!(event.drain().unwrap(), 2);
        assert_eq!(event.drain().unwrap(), 0);
    }

    #[test]
    fn a_full_counter_still_counts_as_signalled() {
        let event = EventFd::new().unwrap();
        (&event.0).write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
        event.signal().unwrap();
        assert_eq!(event.drain().unwrap(), u64::MAX - 1);
    }
}
