//! What can go wrong, each with what was tried, what happened and what to do next. Values only; nothing here acts.

use crate::page::{NumaNode, PageSize};
use crate::pool::{SYS, pool_directory};
use std::{fmt, io, path::Path};

/// Why a region could not be allocated. Nothing of it is left then.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// Zero bytes were asked for.
    #[error("region `{name}`: 0 bytes asked; a region has at least one page")]
    Zero {
        /// The region's name.
        name: String,
    },
    /// No mapping can be that long.
    #[error(
        "region `{name}`: {bytes} bytes in pages of {page_size} are more than an address space holds; ask for fewer"
    )]
    TooLarge {
        /// The region's name.
        name: String,
        /// What was asked, in bytes.
        bytes: usize,
        /// The page size that it was rounded up to.
        page_size: PageSize,
    },
    /// The node does not exist.
    #[error(
        "region `{name}`: this machine has no {node}; /sys/devices/system/node lists the nodes, or name none"
    )]
    NoNode {
        /// The region's name.
        name: String,
        /// The node asked for.
        node: NumaNode,
    },
    /// Fewer huge pages are free than asked for. Found before any page is touched.
    #[error(fmt = shortage)]
    NotEnough {
        /// The region's name.
        name: String,
        /// The size of the pages.
        page_size: PageSize,
        /// Pages asked for.
        asked_pages: u64,
        /// Pages that are free and promised to nobody.
        free_pages: u64,
        /// Pages that the machine, or the node, has in its pool, free or in use.
        reserved_pages: u64,
        /// The node asked for.
        node: Option<NumaNode>,
    },
    /// Less memory is available than asked for in 4 KiB pages.
    #[error(
        "region `{name}`: {asked_bytes} bytes in pages of 4 KiB asked {place}, {available_bytes} \
         available; free memory (`free -b` shows it) or ask for fewer"
    )]
    NotEnoughMemory {
        /// The region's name.
        name: String,
        /// What was asked, in bytes.
        asked_bytes: u64,
        /// What is available (MemAvailable; for a node its free and page-cache memory), in bytes.
        available_bytes: u64,
        /// Where: "on node 1" or "on any node".
        place: String,
    },
    /// The machine's figures could not be read, or it has no pages of that size.
    #[error("region `{name}`: {source}")]
    Pool {
        /// The region's name.
        name: String,
        /// What is wrong with the pool.
        source: PoolError,
    },
    /// A system call failed, although the figures were good.
    #[error("region `{name}`: {call} failed: {source}; {advice}")]
    Call {
        /// The region's name.
        name: String,
        /// The call.
        call: &'static str,
        /// What the kernel said.
        source: io::Error,
        /// What to check next.
        advice: &'static str,
    },
    /// Neither the pages asked for nor 4 KiB pages could be had.
    #[error("{huge}; with 4 KiB pages instead: {small}")]
    Neither {
        /// Why not the pages asked for.
        huge: Box<RegionError>,
        /// Why not 4 KiB pages.
        small: Box<RegionError>,
    },
}

fn shortage(
    name: &str,
    page_size: &PageSize,
    asked_pages: &u64,
    free_pages: &u64,
    reserved_pages: &u64,
    node: &Option<NumaNode>,
    f: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let place = node.map_or_else(String::new, |node| format!(" on {node}"));
    let mut options = String::new();
    if *page_size == PageSize::Huge1G {
        options.push_str("--size 1G ");
    }
    if let Some(NumaNode(number)) = node {
        options.push_str(&format!("--node {number} "));
    }
    let total = reserved_pages.saturating_add(asked_pages.saturating_sub(*free_pages));
    let directory = pool_directory(Path::new(SYS), *page_size, *node);
    let pages = if *asked_pages == 1 { "page" } else { "pages" };
    write!(
        f,
        "region `{name}`: {asked_pages} huge {pages} of {page_size} asked{place}, {free_pages} free \
         ({reserved_pages} reserved); reserve them: `pollring hugepages reserve {options}{asked_pages}` as root, \
         or `echo {total} > {}/nr_hugepages`",
        directory.display()
    )
}

