//! DMA memory. A [`Region`] is an anonymous memfd, mapped shared and populated, that nobody can shrink or grow. It owns its fd
//! and its one mapping; whoever maps it for a device holds an `Arc` of it, so it lives until the last mapping is gone.
//!
//! The order of calls is fixed in [`Region::allocate`]: figures checked, memfd, size, mapping (never MAP_NORESERVE: a shortage
//! must fail here), node, not for children, populate, seal. Any failure undoes what came before it.
//!
//! One memfd per trust domain: a peer that gets [`Region::fd`] sees all of the region and can write all of it. The seals stop
//! a peer from resizing it. They do not stop `fallocate` from punching a hole, which only a write seal would: a later touch
//! of a hole takes a new page, and is a SIGBUS if there is none. Hand the fd only to whom may also crash this process.

use crate::error::RegionError;
use crate::meminfo;
use crate::page::{NumaNode, PageSize, Pages};
use crate::pool::{self, SYS, place};
use crate::populate::{keep_from_children, populate};
use std::{
    ffi::CString,
    fmt, io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::Path,
    ptr::{self, NonNull},
    sync::atomic::{AtomicU64, Ordering},
};

/// The kernel's MAX_NUMNODES is at most this many on any architecture that we support (NODES_SHIFT 10).
const NODES_MAX: usize = 1024;

/// The longest part of a name that is shown for the memfd; memfd_create(2) allows 249 bytes in all.
const LABEL_BYTES: usize = 200;

/// What to allocate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegionConfig {
    /// What it is for, in errors and in `/proc/PID/maps`. It need not be unique.
    pub name: String,
    /// How many bytes are needed; rounded up to whole pages.
    pub bytes: usize,
    /// Which pages.
    pub pages: Pages,
    /// The node that all pages must come from. Without one each page comes from a node near the thread that populates it,
    /// which may be any on which the caller may run.
    pub node: Option<NumaNode>,
}

/// Memory that does not move while it is mapped for a device: zeroed, populated, shared by its fd.
///
/// The bytes are reached by [`Region::base`] only; who may touch which byte when is the rule of the layers above.
pub struct Region {
    fd: OwnedFd,
    base: NonNull<u8>,
    bytes: usize,
    id: u64,
    name: String,
    pages: Pages,
    node: Option<NumaNode>,
}

// SAFETY: a region owns its mapping and its fd, both belong to the process and not to a thread, and no method touches the
// mapped bytes: it hands out a raw pointer, whose use the caller answers for.
unsafe impl Send for Region {}
// SAFETY: as for Send; `&Region` gives only figures, the raw pointer and calls that the kernel serialises (mprotect).
unsafe impl Sync for Region {}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

impl Region {
    /// Allocates what `config` says, zeroed and populated.
    ///
    /// # Errors
    /// [`RegionError::NotEnough`] or [`RegionError::NotEnoughMemory`] at once if the figures say so, and also if the kernel
    /// refuses later and the figures say so then; [`RegionError::Call`] if a limit of the process or its cgroup is in the way.
    pub fn allocate(config: &RegionConfig) -> Result<Region, RegionError> {
        let bytes = whole_pages(config)?;
        check_figures(config, bytes)?;
        Region::build(config, bytes).map_err(|error| check_figures(config, bytes).err().unwrap_or(error))
    }

    /// Allocates what `config` says, or else the same in 4 KiB pages with the first error's text as the reason.
    ///
    /// # Errors
    /// [`RegionError::Neither`] with both causes. A size or node that cannot be is not tried twice.
    pub fn allocate_or_small(config: &RegionConfig) -> Result<Region, RegionError> {
        let huge = match Region::allocate(config) {
            Err(error) if config.pages.size() != PageSize::Small4K => error,
            result => return result,
        };
        if matches!(
            huge,
            RegionError::Zero { .. } | RegionError::NoNode { .. } | RegionError::TooLarge { .. }
        ) {
            return Err(huge);
        }
        let small = RegionConfig { pages: Pages::Small4K { reason: huge.to_string() }, ..config.clone() };
        Region::allocate(&small)
            .map_err(|error| RegionError::Neither { huge: Box::new(huge), small: Box::new(error) })
    }

