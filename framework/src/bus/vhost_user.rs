//! The frontend's side of vhost-user: a device that is another process (QEMU's docs/interop/vhost-user.rst).
//!
//! A [`VhostUser`] is one socket, and an [`Iommu`]: what is mapped goes to the backend as a memory table of our memfds, with our IOVAs as
//! addresses, so that descriptors look as they do for silicon. The order is [`VhostUser::connect`], [`VhostUser::accept`],
//! [`VhostUser::set_queue`] for each queue, [`VhostUser::run`], and [`VhostUser::disconnect`]. A backend that goes away closes the socket
//! ([`VhostUser::is_connected`]); the next connect starts from nothing. Every exchange ends within [`REPLY_LIMIT`].
//!
//! **Trust.** Whoever gets a memfd sees all of it and may write to all of it: the direction of a mapping binds no backend. And a
//! backend that closes its socket is trusted to touch the memory no more; only its death makes that sure.

use crate::iova::{Direction, Iommu, Ranges};
use crate::ring::virtqueue::QueuePlaces;
use pollring_hugepages::Region;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use thiserror::Error;
use vhost::vhost_user::message::{VhostUserHeaderFlag, VhostUserProtocolFeatures as Protocol};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vmm_sys_util::eventfd::{EFD_CLOEXEC, EFD_NONBLOCK, EventFd};

/// How long a backend may take to answer one message.
pub const REPLY_LIMIT: Duration = Duration::from_millis(3000);

/// Feature bit 30: the protocol has features of its own.
pub const PROTOCOL_FEATURES: u64 = 1 << 30;

/// Regions that any backend takes (`VHOST_MEMORY_MAX_NREGIONS` of DPDK and of libvhost-user's table).
const MOST_REGIONS: usize = 8;

/// Queues that the protocol can name (8 bits of a message's payload).
const MOST_QUEUES: u64 = 256;

/// Queues that a backend without the MQ protocol feature has.
const PLAIN_QUEUES: u64 = 2;

/// Why a backend could not be used.
#[derive(Debug, Error)]
pub enum VhostUserError {
    /// Nobody listens.
    #[error(
        "connect to the vhost-user backend at {path}: {error}; start the backend, or check the path and its rights"
    )]
    Connect {
        /// The socket.
        path: String,
        /// The errno.
        error: io::Error,
    },
    /// The backend refused, or does not answer.
    #[error("{step} at the vhost-user backend {path}: {error}; its log may say why")]
    Exchange {
        /// What was tried.
        step: &'static str,
        /// The socket.
        path: String,
        /// What the protocol says.
        error: vhost::Error,
    },
    /// Not connected.
    #[error("{step} at the vhost-user backend {path}: not connected; the backend closed the socket")]
    Away {
        /// What was tried.
        step: &'static str,
        /// The socket.
        path: String,
    },
    /// No eventfd.
    #[error("make an eventfd for {path}: {error}; raise `ulimit -n`")]
    EventFd {
        /// The socket.
        path: String,
        /// The errno.
        error: io::Error,
    },
}

/// What a backend has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Virtio features and [`PROTOCOL_FEATURES`].
    pub features: u64,
    /// Queues, receive and transmit counted alike.
    pub queues: u64,
}

/// The eventfds of one queue. They outlive connections.
pub struct QueueEvents {
    kick: EventFd,
    call: EventFd,
}

impl QueueEvents {
    /// Tells the backend that buffers are available. A full counter is a signal too.
    #[inline]
    pub fn kick(&self) {
        // The only other error is a full counter, which the backend sees as well.
        let _ = self.kick.write(1);
    }
}

#[derive(Default)]
struct State {
    regions: Vec<(u64, Arc<Region>)>,
    connection: Option<Connection>,
    events: Vec<Arc<QueueEvents>>,
}

struct Connection {
    frontend: Frontend,
    stream: UnixStream,
    offer: Offer,
    enabling: bool,
    /// IOVAs of the regions that the backend was told of.
    told: Vec<u64>,
}

/// The frontend of one device.
pub struct VhostUser {
    path: PathBuf,
    state: Mutex<State>,
}

type Done<T> = Result<T, VhostUserError>;

impl VhostUser {
    /// The device at a socket; nothing is connected yet.
    pub fn new(path: &Path) -> Arc<VhostUser> {
        Arc::new(VhostUser { path: path.to_owned(), state: Mutex::default() })
    }