/// Why the machine's pool could not be read or changed, or a [`Budget`](crate::pool::Budget) does not allow it.
#[derive(Debug, thiserror::Error)]
pub enum PoolError {
    /// The kernel has no huge pages at all, or sysfs is not there.
    #[error("no directory {path}: mount sysfs, or use a kernel with CONFIG_HUGETLBFS")]
    NoHugePages {
        /// The directory that was looked for.
        path: String,
    },
    /// The kernel does not offer this page size.
    #[error(
        "this machine has no huge pages of {size} (no directory {path}): use another page size; 1 GiB \
         needs the CPU flag pdpe1gb"
    )]
    NoPageSize {
        /// The size asked for.
        size: PageSize,
        /// The directory that was looked for.
        path: String,
    },
    /// The node does not exist or holds no huge pages of this size.
    #[error(
        "{node} has no pool of {size} pages: name a node with memory (`numactl --hardware` lists them) or none"
    )]
    NoNode {
        /// The node asked for.
        node: NumaNode,
        /// The page size asked for.
        size: PageSize,
    },
    /// A file of the kernel could not be read.
    #[error("reading {path}: {source}; check that /sys and /proc are mounted")]
    Read {
        /// The file.
        path: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// A file of the kernel does not hold what its documentation says.
    #[error("{path} is not as documented: {text}; report this with the output of `uname -r`")]
    Parse {
        /// The file.
        path: String,
        /// What it held, or what it lacks.
        text: String,
    },
    /// The kernel does not let this user change the pool.
    #[error("writing {pages} to {path}: {source}; run this as root, where /sys is writable")]
    Denied {
        /// The file.
        path: String,
        /// The count to be written.
        pages: u64,
        /// EACCES, EPERM or EROFS.
        source: io::Error,
    },
    /// The kernel refused the count for another reason.
    #[error(
        "writing {pages} to {path}: {source}; reserve at boot with the kernel's `hugepagesz=` and `hugepages=`"
    )]
    Write {
        /// The file.
        path: String,
        /// The count to be written.
        pages: u64,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another process holds the lock on the kernel's file.
    #[error("{path} has been locked by another process for {waited_s} s: see `lslocks`, then try again")]
    Busy {
        /// The file.
        path: String,
        /// How long this call waited, in seconds.
        waited_s: u64,
    },
    /// The memory for the pages is not there, so the kernel was not asked.
    #[error(
        "{pages} more huge pages of {size} asked {place}: that is {asked_bytes} bytes, {available_bytes} \
         bytes are available; free memory or ask for fewer"
    )]
    NotEnoughMemory {
        /// Pages to be added.
        pages: u64,
        /// Their size.
        size: PageSize,
        /// Where: "on node 1" or "on any node".
        place: String,
        /// What they take, in bytes.
        asked_bytes: u64,
        /// What is available, in bytes.
        available_bytes: u64,
    },
    /// The kernel made fewer pages free than asked; the pool was set back.
    #[error(
        "{asked} free huge pages of {size} asked {place}, the kernel made {got} free ({free_before} \
         before) and the pool was set back to {total_before}: memory is full or in pieces; `echo 1 > \
         /proc/sys/vm/compact_memory`, or reserve at boot"
    )]
    TooFew {
        /// Free pages asked for.
        asked: u64,
        /// Their size.
        size: PageSize,
        /// Where: "on node 1" or "on any node".
        place: String,
        /// Free pages before the call.
        free_before: u64,
        /// Free pages that the kernel reached.
        got: u64,
        /// Pages in the pool before the call.
        total_before: u64,
    },
    /// An app asked for more than its [`Budget`](crate::pool::Budget) has left.
    #[error(
        "{asked_bytes} bytes asked {place}, but {taken_bytes} of the budget's {limit_bytes} bytes are \
         taken: raise the budget for that node or use less"
    )]
    OverBudget {
        /// Where: "on node 1" or "on any node".
        place: String,
        /// What was asked, in bytes.
        asked_bytes: usize,
        /// The budget's limit there, in bytes.
        limit_bytes: usize,
        /// What was taken before, in bytes.
        taken_bytes: usize,
    },
    /// An app gave back to its [`Budget`](crate::pool::Budget) more than it took: its own accounting is wrong.
    #[error(
        "{given_bytes} bytes given back {place}, but only {taken_bytes} bytes were taken there: give back \
         each take once, for the same node"
    )]
    NotTaken {
        /// Where: "on node 1" or "on any node".
        place: String,
        /// What was given back, in bytes.
        given_bytes: usize,
        /// What was taken, in bytes.
        taken_bytes: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_says_what_to_do() {
        let error = |page_size, node| RegionError::NotEnough {
            name: "frames".into(),
            page_size,
            asked_pages: 512,
            free_pages: 0,
            reserved_pages: 0,
            node,
        };
        assert_eq!(
            error(PageSize::Huge2M, None).to_string(),
            "region `frames`: 512 huge pages of 2 MiB asked, 0 free (0 reserved); reserve them: `pollring hugepages \
             reserve 512` as root, or `echo 512 > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages`"
        );
        assert_eq!(
            error(PageSize::Huge1G, Some(NumaNode(1))).to_string(),
            "region `frames`: 512 huge pages of 1 GiB asked on node 1, 0 free (0 reserved); reserve them: `pollring \
             hugepages reserve --size 1G --node 1 512` as root, or `echo 512 > \
             /sys/devices/system/node/node1/hugepages/hugepages-1048576kB/nr_hugepages`"
        );
    }
}