    fn build(config: &RegionConfig, bytes: usize) -> Result<Region, RegionError> {
        let size = config.pages.size();
        let fd = create_memfd(config)?;
        set_length(config, &fd, bytes)?;
        let region = Region {
            base: map_shared(config, &fd, bytes)?,
            fd,
            bytes,
            id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
            name: config.name.clone(),
            pages: config.pages.clone(),
            node: config.node,
        };
        assert!(region.start().is_multiple_of(size.bytes()), "mmap gave an address inside a page");
        if let Some(node) = config.node {
            region.bind(node).map_err(failed(config, "mbind", BIND_ADVICE))?;
        }
        keep_from_children(region.start(), bytes).map_err(failed(
            config,
            "madvise(MADV_DONTFORK)",
            KERNEL_ADVICE,
        ))?;
        populate(region.start(), bytes, size.bytes()).map_err(failed(
            config,
            "madvise(MADV_POPULATE_WRITE)",
            POPULATE_ADVICE,
        ))?;
        region.seal().map_err(failed(config, "fcntl(F_ADD_SEALS)", KERNEL_ADVICE))?;
        Ok(region)
    }

    /// The length in bytes: whole pages, at least what was asked for.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The size of the pages that it has got.
    #[must_use]
    pub fn page_size(&self) -> PageSize {
        self.pages.size()
    }

    /// The first byte of the mapping, aligned to the page size. Valid for [`Region::bytes`] bytes while the region lives.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// The memfd, for a peer or for the kernel (vhost-user, vfio-user, `IOMMU_IOAS_MAP_FILE`). It gives access to all of it.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// A number that no other region of this process has or had.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// The node that all pages come from, if one was asked for.
    #[must_use]
    pub fn node(&self) -> Option<NumaNode> {
        self.node
    }

    /// What it is for.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Why it has 4 KiB pages; `None` with huge pages.
    #[must_use]
    pub fn small_reason(&self) -> Option<&str> {
        match &self.pages {
            Pages::Small4K { reason } => Some(reason),
            Pages::Huge2M | Pages::Huge1G => None,
        }
    }

    /// Takes all CPU access to this mapping away (mprotect(2), PROT_NONE): a test of "this path touches no packet byte".
    /// Devices and other mappings of the fd keep their access. This is safe: an access by the CPU then ends the process by
    /// SIGSEGV, and the kernel answers EFAULT to a system call on these bytes. Map it for devices first.
    ///
    /// # Errors
    /// What mprotect(2) gives.
    pub fn forbid_cpu(&self) -> io::Result<()> {
        self.protect(libc::PROT_NONE)
    }

    /// Gives the CPU its access back after [`Region::forbid_cpu`].
    ///
    /// # Errors
    /// What mprotect(2) gives.
    pub fn allow_cpu(&self) -> io::Result<()> {
        self.protect(libc::PROT_READ | libc::PROT_WRITE)
    }

    fn protect(&self, protection: libc::c_int) -> io::Result<()> {
        // SAFETY: the range is exactly the mapping that this region owns. Less access never makes a wrong access right: it
        // ends the process.
        done(unsafe { libc::mprotect(self.base.as_ptr().cast(), self.bytes, protection) })
    }

    fn start(&self) -> usize {
        self.base.addr().get()
    }

    /// All pages from `node` or none (mbind(2), MPOL_BIND). The policy belongs to the file, so a peer's touch keeps to it.
    fn bind(&self, node: NumaNode) -> io::Result<()> {
        let mut mask = [0_u64; NODES_MAX / 64];
        let word = mask
            .get_mut(usize::from(node.0) / 64)
            .ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
        *word = 1 << (node.0 % 64);
        // The kernel reads one bit less than it is told (mbind(2), BUGS).
        let bits = NODES_MAX + 1;
        // SAFETY: the range is exactly the mapping that this region owns, and `mask` holds NODES_MAX bits.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                self.base.as_ptr(),
                self.bytes,
                libc::MPOL_BIND,
                mask.as_ptr(),
                bits,
                0,
            )
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    fn seal(&self) -> io::Result<()> {
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: the fd is open and ours; the call takes an integer and touches no memory.
        done(unsafe { libc::fcntl(self.fd.as_raw_fd(), libc::F_ADD_SEALS, seals) })
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range is exactly the mapping that this region owns, and nobody may use `base` after the region's end.
        let result = done(unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) });
        debug_assert!(result.is_ok(), "munmap of region `{}`: {result:?}", self.name);
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut fields = f.debug_struct("Region");
        fields
            .field("id", &self.id)
            .field("name", &self.name)
            .field("base", &self.base)
            .field("bytes", &self.bytes);
        fields.field("pages", &self.pages).field("node", &self.node).finish_non_exhaustive()
    }
}

