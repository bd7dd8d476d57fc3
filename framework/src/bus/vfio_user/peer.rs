//! One peer: its connection, and the memory that it was lent.
//!
//! Any thread may ask; one at a time does. The first failure that leaves the connection in doubt ends it, here and nowhere else, and
//! every later question is answered at once with `Away`. Memory is given back by an unmap that the peer confirms, or by the peer closing
//! the socket; a peer that we cut off may still hold it, so an unmap then fails and the memory is never used again.

use super::device::VfioUserDevice;
use super::protocol::*;
use super::wire::{PeerError, Reply, Wire};
use super::{REPLY_LIMIT, VfioUserError};
use crate::bus::Backend;
use crate::iova::{Direction, Iommu, Ranges};
use pollring_hugepages::Region;
use std::io;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A process that serves a PCI function.
pub struct Peer {
    path: PathBuf,
    line: Mutex<Line>,
}

enum Line {
    Up(Wire),
    /// The peer closed its end.
    Left,
    /// We closed ours.
    Cut,
}

impl Peer {
    /// Connects to the socket at `path` and agrees on a version. Tries once and does not wait for a peer to start.
    ///
    /// # Errors
    /// Nobody listens, no answer, or a peer that speaks another version.
    pub fn connect(path: &Path) -> Result<Arc<Peer>, VfioUserError> {
        let name = path.display().to_string();
        let wire = Wire::connect(path).map_err(|error| VfioUserError::Connect { path: name, error })?;
        Peer::greet(path, wire)
    }

    /// Speaks over a socket that is connected already, with a limit of its own.
    ///
    /// # Errors
    /// As [`Peer::connect`].
    pub fn over(stream: UnixStream, limit: Duration) -> Result<Arc<Peer>, VfioUserError> {
        let path = Path::new("(a connected socket)");
        let limit = limit.min(REPLY_LIMIT);
        let refused = |error| VfioUserError::Connect { path: path.display().to_string(), error };
        Peer::greet(path, Wire::over(stream, limit).map_err(refused)?)
    }

    fn greet(path: &Path, wire: Wire) -> Result<Arc<Peer>, VfioUserError> {
        let peer = Arc::new(Peer { path: path.to_owned(), line: Mutex::new(Line::Up(wire)) });
        // Version 0.0 is what every peer knows; nothing of a later one is used here.
        let offer = Version { major: 0, minor: 0 };
        let reply = peer.ask(command::VERSION, &[offer.as_bytes(), CAPABILITIES], &[], MOST_VERSION_BYTES);
        let agreed: Version =
            reply.and_then(|reply| peer.head(&reply.body)).map_err(peer.failed("agree on a version"))?;
        if (agreed.major, agreed.minor) != (0, 0) {
            return Err(peer.unfit("it speaks another version than 0.0"));
        }
        Ok(peer)
    }

