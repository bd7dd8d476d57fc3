//! A peer's BAR: mapped where the peer lends its memory for good, and read and written by messages elsewhere.
//!
//! Memory of another process is mapped only from a file that cannot shrink below what is mapped, nor run out of huge pages: an access to
//! the rest would end this process (SIGBUS). A peer whose file promises neither is spoken to by messages, which is slower and right.

use super::peer::Peer;
use super::protocol::*;
use super::wire::PeerError;
use crate::bus::simulated::is_sealed;
use crate::bus::vfio::region::{areas, window};
use crate::bus::vfio::sys::Chain;
use crate::bus::{RegisterFile, Window};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use vfio_bindings::bindings::vfio::VFIO_REGION_INFO_CAP_SPARSE_MMAP;
use zerocopy::IntoBytes;

/// Blocks of a file that is not on huge pages.
const SMALL_PAGE_BYTES: u64 = 4096;

/// What a peer says of a region.
pub(super) struct RegionFacts {
    pub(super) info: RegionInfo,
    chain: Chain,
    file: Option<File>,
}

/// Asks for a region.
pub(super) fn info(peer: &Peer, index: u32) -> Result<RegionFacts, PeerError> {
    let argument_bytes = MOST_REGION_BYTES as u32;
    let question = RegionInfo { argument_bytes, index, ..Default::default() };
    let mut reply = peer.ask(command::GET_REGION_INFO, &[question.as_bytes()], &[], MOST_REGION_BYTES)?;
    let info: RegionInfo = peer.head(&reply.body)?;
    if info.index != index || reply.fds.len() > 1 {
        return Err(peer.cut("a region that was not asked for, or with two files"));
    }
    let first = if info.flags & REGION_CAPABILITIES != 0 { info.capabilities_at } else { 0 };
    Ok(RegionFacts { info, chain: Chain::new(reply.body, first), file: reply.fds.pop().map(File::from) })
}

pub(super) fn open(peer: &Arc<Peer>, index: u32) -> io::Result<Window> {
    let RegionFacts { info, chain, file } = info(peer, index)?;
    let bytes = usize::try_from(info.bytes).map_err(|_| io::ErrorKind::InvalidData)?;
    if !bytes.is_multiple_of(4) || bytes > isize::MAX as usize {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a BAR is a number of whole registers"));
    }
    if bytes == 0 {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the function has no such BAR"));
    }
    let calls = Arc::new(ByMessage { peer: peer.clone(), index, bytes });
    let file = file.filter(|_| info.flags & REGION_MMAP != 0);
    match file {
        Some(file) if stays(&file, info.offset, bytes) => {
            let sparse = chain.pairs(VFIO_REGION_INFO_CAP_SPARSE_MMAP as u16);
            window(&file, info.offset, areas(sparse.as_deref(), bytes)?, bytes, calls)
        }
        _ => Ok(Window::Software(calls, bytes)),
    }
}

/// Whether the file has these bytes and keeps them.
fn stays(file: &File, offset: u64, bytes: usize) -> bool {
    let Some(end) = offset.checked_add(bytes as u64) else { return false };
    // Sealed first: what is large enough afterwards remains so.
    is_sealed(file.as_fd())
        && file.metadata().is_ok_and(|facts| end <= facts.len() && facts.blksize() == SMALL_PAGE_BYTES)
}

/// Registers by messages.
struct ByMessage {
    peer: Arc<Peer>,
    index: u32,
    bytes: usize,
}

impl ByMessage {
    fn check(&self, offset: usize, bytes: usize) -> u64 {
        assert!(
            offset.checked_add(bytes).is_some_and(|end| end <= self.bytes),
            "register offset {offset:#x}"
        );
        offset as u64
    }
}

impl RegisterFile for ByMessage {
    fn read32(&self, offset: usize) -> u32 {
        let mut word = [0xff; 4];
        let at = self.check(offset, 4);
        self.peer.read(self.index, at, &mut word).map_or(u32::MAX, |()| u32::from_le_bytes(word))
    }

    fn write32(&self, offset: usize, value: u32) {
        // A device that is gone takes no write; the next read shows it.
        let _ = self.peer.post(self.index, self.check(offset, 4), &value.to_le_bytes());
    }

    fn read_narrow(&self, offset: usize, bytes: usize) -> u32 {
        let mut word = [0; 4];
        let at = self.check(offset, bytes);
        let read = self.peer.read(self.index, at, &mut word[..bytes]);
        read.map_or(u32::MAX >> (32 - 8 * bytes), |()| u32::from_le_bytes(word))
    }

    fn write_narrow(&self, offset: usize, bytes: usize, value: u32) {
        // As above.
        let _ = self.peer.post(self.index, self.check(offset, bytes), &value.to_le_bytes()[..bytes]);
    }
}
