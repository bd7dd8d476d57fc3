//! What the machine has reserved in huge pages, and changing it. The kernel owns the figures; this file reads them from
//! sysfs at each call and caches none (Documentation/admin-guide/mm/hugetlbpage.rst).
//!
//! The order of calls: [`report`] at any time; [`reserve`] before regions are allocated; [`release`] once they are dropped.
//! Pages that are in use are never taken away. The kernel's file takes an absolute count, so a change holds a file lock on
//! it from reading to writing: two processes that use this crate do not undo each other's change.

pub use crate::budget::Budget;
pub use crate::error::PoolError;
use crate::meminfo;
use crate::page::{NumaNode, PageSize};
use std::{
    fs::{self, File, TryLockError},
    io,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

/// Where sysfs is mounted.
pub(crate) const SYS: &str = "/sys";

/// How long a change waits for another process's change, which may be compacting memory.
const LOCK_WAIT: Duration = Duration::from_secs(10);

/// The machine's pool of huge pages of one size. All figures but `size` and `nodes` are counts of pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolReport {
    /// The size of the pages.
    pub size: PageSize,
    /// Pages in the pool, in use or not, with the surplus (`nr_hugepages`).
    pub total: u64,
    /// Pages that hold no data (`free_hugepages`). Some of them may be promised, see `reserved`.
    pub free: u64,
    /// Free pages that are promised to mappings that did not touch them yet (`resv_hugepages`).
    pub reserved: u64,
    /// Pages above the persistent count, given on demand and gone when freed (`surplus_hugepages`).
    pub surplus: u64,
    /// How many surplus pages the kernel may give (`nr_overcommit_hugepages`).
    pub overcommit: u64,
    /// The parts of the pool per NUMA node, in order; empty on a kernel without NUMA.
    pub nodes: Vec<NodeReport>,
}

/// One node's part of a pool, in pages. The kernel does not say per node how many are promised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// The node.
    pub node: NumaNode,
    /// Pages on this node, in use or not, with the surplus.
    pub total: u64,
    /// Pages on this node that hold no data.
    pub free: u64,
    /// Surplus pages on this node.
    pub surplus: u64,
}

impl PoolReport {
    /// The pages that a new mapping can have: free and promised to nobody.
    #[must_use]
    pub fn unpromised(&self) -> u64 {
        self.free.saturating_sub(self.reserved)
    }

    /// The part of `node`, if it has one.
    #[must_use]
    pub fn on(&self, node: NumaNode) -> Option<&NodeReport> {
        self.nodes.iter().find(|part| part.node == node)
    }
}

/// What [`reserve`] did, as counts of pages in the pool (of the node, if one was named).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserved {
    /// Pages before.
    pub before: u64,
    /// Pages after; equal to `before` if enough were free already.
    pub after: u64,
}

/// The machine's pools of 2 MiB and 1 GiB pages, as far as the kernel has them. Other sizes are left out.
///
/// # Errors
/// [`PoolError::NoHugePages`], `Read` or `Parse`.
pub fn report() -> Result<Vec<PoolReport>, PoolError> {
    report_at(Path::new(SYS))
}

/// As [`report`], with sysfs at `sys` instead of `/sys`.
///
/// # Errors
/// As [`report`].
pub fn report_at(sys: &Path) -> Result<Vec<PoolReport>, PoolError> {
    let pools = sys.join("kernel/mm/hugepages");
    if !pools.is_dir() {
        return Err(PoolError::NoHugePages { path: pools.display().to_string() });
    }
    let sizes = [PageSize::Huge2M, PageSize::Huge1G].into_iter();
    sizes.filter(|size| pools.join(size.directory()).is_dir()).map(|size| report_of(sys, size)).collect()
}

/// The pool of one page size.
///
/// # Errors
/// [`PoolError::NoPageSize`], `Read` or `Parse`.
pub(crate) fn report_of(sys: &Path, size: PageSize) -> Result<PoolReport, PoolError> {
    let directory = pool_directory(sys, size, None);
    if !directory.is_dir() {
        return Err(PoolError::NoPageSize { size, path: directory.display().to_string() });
    }
    Ok(PoolReport {
        size,
        total: read_count(&directory, "nr_hugepages")?,
        free: read_count(&directory, "free_hugepages")?,
        reserved: read_count(&directory, "resv_hugepages")?,
        surplus: read_count(&directory, "surplus_hugepages")?,
        overcommit: read_count(&directory, "nr_overcommit_hugepages")?,
        nodes: node_reports(sys, size)?,
    })
}