    /// The function that it serves, for [`Device::open`](crate::bus::Device::open).
    ///
    /// # Errors
    /// No answer, or no PCI function.
    pub fn open(self: &Arc<Peer>) -> Result<Arc<dyn Backend>, VfioUserError> {
        Ok(Arc::new(VfioUserDevice::new(self.clone())?))
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the connection holds, as far as the last message showed.
    pub fn is_connected(&self) -> bool {
        matches!(*self.line.lock().unwrap_or_else(PoisonError::into_inner), Line::Up(_))
    }

    /// One message and its reply, whose body has at most `most` bytes.
    pub(super) fn ask(
        &self,
        command: u16,
        body: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        most: usize,
    ) -> Result<Reply, PeerError> {
        self.with(|wire| wire.ask(command, body, fds, most))
    }

    /// A question whose answer is the same structure.
    pub(super) fn query<T>(&self, command: u16, question: &T) -> Result<T, PeerError>
    where
        T: FromBytes + IntoBytes + KnownLayout + Immutable,
    {
        self.head(&self.ask(command, &[question.as_bytes()], &[], size_of::<T>())?.body)
    }

    /// The body of a reply as the structure that it must begin with.
    pub(super) fn head<T: FromBytes + KnownLayout + Immutable>(&self, body: &[u8]) -> Result<T, PeerError> {
        T::read_from_prefix(body).map(|(head, _)| head).map_err(|_| self.cut("a short reply"))
    }

    /// Reads `data.len()` bytes of a region.
    pub(super) fn read(&self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), PeerError> {
        let access = RegionAccess { offset, region, count: data.len() as u32 };
        let most = size_of::<RegionAccess>() + data.len();
        let reply = self.ask(command::REGION_READ, &[access.as_bytes()], &[], most)?;
        let read = reply.body.split_at_checked(size_of::<RegionAccess>());
        match read {
            Some((head, bytes)) if head == access.as_bytes() && bytes.len() == data.len() => {
                data.copy_from_slice(bytes);
                Ok(())
            }
            _ => Err(self.cut("a read of another size or place")),
        }
    }

    /// Writes a region, and waits until the peer says that it did.
    pub(super) fn write(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), PeerError> {
        let access = RegionAccess { offset, region, count: data.len() as u32 };
        let most = size_of::<RegionAccess>();
        self.ask(command::REGION_WRITE, &[access.as_bytes(), data], &[], most).map(drop)
    }

    /// Writes a region as a bus posts a write: in order before what follows, and without an answer.
    pub(super) fn post(&self, region: u32, offset: u64, data: &[u8]) -> Result<(), PeerError> {
        let access = RegionAccess { offset, region, count: data.len() as u32 };
        self.with(|wire| wire.post(command::REGION_WRITE, &[access.as_bytes(), data]))
    }

    /// Ends the connection over something that a reply said.
    pub(super) fn cut(&self, what: &'static str) -> PeerError {
        *self.line.lock().unwrap_or_else(PoisonError::into_inner) = Line::Cut;
        PeerError::Broken(what)
    }

    fn with<T>(&self, exchange: impl FnOnce(&mut Wire) -> Result<T, PeerError>) -> Result<T, PeerError> {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let Line::Up(wire) = &mut *line else { return Err(PeerError::Away) };
        let result = exchange(wire);
        match &result {
            Ok(_) | Err(PeerError::Refused(_)) => return result,
            Err(PeerError::Away) => *line = Line::Left,
            Err(PeerError::Broken(_) | PeerError::Silent) => *line = Line::Cut,
        }
        let reason = result.as_ref().err().map(PeerError::to_string);
        tracing::error!(path = %self.path.display(), reason, "the vfio-user device is lost");
        result
    }

    pub(super) fn failed(&self, step: &'static str) -> impl Fn(PeerError) -> VfioUserError {
        let path = self.path.display().to_string();
        move |error| VfioUserError::Exchange { step, path: path.clone(), error }
    }

    pub(super) fn unfit(&self, what: &'static str) -> VfioUserError {
        VfioUserError::Unfit { path: self.path.display().to_string(), what }
    }
}

impl Iommu for Peer {
    fn ranges(&self) -> io::Result<Ranges> {
        // The address of a user process: some peers keep addresses in signed words.
        Ok(Ranges::new([(0, (1 << 47) - 1)]))
    }

    fn map(&self, iova: u64, region: &Arc<Region>, direction: Direction) -> io::Result<()> {
        let flags = match direction {
            Direction::ToDevice => MAP_READ,
            Direction::Both => MAP_READ | MAP_WRITE,
        };
        let argument_bytes = size_of::<DmaMap>() as u32;
        let map = DmaMap { argument_bytes, flags, offset: 0, iova, bytes: region.bytes() as u64 };
        // Some peers send the body back.
        let most = size_of::<DmaMap>();
        Ok(self.ask(command::DMA_MAP, &[map.as_bytes()], &[region.fd()], most).map(drop)?)
    }

    fn unmap(&self, iova: u64, bytes: usize) -> io::Result<()> {
        let argument_bytes = size_of::<DmaUnmap>() as u32;
        let unmap = DmaUnmap { argument_bytes, flags: 0, iova, bytes: bytes as u64 };
        let taken = match self.query(command::DMA_UNMAP, &unmap) {
            Ok(taken) => taken.bytes,
            Err(error) => return if self.has_left() { Ok(()) } else { Err(error.into()) },
        };
        if taken == bytes as u64 { Ok(()) } else { Err(self.cut("it unmapped something else").into()) }
    }
}

impl Peer {
    fn has_left(&self) -> bool {
        matches!(*self.line.lock().unwrap_or_else(PoisonError::into_inner), Line::Left)
    }
}
