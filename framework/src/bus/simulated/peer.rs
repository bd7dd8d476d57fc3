//! Memory of another process, as it lets devices reach it: windows of files whose descriptors it sends (vfio-user's DMA_MAP).
//!
//! A file is mapped once for each set of rights, however many windows it has, and the descriptor is closed at once: a guest behind
//! an IOMMU has tens of thousands of windows of 4 KiB on one file. Files stay mapped until [`SimulatedIommu::unmap_all`]. Only files
//! that are sealed against shrinking are taken, since a touch behind a file's end would end this process.

use super::{Mapped, Memory, Rights, SimulatedIommu, View, is_sealed};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};
use vm_memory::GuestAddress;

/// Windows start and end at multiples of this.
const PAGE_BYTES: u64 = 4096;

/// Files of one peer that are mapped at the same time.
const MOST_FILES: usize = 64;

/// Windows of one peer.
const MOST_WINDOWS: usize = 1 << 20;

/// What a peer lets devices reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerWindow {
    /// Device address of its first byte.
    pub iova: u64,
    /// Its size.
    pub bytes: u64,
    /// Where it begins in the file, bytes.
    pub offset: u64,
    /// What devices may do with it.
    pub rights: Rights,
}

/// Which file, and how it is mapped.
type Key = (u64, u64, Rights);

#[derive(Default)]
pub(super) struct Files(Mutex<HashMap<Key, Arc<View>>>);

