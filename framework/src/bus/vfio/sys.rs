//! VFIO's ioctls (include/uapi/linux/vfio.h), one function each, and the capability chains in their answers.
//!
//! Structures come from `vfio-bindings`. Each begins with `argsz`, the size that the caller has room for; the kernel writes no further,
//! and says in the same word how much it would like to write. An errno comes back as it is: what it means is the caller's to say.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use vfio_bindings::bindings::vfio::*;

const fn number(offset: u32) -> u64 {
    // _IO(VFIO_TYPE, VFIO_BASE + offset): no direction and no size are coded.
    (VFIO_TYPE as u64) << 8 | (VFIO_BASE + offset) as u64
}

const GET_API_VERSION: u64 = number(0);
const CHECK_EXTENSION: u64 = number(1);
const SET_IOMMU: u64 = number(2);
const GROUP_GET_STATUS: u64 = number(3);
const GROUP_SET_CONTAINER: u64 = number(4);
const GROUP_GET_DEVICE_FD: u64 = number(6);
const DEVICE_GET_INFO: u64 = number(7);
const DEVICE_GET_REGION_INFO: u64 = number(8);
const DEVICE_GET_IRQ_INFO: u64 = number(9);
const DEVICE_SET_IRQS: u64 = number(10);
const DEVICE_RESET: u64 = number(11);
const IOMMU_GET_INFO: u64 = number(12);
const IOMMU_MAP_DMA: u64 = number(13);
const IOMMU_UNMAP_DMA: u64 = number(14);

/// VFIO_IOMMU_TYPE1_INFO_DMA_AVAIL, which the bindings lack.
pub(super) const CAPABILITY_DMA_AVAIL: u16 = 3;

/// A structure that begins with `argsz`, is plain data and is valid as zeros.
///
/// # Safety
/// The type is one of vfio.h's structures without pointers, whose first field is `__u32 argsz`.
pub(super) unsafe trait Structure: Copy + Default {}

// SAFETY: vfio.h defines each with argsz in front and integers only.
unsafe impl Structure for vfio_group_status {}
// SAFETY: as above.
unsafe impl Structure for vfio_device_info {}
// SAFETY: as above.
unsafe impl Structure for vfio_region_info {}
// SAFETY: as above.
unsafe impl Structure for vfio_irq_info {}
// SAFETY: as above.
unsafe impl Structure for vfio_iommu_type1_info {}
// SAFETY: as above; `vaddr` is an integer to the kernel.
unsafe impl Structure for vfio_iommu_type1_dma_map {}

fn plain(fd: BorrowedFd<'_>, request: u64, argument: u64) -> io::Result<i32> {
    // SAFETY: these requests take an integer or nothing, so the kernel follows no pointer of ours.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), request, argument) })
}

fn checked(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn exchange<S: Structure>(fd: BorrowedFd<'_>, request: u64, structure: &mut S) -> io::Result<()> {
    // SAFETY: `argsz` bounds what the kernel reads and writes, and each caller sets it to the size of `S`.
    checked(unsafe { libc::ioctl(fd.as_raw_fd(), request, &raw mut *structure) }).map(|_| ())
}

/// VFIO_API_VERSION of the kernel; 0 is the only one.
pub(super) fn api_version(container: BorrowedFd<'_>) -> io::Result<i32> {
    plain(container, GET_API_VERSION, 0)
}

/// Whether the kernel has IOMMU driver `kind`.
pub(super) fn has_extension(container: BorrowedFd<'_>, kind: u32) -> io::Result<bool> {
    Ok(plain(container, CHECK_EXTENSION, u64::from(kind))? > 0)
}

/// Chooses the container's IOMMU driver; a group must be in it.
pub(super) fn set_iommu(container: BorrowedFd<'_>, kind: u32) -> io::Result<()> {
    plain(container, SET_IOMMU, u64::from(kind)).map(|_| ())
}

/// VFIO_GROUP_FLAGS_*.
pub(super) fn group_flags(group: BorrowedFd<'_>) -> io::Result<u32> {
    let mut status = vfio_group_status { argsz: size_of::<vfio_group_status>() as u32, flags: 0 };
    exchange(group, GROUP_GET_STATUS, &mut status)?;
    Ok(status.flags)
}

/// Puts a group into a container.
pub(super) fn set_container(group: BorrowedFd<'_>, container: BorrowedFd<'_>) -> io::Result<()> {
    let number: RawFd = container.as_raw_fd();
    // SAFETY: the request reads one int behind the pointer, which lives through the call.
    checked(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_SET_CONTAINER, &raw const number) }).map(|_| ())
}

