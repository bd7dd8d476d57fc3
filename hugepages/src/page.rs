//! Page sizes and NUMA nodes as types. Nothing here asks the machine.

use std::fmt;

/// A page size that Pollring uses for DMA memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PageSize {
    /// 4 KiB, the base page.
    Small4K,
    /// 2 MiB, a PMD-level huge page on x86-64 and on aarch64 with 4 KiB base pages.
    Huge2M,
    /// 1 GiB, a PUD-level huge page.
    Huge1G,
}

impl PageSize {
    /// The size of one page in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            PageSize::Small4K => 4 << 10,
            PageSize::Huge2M => 2 << 20,
            PageSize::Huge1G => 1 << 30,
        }
    }

    /// `bytes` rounded up to whole pages; `None` for zero and for what no mapping can hold (over `isize::MAX`).
    #[must_use]
    pub fn round_up(self, bytes: usize) -> Option<usize> {
        let rounded = bytes.checked_next_multiple_of(self.bytes())?;
        (bytes > 0 && isize::try_from(rounded).is_ok()).then_some(rounded)
    }

    /// The name of the kernel's directory for this size, `hugepages-2048kB`
    /// (Documentation/admin-guide/mm/hugetlbpage.rst).
    pub(crate) fn directory(self) -> String {
        format!("hugepages-{}kB", self.bytes() >> 10)
    }
}

impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PageSize::Small4K => "4 KiB",
            PageSize::Huge2M => "2 MiB",
            PageSize::Huge1G => "1 GiB",
        })
    }
}

/// Which pages a region asks for. Small pages need a stated reason, so that a slow set-up says why it is slow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pages {
    /// Huge pages of 1 GiB.
    Huge1G,
    /// Huge pages of 2 MiB.
    Huge2M,
    /// Base pages of 4 KiB: more IOTLB and TLB misses.
    Small4K {
        /// Why huge pages are not used, in words for the operator.
        reason: String,
    },
}

impl Pages {
    /// The size of the pages that are asked for.
    #[must_use]
    pub fn size(&self) -> PageSize {
        match self {
            Pages::Huge1G => PageSize::Huge1G,
            Pages::Huge2M => PageSize::Huge2M,
            Pages::Small4K { .. } => PageSize::Small4K,
        }
    }
}

/// A NUMA node by the kernel's number (`/sys/devices/system/node/nodeN`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NumaNode(pub u16);

impl fmt::Display for NumaNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_size() -> impl Strategy<Value = PageSize> {
        prop_oneof![Just(PageSize::Small4K), Just(PageSize::Huge2M), Just(PageSize::Huge1G)]
    }

    /// Sizes near zero, near page boundaries, near both limits, and anywhere.
    fn any_bytes() -> impl Strategy<Value = usize> {
        prop_oneof![
            0..10_000_usize,
            (0..4096_usize, 0..3_usize)
                .prop_map(|(pages, off)| (pages << 21).wrapping_add(off).wrapping_sub(1)),
            (0..(4_usize << 30)).prop_map(|below| isize::MAX as usize - below),
            (0..(4_usize << 30)).prop_map(|below| usize::MAX - below),
            any::<usize>(),
        ]
    }

    proptest! {
        #[test]
        fn rounding_gives_the_least_whole_pages(size in any_size(), bytes in any_bytes()) {
            let page_bytes = size.bytes() as u128;
            let exact = (bytes as u128).div_ceil(page_bytes) * page_bytes;
            let expected = (bytes > 0 && exact <= isize::MAX as u128).then_some(exact as usize);
            prop_assert_eq!(size.round_up(bytes), expected);
        }
    }

    #[test]
    fn names_are_the_kernels() {
        assert_eq!(PageSize::Huge2M.directory(), "hugepages-2048kB");
        assert_eq!(PageSize::Huge1G.directory(), "hugepages-1048576kB");
        assert_eq!(
            format!("{} {} {}", PageSize::Small4K, PageSize::Huge1G, NumaNode(3)),
            "4 KiB 1 GiB node 3"
        );
        assert_eq!(Pages::Small4K { reason: "test".into() }.size(), PageSize::Small4K);
    }
}
