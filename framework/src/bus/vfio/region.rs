//! A BAR, mapped where the kernel allows it and read and written through the descriptor elsewhere.
//!
//! Older kernels keep the page of the MSI-X table out of the mapping, and some devices have other holes: the kernel then lists the areas
//! that may be mapped. The whole BAR gets one range of addresses, so that a register's address is arithmetic; holes are not
//! accessible there, and [`Registers`](crate::bus::Registers) goes by way of the descriptor for them.

use super::sys;
use crate::bus::{MappedBar, RegisterFile, Window};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::Arc;
use vfio_bindings::bindings::vfio::*;

pub(super) fn open(device: &Arc<File>, index: u32) -> io::Result<Window> {
    let (info, chain) = sys::region_info(device.as_fd(), index)?;
    let bytes = usize::try_from(info.size).map_err(|_| io::ErrorKind::InvalidData)?;
    if bytes == 0 {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the function has no such BAR"));
    }
    let file = Arc::new(ByDescriptor { device: device.clone(), offset: info.offset, bytes });
    if info.flags & VFIO_REGION_INFO_FLAG_MMAP == 0 {
        return Ok(Window::Software(file, bytes));
    }
    let sparse = chain.pairs(VFIO_REGION_INFO_CAP_SPARSE_MMAP as u16);
    window(device, info.offset, areas(sparse.as_deref(), bytes)?, bytes, file)
}

/// A BAR of `bytes` that lies at `offset` of `file`: mapped in its `areas`, by calls elsewhere.
pub(in crate::bus) fn window(
    file: &File,
    offset: u64,
    areas: Vec<Range<usize>>,
    bytes: usize,
    calls: Arc<dyn RegisterFile>,
) -> io::Result<Window> {
    let mapping = Mapping::reserve(bytes)?;
    for area in &areas {
        mapping.place(file, offset, area)?;
    }
    let base = mapping.base;
    // SAFETY: `areas` are mapped within `base..base + bytes` and stay so until the mapping is dropped; only the window has its
    // address.
    let bar = unsafe { MappedBar::new(base, bytes, areas.clone(), Box::new(mapping)) };
    let whole = areas.len() == 1 && areas[0] == (0..bytes);
    Ok(if whole { Window::Mapped(bar) } else { Window::Partial(bar, calls) })
}

/// What may be mapped, sorted; an area outside the BAR is the kernel's or the peer's error.
pub(in crate::bus) fn areas(sparse: Option<&[(u64, u64)]>, bytes: usize) -> io::Result<Vec<Range<usize>>> {
    let Some(pairs) = sparse else { return Ok(std::iter::once(0..bytes).collect()) };
    let mut areas = Vec::new();
    for (offset, size) in pairs {
        let area = offset.checked_add(*size).and_then(|end| {
            let (start, end) = (usize::try_from(*offset).ok()?, usize::try_from(end).ok()?);
            (end <= bytes).then_some(start..end)
        });
        let what = "an area that may be mapped lies outside its BAR";
        areas.push(area.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, what))?);
    }
    areas.retain(|area| !area.is_empty());
    areas.sort_by_key(|area| area.start);
    Ok(areas)
}

/// Addresses for a BAR.
struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is only an interval of addresses, and unmapping may happen on any thread.
unsafe impl Send for Mapping {}
// SAFETY: it gives nothing out by reference.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn reserve(bytes: usize) -> io::Result<Mapping> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = NonNull::new(base.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Mapping { base, bytes })
    }

    fn place(&self, device: &File, bar_offset: u64, area: &Range<usize>) -> io::Result<()> {
        let offset =
            bar_offset.checked_add(area.start as u64).and_then(|offset| libc::off_t::try_from(offset).ok());
        let offset = offset.ok_or(io::ErrorKind::InvalidData)?;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the area lies in the interval that `reserve` took, and nothing in it has been handed out yet.
        let placed = unsafe {
            let at = self.base.as_ptr().add(area.start).cast();
            let flags = libc::MAP_SHARED | libc::MAP_FIXED;
            libc::mmap(at, area.len(), protection, flags, device.as_raw_fd(), offset)
        };
        if placed == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `reserve` took this interval, and whoever had its address is gone.
        let result = unsafe { libc::munmap(self.base.as_ptr().cast(), self.bytes) };
        assert_eq!(result, 0, "munmap of a whole mapping fails only for wrong arguments");
    }
}

/// Registers by pread and pwrite.
struct ByDescriptor {
    device: Arc<File>,
    offset: u64,
    bytes: usize,
}

impl RegisterFile for ByDescriptor {
    fn read32(&self, offset: usize) -> u32 {
        assert!(offset + 4 <= self.bytes, "register offset {offset:#x}");
        let mut word = [0xff; 4];
        match self.device.read_exact_at(&mut word, self.offset + offset as u64) {
            Ok(()) => u32::from_le_bytes(word),
            Err(_) => u32::MAX,
        }
    }

    fn write32(&self, offset: usize, value: u32) {
        assert!(offset + 4 <= self.bytes, "register offset {offset:#x}");
        // A device that is gone takes no write; the next read shows it.
        let _ = self.device.write_all_at(&value.to_le_bytes(), self.offset + offset as u64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_lie_in_their_bar() {
        assert_eq!(areas(None, 8192).unwrap(), std::iter::once(0..8192).collect::<Vec<_>>());
        assert_eq!(
            areas(Some(&[(8192, 4096), (0, 4096), (4096, 0)]), 12288).unwrap(),
            [0..4096, 8192..12288]
        );
        assert!(areas(Some(&[(8192, 8192)]), 12288).is_err());
        assert!(areas(Some(&[(u64::MAX, 2)]), 12288).is_err());
        assert!(areas(Some(&[]), 12288).unwrap().is_empty());
    }
}