/// Opens the device of the group that is called `name`.
pub(super) fn device(group: BorrowedFd<'_>, name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: the request reads a terminated string, which lives through the call.
    let fd = checked(unsafe { libc::ioctl(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr()) })?;
    // SAFETY: the kernel made this descriptor in this call, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Flags and numbers of a device.
pub(super) fn device_info(device: BorrowedFd<'_>) -> io::Result<vfio_device_info> {
    let mut info = vfio_device_info { argsz: size_of::<vfio_device_info>() as u32, ..Default::default() };
    exchange(device, DEVICE_GET_INFO, &mut info)?;
    Ok(info)
}

/// A region, and its capabilities.
pub(super) fn region_info(device: BorrowedFd<'_>, index: u32) -> io::Result<(vfio_region_info, Chain)> {
    let info = vfio_region_info { index, ..Default::default() };
    let (info, bytes) = with_capabilities(device, DEVICE_GET_REGION_INFO, info)?;
    let first = if info.flags & VFIO_REGION_INFO_FLAG_CAPS != 0 { info.cap_offset } else { 0 };
    Ok((info, Chain { bytes, first }))
}

/// What the container's IOMMU allows, as a chain of capabilities.
pub(super) fn iommu_info(container: BorrowedFd<'_>) -> io::Result<(vfio_iommu_type1_info, Chain)> {
    let (info, bytes) = with_capabilities(container, IOMMU_GET_INFO, vfio_iommu_type1_info::default())?;
    let first = if info.flags & VFIO_IOMMU_INFO_CAPS != 0 { info.cap_offset } else { 0 };
    Ok((info, Chain { bytes, first }))
}

/// How many vectors an interrupt index has, and its flags.
pub(super) fn irq_info(device: BorrowedFd<'_>, index: u32) -> io::Result<vfio_irq_info> {
    let argsz = size_of::<vfio_irq_info>() as u32;
    let mut info = vfio_irq_info { argsz, index, ..Default::default() };
    exchange(device, DEVICE_GET_IRQ_INFO, &mut info)?;
    Ok(info)
}

/// Delivers vectors `start..` of `index` to `eventfds`; none ends the delivery of all.
pub(super) fn set_irqs(
    device: BorrowedFd<'_>,
    index: u32,
    start: u32,
    eventfds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let data = if eventfds.is_empty() { VFIO_IRQ_SET_DATA_NONE } else { VFIO_IRQ_SET_DATA_EVENTFD };
    let argsz = size_of::<vfio_irq_set>() as u32 + 4 * eventfds.len() as u32;
    let head = [argsz, data | VFIO_IRQ_SET_ACTION_TRIGGER, index, start, eventfds.len() as u32];
    let numbers = eventfds.iter().map(|fd| fd.as_raw_fd() as u32);
    let words: Vec<u32> = head.into_iter().chain(numbers).collect();
    // SAFETY: the words are struct vfio_irq_set with its data, argsz says how many there are, and they live through the call.
    checked(unsafe { libc::ioctl(device.as_raw_fd(), DEVICE_SET_IRQS, words.as_ptr()) }).map(|_| ())
}

/// Resets the function.
pub(super) fn reset(device: BorrowedFd<'_>) -> io::Result<()> {
    plain(device, DEVICE_RESET, 0).map(|_| ())
}

/// Maps `bytes` at `address` of this process to `iova`, with VFIO_DMA_MAP_FLAG_READ and _WRITE.
///
/// # Safety
/// Devices of the container may read and, with the flag, write the memory until it is unmapped; it is not used as exclusive
/// Rust memory meanwhile.
pub(super) unsafe fn map_dma(
    container: BorrowedFd<'_>,
    flags: u32,
    address: u64,
    iova: u64,
    bytes: u64,
) -> io::Result<()> {
    let argsz = size_of::<vfio_iommu_type1_dma_map>() as u32;
    let mut map = vfio_iommu_type1_dma_map { argsz, flags, vaddr: address, iova, size: bytes };
    exchange(container, IOMMU_MAP_DMA, &mut map)
}

/// Unmaps; gives how many bytes were mapped there.
pub(super) fn unmap_dma(container: BorrowedFd<'_>, iova: u64, bytes: u64) -> io::Result<u64> {
    let argsz = size_of::<Unmap>() as u32;
    let mut unmap = Unmap { argsz, flags: 0, iova, bytes };
    exchange(container, IOMMU_UNMAP_DMA, &mut unmap)?;
    Ok(unmap.bytes)
}

/// struct vfio_iommu_type1_dma_unmap without its optional bitmap, which keeps the bindings' type from being plain data.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Unmap {
    argsz: u32,
    flags: u32,
    iova: u64,
    bytes: u64,
}

const _: () = assert!(size_of::<Unmap>() == size_of::<vfio_iommu_type1_dma_unmap>());

// SAFETY: argsz in front, integers only.
unsafe impl Structure for Unmap {}