/// Makes at least `count` pages of `size` free for new mappings, on `node` if one is named, by raising the pool. Pages that
/// are free already count; pages that are promised to a mapping do not. For a node all promised pages are taken to be on it,
/// as the kernel does not say where they are.
///
/// # Errors
/// [`PoolError::Denied`] unless root; `NotEnoughMemory` or `TooFew` with the figures, and the pool is then as it was.
pub fn reserve(size: PageSize, count: u64, node: Option<NumaNode>) -> Result<Reserved, PoolError> {
    reserve_at(Path::new(SYS), size, count, node)
}

fn reserve_at(sys: &Path, size: PageSize, count: u64, node: Option<NumaNode>) -> Result<Reserved, PoolError> {
    let now = Level::read(sys, size, node)?;
    if now.unpromised >= count {
        return Ok(Reserved { before: now.total, after: now.total });
    }
    let knob = Knob::lock(&pool_directory(sys, size, node))?;
    let before = Level::read(sys, size, node)?;
    let more = count.saturating_sub(before.unpromised);
    check_memory(sys, size, more, node)?;
    // Written as a persistent count, `total` turns the surplus into persistent pages first; only what is above adds pages.
    knob.write(before.total.saturating_add(more))?;
    let after = Level::read(sys, size, node)?;
    if after.unpromised >= count {
        return Ok(Reserved { before: before.total, after: after.total });
    }
    knob.write(before.total.saturating_sub(before.surplus))?;
    Err(PoolError::TooFew {
        asked: count,
        size,
        place: place(node),
        free_before: before.unpromised,
        got: after.unpromised,
        total_before: before.total,
    })
}

/// Lowers the pool of `size` by up to `count` pages that are free and promised to nobody; returns by how many it went down.
/// The kernel chooses the nodes.
///
/// # Errors
/// [`PoolError::Denied`] unless root; `Read`, `Write` or `Busy`.
pub fn release(size: PageSize, count: u64) -> Result<u64, PoolError> {
    release_at(Path::new(SYS), size, count)
}

fn release_at(sys: &Path, size: PageSize, count: u64) -> Result<u64, PoolError> {
    let knob = Knob::lock(&pool_directory(sys, size, None))?;
    let before = Level::read(sys, size, None)?;
    let fewer = count.min(before.unpromised).min(before.total - before.surplus.min(before.total));
    if fewer == 0 {
        return Ok(0);
    }
    knob.write(before.total - before.surplus - fewer)?;
    Ok(before.total.saturating_sub(Level::read(sys, size, None)?.total))
}

/// The figures of a pool or of one node's part that a change needs, in pages.
struct Level {
    total: u64,
    surplus: u64,
    unpromised: u64,
}

impl Level {
    fn read(sys: &Path, size: PageSize, node: Option<NumaNode>) -> Result<Level, PoolError> {
        let pool = report_of(sys, size)?;
        let Some(node) = node else {
            return Ok(Level { total: pool.total, surplus: pool.surplus, unpromised: pool.unpromised() });
        };
        let part = pool.on(node).ok_or(PoolError::NoNode { node, size })?;
        let unpromised = part.free.saturating_sub(pool.reserved);
        Ok(Level { total: part.total, surplus: part.surplus, unpromised })
    }
}

/// The kernel's file for the size of a pool, locked against other users of this crate until dropped.
struct Knob {
    path: PathBuf,
    _lock: File,
}

