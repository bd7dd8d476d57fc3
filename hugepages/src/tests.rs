//! For tests only: the machine's huge pages belong to one test at a time, and go back when the test ends, also by a panic.
//! Every test that reserves, uses or counts huge pages runs in [`alone`] or [`with_pages`].

use crate::page::{PageSize, Pages};
use crate::pool::{self, Reserved};
use crate::region::{Region, RegionConfig};
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

/// Runs `test` alone while every huge page of 2 MiB that the kernel would give is taken.
pub(crate) fn with_no_pages<T>(test: impl FnOnce() -> T) -> T {
    alone(|| {
        let pools = pool::report().expect("this test needs a kernel with huge pages");
        let pool =
            pools.iter().find(|pool| pool.size == PageSize::Huge2M).expect("this test needs pages of 2 MiB");
        let pages = (pool.unpromised() + pool.overcommit.saturating_sub(pool.surplus)) as usize;
        let bytes = pages * PageSize::Huge2M.bytes();
        let config = RegionConfig { name: "all pages".into(), bytes, pages: Pages::Huge2M, node: None };
        let _held = (pages > 0).then(|| Region::allocate(&config).unwrap());
        test()
    })
}

/// Reserves, or fails the test with what it needs.
pub(crate) fn reserve_or_fail(count: u64) -> Reserved {
    pool::reserve(PageSize::Huge2M, count, None)
        .map_err(|error| format!("this test reserves {count} huge pages of 2 MiB itself, as root: {error}"))
        .unwrap()
}

/// Releases so many pages when dropped.
pub(crate) struct GiveBack(pub(crate) u64);

impl Drop for GiveBack {
    fn drop(&mut self) {
        let released = pool::release(PageSize::Huge2M, self.0);
        if !std::thread::panicking() {
            assert_eq!(released.unwrap(), self.0, "huge pages leaked or were taken by another process");
        }
    }
}
