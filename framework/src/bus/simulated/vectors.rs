//! Interrupt vectors of a software device: each is an eventfd that somebody else waits on, or nothing.
//!
//! The device raises a vector from any thread and never waits: a vector without an eventfd is lost, as on silicon with the vector
//! masked for good, and a counter that is full is readable already. The descriptors are duplicates; they are closed when they are
//! replaced, cleared or dropped.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A software device's way to raise its interrupts.
pub trait Interrupts: Send + Sync {
    /// Raises the vector numbered `vector`; without effect when nobody listens to it.
    fn raise(&self, vector: u16);
}

/// A table of vectors.
pub struct Vectors(Mutex<Vec<Option<Line>>>);

struct Line {
    file: File,
    /// A write to it may wait, so it is asked first.
    blocking: bool,
}

impl Vectors {
    /// `count` vectors that nobody listens to.
    pub fn new(count: u16) -> Vectors {
        Vectors(Mutex::new((0..count).map(|_| None).collect()))
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.lock().len()
    }

    /// Lets each of `eventfds` stand for a vector, from `first` on.
    ///
    /// # Errors
    /// EINVAL for vectors that do not exist, or the errno of fcntl(2); nothing is changed then.
    pub fn set(&self, first: u16, eventfds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let lines = eventfds.iter().map(|fd| Line::new(*fd)).collect::<io::Result<Vec<Line>>>()?;
        let mut all = self.lock();
        let first = usize::from(first);
        let places = all.get_mut(first..first + lines.len()).ok_or(io::ErrorKind::InvalidInput)?;
        places.iter_mut().zip(lines).for_each(|(place, line)| *place = Some(line));
        Ok(())
    }

    /// Nobody listens to `count` vectors from `first` on any more; those that do not exist are left out.
    pub fn clear(&self, first: u16, count: usize) {
        self.lock().iter_mut().skip(usize::from(first)).take(count).for_each(|line| *line = None);
    }

    /// Whether somebody listens to any vector.
    pub fn is_used(&self) -> bool {
        self.lock().iter().any(Option::is_some)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Option<Line>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Interrupts for Vectors {
    fn raise(&self, vector: u16) {
        if let Some(Some(line)) = self.lock().get(usize::from(vector))
            && (!line.blocking || is_writable(&line.file))
        {
            // A counter that is full is readable already, and whoever closed the other end does not listen.
            let _ = (&line.file).write(&1u64.to_ne_bytes());
        }
    }
}

impl Line {
    fn new(fd: BorrowedFd<'_>) -> io::Result<Line> {
        let file = File::from(fd.try_clone_to_owned()?);
        // SAFETY: the call takes numbers and touches no memory of ours; the descriptor is open.
        let flags = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETFL) };
        if flags < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Line { file, blocking: flags & libc::O_NONBLOCK == 0 })
    }
}

fn is_writable(file: &File) -> bool {
    let mut entry = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
    // SAFETY: one entry, which lives through the call; a timeout of 0 does not wait.
    let ready = unsafe { libc::poll(&raw mut entry, 1, 0) };
    ready == 1 && entry.revents & libc::POLLOUT != 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::EventFd;
    use std::os::fd::AsFd;

    #[test]
    fn vectors_reach_their_eventfd_until_they_are_cleared() {
        let events = [EventFd::new().unwrap(), EventFd::new().unwrap()];
        let vectors = Vectors::new(4);
        vectors.raise(2);
        vectors.set(2, &[events[0].as_fd(), events[1].as_fd()]).unwrap();
        (0..10).for_each(|vector| vectors.raise(vector));
        vectors.raise(3);
        assert_eq!(events.each_ref().map(|event| event.drain().unwrap()), [1, 2]);
        vectors.clear(3, 100);
        vectors.raise(3);
        vectors.raise(2);
        assert_eq!(events.each_ref().map(|event| event.drain().unwrap()), [1, 0]);
        assert!(vectors.is_used() && vectors.set(3, &[events[0].as_fd(), events[1].as_fd()]).is_err());
    }

    #[test]
    fn a_full_pipe_does_not_hold_the_device_up() {
        let (_reader, writer) = io::pipe().unwrap();
        let vectors = Vectors::new(1);
        vectors.set(0, &[writer.as_fd()]).unwrap();
        (0..20_000).for_each(|_| vectors.raise(0));
    }
}