const MEMFD_ADVICE: &str =
    "check RLIMIT_NOFILE (`ulimit -n`), and that the kernel has CONFIG_MEMFD_CREATE and CONFIG_HUGETLBFS";
const LENGTH_ADVICE: &str = "check RLIMIT_FSIZE (`ulimit -f`)";
const MAP_ADVICE: &str =
    "enough is free, so check RLIMIT_AS (`ulimit -v`), the cgroup's hugetlb.*.rsvd.max and its cpuset.mems";
const BIND_ADVICE: &str = "check that the node has memory and that the process's cpuset.mems has the node";
const POPULATE_ADVICE: &str =
    "Linux 5.14 or later is needed, and enough is free, so check the cgroup's hugetlb.*.max and memory.max";
const KERNEL_ADVICE: &str = "Linux 4.16 or later is needed; report this with the output of `uname -r`";

fn failed(
    config: &RegionConfig,
    call: &'static str,
    advice: &'static str,
) -> impl FnOnce(io::Error) -> RegionError {
    let name = config.name.clone();
    move |source| RegionError::Call { name, call, source, advice }
}

fn done(result: libc::c_int) -> io::Result<()> {
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn whole_pages(config: &RegionConfig) -> Result<usize, RegionError> {
    let (name, page_size) = (config.name.clone(), config.pages.size());
    if config.bytes == 0 {
        return Err(RegionError::Zero { name });
    }
    page_size.round_up(config.bytes).ok_or(RegionError::TooLarge { name, bytes: config.bytes, page_size })
}

/// Asks the machine's figures whether there is room, so that a shortage costs no time and touches no page.
fn check_figures(config: &RegionConfig, bytes: usize) -> Result<(), RegionError> {
    if let Some(node) = config.node {
        let known = Path::new(SYS).join(format!("devices/system/node/node{}", node.0)).is_dir();
        if !known || usize::from(node.0) >= NODES_MAX {
            return Err(RegionError::NoNode { name: config.name.clone(), node });
        }
    }
    match config.pages.size() {
        PageSize::Small4K => check_memory(config, bytes),
        huge => check_pool(config, huge, bytes),
    }
}

fn check_memory(config: &RegionConfig, bytes: usize) -> Result<(), RegionError> {
    let pool_error = |source| RegionError::Pool { name: config.name.clone(), source };
    let mut available_bytes = meminfo::available_bytes(Path::new(SYS), None).map_err(pool_error)?;
    if config.node.is_some() {
        available_bytes =
            available_bytes.min(meminfo::available_bytes(Path::new(SYS), config.node).map_err(pool_error)?);
    }
    let (name, asked_bytes, place) = (config.name.clone(), bytes as u64, place(config.node));
    if asked_bytes <= available_bytes {
        return Ok(());
    }
    Err(RegionError::NotEnoughMemory { name, asked_bytes, available_bytes, place })
}

/// A node's part must hold all pages by itself: surplus pages, which the kernel gives on demand, are only counted when no
/// node is named.
fn check_pool(config: &RegionConfig, page_size: PageSize, bytes: usize) -> Result<(), RegionError> {
    let name = config.name.clone();
    let pool = match pool::report_of(Path::new(SYS), page_size) {
        Ok(pool) => pool,
        Err(source) => return Err(RegionError::Pool { name, source }),
    };
    let (free_pages, reserved_pages) = match config.node {
        None => (pool.unpromised(), pool.total),
        Some(node) => pool.on(node).map_or((0, 0), |part| (part.free.min(pool.unpromised()), part.total)),
    };
    let on_demand = if config.node.is_none() { pool.overcommit.saturating_sub(pool.surplus) } else { 0 };
    let asked_pages = (bytes / page_size.bytes()) as u64;
    if asked_pages <= free_pages.saturating_add(on_demand) {
        return Ok(());
    }
    Err(RegionError::NotEnough {
        name,
        page_size,
        asked_pages,
        free_pages,
        reserved_pages,
        node: config.node,
    })
}

fn create_memfd(config: &RegionConfig) -> Result<OwnedFd, RegionError> {
    let size_flags = match config.pages.size() {
        PageSize::Small4K => 0,
        PageSize::Huge2M => libc::MFD_HUGETLB | libc::MFD_HUGE_2MB,
        PageSize::Huge1G => libc::MFD_HUGETLB | libc::MFD_HUGE_1GB,
    };
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING | size_flags;
    let label = config.name.bytes().filter(|&byte| byte != 0).take(LABEL_BYTES);
    let label =
        CString::new([b"pollring:".as_slice(), &label.collect::<Vec<u8>>()].concat()).unwrap_or_default();
    // Where vm.memfd_noexec is 2 the kernel wants MFD_NOEXEC_SEAL; before Linux 6.3 it does not know it (EINVAL).
    memfd(&label, flags | libc::MFD_NOEXEC_SEAL)
        .or_else(
            |error| {
                if error.raw_os_error() == Some(libc::EINVAL) { memfd(&label, flags) } else { Err(error) }
            },
        )
        .map_err(failed(config, "memfd_create", MEMFD_ADVICE))
}

fn memfd(label: &CString, flags: libc::c_uint) -> io::Result<OwnedFd> {
    // SAFETY: `label` ends with a NUL and outlives the call.
    let fd = unsafe { libc::memfd_create(label.as_ptr(), flags) };
    done(fd)?;
    // SAFETY: the kernel gave this fd just now, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn set_length(config: &RegionConfig, fd: &OwnedFd, bytes: usize) -> Result<(), RegionError> {
    // A length is at most isize::MAX (see `PageSize::round_up`), so it is the same as an off_t.
    // SAFETY: the fd is open and ours; the call takes integers.
    done(unsafe { libc::ftruncate(fd.as_raw_fd(), bytes as libc::off_t) }).map_err(failed(
        config,
        "ftruncate",
        LENGTH_ADVICE,
    ))
}

/// Without MAP_NORESERVE the kernel promises every huge page here, or fails with ENOMEM.
fn map_shared(config: &RegionConfig, fd: &OwnedFd, bytes: usize) -> Result<NonNull<u8>, RegionError> {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: no address is asked for, so no mapping of ours is replaced; the fd is open.
    let base = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0) };
    let mapped = if base == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(base) };
    let base = mapped.map_err(failed(config, "mmap", MAP_ADVICE))?;
    // Address 0 is never given without MAP_FIXED (vm.mmap_min_addr).
    NonNull::new(base.cast())
        .ok_or_else(|| failed(config, "mmap", KERNEL_ADVICE)(io::ErrorKind::Other.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{alone, with_no_pages, with_pages};
    use std::{collections::HashSet, fs, slice, time::Instant};

    fn small(name: &str, bytes: usize) -> RegionConfig {
        RegionConfig {
            name: name.into(),
            bytes,
            pages: Pages::Small4K { reason: "a test".into() },
            node: None,
        }
    }

    fn huge(name: &str, pages: usize) -> RegionConfig {
        RegionConfig {
            name: name.into(),
            bytes: pages * PageSize::Huge2M.bytes(),
            pages: Pages::Huge2M,
            node: None,
        }
    }

    /// One more huge page than is free.
    fn too_many() -> RegionConfig {
        let pool = pool::report_of(Path::new(SYS), PageSize::Huge2M).unwrap();
        huge("too many", (pool.unpromised() + pool.overcommit) as usize + 1)
    }

    fn bytes_of(region: &Region) -> &[u8] {
        // SAFETY: the mapping is readable for that length while the region lives, and this test writes nothing meanwhile.
        unsafe { slice::from_raw_parts(region.base().as_ptr(), region.bytes()) }
    }

    /// What the kernel lists for the mapping at the region's base, VmFlags last.
    fn smaps(region: &Region) -> Vec<String> {
        let start = format!("{:x}-", region.start());
        let text = fs::read_to_string("/proc/self/smaps").unwrap();
        let mut last = false;
        let lines = text.lines().skip_while(|line| !line.starts_with(&start));
        lines
            .take_while(|line| !std::mem::replace(&mut last, line.starts_with("VmFlags")))
            .map(String::from)
            .collect()
    }

    fn assert_sealed(region: &Region) {
        for length in [0, region.bytes() - region.page_size().bytes(), region.bytes() * 2] {
            // SAFETY: the fd is open; the call takes integers.
            let error =
                done(unsafe { libc::ftruncate(region.fd().as_raw_fd(), length as libc::off_t) }).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(libc::EPERM), "ftruncate to {length}");
        }
        // SAFETY: as above.
        let more =
            done(unsafe { libc::fcntl(region.fd().as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_WRITE) });
        assert_eq!(more.unwrap_err().raw_os_error(), Some(libc::EPERM), "no further seal");
        // SAFETY: as above.
        let flags = unsafe { libc::fcntl(region.fd().as_raw_fd(), libc::F_GETFD) };
        assert_eq!(flags & libc::FD_CLOEXEC, libc::FD_CLOEXEC);
    }

    fn assert_vm_flags(region: &Region, with: &[&str], without: &[&str]) {
        let lines = smaps(region);
        let flags: Vec<&str> = lines.last().unwrap().split_whitespace().skip(1).collect();
        assert!(with.iter().all(|flag| flags.contains(flag)), "{flags:?} lacks one of {with:?}");
        assert!(!without.iter().any(|flag| flags.contains(flag)), "{flags:?} has one of {without:?}");
    }

    #[test]
    fn a_small_region_is_sealed_zero_and_populated() {
        // Over two chunks, so that two threads populate it.
        let region = Region::allocate(&small("small", (80 << 20) + 1)).unwrap();
        assert_eq!((region.bytes(), region.page_size()), ((80 << 20) + 4096, PageSize::Small4K));
        assert_eq!((region.name(), region.small_reason(), region.node()), ("small", Some("a test"), None));
        assert!(region.start().is_multiple_of(4096));
        let rss = smaps(&region).into_iter().find(|line| line.starts_with("Rss:")).unwrap();
        assert_eq!(rss.split_whitespace().nth(1), Some("81924"), "populated before the first touch");
        assert!(bytes_of(&region).iter().all(|&byte| byte == 0));
        assert_vm_flags(&region, &["sh", "dc"], &["nr", "ht"]);
        assert_sealed(&region);
    }

    #[test]
    fn a_huge_region_is_sealed_zero_and_populated() {
        with_pages(40, || {
            let before = pool::report_of(Path::new(SYS), PageSize::Huge2M).unwrap();
            let region =
                Region::allocate(&RegionConfig { bytes: (80 << 20) - 5, ..huge("huge", 0) }).unwrap();
            let during = pool::report_of(Path::new(SYS), PageSize::Huge2M).unwrap();
            assert_eq!(before.free - during.free, 40, "populated before the first touch");
            assert_eq!(
                (region.bytes(), region.page_size(), region.small_reason()),
                (80 << 20, PageSize::Huge2M, None)
            );
            assert!(region.start().is_multiple_of(2 << 20));
            assert!(bytes_of(&region).iter().all(|&byte| byte == 0));
            assert_vm_flags(&region, &["sh", "dc", "ht"], &["nr"]);
            assert_sealed(&region);
            drop(region);
            assert_eq!(pool::report_of(Path::new(SYS), PageSize::Huge2M).unwrap().free, before.free);
        });
    }

    #[test]
    fn used_pages_come_back_zeroed() {
        with_pages(2, || {
            for _ in 0..2 {
                let region = Region::allocate(&huge("again", 2)).unwrap();
                assert!(bytes_of(&region).iter().all(|&byte| byte == 0));
                // SAFETY: the mapping is writable for that length, and no reference to it is alive.
                unsafe { region.base().as_ptr().write_bytes(0xA5, region.bytes()) };
            }
        });
    }

    #[test]
    fn a_shortage_is_an_error_at_once() {
        alone(|| {
            let start = Instant::now();
            let error = Region::allocate(&too_many()).unwrap_err();
            assert!(start.elapsed().as_millis() < 250, "{:?}", start.elapsed());
            assert!(
                matches!(error, RegionError::NotEnough { asked_pages, free_pages, page_size: PageSize::Huge2M, .. }
                    if asked_pages > free_pages),
                "{error:?}"
            );
        });
        let terabytes = 64 << 40;
        let error = Region::allocate(&small("vast", terabytes)).unwrap_err();
        assert!(matches!(error, RegionError::NotEnoughMemory { .. }), "{error:?}");
        assert!(error.to_string().contains(&terabytes.to_string()), "{error}");
    }

    #[test]
    fn small_pages_stand_in_with_the_reason() {
        with_no_pages(|| {
            let text = Region::allocate(&huge("rings", 1)).unwrap_err().to_string();
            let region = Region::allocate_or_small(&huge("rings", 1)).unwrap();
            assert_eq!((region.page_size(), region.bytes()), (PageSize::Small4K, 2 << 20));
            assert_eq!(region.small_reason(), Some(text.as_str()));
            assert!(text.contains("1 huge page of 2 MiB asked, 0 free"), "{text}");
        });
        with_pages(1, || {
            let region = Region::allocate_or_small(&huge("rings", 1)).unwrap();
            assert_eq!((region.page_size(), region.small_reason()), (PageSize::Huge2M, None));
        });
    }

    #[test]
    fn when_neither_fits_both_causes_are_told() {
        let vast = huge("vast", 1 << 25);
        let error = Region::allocate_or_small(&vast).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, RegionError::Neither { .. }));
        assert!(text.contains("33554432 huge pages") && text.contains("with 4 KiB pages instead"), "{text}");
    }

    #[test]
    fn impossible_sizes_are_typed() {
        for pages in [Pages::Huge2M, Pages::Huge1G, small("", 1).pages] {
            let config =
                |bytes| RegionConfig { name: "none".into(), bytes, pages: pages.clone(), node: None };
            assert!(matches!(Region::allocate(&config(0)), Err(RegionError::Zero { .. })));
            assert!(matches!(Region::allocate_or_small(&config(0)), Err(RegionError::Zero { .. })));
            for bytes in [usize::MAX, isize::MAX as usize] {
                assert!(
                    matches!(Region::allocate(&config(bytes)), Err(RegionError::TooLarge { .. })),
                    "{bytes}"
                );
                assert!(matches!(
                    Region::allocate_or_small(&config(bytes)),
                    Err(RegionError::TooLarge { .. })
                ));
            }
        }
    }

    #[test]
    fn names_need_no_care() {
        for name in ["", "a\0b", &"x".repeat(5000), "\u{fc}ber"] {
            let region = Region::allocate(&small(name, 1)).unwrap();
            assert_eq!(region.name(), name);
            assert!(smaps(&region)[0].contains("/memfd:pollring:"));
        }
    }

    #[test]
    fn all_pages_come_from_the_node() {
        let on_node = |config, number| RegionConfig { node: Some(NumaNode(number)), ..config };
        let region =
            Region::allocate(&on_node(small("node", 1 << 20), 0)).expect("this test needs NUMA node 0");
        assert_eq!(region.node(), Some(NumaNode(0)));
        let numa_maps =
            fs::read_to_string("/proc/self/numa_maps").expect("this test needs a kernel with CONFIG_NUMA");
        let line =
            numa_maps.lines().find(|line| line.starts_with(&format!("{:x} ", region.start()))).unwrap();
        assert!(line.contains("bind:0") && line.contains("N0=256"), "{line}");
        for number in [1023, 1024, u16::MAX] {
            let error = Region::allocate_or_small(&on_node(huge("node", 1), number)).unwrap_err();
            assert!(matches!(error, RegionError::NoNode { .. }), "{error:?}");
        }
        with_pages(2, || {
            let region = Region::allocate(&on_node(huge("node", 1), 0)).expect("a free huge page on node 0");
            assert_eq!(region.page_size(), PageSize::Huge2M);
        });
    }

    #[test]
    fn the_cpu_can_be_kept_out() {
        let region = Region::allocate(&small("forbidden", 3 * 4096)).unwrap();
        let rights = || smaps(&region)[0].split_whitespace().nth(1).unwrap().to_owned();
        assert_eq!(rights(), "rw-s");
        region.forbid_cpu().unwrap();
        assert_eq!(rights(), "---s");
        region.allow_cpu().unwrap();
        assert_eq!(rights(), "rw-s");
        assert_eq!(bytes_of(&region)[3 * 4096 - 1], 0);
    }

    #[test]
    fn ids_are_unique_across_threads_and_time() {
        let ids: Vec<u64> = std::thread::scope(|scope| {
            let make =
                || (0..50).map(|_| Region::allocate(&small("id", 1)).unwrap().id()).collect::<Vec<_>>();
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(ids.iter().collect::<HashSet<_>>().len(), 200);
    }

    #[test]
    fn another_mapping_of_the_fd_sees_the_bytes() {
        let region = Region::allocate(&small("shared", 4096)).unwrap();
        let peer =
            map_shared(&small("peer", 4096), &region.fd().try_clone_to_owned().unwrap(), 4096).unwrap();
        // SAFETY: both mappings are valid for 4096 bytes, no reference to them is alive, and `peer` is unmapped once.
        unsafe {
            region.base().as_ptr().add(7).write_volatile(9);
            assert_eq!(peer.as_ptr().add(7).read_volatile(), 9);
            done(libc::munmap(peer.as_ptr().cast(), 4096)).unwrap();
        }
    }
}
