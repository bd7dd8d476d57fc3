//! A bus whose devices are Rust values, and the IOMMU between them and memory.
//!
//! A [`SoftwareDevice`] owns its registers and config space. It reaches memory only through the [`SimulatedIommu`] that it is
//! given at attach: by IOVA, checked for mapping and direction under a lock that an unmap must win, so that after the unmap
//! returned no access is under way (what an IOTLB invalidation promises on silicon). The IOMMU maps each region a second
//! time, at a CPU address of its own: the driver's view of memory may be forbidden while the device's goes on. What it maps is a
//! region of this process ([`Iommu`]) or a window of a file that another process sent ([`SimulatedIommu::map_peer`]).

mod peer;
mod vectors;

pub use peer::PeerWindow;
pub use vectors::{Interrupts, Vectors};

use super::{Backend, MappedBar, RegisterFile, Simulated, Window};
use crate::buffer::shared;
use crate::iova::{AddressSpace, Direction, Iommu, Ranges};
use peer::Files;
use pollring_hugepages::Region;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use vm_memory::iommu::Iotlb;
use vm_memory::{GuestAddress, Permissions};

/// A PCI function that is a Rust value.
pub trait SoftwareDevice: Send + Sync {
    /// Reads 32 bits of config space at a multiple of 4.
    fn config_read32(&self, offset: u16) -> u32;
    /// Writes 32 bits of config space at a multiple of 4.
    fn config_write32(&self, offset: u16, value: u32);
    /// Opens BAR `bar`: its registers and its size in bytes, or `None`.
    fn bar(&self, bar: u8) -> Option<(Arc<dyn RegisterFile>, usize)>;
    /// What memory of its own lies behind BAR `bar`, in place of registers.
    fn memory(&self, _bar: u8) -> Option<Arc<Region>> {
        None
    }
    /// Function-level reset.
    fn reset(&self);
    /// Gives the device its way to memory.
    fn attach(&self, iommu: Arc<SimulatedIommu>);
    /// How many MSI-X vectors it has; none for a device without interrupts.
    fn vectors(&self) -> u16 {
        0
    }
    /// Gives the device its way to raise its vectors; without a call they are lost.
    fn connect(&self, _interrupts: Arc<dyn Interrupts>) {}
}

/// Puts `device` on a simulated bus behind `iommu`; the result goes to [`Device::open`](super::Device::open).
pub fn backend(device: Arc<dyn SoftwareDevice>, iommu: Arc<SimulatedIommu>) -> Arc<dyn Backend> {
    let vectors = Arc::new(Vectors::new(device.vectors()));
    Arc::new(SimulatedBus { device, iommu, vectors })
}

struct SimulatedBus {
    device: Arc<dyn SoftwareDevice>,
    iommu: Arc<SimulatedIommu>,
    vectors: Arc<Vectors>,
}

impl Backend for SimulatedBus {
    fn config_read32(&self, offset: u16) -> u32 {
        self.device.config_read32(offset)
    }

    fn config_write32(&self, offset: u16, value: u32) {
        self.device.config_write32(offset, value);
    }

    fn window(&self, bar: u8) -> io::Result<Window> {
        if let Some(region) = self.device.memory(bar) {
            let view = View::map(region.fd(), region.bytes(), Rights::Both)?;
            let (base, bytes) = (view.base, view.bytes);
            // SAFETY: the view maps these bytes until it is dropped, as the window's owner, and it alone has the address.
            let bar = unsafe {
                MappedBar::new(base, bytes, std::iter::once(0..bytes).collect(), Box::new((view, region)))
            };
            return Ok(Window::Mapped(bar));
        }
        let (file, bytes) = self.device.bar(bar).ok_or(io::ErrorKind::NotFound)?;
        Ok(Window::Software(file, bytes))
    }

    fn simulated(&self) -> Simulated {
        Simulated::Yes
    }

    fn reset(&self) -> io::Result<()> {
        self.device.reset();
        Ok(())
    }

    fn attach(&self, _space: &AddressSpace) -> io::Result<()> {
        self.device.attach(self.iommu.clone());
        Ok(())
    }

    fn set_interrupts(&self, first: u16, eventfds: &[BorrowedFd<'_>]) -> io::Result<()> {
        if self.vectors.count() == 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        if eventfds.is_empty() {
            self.vectors.clear(first, usize::MAX);
            return Ok(());
        }
        self.vectors.set(first, eventfds)?;
        self.device.connect(self.vectors.clone());
        Ok(())
    }
}

/// A device access that the IOMMU refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// First address of the access.
    pub iova: u64,
    /// Its size.
    pub bytes: usize,
    /// What the device tried.
    pub access: Access,
}

/// What a device tries to do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Memory to device.
    Read,
    /// Device to memory.
    Write,
}

/// How many faults are kept with their addresses; all are counted.
const KEPT_FAULTS: usize = 64;

