//! Which cores a thread may run on: read it, narrow it to one core, and check what the kernel made of that.
//!
//! A thread inherits the cores of the thread that started it. That set is somebody's decision (`taskset`, a container's
//! cpuset) and is honoured: pinning picks one core out of it and never widens it. Only the thread itself is touched, so a
//! caller pins the threads that it created and leaves those of its host program alone.

use std::fmt;
use std::io;
use thiserror::Error;

/// The most cores that a kernel is built for (`NR_CPUS` of x86-64 `MAXSMP`), so that its mask always fits.
const MOST_CORES: usize = 8192;
const WORD_BITS: usize = libc::c_ulong::BITS as usize;

type Mask = [libc::c_ulong; MOST_CORES / WORD_BITS];

/// Core numbers, ascending, as the kernel counts them; printed like the kernel's own lists: `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cores(Vec<usize>);

impl Cores {
    /// The numbers, ascending.
    pub fn as_slice(&self) -> &[usize] {
        &self.0
    }

    /// Whether `core` is one of them.
    pub fn contains(&self, core: usize) -> bool {
        self.0.binary_search(&core).is_ok()
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for run in self.0.chunk_by(|left, right| left + 1 == *right) {
            match run {
                [first, .., last] => write!(f, "{separator}{first}-{last}")?,
                [only] => write!(f, "{separator}{only}")?,
                [] => {}
            }
            separator = ",";
        }
        Ok(())
    }
}

/// Why a thread does not run where it was told to.
#[derive(Debug, Error)]
pub enum AffinityError {
    /// The core is not in the set that the thread inherited.
    #[error(
        "pin the thread to core {core}: it may only run on cores {allowed}; name one of these, start the program with \
         `taskset -c {core}`, or add the core to its cgroup's cpuset (`cpuset.cpus`, in a container the runtime's \
         cpuset option)"
    )]
    NotAllowed {
        /// The core asked for.
        core: usize,
        /// The thread's cores.
        allowed: Cores,
    },
    /// The kernel refused.
    #[error(
        "pin the thread to core {core}: sched_setaffinity: {error}; it may run on cores {allowed}; see whether the core \
         is online (/sys/devices/system/cpu/online) and in the cgroup's cpuset (`cpuset.cpus.effective`)"
    )]
    Refused {
        /// The core asked for.
        core: usize,
        /// The thread's cores.
        allowed: Cores,
        /// The errno.
        error: io::Error,
    },
    /// The kernel accepted, and yet the thread's cores are others.
    #[error(
        "pin the thread to core {core}: its cores are {actual} afterwards; something else sets affinities too: look for \
         a cgroup cpuset that changed or a tuning daemon"
    )]
    Overruled {
        /// The core asked for.
        core: usize,
        /// What was read back.
        actual: Cores,
    },
    /// The thread's cores could not be read.
    #[error("read the thread's cores: sched_getaffinity: {error}; a seccomp filter may forbid the call")]
    Unreadable {
        /// The errno.
        error: io::Error,
    },
}

/// The cores that the current thread may run on (sched_getaffinity(2)).
///
/// # Errors
/// [`AffinityError::Unreadable`].
pub fn allowed_cores() -> Result<Cores, AffinityError> {
    let mut mask: Mask = [0; MOST_CORES / WORD_BITS];
    // SAFETY: the mask is as long as we say; the kernel writes at most that much, and thread 0 is the current one.
    let status = unsafe { libc::sched_getaffinity(0, size_of::<Mask>(), mask.as_mut_ptr().cast()) };
    if status < 0 {
        return Err(AffinityError::Unreadable { error: io::Error::last_os_error() });
    }
    let set = |core: &usize| mask[core / WORD_BITS] >> (core % WORD_BITS) & 1 == 1;
    Ok(Cores((0..MOST_CORES).filter(set).collect()))
}

/// Lets the current thread run on `core` only (sched_setaffinity(2)) and reads that back.
///
/// # Errors
/// The core is not among [`allowed_cores`], the kernel refused, or it accepted and did something else.
pub fn pin_current_thread(core: usize) -> Result<(), AffinityError> {
    let allowed = allowed_cores()?;
    if !allowed.contains(core) {
        return Err(AffinityError::NotAllowed { core, allowed });
    }
    let mut mask: Mask = [0; MOST_CORES / WORD_BITS];
    mask[core / WORD_BITS] |= 1 << (core % WORD_BITS);
    // SAFETY: the mask is as long as we say and the kernel only reads it; thread 0 is the current one.
    let status = unsafe { libc::sched_setaffinity(0, size_of::<Mask>(), mask.as_ptr().cast()) };
    if status < 0 {
        return Err(AffinityError::Refused { core, allowed, error: io::Error::last_os_error() });
    }
    let actual = allowed_cores()?;
    match actual.as_slice() {
        [only] if *only == core => Ok(()),
        _ => Err(AffinityError::Overruled { core, actual }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn a_pinned_thread_stays_on_its_core_and_its_parent_does_not() {
        let before = allowed_cores().unwrap();
        let core = *before.as_slice().last().unwrap();
        let inside = thread::spawn(move || {
            pin_current_thread(core).unwrap();
            allowed_cores().unwrap()
        });
        assert_eq!(inside.join().unwrap(), Cores(vec![core]));
        assert_eq!(allowed_cores().unwrap(), before);
    }

    #[test]
    fn a_core_outside_the_inherited_set_is_refused_with_the_remedy() {
        let error = thread::spawn(|| pin_current_thread(MOST_CORES + 3).unwrap_err()).join().unwrap();
        assert!(matches!(error, AffinityError::NotAllowed { core: 8195, .. }), "{error}");
        let text = error.to_string();
        let allowed = format!("cores {};", allowed_cores().unwrap());
        assert!(text.contains("core 8195") && text.contains(&allowed), "{text}");
        assert!(text.contains("taskset -c 8195") && text.contains("cpuset.cpus"), "{text}");
    }

    #[test]
    fn an_inherited_mask_is_not_widened() {
        let cores = allowed_cores().unwrap();
        let [first, .., last] = *cores.as_slice() else { return };
        let outcome = thread::spawn(move || {
            pin_current_thread(first).unwrap();
            thread::spawn(move || pin_current_thread(last)).join().unwrap()
        });
        let error = outcome.join().unwrap().unwrap_err();
        assert!(matches!(error, AffinityError::NotAllowed { .. }), "{error}");
    }

    #[test]
    fn core_lists_read_like_the_kernels() {
        assert_eq!(Cores(vec![0, 1, 2, 3, 8, 10, 11]).to_string(), "0-3,8,10-11");
        assert_eq!(Cores(vec![]).to_string(), "");
    }
}
