//! Faulting pages in, with an error where a first touch would raise SIGBUS. It changes no byte and owns no memory.

use std::{
    io,
    panic::resume_unwind,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// What one thread takes at a time: large enough that a chunk costs much more than the call, small enough to balance.
const CHUNK_BYTES: usize = 32 << 20;

/// How often a range is tried again after EAGAIN or EINTR.
const TRIES: usize = 16;

/// Populates the mapped range of `bytes` at the address `start`, zeroing being most of the cost: in chunks of whole pages,
/// by at most as many threads as the caller may run on at once. The caller works too, so a thread that cannot be created
/// costs time only.
///
/// # Errors
/// What madvise(2) gives for `MADV_POPULATE_WRITE`: EFAULT where a touch would raise SIGBUS (a huge page is missing, or the
/// cgroup's limit is reached), ENOMEM for a range that is not mapped, EINVAL before Linux 5.14.
pub(crate) fn populate(start: usize, bytes: usize, page_bytes: usize) -> io::Result<()> {
    let chunk_bytes = CHUNK_BYTES.max(page_bytes);
    let chunks = bytes.div_ceil(chunk_bytes);
    let threads = thread::available_parallelism().map_or(1, usize::from).min(chunks);
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let chunk = next.fetch_add(1, Ordering::Relaxed);
            if chunk >= chunks {
                return Ok(());
            }
            let offset = chunk * chunk_bytes;
            populate_chunk(start + offset, chunk_bytes.min(bytes - offset))
                // One failure ends the work of all: the region will be given up.
                .inspect_err(|_| next.store(chunks, Ordering::Relaxed))?;
        }
    };
    thread::scope(|scope| {
        let helpers: Vec<_> =
            (1..threads).map_while(|_| thread::Builder::new().spawn_scoped(scope, work).ok()).collect();
        let own = work();
        helpers.into_iter().fold(own, |result, helper| {
            result.and(helper.join().unwrap_or_else(|panicked| resume_unwind(panicked)))
        })
    })
}

fn populate_chunk(start: usize, bytes: usize) -> io::Result<()> {
    let mut result = Ok(());
    for _ in 0..TRIES {
        result = advise(start, bytes, libc::MADV_POPULATE_WRITE);
        match &result {
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) => {
                thread::yield_now()
            }
            _ => break,
        }
    }
    result
}

/// Keeps a mapped range out of children (`MADV_DONTFORK`): a fork would share DMA memory, or copy a huge page at the next
/// write.
///
/// # Errors
/// What madvise(2) gives.
pub(crate) fn keep_from_children(start: usize, bytes: usize) -> io::Result<()> {
    advise(start, bytes, libc::MADV_DONTFORK)
}

fn advise(start: usize, bytes: usize, advice: libc::c_int) -> io::Result<()> {
    // SAFETY: both advices of this file leave every byte of this process as it is, whatever the range; a range that is not
    // mapped is an error.
    let result = unsafe { libc::madvise(std::ptr::without_provenance_mut(start), bytes, advice) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests;

    #[test]
    fn a_range_that_is_not_mapped_is_an_error() {
        // The first page is never mapped (vm.mmap_min_addr).
        let error = populate(4096, 1 << 40, 4096).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENOMEM));
        assert!(keep_from_children(4096, 4096).is_err());
    }

    #[test]
    fn a_missing_huge_page_is_an_error_and_no_signal() {
        tests::with_no_pages(|| {
            let (bytes, protection) = (2 << 20, libc::PROT_READ | libc::PROT_WRITE);
            let flags = libc::MAP_PRIVATE
                | libc::MAP_ANONYMOUS
                | libc::MAP_HUGETLB
                | libc::MAP_HUGE_2MB
                | libc::MAP_NORESERVE;
            // SAFETY: a new mapping at an address of the kernel's choice.
            let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, -1, 0) };
            assert_ne!(base, libc::MAP_FAILED, "without a promise the kernel maps what it does not have");
            let error = populate(base.addr(), bytes, bytes).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EFAULT), "a touch would be a SIGBUS");
            // SAFETY: the mapping is ours, and no pointer into it is used again.
            assert_eq!(unsafe { libc::munmap(base, bytes) }, 0);
        });
    }
}