/// An IOMMU in software: vm-memory's IOTLB holds the translation.
pub struct SimulatedIommu {
    ranges: Ranges,
    table: RwLock<Iotlb>,
    views: Mutex<BTreeMap<u64, Mapped>>,
    files: Files,
    faults: Mutex<Vec<Fault>>,
    fault_count: AtomicU64,
    /// Maps that may still succeed; tests lower it to inject failures.
    maps_left: AtomicUsize,
}

impl Default for SimulatedIommu {
    fn default() -> SimulatedIommu {
        SimulatedIommu::new(SimulatedIommu::device_ranges())
    }
}

impl SimulatedIommu {
    /// An IOMMU that allows `ranges`.
    pub fn new(ranges: Ranges) -> SimulatedIommu {
        SimulatedIommu {
            ranges,
            table: RwLock::new(Iotlb::new()),
            views: Mutex::default(),
            files: Files::default(),
            faults: Mutex::default(),
            fault_count: AtomicU64::new(0),
            maps_left: AtomicUsize::new(usize::MAX),
        }
    }

    /// Above 1 TiB and below where Linux puts a process's mappings, with VT-d's hole for interrupts below it, so that no
    /// CPU address is a valid device address.
    pub fn device_ranges() -> Ranges {
        Ranges::new([(0x100_0000_0000, 0x3fff_ffff_ffff)])
    }

    /// Reads memory as a device: all of `destination`, or nothing.
    ///
    /// # Errors
    /// The fault, which is also recorded.
    pub fn dma_read(&self, iova: u64, destination: &mut [u8]) -> Result<(), Fault> {
        let bytes = destination.len();
        let mut done = 0;
        self.translate(Fault { iova, bytes, access: Access::Read }, |host, length| {
            // SAFETY: `translate` passes memory inside a view that stays mapped while it holds the table's lock.
            unsafe { shared::copy_from_shared(host, &mut destination[done..done + length]) };
            done += length;
        })
    }

    /// Writes memory as a device: all of `source`, or nothing. What this thread wrote before is visible to whoever sees a byte of
    /// this write, so a done bit goes in a write of its own.
    ///
    /// # Errors
    /// The fault, which is also recorded.
    pub fn dma_write(&self, iova: u64, source: &[u8]) -> Result<(), Fault> {
        let mut done = 0;
        std::sync::atomic::fence(Ordering::Release);
        self.translate(Fault { iova, bytes: source.len(), access: Access::Write }, |host, length| {
            // SAFETY: as in `dma_read`; the permission check found the view writable.
            unsafe { shared::copy_to_shared(&source[done..done + length], host) };
            done += length;
        })
    }

    /// Writes two words as a device: whoever sees the second one sees the first, and what this thread wrote before. So a descriptor is
    /// written back with its done bit in the second word, by one translation.
    ///
    /// # Errors
    /// The fault, which is also recorded; also where the two words lie in different mappings.
    pub fn dma_write_pair(&self, iova: u64, words: [u64; 2]) -> Result<(), Fault> {
        let [first, second] = words.map(u64::to_le_bytes);
        let mut pieces = 0;
        let access = Fault { iova, bytes: 16, access: Access::Write };
        std::sync::atomic::fence(Ordering::Release);
        self.translate(access, |host, length| {
            pieces += 1;
            if length < 16 {
                return;
            }
            // SAFETY: `translate` passes `length` bytes inside a view that stays mapped while it holds the table's lock, and that the
            // permission check found writable; the two halves of 16 bytes lie in them.
            unsafe {
                shared::copy_to_shared(&first, host);
                std::sync::atomic::fence(Ordering::Release);
                shared::copy_to_shared(&second, host.add(8));
            }
        })?;
        if pieces == 1 {
            return Ok(());
        }
        self.record(access);
        Err(access)
    }

    /// Every fault since the start is counted; the first 64 are kept.
    pub fn faults(&self) -> (u64, Vec<Fault>) {
        let kept = self.faults.lock().unwrap_or_else(PoisonError::into_inner).clone();
        (self.fault_count.load(Ordering::Relaxed), kept)
    }

    /// How many mappings exist.
    pub fn mappings(&self) -> usize {
        self.views().len()
    }

    /// After `count` more maps, each fails with ENOMEM: how a test meets a full locked-memory limit.
    pub fn fail_maps_after(&self, count: usize) {
        self.maps_left.store(count, Ordering::Relaxed);
    }

    fn translate(&self, access: Fault, mut piece: impl FnMut(*mut u8, usize)) -> Result<(), Fault> {
        if access.bytes == 0 {
            return Ok(());
        }
        let wanted = match access.access {
            Access::Read => Permissions::Read,
            Access::Write => Permissions::Write,
        };
        // The table's arithmetic overflows on an access that wraps around the address space, so that one never reaches it.
        let last = access.iova.checked_add(access.bytes as u64);
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        let pieces =
            last.and_then(|_| Iotlb::lookup(&*table, GuestAddress(access.iova), access.bytes, wanted).ok());
        let Some(pieces) = pieces else {
            self.record(access);
            return Err(access);
        };
        for range in pieces {
            piece(range.base.0 as *mut u8, range.length);
        }
        Ok(())
    }

