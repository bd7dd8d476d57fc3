//! For tests only: the machine's huge pages belong to one test at a time, and go back when the test ends, also by a panic.
//! Every test that reserves, uses or counts huge pages runs in [`alone`] or [`with_pages`].

use crate::page::PageSize;
use crate::pool::{self, Reserved};
use std::sync::{Mutex, PoisonError};

static MACHINE: Mutex<()> = Mutex::new(());

/// Runs `test` while no other test of this process touches the pool.
pub(crate) fn alone<T>(test: impl FnOnce() -> T) -> T {
    let _guard = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    test()
}

/// Runs `test` alone with at least `count` free pages of 2 MiB.
pub(crate) fn with_pages<T>(count: u64, test: impl FnOnce() -> T) -> T {
    alone(|| {
        let reserved = reserve_or_fail(count);
        let _back = GiveBack(reserved.after - reserved.before);
        test()
    })
}

/// Reserves, or fails the test with what it needs.
pub(crate) fn reserve_or_fail(count: u64) -> Reserved {
    pool::reserve(PageSize::Huge2M, count, None).unwrap_or_else(|error| {
        panic!("this test needs {count} free huge pages of 2 MiB and reserves them itself: {error}")
    })
}

struct GiveBack(u64);

impl Drop for GiveBack {
    fn drop(&mut self) {
        let released = pool::release(PageSize::Huge2M, self.0);
        if !std::thread::panicking() {
            assert_eq!(released.unwrap(), self.0, "huge pages leaked or were taken by another process");
        }
    }
}