impl Knob {
    fn lock(directory: &Path) -> Result<Knob, PoolError> {
        let path = directory.join("nr_hugepages");
        let name = path.display().to_string();
        let file = File::open(&path).map_err(|source| PoolError::Read { path: name.clone(), source })?;
        let start = Instant::now();
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Knob { path, _lock: file }),
                Err(TryLockError::Error(source)) => return Err(PoolError::Read { path: name, source }),
                Err(TryLockError::WouldBlock) if start.elapsed() > LOCK_WAIT => {
                    return Err(PoolError::Busy { path: name, waited_s: LOCK_WAIT.as_secs() });
                }
                Err(TryLockError::WouldBlock) => thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    fn write(&self, pages: u64) -> Result<(), PoolError> {
        fs::write(&self.path, format!("{pages}\n")).map_err(|source| {
            let path = self.path.display().to_string();
            match source.kind() {
                io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                    PoolError::Denied { path, pages, source }
                }
                _ => PoolError::Write { path, pages, source },
            }
        })
    }
}

/// Refuses what the memory does not hold: the kernel would take all there is before it gives up, and starve the rest.
fn check_memory(sys: &Path, size: PageSize, pages: u64, node: Option<NumaNode>) -> Result<(), PoolError> {
    let asked_bytes = pages.saturating_mul(size.bytes() as u64);
    let available_bytes = meminfo::available_bytes(sys, node)?;
    if asked_bytes <= available_bytes {
        return Ok(());
    }
    Err(PoolError::NotEnoughMemory { pages, size, place: place(node), asked_bytes, available_bytes })
}

/// The directory of a pool, or of a node's part of it, which has fewer files.
pub(crate) fn pool_directory(sys: &Path, size: PageSize, node: Option<NumaNode>) -> PathBuf {
    let above = match node {
        None => sys.join("kernel/mm/hugepages"),
        Some(NumaNode(number)) => sys.join(format!("devices/system/node/node{number}/hugepages")),
    };
    above.join(size.directory())
}

/// A node in an error's text.
pub(crate) fn place(node: Option<NumaNode>) -> String {
    node.map_or_else(|| "on any node".to_owned(), |node| format!("on {node}"))
}

