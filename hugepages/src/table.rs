//! Large tables that only the CPU reads and writes: routes, queue pairs, memory keys. A [`Table`] has a fixed length and
//! sits on huge pages if the machine has some free, else on ordinary memory, and says which.
//!
//! It never holds DMA memory. Its huge pages come from the crate hugepage-rs: a private mapping without an fd, so it can be
//! given neither to a peer nor to an IOMMU by file, with no choice of page size or node. DMA memory is a
//! [`Region`](crate::Region).
//!
//! The owner of the table owns the memory; drop gives it back to where it came from. Publish a finished table in an `Arc`.

use crate::meminfo::{MEMINFO, field_bytes};
use crate::populate::{keep_from_children, populate};
use std::{
    alloc::{self, Layout},
    fmt, fs,
    ops::{Deref, DerefMut},
    ptr::NonNull,
    slice,
    sync::LazyLock,
};

/// The cache line that a table starts on.
const LINE_BYTES: usize = 64;

/// The machine's default huge page in bytes, which is the only one that hugepage-rs uses; `None` without huge pages, where
/// that crate would panic.
static DEFAULT_HUGE_BYTES: LazyLock<Option<usize>> = LazyLock::new(|| {
    let text = fs::read_to_string(MEMINFO).ok()?;
    usize::try_from(field_bytes(&text, "Hugepagesize")?).ok()
});

/// What a [`Table`] sits on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Huge pages of the machine's default size. A table takes whole pages, so a small one wastes most of its page.
    Huge,
    /// Ordinary memory in 4 KiB pages: no huge pages were free, or the kernel has none.
    Small,
}

/// Why a table could not be made.
#[derive(Debug, thiserror::Error)]
pub enum TableError {
    /// No entries, or entries without a size.
    #[error(
        "a table of {len} entries of {entry_bytes} bytes is empty; ask for at least one entry with a size"
    )]
    Empty {
        /// Entries asked for.
        len: usize,
        /// The size of one entry in bytes.
        entry_bytes: usize,
    },
    /// More bytes than an address space holds.
    #[error(
        "a table of {len} entries of {entry_bytes} bytes is larger than an address space; ask for fewer entries"
    )]
    TooLarge {
        /// Entries asked for.
        len: usize,
        /// The size of one entry in bytes.
        entry_bytes: usize,
    },
    /// Neither huge pages nor ordinary memory could be had.
    #[error(
        "a table of {bytes} bytes: no huge pages free and no ordinary memory; free memory or ask for fewer entries"
    )]
    NoMemory {
        /// What was asked, in bytes.
        bytes: usize,
    },
}

/// A fixed number of entries of plain data on huge pages, or on ordinary memory if there are none.
pub struct Table<T> {
    base: NonNull<T>,
    len: usize,
    layout: Layout,
    backing: Backing,
}

// SAFETY: a table owns its memory alone, like a boxed slice, so it moves between threads if its entries may.
unsafe impl<T: Send> Send for Table<T> {}
// SAFETY: `&Table` gives only `&[T]`, so threads may share it if they may share entries.
unsafe impl<T: Sync> Sync for Table<T> {}

impl<T: Copy + Send + Sync + 'static> Table<T> {
    /// A table of `len` entries, each a copy of `value`, starting on a cache line.
    ///
    /// # Errors
    /// [`TableError`]. That there are no huge pages is no error: see [`Table::backing`].
    pub fn filled(len: usize, value: T) -> Result<Table<T>, TableError> {
        let layout = layout_of::<T>(len)?;
        let (base, backing) = match huge(layout) {
            Some(base) => (base, Backing::Huge),
            None => (small(layout)?, Backing::Small),
        };
        Ok(Table::fill(base.cast(), len, layout, backing, value))
    }

    /// Takes over memory that [`huge`] or [`small`] gave for `layout`, which is the layout of `len` entries.
    fn fill(base: NonNull<T>, len: usize, layout: Layout, backing: Backing, value: T) -> Table<T> {
        for index in 0..len {
            // SAFETY: the memory is valid for `len` entries, aligned for T (see `layout_of`), and nobody else's.
            unsafe { base.add(index).write(value) };
        }
        Table { base, len, layout, backing }
    }
}

impl<T> Table<T> {
    /// What the table sits on.
    #[must_use]
    pub fn backing(&self) -> Backing {
        self.backing
    }
}

impl<T> Deref for Table<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: all `len` entries were written in `fill`, the memory is ours until drop, and `&self` excludes writers.
        unsafe { slice::from_raw_parts(self.base.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Table<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; `&mut self` excludes every other access.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl<T> Drop for Table<T> {
    fn drop(&mut self) {
        // Entries are `Copy` and so have no drop of their own.
        match self.backing {
            // SAFETY: the memory came from `huge` with this layout (see `filled`), and the table is its only owner.
            Backing::Huge => unsafe { hugepage_rs::dealloc(self.base.as_ptr().cast(), self.layout) },
            // SAFETY: as above, from `small`.
            Backing::Small => unsafe { alloc::dealloc(self.base.as_ptr().cast(), self.layout) },
        }
    }
}

impl<T> fmt::Debug for Table<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Table")
            .field("len", &self.len)
            .field("backing", &self.backing)
            .finish_non_exhaustive()
    }
}

fn layout_of<T>(len: usize) -> Result<Layout, TableError> {
    let entry_bytes = size_of::<T>();
    if len == 0 || entry_bytes == 0 {
        return Err(TableError::Empty { len, entry_bytes });
    }
    Layout::array::<T>(len)
        .and_then(|layout| layout.align_to(LINE_BYTES))
        .map_err(|_| TableError::TooLarge { len, entry_bytes })
}