    /// Adds an entry for the memory at `host`, which `memory` keeps mapped.
    fn enter(
        &self,
        iova: u64,
        (host, bytes): (NonNull<u8>, usize),
        direction: Direction,
        memory: Memory,
    ) -> io::Result<()> {
        let left = self.maps_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| match left {
            usize::MAX => Some(usize::MAX),
            left => left.checked_sub(1),
        });
        left.map_err(|_| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let (host, rights) = (GuestAddress(host.as_ptr() as u64), Rights::from(direction));
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.set_mapping(GuestAddress(iova), host, bytes, rights.permissions()).map_err(io::Error::other)?;
        self.views().insert(iova, Mapped { bytes, _memory: memory });
        Ok(())
    }

    #[cold]
    fn record(&self, fault: Fault) {
        self.fault_count.fetch_add(1, Ordering::Relaxed);
        let mut faults = self.faults.lock().unwrap_or_else(PoisonError::into_inner);
        if faults.len() < KEPT_FAULTS {
            faults.push(fault);
        }
    }

    fn views(&self) -> MutexGuard<'_, BTreeMap<u64, Mapped>> {
        self.views.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Iommu for SimulatedIommu {
    fn ranges(&self) -> io::Result<Ranges> {
        Ok(self.ranges.clone())
    }

    fn map(&self, iova: u64, region: &Arc<Region>, direction: Direction) -> io::Result<()> {
        // The memfd of a region is sealed against shrinking.
        let view = View::map(region.fd(), region.bytes(), Rights::from(direction))?;
        self.enter(iova, (view.base, view.bytes), direction, Memory::Region(view, region.clone()))
    }

    fn map_bar(&self, iova: u64, bar: &Arc<MappedBar>, direction: Direction) -> io::Result<()> {
        self.enter(iova, (bar.base(), bar.bytes()), direction, Memory::Bar(bar.clone()))
    }

    fn unmap(&self, iova: u64, bytes: usize) -> io::Result<()> {
        // The write lock waits for every access under way; the view is unmapped only after it was taken out of the table.
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let mut views = self.views();
        match views.get(&iova) {
            Some(view) if view.bytes == bytes => {}
            _ => return Err(io::Error::from_raw_os_error(libc::ENOENT)),
        }
        table.invalidate_mapping(GuestAddress(iova), bytes);
        views.remove(&iova);
        Ok(())
    }
}

/// What devices may do with memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rights {
    /// Read it.
    Read,
    /// Write it.
    Write,
    /// Both.
    Both,
}

impl Rights {
    fn permissions(self) -> Permissions {
        match self {
            Rights::Read => Permissions::Read,
            Rights::Write => Permissions::Write,
            Rights::Both => Permissions::ReadWrite,
        }
    }
}

impl From<Direction> for Rights {
    fn from(direction: Direction) -> Rights {
        match direction {
            Direction::ToDevice => Rights::Read,
            Direction::Both => Rights::Both,
        }
    }
}

/// One entry of the table, and what keeps its memory mapped.
struct Mapped {
    bytes: usize,
    _memory: Memory,
}

enum Memory {
    /// A region of this process.
    Region(#[expect(dead_code)] View, #[expect(dead_code)] Arc<Region>),
    /// The memory behind another device's BAR.
    Bar(#[expect(dead_code)] Arc<MappedBar>),
    /// A window of a peer's file.
    File(#[expect(dead_code)] Arc<View>),
    /// Nothing that this process reaches.
    Nothing,
}

/// A memfd as devices see it: mapped for them alone, with the rights that they have.
struct View {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the view is memory shared with other threads, reached only through the copy routines of `buffer::shared`.
unsafe impl Send for View {}
// SAFETY: as above; the view itself is never changed.
unsafe impl Sync for View {}

impl View {
    /// Maps the first `bytes` of a memfd that cannot shrink.
    fn map(fd: BorrowedFd<'_>, bytes: usize, rights: Rights) -> io::Result<View> {
        let protection = match rights {
            Rights::Read => libc::PROT_READ,
            Rights::Write | Rights::Both => libc::PROT_READ | libc::PROT_WRITE,
        };
        // SAFETY: a new mapping at an address that the kernel chooses; the memfd is sealed against shrinking.
        let base = unsafe {
            libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_SHARED, fd.as_raw_fd(), 0)
        };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(View { base, bytes })
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: this is the mapping that `map` made, and nothing else has its address.
        let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        assert_eq!(result, 0, "munmap of a whole mapping fails only for wrong arguments");
    }
}

/// Whether `fd` is a memfd that cannot shrink.
pub(super) fn is_sealed(fd: BorrowedFd<'_>) -> bool {
    // SAFETY: the call takes numbers and touches no memory of ours; the descriptor is open.
    let seals = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}