    /// The socket.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Connects anew and asks what the backend has. Tries once and does not wait for a backend.
    ///
    /// # Errors
    /// Nobody listens, or the backend does not answer.
    pub fn connect(&self) -> Done<Offer> {
        let mut state = self.state();
        state.hang_up();
        let stream = self.open().map_err(|error| VhostUserError::Connect { path: self.name(), error })?;
        let kept =
            stream.try_clone().map_err(|error| VhostUserError::Connect { path: self.name(), error })?;
        let again =
            stream.try_clone().map_err(|error| VhostUserError::Connect { path: self.name(), error })?;
        let mut frontend = Frontend::from_stream(stream, MOST_QUEUES);
        let (features, protocol) = self.greet(&mut frontend)?;
        let mut offer = Offer { features, queues: PLAIN_QUEUES };
        if protocol.contains(Protocol::MQ) {
            // For a network device DPDK and QEMU mean pairs, whatever the message's name says. The crate takes the answer as its own
            // limit of queues, which is half of what there are, so a frontend that never asked goes on.
            let pairs = self.step("read the number of queues", frontend.get_queue_num())?;
            offer.queues = pairs.max(1) * 2;
            frontend = Frontend::from_stream(again, MOST_QUEUES);
            self.greet(&mut frontend)?;
        }
        state.connection =
            Some(Connection { frontend, stream: kept, offer, enabling: false, told: Vec::new() });
        Ok(offer)
    }

    fn open(&self) -> io::Result<UnixStream> {
        let stream = UnixStream::connect(&self.path)?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        stream.set_write_timeout(Some(REPLY_LIMIT))?;
        Ok(stream)
    }