/// Memory on huge pages for `layout`, populated: hugepage-rs does not populate, and a cgroup's limit would be a SIGBUS at
/// the first touch. `None` if there are not enough, or if the layout wants a coarser alignment than a huge page.
fn huge(layout: Layout) -> Option<NonNull<u8>> {
    let page_bytes = (*DEFAULT_HUGE_BYTES)?;
    // SAFETY: `layout_of` gives no layout of size zero.
    let base = NonNull::new(unsafe { hugepage_rs::alloc(layout) })?;
    // hugepage-rs maps whole pages.
    let mapped_bytes = layout.size().next_multiple_of(page_bytes);
    let start = base.addr().get();
    let usable = keep_from_children(start, mapped_bytes)
        .and_then(|()| populate(start, mapped_bytes, page_bytes))
        .is_ok();
    if !usable {
        // SAFETY: the memory came from hugepage-rs with this layout just now, and no pointer to it is kept.
        unsafe { hugepage_rs::dealloc(base.as_ptr(), layout) };
    }
    usable.then_some(base)
}

fn small(layout: Layout) -> Result<NonNull<u8>, TableError> {
    // SAFETY: `layout_of` gives no layout of size zero.
    NonNull::new(unsafe { alloc::alloc_zeroed(layout) }).ok_or(TableError::NoMemory { bytes: layout.size() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        page::PageSize,
        pool,
        tests::{alone, with_no_pages, with_pages},
    };
    use proptest::prelude::*;
    use std::path::Path;

    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Route {
        prefix: u32,
        length: u8,
        next: u16,
    }

    const ROUTE: Route = Route { prefix: 0x0A00_0000, length: 8, next: 3 };

    fn free_pages() -> u64 {
        pool::report_of(Path::new(pool::SYS), PageSize::Huge2M).unwrap().unpromised()
    }

    fn assert_usable(table: &mut Table<Route>, len: usize) {
        assert_eq!(table.len(), len);
        assert!(table.as_ptr().addr().is_multiple_of(LINE_BYTES));
        assert!(table.iter().all(|entry| *entry == ROUTE));
        table[len - 1].next = 7;
        assert_eq!((table[len - 1].next, table[0].next), (7, if len == 1 { 7 } else { 3 }));
    }

    #[test]
    fn with_free_pages_a_table_is_huge() {
        with_pages(3, || {
            let before = free_pages();
            let len = (4 << 20) / size_of::<Route>() + 1;
            let mut table = Table::filled(len, ROUTE).unwrap();
            assert_eq!(table.backing(), Backing::Huge);
            assert_eq!(before - free_pages(), 3, "whole pages");
            assert!(table.as_ptr().addr().is_multiple_of(2 << 20));
            assert_usable(&mut table, len);
            drop(table);
            assert_eq!(free_pages(), before);
        });
    }

    #[test]
    fn without_free_pages_a_table_is_small() {
        with_no_pages(|| {
            let mut table = Table::filled(1000, ROUTE).unwrap();
            assert_eq!(table.backing(), Backing::Small);
            assert_usable(&mut table, 1000);
        });
    }

    #[test]
    fn an_alignment_beyond_a_huge_page_is_small() {
        #[derive(Clone, Copy)]
        #[repr(align(4194304))]
        struct Coarse(#[allow(dead_code)] u8);
        with_pages(4, || {
            assert!(huge(layout_of::<Coarse>(1).unwrap()).is_none());
            let base = small(layout_of::<Coarse>(1).unwrap()).unwrap();
            assert!(base.addr().get().is_multiple_of(4 << 20));
            // SAFETY: the memory came from this allocator with this layout.
            unsafe { alloc::dealloc(base.as_ptr(), layout_of::<Coarse>(1).unwrap()) };
        });
    }

    #[test]
    fn impossible_tables_are_typed_errors() {
        assert!(matches!(Table::filled(0, 1_u64), Err(TableError::Empty { len: 0, entry_bytes: 8 })));
        assert!(matches!(Table::filled(9, ()), Err(TableError::Empty { len: 9, entry_bytes: 0 })));
        assert!(matches!(Table::filled(usize::MAX / 4, 1_u64), Err(TableError::TooLarge { .. })));
        assert!(matches!(Table::filled(isize::MAX as usize / 8, 1_u64), Err(TableError::TooLarge { .. })));
        let error = alone(|| Table::filled(1 << 57, 1_u8)).unwrap_err();
        assert!(matches!(error, TableError::NoMemory { .. }), "{error}");
    }

    #[test]
    fn a_table_is_shared_between_threads() {
        let table = alone(|| Table::filled(1000, 5_u64)).unwrap();
        let sum = std::thread::scope(|scope| scope.spawn(|| table.iter().sum::<u64>()).join().unwrap());
        assert_eq!(sum, 5000);
        assert!(format!("{table:?}").contains("1000"));
    }

    proptest! {
        #[test]
        fn a_table_is_a_slice(values in proptest::collection::vec(any::<u32>(), 1..500)) {
            let layout = layout_of::<u32>(values.len()).unwrap();
            let mut table = Table::fill(small(layout).unwrap().cast(), values.len(), layout, Backing::Small, 1_u32);
            table.copy_from_slice(&values);
            prop_assert_eq!(&table[..], &values[..]);
        }
    }
}