impl Files {
    /// Mapped files.
    fn count(&self) -> usize {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    fn clear(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The mapping of `file`, which reaches to `end`.
    fn view(&self, file: &File, end: u64, rights: Rights) -> io::Result<Arc<View>> {
        let facts = file.metadata()?;
        if !facts.is_file() || end > facts.len() || !is_sealed(file.as_fd()) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let key = (facts.dev(), facts.ino(), rights);
        let mut files = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(view) = files.get(&key).filter(|view| view.bytes as u64 >= end) {
            return Ok(view.clone());
        }
        if files.len() >= MOST_FILES {
            files.retain(|_, view| Arc::strong_count(view) > 1);
        }
        if files.len() >= MOST_FILES {
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        let view = Arc::new(View::map(file.as_fd(), facts.len() as usize, rights)?);
        files.insert(key, view.clone());
        Ok(view)
    }
}

impl SimulatedIommu {
    /// Lets devices reach a window of `file`, whose descriptor is closed before this returns. A window without a file is kept and
    /// reaches nothing: an access to it is a fault.
    ///
    /// # Errors
    /// EINVAL for a window that is empty, wraps around, is not made of pages of 4 KiB or reaches behind the file's end, and for a file
    /// that is no memfd sealed against shrinking; EEXIST for one that overlaps another; ENOSPC or EMFILE for too many; the errno of
    /// mmap(2).
    pub fn map_peer(&self, window: PeerWindow, file: Option<OwnedFd>) -> io::Result<()> {
        let PeerWindow { iova, bytes, offset, rights } = window;
        let pages = (iova | bytes | offset).is_multiple_of(PAGE_BYTES);
        let (end, file_end) = (iova.checked_add(bytes), offset.checked_add(bytes));
        let (true, Some(end), Some(file_end)) = (pages && bytes > 0, end, file_end) else {
            return Err(io::ErrorKind::InvalidInput.into());
        };
        let view = file.map(|fd| self.files.view(&File::from(fd), file_end, rights)).transpose()?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let mut views = self.views();
        if views.range(..end).next_back().is_some_and(|(start, other)| start + other.bytes as u64 > iova) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if views.len() >= MOST_WINDOWS {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let memory = match view {
            None => Memory::Nothing,
            Some(view) => {
                let host = view.base.as_ptr() as u64 + offset;
                table
                    .set_mapping(GuestAddress(iova), GuestAddress(host), bytes as usize, rights.permissions())
                    .map_err(io::Error::other)?;
                Memory::File(view)
            }
        };
        views.insert(iova, Mapped { bytes: bytes as usize, _memory: memory });
        Ok(())
    }

    /// Takes back every window from `iova` on for `bytes`; gives how many bytes those had. When it returns no access to them is
    /// under way.
    ///
    /// # Errors
    /// EINVAL when the range wraps around or cuts a window in two; nothing is taken back then.
    pub fn unmap_peer(&self, iova: u64, bytes: u64) -> io::Result<u64> {
        let end = iova.checked_add(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let mut views = self.views();
        let ends_behind = |(start, view): (&u64, &Mapped), limit| start + view.bytes as u64 > limit;
        if views.range(..iova).next_back().is_some_and(|view| ends_behind(view, iova))
            || views.range(iova..end).next_back().is_some_and(|view| ends_behind(view, end))
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let mut taken = 0;
        for (start, view) in views.extract_if(iova..end, |_, _| true) {
            table.invalidate_mapping(GuestAddress(start), view.bytes);
            taken += view.bytes as u64;
        }
        Ok(taken)
    }

    /// Takes everything back, and unmaps the files of peers. When it returns no access is under way.
    pub fn unmap_all(&self) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        table.invalidate_all();
        self.views().clear();
        self.files.clear();
    }

    /// How many files of peers are mapped.
    pub fn files(&self) -> usize {
        self.files.count()
    }
}

#[cfg(test)]
mod tests {
    use super::super::Access;
    use super::*;
    use pollring_hugepages::{Pages, Region, RegionConfig};
    use std::os::fd::AsFd;

    fn region(bytes: usize) -> Region {
        let pages = Pages::Small4K { reason: "a test".into() };
        Region::allocate(&RegionConfig { name: "peer".into(), bytes, pages, node: None }).unwrap()
    }

    fn fd(region: &Region) -> Option<OwnedFd> {
        Some(region.fd().try_clone_to_owned().unwrap())
    }

    fn window(iova: u64, bytes: u64, offset: u64, rights: Rights) -> PeerWindow {
        PeerWindow { iova, bytes, offset, rights }
    }

    #[test]
    fn many_windows_share_one_mapping_and_keep_their_rights() {
        let (iommu, region) = (SimulatedIommu::default(), region(64 << 12));
        // Backwards, so that neighbours in device space are none in the file.
        for page in 0..64 {
            let rights = if page == 7 { Rights::Read } else { Rights::Both };
            iommu.map_peer(window(page << 12, 4096, (63 - page) << 12, rights), fd(&region)).unwrap();
        }
        assert_eq!((iommu.mappings(), iommu.files()), (64, 2));
        iommu.dma_write(0x2ffe, &[1, 2, 3, 4]).unwrap();
        let mut bytes = [0; 4];
        iommu.dma_read(0x2ffe, &mut bytes).unwrap();
        assert_eq!(bytes, [1, 2, 3, 4]);
        iommu.dma_write_pair(0x3010, [5, 6]).unwrap();
        iommu.dma_read(0x3018, &mut bytes).unwrap();
        assert_eq!(bytes, [6, 0, 0, 0]);
        assert!(
            iommu.dma_write_pair(0x2ff8, [0; 2]).is_err() && iommu.dma_write_pair(0x7000, [0; 2]).is_err()
        );
        assert_eq!(iommu.dma_write(0x7ffc, &[0; 4]).unwrap_err().access, Access::Write);
        iommu.dma_read(0x7ffc, &mut bytes).unwrap();
        assert!(iommu.dma_read(64 << 12, &mut bytes).is_err());
        iommu.unmap_all();
        assert!(iommu.dma_read(0, &mut bytes).is_err());
        assert_eq!((iommu.mappings(), iommu.files(), iommu.faults().0), (0, 0, 5));
    }

    #[test]
    fn a_window_without_a_file_faults() {
        let iommu = SimulatedIommu::default();
        iommu.map_peer(window(0, 4096, 0, Rights::Read), None).unwrap();
        assert!(iommu.dma_read(0, &mut [0; 4]).is_err());
        assert_eq!(iommu.unmap_peer(0, 4096).unwrap(), 4096);
    }

    #[test]
    fn unmapping_takes_whole_windows_only() {
        let (iommu, region) = (SimulatedIommu::default(), region(16 << 12));
        for page in [0, 1, 4] {
            iommu.map_peer(window(page << 12, 4096, page << 12, Rights::Both), fd(&region)).unwrap();
        }
        iommu.map_peer(window(8 << 12, 8192, 0, Rights::Both), fd(&region)).unwrap();
        assert!(iommu.unmap_peer(9 << 12, 4096).is_err() && iommu.unmap_peer(0, 9 << 12).is_err());
        assert!(iommu.unmap_peer(1 << 12, u64::MAX).is_err());
        assert_eq!(iommu.unmap_peer(1 << 12, 5 << 12).unwrap(), 8192);
        assert_eq!(iommu.unmap_peer(1 << 12, 5 << 12).unwrap(), 0);
        assert_eq!(iommu.unmap_peer(0, 1 << 63).unwrap(), 3 << 12);
        assert_eq!(iommu.mappings(), 0);
    }

    #[test]
    fn what_a_peer_makes_up_is_refused() {
        let (iommu, region) = (SimulatedIommu::default(), region(4 << 12));
        let max = u64::MAX - 4095;
        for (iova, bytes, offset) in [
            (0, 0, 0),
            (1, 4096, 0),
            (0, 4095, 0),
            (0, 4096, 8),
            (max, 8192, 0),
            (0, 8192, max),
            (0, 5 << 12, 0),
            (0, 4096, 4 << 12),
        ] {
            assert!(
                iommu.map_peer(window(iova, bytes, offset, Rights::Both), fd(&region)).is_err(),
                "{iova:x} {bytes:x} {offset:x}"
            );
        }
        let other = File::open("/proc/self/exe").unwrap();
        let not_sealed = iommu.map_peer(window(0, 4096, 0, Rights::Read), Some(other.into()));
        assert_eq!(not_sealed.unwrap_err().kind(), io::ErrorKind::InvalidInput);
        let (reader, _writer) = io::pipe().unwrap();
        assert!(iommu.map_peer(window(0, 4096, 0, Rights::Read), Some(reader.into())).is_err());
        iommu.map_peer(window(4096, 8192, 0, Rights::Both), fd(&region)).unwrap();
        for (iova, bytes) in [(0, 8192), (8192, 4096), (4096, 8192), (0, 16384)] {
            let again = iommu.map_peer(window(iova, bytes, 0, Rights::Both), fd(&region));
            assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        }
        assert_eq!(iommu.mappings(), 1);
        assert!(is_sealed(region.fd().as_fd()));
    }
}