    fn greet(&self, frontend: &mut Frontend) -> Done<(u64, Protocol)> {
        self.step("take ownership", frontend.set_owner())?;
        let features = self.step("read features", frontend.get_features())?;
        let mut protocol = Protocol::empty();
        if features & PROTOCOL_FEATURES != 0 {
            let has = self.step("read protocol features", frontend.get_protocol_features())?;
            protocol = has & (Protocol::MQ | Protocol::REPLY_ACK);
            self.step("set protocol features", frontend.set_protocol_features(protocol))?;
        }
        if protocol.contains(Protocol::REPLY_ACK) {
            frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        Ok((features, protocol))
    }

    /// Accepts features and, with [`PROTOCOL_FEATURES`], takes over that queues start disabled.
    ///
    /// # Errors
    /// The backend refuses or is away.
    pub fn accept(&self, features: u64) -> Done<()> {
        self.with("accept features", |connection, _| {
            let protocol = connection.offer.features & PROTOCOL_FEATURES;
            connection.enabling = protocol != 0;
            connection.frontend.set_features(features | protocol)
        })
    }

    /// Tells the backend of one queue, empty; `packed` says that its indices carry wrap counters. All memory that it lies in was
    /// mapped before, and is told of first.
    ///
    /// # Errors
    /// The backend refuses or is away, or no eventfd.
    pub fn set_queue(&self, queue: u16, places: &QueuePlaces, base: QueueBase) -> Done<Arc<QueueEvents>> {
        let events = self.events(usize::from(queue))?;
        let config = VringConfigData {
            queue_max_size: places.entries,
            queue_size: places.entries,
            flags: 0,
            desc_table_addr: places.descriptors.bits(),
            avail_ring_addr: places.driver.bits(),
            used_ring_addr: places.device.bits(),
            log_addr: None,
        };
        let at = usize::from(queue);
        self.with("set up a queue", |connection, regions| {
            connection.tell(regions)?;
            let frontend = &connection.frontend;
            frontend.set_vring_num(at, places.entries)?;
            frontend.set_vring_base(at, base as u16)?;
            frontend.set_vring_addr(at, &config)?;
            frontend.set_vring_call(at, &events.call)?;
            frontend.set_vring_kick(at, &events.kick)
        })?;
        Ok(events)
    }

    fn events(&self, queue: usize) -> Done<Arc<QueueEvents>> {
        let named = |error| VhostUserError::EventFd { path: self.name(), error };
        let mut state = self.state();
        while state.events.len() <= queue {
            let make = || EventFd::new(EFD_NONBLOCK | EFD_CLOEXEC).map_err(named);
            state.events.push(Arc::new(QueueEvents { kick: make()?, call: make()? }));
        }
        Ok(state.events[queue].clone())
    }

    /// Lets the backend work on the first `queues` queues.
    ///
    /// # Errors
    /// The backend refuses or is away.
    pub fn run(&self, queues: u16) -> Done<()> {
        self.with("enable queues", |connection, _| {
            let count = if connection.enabling { queues } else { 0 };
            (0..usize::from(count)).try_for_each(|queue| connection.frontend.set_vring_enable(queue, true))
        })
    }

    /// Stops the first `queues` queues, which returns once the backend has let go of them, and closes the connection.
    ///
    /// # Errors
    /// The backend refuses or is away; the connection is closed all the same.
    pub fn disconnect(&self, queues: u16) -> Done<()> {
        let stopped = self.with("stop queues", |connection, _| {
            (0..usize::from(queues)).try_for_each(|at| connection.frontend.get_vring_base(at).map(drop))
        });
        self.state().hang_up();
        stopped
    }

    /// Whether the backend holds its end of the socket. Does not wait.
    pub fn is_connected(&self) -> bool {
        let state = self.state();
        let Some(connection) = &state.connection else { return false };
        let mut byte = 0u8;
        let flags = libc::MSG_PEEK | libc::MSG_DONTWAIT;
        // SAFETY: the descriptor is open as long as `connection`, and the one byte may be written.
        let got = unsafe { libc::recv(connection.stream.as_raw_fd(), (&raw mut byte).cast(), 1, flags) };
        got > 0 || got < 0 && io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock
    }

    fn with<T>(
        &self,
        step: &'static str,
        exchange: impl FnOnce(&mut Connection, &[(u64, Arc<Region>)]) -> vhost::Result<T>,
    ) -> Done<T> {
        let mut state = self.state();
        let State { regions, connection, .. } = &mut *state;
        let connection =
            connection.as_mut().ok_or_else(|| VhostUserError::Away { step, path: self.name() })?;
        self.step(step, exchange(connection, regions))
    }

    fn step<T>(&self, step: &'static str, result: vhost::Result<T>) -> Done<T> {
        result.map_err(|error| VhostUserError::Exchange { step, path: self.name(), error })
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where a queue starts: at slot 0, and in a packed queue with both wrap counters at one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum QueueBase {
    /// A split queue.
    Split = 0,
    /// A packed queue: bit 15 is the wrap counter.
    Packed = 0x8000,
}

impl State {
    fn hang_up(&mut self) {
        if let Some(connection) = self.connection.take() {
            // Closed on the other side already, or by the drop that follows.
            let _ = connection.stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Connection {
    /// Sends the memory table if it is not what the backend has.
    fn tell(&mut self, regions: &[(u64, Arc<Region>)]) -> vhost::Result<()> {
        if self.told.iter().eq(regions.iter().map(|(iova, _)| iova)) {
            return Ok(());
        }
        let info = |(iova, region): &(u64, Arc<Region>)| VhostUserMemoryRegionInfo {
            guest_phys_addr: *iova,
            memory_size: region.bytes() as u64,
            userspace_addr: *iova,
            mmap_offset: 0,
            mmap_handle: region.fd().as_raw_fd(),
        };
        let table: Vec<_> = regions.iter().map(info).collect();
        self.frontend.set_mem_table(&table)?;
        self.told = regions.iter().map(|(iova, _)| *iova).collect();
        Ok(())
    }
}

impl Iommu for VhostUser {
    fn ranges(&self) -> io::Result<Ranges> {
        // The address of a user process: some backends keep addresses in signed words.
        Ok(Ranges::new([(0, (1 << 47) - 1)]))
    }

    fn map(&self, iova: u64, region: &Arc<Region>, _direction: Direction) -> io::Result<()> {
        let mut state = self.state();
        if state.regions.len() == MOST_REGIONS {
            return Err(io::Error::other("a vhost-user backend takes 8 regions; use fewer and larger pools"));
        }
        state.regions.push((iova, region.clone()));
        Ok(())
    }

    fn unmap(&self, iova: u64, _bytes: usize) -> io::Result<()> {
        let mut state = self.state();
        if state.connection.as_ref().is_some_and(|connection| connection.told.contains(&iova)) {
            // There is no way to take one region back that every backend knows, so the whole table ends.
            state.hang_up();
        }
        state.regions.retain(|(first, _)| *first != iova);
        Ok(())
    }
}
