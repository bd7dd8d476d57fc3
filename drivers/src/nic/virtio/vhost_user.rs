//! The vhost-user transport: the device is another process of this host.
//!
//! A reset is a new connection, and ending DMA is closing it. The backend has no control queue and no config space, so the port's address
//! follows from its socket's path and everything is received. When the backend goes away, [`Transport::presence`] says `Lost`, and
//! the next reset looks once for another one.

use super::VirtioPort;
use super::regs::feature;
use super::transport::{Confinement, Layout, Notifier, Presence, Transport, VirtioOptions, Watch};
use pollring::bus::vhost_user::{Offer, QueueBase, QueueEvents, VhostUser, VhostUserError};
use pollring::bus::{BusError, Health, Simulated};
use pollring::inspect::Node;
use pollring::iova::AddressSpace;
use pollring::port::{Port, PortError};
use pollring::ring::virtqueue::QueuePlaces;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long a port that is opened or started waits for its backend to listen.
const BACKEND_LIMIT: Duration = Duration::from_secs(2);

/// Queue sizes that every backend takes (libvhost-user's `VIRTQUEUE_MAX_SIZE`).
const MOST_ENTRIES: u16 = 1024;

/// Opens the port at a socket and gives the space into which its pools are mapped. `packed` asks for packed queues.
///
/// # Errors
/// Nobody listens within two seconds, or the backend has not what the port needs.
pub fn open(
    uri: &str,
    path: &Path,
    options: VirtioOptions,
) -> Result<(Box<dyn Port>, AddressSpace), PortError> {
    let link = VhostUser::new(path);
    let space = AddressSpace::new(uri, link.clone());
    let transport = VhostTransport {
        uri: uri.to_owned(),
        link,
        space: space.clone(),
        peer: Arc::new(Peer(Mutex::new(Health::Open))),
        offer: Offer { features: 0, queues: 0 },
        base: QueueBase::Split,
        set: 0,
        lost: false,
    };
    // Every backend has both formats, so the user decides; `Offered` would always mean packed.
    let layout = if options.layout == Layout::Offered { Layout::Split } else { options.layout };
    let port = VirtioPort::open(Box::new(transport), VirtioOptions { layout, ..options })?;
    Ok((Box::new(port), space))
}

/// How the backend is.
struct Peer(Mutex<Health>);

impl Peer {
    fn set(&self, health: Health) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = health;
    }
}

impl Watch for Peer {
    fn health(&self) -> Health {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

struct VhostTransport {
    uri: String,
    link: Arc<VhostUser>,
    space: AddressSpace,
    peer: Arc<Peer>,
    offer: Offer,
    base: QueueBase,
    /// Queues that the backend was told of.
    set: u16,
    lost: bool,
}

impl VhostTransport {
    fn refused(&self, step: &'static str, error: VhostUserError) -> PortError {
        BusError::Refused { step, device: self.uri.clone(), error: std::io::Error::other(error) }.into()
    }
}

struct Kick(Arc<QueueEvents>);

impl Notifier for Kick {
    #[inline]
    fn notify(&self, _data: u32) {
        self.0.kick();
    }
}

impl Transport for VhostTransport {
    fn name(&self) -> &str {
        &self.uri
    }

    fn model(&self) -> String {
        "virtio-net over vhost-user (virtio)".to_owned()
    }

    fn simulated(&self) -> Simulated {
        Simulated::Yes
    }

    fn space(&self) -> &AddressSpace {
        &self.space
    }

    fn watch(&self) -> Arc<dyn Watch> {
        self.peer.clone()
    }

    fn fail(&self, reason: &str) {
        self.peer.set(Health::Failed(reason.to_owned()));
    }

    fn reset(&mut self) -> Result<(), PortError> {
        let start = Instant::now();
        self.set = 0;
        loop {
            match self.link.connect() {
                Ok(offer) => {
                    self.offer = offer;
                    return Ok(());
                }
                Err(error) if self.lost || start.elapsed() > BACKEND_LIMIT => {
                    return Err(self.refused("open", error));
                }
                Err(_) => std::thread::sleep(BACKEND_LIMIT / 100),
            }
        }
    }

    fn offered(&self) -> u64 {
        self.offer.features
    }

    fn confinement(&self) -> Confinement {
        Confinement::Transport
    }

    fn unusable(&self) -> u64 {
        // The control queue of a vhost-user device is its frontend's own; the IOMMU of the protocol is not spoken here.
        let control = feature::CTRL_VQ | feature::CTRL_RX | feature::RSS;
        control
            | feature::ACCESS_PLATFORM
            | feature::NOTIFICATION_DATA
            | feature::MAC
            | feature::STATUS
            | feature::MTU
            | feature::SPEED_DUPLEX
    }

    fn accept(&mut self, features: u64) -> Result<(), PortError> {
        let packed = features & feature::RING_PACKED != 0;
        self.base = if packed { QueueBase::Packed } else { QueueBase::Split };
        self.link.accept(features).map_err(|error| self.refused("set features of", error))
    }

    fn queues(&self) -> u16 {
        // Names of queues have 8 bits (vhost-user.rst, ring messages).
        self.offer.queues.min(128) as u16
    }

    fn most_entries(&self, _queue: u16) -> u16 {
        MOST_ENTRIES
    }

    fn config(&self, _into: &mut [u8]) -> bool {
        false
    }

    fn set_queue(&mut self, queue: u16, places: &QueuePlaces) -> Result<Box<dyn Notifier>, PortError> {
        let events = self.link.set_queue(queue, places, self.base);
        let events = events.map_err(|error| self.refused("set up a queue of", error))?;
        self.set = self.set.max(queue + 1);
        Ok(Box::new(Kick(events)))
    }

    fn run(&mut self) -> Result<(), PortError> {
        self.link.run(self.set).map_err(|error| self.refused("start", error))?;
        self.lost = false;
        self.peer.set(Health::Running);
        Ok(())
    }

    fn end_dma(&mut self) -> Result<(), PortError> {
        let ended = self.link.disconnect(std::mem::take(&mut self.set));
        if self.peer.health() == Health::Running {
            self.peer.set(Health::Open);
        }
        self.lost = false;
        match ended {
            // A backend that is away does no DMA.
            Ok(()) | Err(VhostUserError::Away { .. }) => Ok(()),
            Err(_) if !self.link.is_connected() => Ok(()),
            Err(error) => Err(self.refused("stop", error)),
        }
    }

    fn presence(&mut self) -> Presence {
        if !self.link.is_connected() {
            self.lost = true;
        }
        if self.lost { Presence::Lost } else { Presence::Settled }
    }

    fn registers(&self) -> Node {
        Node::parts()
            .with("socket", self.link.path().display().to_string())
            .with("connected", if self.link.is_connected() { "yes" } else { "no" })
            .with("queues offered", self.offer.queues)
    }
}