fn node_reports(sys: &Path, size: PageSize) -> Result<Vec<NodeReport>, PoolError> {
    let Ok(entries) = fs::read_dir(sys.join("devices/system/node")) else {
        return Ok(Vec::new());
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut nodes: Vec<NumaNode> =
        names.filter_map(|name| name.strip_prefix("node")?.parse().ok().map(NumaNode)).collect();
    nodes.sort_unstable();
    let parts = nodes.into_iter().map(|node| (node, pool_directory(sys, size, Some(node))));
    parts
        .filter(|(_, directory)| directory.is_dir())
        .map(|(node, directory)| node_report(node, &directory))
        .collect()
}

fn node_report(node: NumaNode, directory: &Path) -> Result<NodeReport, PoolError> {
    Ok(NodeReport {
        node,
        total: read_count(directory, "nr_hugepages")?,
        free: read_count(directory, "free_hugepages")?,
        surplus: read_count(directory, "surplus_hugepages")?,
    })
}

fn read_count(directory: &Path, file: &str) -> Result<u64, PoolError> {
    let path = directory.join(file);
    let name = path.display().to_string();
    let text = fs::read_to_string(&path).map_err(|source| PoolError::Read { path: name.clone(), source })?;
    text.trim().parse().map_err(|_| PoolError::Parse { path: name, text: format!("{text:?} is not a count") })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests;

    /// A made-up sysfs: files under a directory of its own, gone when dropped.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Tree {
            let root = std::env::temp_dir().join(format!("pollring-sysfs-{name}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&root);
            Tree(root)
        }

        /// Two sizes, a size that is left out, two nodes with memory and one without; 3 pages of 10 are promised.
        fn of_two_nodes(name: &str) -> Tree {
            let tree = Tree::new(name);
            let pools = "kernel/mm/hugepages";
            tree.pool(&format!("{pools}/hugepages-2048kB"), &[("nr", 10), ("free", 7), ("surplus", 1)]);
            tree.pool(&format!("{pools}/hugepages-1048576kB"), &[("nr", 1), ("free", 1), ("surplus", 0)]);
            tree.pool(&format!("{pools}/hugepages-64kB"), &[("nr", 99), ("free", 99), ("surplus", 0)]);
            tree.set(&format!("{pools}/hugepages-2048kB/resv_hugepages"), "3\n");
            tree.set(&format!("{pools}/hugepages-2048kB/nr_overcommit_hugepages"), "4\n");
            for (node, total, free) in [(0, 6, 5), (11, 4, 2)] {
                let files = [("nr", total), ("free", free), ("surplus", 0)];
                tree.pool(&format!("devices/system/node/node{node}/hugepages/hugepages-2048kB"), &files);
                let meminfo = format!("Node {node} MemFree: 900000 kB\nNode {node} Active(file): 5 kB\n");
                let meminfo = meminfo + &format!("Node {node} Inactive(file): 5 kB\n");
                tree.set(&format!("devices/system/node/node{node}/meminfo"), &meminfo);
            }
            tree.set("devices/system/node/node2/meminfo", "Node 2 MemFree: 0 kB\n");
            tree.set("devices/system/node/online", "0,2,11\n");
            tree
        }

        fn pool(&self, directory: &str, counts: &[(&str, u64)]) {
            self.set(&format!("{directory}/resv_hugepages"), "0\n");
            self.set(&format!("{directory}/nr_overcommit_hugepages"), "0\n");
            for (file, count) in counts {
                self.set(&format!("{directory}/{file}_hugepages"), &format!("{count}\n"));
            }
        }

        fn set(&self, path: &str, text: &str) {
            let path = self.0.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        fn get(&self, path: &str) -> String {
            fs::read_to_string(self.0.join(path)).unwrap()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const KNOB: &str = "kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";
    const NODE_KNOB: &str = "devices/system/node/node11/hugepages/hugepages-2048kB/nr_hugepages";

    #[test]
    fn a_made_up_tree_is_reported_as_it_is() {
        let tree = Tree::of_two_nodes("report");
        let pools = report_at(&tree.0).unwrap();
        assert_eq!(pools.len(), 2, "64 KiB pages are left out");
        let node = |number, total, free| NodeReport { node: NumaNode(number), total, free, surplus: 0 };
        let expected = PoolReport {
            size: PageSize::Huge2M,
            total: 10,
            free: 7,
            reserved: 3,
            surplus: 1,
            overcommit: 4,
            nodes: vec![node(0, 6, 5), node(11, 4, 2)],
        };
        assert_eq!(pools[0], expected);
        assert_eq!(pools[0].unpromised(), 4);
        assert_eq!((pools[1].size, pools[1].total, pools[1].nodes.len()), (PageSize::Huge1G, 1, 0));
    }

    #[test]
    fn what_is_missing_or_wrong_is_a_typed_error() {
        let tree = Tree::new("missing");
        assert!(matches!(report_at(&tree.0), Err(PoolError::NoHugePages { .. })));
        assert!(matches!(report_of(&tree.0, PageSize::Huge1G), Err(PoolError::NoPageSize { .. })));
        let tree = Tree::of_two_nodes("wrong");
        tree.set("kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "many\n");
        let error = report_at(&tree.0).unwrap_err();
        assert!(matches!(error, PoolError::Parse { .. }));
        assert!(error.to_string().contains("free_hugepages"), "{error}");
        fs::remove_file(tree.0.join("kernel/mm/hugepages/hugepages-2048kB/free_hugepages")).unwrap();
        assert!(matches!(report_at(&tree.0), Err(PoolError::Read { .. })));
    }

    #[test]
    fn a_kernel_that_gives_fewer_gets_its_pages_back() {
        let tree = Tree::of_two_nodes("fewer");
        // A plain file takes the count, but nothing becomes free: the kernel that gives none.
        let error = reserve_at(&tree.0, PageSize::Huge2M, 6, None).unwrap_err();
        assert!(
            matches!(error, PoolError::TooFew { asked: 6, free_before: 4, got: 4, total_before: 10, .. }),
            "{error:?}"
        );
        assert_eq!(tree.get(KNOB), "9\n", "the persistent count is as before, without the surplus");
        let node = Some(NumaNode(11));
        let error = reserve_at(&tree.0, PageSize::Huge2M, 3, node).unwrap_err().to_string();
        assert!(error.contains("on node 11") && error.contains("3 free huge pages of 2 MiB"), "{error}");
        assert_eq!(tree.get(NODE_KNOB), "4\n");
    }

    #[test]
    fn what_is_free_already_is_not_reserved_again() {
        let tree = Tree::of_two_nodes("enough");
        let reserved = reserve_at(&tree.0, PageSize::Huge2M, 4, None).unwrap();
        assert_eq!(reserved, Reserved { before: 10, after: 10 });
        assert_eq!(tree.get(KNOB), "10\n");
    }

    #[test]
    fn impossible_counts_and_nodes_are_refused_before_a_write() {
        let tree = Tree::of_two_nodes("impossible");
        let error = reserve_at(&tree.0, PageSize::Huge2M, u64::MAX, None).unwrap_err();
        assert!(matches!(error, PoolError::NotEnoughMemory { .. }), "{error:?}");
        let error = reserve_at(&tree.0, PageSize::Huge2M, 1000, Some(NumaNode(11))).unwrap_err();
        assert!(
            matches!(error, PoolError::NotEnoughMemory { available_bytes: 921_610_240, .. }),
            "{error:?}"
        );
        for node in [2, 3] {
            let error = reserve_at(&tree.0, PageSize::Huge2M, 1, Some(NumaNode(node))).unwrap_err();
            assert!(matches!(error, PoolError::NoNode { .. }), "{error:?}");
        }
        assert_eq!(tree.get(KNOB), "10\n");
    }

    #[test]
    fn release_leaves_promised_and_used_pages() {
        let tree = Tree::of_two_nodes("release");
        release_at(&tree.0, PageSize::Huge2M, 100).unwrap();
        assert_eq!(tree.get(KNOB), "5\n", "10 with 1 surplus, 4 of them free and not promised");
        assert!(matches!(release_at(&tree.0, PageSize::Small4K, 1), Err(PoolError::Read { .. })));
    }

    #[test]
    fn a_refused_write_says_to_run_as_root() {
        let tree = Tree::of_two_nodes("denied");
        // A directory of procfs refuses writes even to root, as sysfs does to others.
        let knob = Knob { path: "/proc/version".into(), _lock: File::open("/proc/version").unwrap() };
        let error = knob.write(3).unwrap_err();
        assert!(matches!(error, PoolError::Denied { .. } | PoolError::Write { .. }), "{error:?}");
        let source = io::Error::from_raw_os_error(libc::EACCES);
        let error = PoolError::Denied { path: tree.0.join(KNOB).display().to_string(), pages: 3, source };
        assert!(error.to_string().contains("run this as root"), "{error}");
    }

    #[test]
    fn a_locked_file_holds_off_a_second_change() {
        let tree = Tree::of_two_nodes("locked");
        let directory = pool_directory(&tree.0, PageSize::Huge2M, None);
        let held = Knob::lock(&directory).unwrap();
        let (start, second) = (Instant::now(), thread::spawn(move || Knob::lock(&directory).map(drop)));
        thread::sleep(Duration::from_millis(60));
        drop(held);
        second.join().unwrap().unwrap();
        assert!(start.elapsed() >= Duration::from_millis(60));
    }

    #[test]
    fn the_machine_gives_and_takes_back() {
        tests::alone(|| {
            let before = report_of(Path::new(SYS), PageSize::Huge2M).unwrap();
            let reserved = tests::reserve_or_fail(before.unpromised() + 3);
            let _back = tests::GiveBack(3);
            assert_eq!((reserved.before, reserved.after), (before.total, before.total + 3));
            let during = report_of(Path::new(SYS), PageSize::Huge2M).unwrap();
            assert!(during.unpromised() >= before.unpromised() + 3, "{during:?}");
        });
    }

    #[test]
    fn a_node_of_the_machine_gives_pages() {
        tests::alone(|| {
            let pool = report_of(Path::new(SYS), PageSize::Huge2M).unwrap();
            let part = pool.nodes.first().expect("this test needs a kernel with NUMA");
            let count = part.free + pool.reserved + 2;
            let reserved = reserve(PageSize::Huge2M, count, Some(part.node))
                .expect("this test reserves huge pages: run it as root, with memory free");
            let _back = tests::GiveBack(reserved.after - reserved.before);
            let now = report_of(Path::new(SYS), PageSize::Huge2M).unwrap();
            assert!(now.on(part.node).unwrap().free >= count);
        });
    }
}