/// Asks twice when the first answer says that there is more.
fn with_capabilities<S: Structure>(
    fd: BorrowedFd<'_>,
    request: u64,
    question: S,
) -> io::Result<(S, Vec<u8>)> {
    let mut words = room_for(&question, size_of::<S>());
    for _ in 0..4 {
        // SAFETY: `argsz` in the first word is the size of the buffer in bytes, and it lives through the call.
        checked(unsafe { libc::ioctl(fd.as_raw_fd(), request, words.as_mut_ptr()) })?;
        let wanted = words[0] as u32 as usize;
        if wanted <= words.len() * 8 {
            break;
        }
        words = room_for(&question, wanted);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    // SAFETY: the buffer has at least the structure's size, and any bytes are a valid structure of integers.
    Ok((unsafe { words.as_ptr().cast::<S>().read_unaligned() }, bytes))
}

/// A buffer of at least `bytes` that begins with `question`, its argsz set.
fn room_for<S: Structure>(question: &S, bytes: usize) -> Vec<u64> {
    let mut words = vec![0; bytes.max(size_of::<S>()).div_ceil(8)];
    // SAFETY: the buffer has room for the structure, and neither overlaps the other.
    unsafe { words.as_mut_ptr().cast::<S>().write_unaligned(*question) };
    let argsz = (words.len() * 8) as u32;
    words[0] = words[0] & !u64::from(u32::MAX) | u64::from(argsz);
    words
}

/// Capabilities behind an answer: each has an id, a version and the offset of the next, from the start of the answer.
#[derive(Debug)]
pub(in crate::bus) struct Chain {
    bytes: Vec<u8>,
    first: u32,
}

/// Header of a capability, bytes.
const HEADER: usize = 8;

impl Chain {
    /// The capabilities of an answer that another process gave; `first` is the offset of the first one, 0 for none.
    pub(in crate::bus) fn new(bytes: Vec<u8>, first: u32) -> Chain {
        Chain { bytes, first }
    }

    /// The body of capability `id`: what stands behind its header, to the end of the answer.
    pub(super) fn find(&self, id: u16) -> Option<&[u8]> {
        let mut at = self.first as usize;
        // A chain has at most one capability for each header that fits.
        for _ in 0..self.bytes.len() / HEADER {
            if at == 0 {
                return None;
            }
            let (header, body) = self.bytes.get(at..)?.split_at_checked(HEADER)?;
            if u16::from_ne_bytes([header[0], header[1]]) == id {
                return Some(body);
            }
            at = word32(header, 4)? as usize;
        }
        None
    }

    /// Pairs of 64-bit words of capability `id`, whose body is a count, a reserved word and the pairs.
    pub(in crate::bus) fn pairs(&self, id: u16) -> Option<Vec<(u64, u64)>> {
        let body = self.find(id)?;
        let count = word32(body, 0)? as usize;
        let pairs = body.get(8..)?.as_chunks::<16>().0.iter().take(count);
        Some(pairs.filter_map(|pair| Some((word64(pair, 0)?, word64(pair, 8)?))).collect())
    }

    /// The first 32-bit word of capability `id`.
    pub(super) fn word(&self, id: u16) -> Option<u32> {
        word32(self.find(id)?, 0)
    }
}

fn word32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn word64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        assert_eq!((GET_API_VERSION, IOMMU_MAP_DMA, DEVICE_SET_IRQS), (0x3b64, 0x3b71, 0x3b6e));
        assert_eq!(size_of::<vfio_irq_set>(), 20);
    }

    fn capability(id: u16, next: u32, body: &[u8]) -> Vec<u8> {
        [&id.to_ne_bytes()[..], &1u16.to_ne_bytes(), &next.to_ne_bytes(), body].concat()
    }

    #[test]
    fn a_chain_is_followed_to_its_end() {
        let ranges: Vec<u8> = [2u32, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let pairs: Vec<u8> =
            [0u64, 0xfedf_ffff, 0xfef0_0000, u64::MAX].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let first = capability(CAPABILITY_DMA_AVAIL, 36, &[9, 0, 0, 0]);
        let second = capability(1, 0, &[ranges, pairs].concat());
        let bytes = [vec![0; 24], first, second].concat();
        let chain = Chain { bytes, first: 24 };
        assert_eq!(chain.word(CAPABILITY_DMA_AVAIL), Some(9));
        assert_eq!(chain.pairs(1), Some(vec![(0, 0xfedf_ffff), (0xfef0_0000, u64::MAX)]));
        assert!(chain.find(2).is_none());
        assert!(Chain { bytes: vec![0; 24], first: 0 }.find(1).is_none());
    }

    proptest! {
        #[test]
        fn no_chain_makes_it_run_for_ever_or_past_the_end(
            bytes in prop::collection::vec(any::<u8>(), 0..200), first in any::<u32>(), id in 0u16..4,
        ) {
            let chain = Chain { first: first % 256, bytes };
            chain.find(id);
            chain.pairs(id);
            chain.word(id);
        }
    }
}
