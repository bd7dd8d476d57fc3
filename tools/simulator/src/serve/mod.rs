//! A software device for another process: vfio-user over a unix socket.
//!
//! A [`Function`] joins a device to what a client gives it: memory ([`SimulatedIommu`]), interrupt eventfds, and a [`Waker`] for
//! the thread that steps it. A [`Server`] listens, and [`Server::run`] serves one client after another on the caller's thread: it
//! answers messages and never steps the device. A [`Stepper`] steps it on a thread of its own. So a doorbell is a message in one
//! direction only. When a client leaves, the device is reset first and then everything that it lent is given back.
//!
//! The protocol is spoken here and not by the server of the crate `vfio_user` 0.1.7: that one panics on version data that is not
//! terminated, takes sizes from messages without a bound, answers messages that ask for no answer when they fail, and cannot be told
//! to stop. Its client plays the other side in the tests.

mod datagram;
mod protocol;
mod regions;
mod session;
mod socket;
mod stepper;

pub use datagram::{DatagramWire, Tamper, WireCounts};
pub use stepper::{Echo, IgbSteps, Stepper, Steps, Waker};

use pollring::bus::simulated::{Interrupts, SimulatedIommu, SoftwareDevice, Vectors};
use regions::Regions;
use session::{Ended, Session};
use socket::{Connection, Listener};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use thiserror::Error;

/// Why a device is not served.
#[derive(Debug, Error)]
pub enum ServeError {
    /// The path is taken.
    #[error("listen at {}: it exists and is no socket; choose another path, or remove it", .0.display())]
    NoSocket(PathBuf),
    /// Somebody else serves there.
    #[error("listen at {}: another process listens there; choose another path, or end it", .0.display())]
    InUse(PathBuf),
    /// The socket cannot be made.
    #[error("listen at {}: {error}; the folder must exist and be writable, and a path has at most 107 bytes", .path.display())]
    Bind {
        /// Where.
        path: PathBuf,
        /// The errno.
        error: io::Error,
    },
    /// No more clients.
    #[error("accept a client at {}: {error}; the limit of open files may be reached (ulimit -n)", .path.display())]
    Accept {
        /// Where.
        path: PathBuf,
        /// The errno.
        error: io::Error,
    },
}

/// A device, and what a client gives to it.
pub struct Function {
    device: Arc<dyn SoftwareDevice>,
    regions: Regions,
    iommu: Arc<SimulatedIommu>,
    lines: Arc<Lines>,
    waker: Arc<Waker>,
    counts: Counts,
}

/// Messages.
#[derive(Default)]
struct Counts {
    clients: AtomicU64,
    messages: AtomicU64,
    refused: AtomicU64,
}

/// What a server did since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServeCounts {
    /// Clients that connected.
    pub clients: u64,
    /// Messages that were understood.
    pub messages: u64,
    /// Messages that were refused, and clients that were cut off.
    pub refused: u64,
}

/// Both ways in which a client may take interrupts; the one that it set up counts.
pub(crate) struct Lines {
    msi: Vectors,
    msix: Vectors,
    /// Tells of errors on the bus, which this one does not have.
    error: Vectors,
}

impl Interrupts for Lines {
    fn raise(&self, vector: u16) {
        if self.msix.is_used() {
            self.msix.raise(vector);
        } else if vector == 0 {
            self.msi.raise(0);
        }
    }
}

impl Function {
    /// Attaches `device` to an IOMMU of its own and to its interrupts. `waker` wakes the thread that steps it.
    pub fn new(device: Arc<dyn SoftwareDevice>, waker: Arc<Waker>) -> Function {
        let iommu = Arc::new(SimulatedIommu::default());
        let count = device.vectors();
        let (msi, msix, error) = (Vectors::new(count.min(1)), Vectors::new(count), Vectors::new(1));
        let lines = Arc::new(Lines { msi, msix, error });
        device.attach(iommu.clone());
        device.connect(lines.clone());
        let regions = Regions::of(device.clone());
        Function { device, regions, iommu, lines, waker, counts: Counts::default() }
    }

    /// What was served so far.
    pub fn counts(&self) -> ServeCounts {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { clients, messages, refused } = &self.counts;
        ServeCounts { clients: load(clients), messages: load(messages), refused: load(refused) }
    }

    /// Ends DMA by a reset, then gives memory and eventfds back.
    fn release(&self) {
        self.device.reset();
        self.iommu.unmap_all();
        self.lines.msi.clear(0, usize::MAX);
        self.lines.msix.clear(0, usize::MAX);
        self.lines.error.clear(0, usize::MAX);
    }
}

/// A socket on which clients are served, one at a time. The socket is removed when it is dropped.
pub struct Server(Listener);

impl Server {
    /// Listens at `path`. A socket that nobody listens to is replaced.
    ///
    /// # Errors
    /// The path is taken, or the errno of bind.
    pub fn bind(path: &Path) -> Result<Server, ServeError> {
        Listener::bind(path).map(Server)
    }

    /// Serves clients, one after another, until `stop` says so; that is asked ten times a second and after each message.
    ///
    /// # Errors
    /// No client can be accepted any more. What a client does wrong ends its connection and nothing else.
    pub fn run(&self, function: &Function, stop: &dyn Fn() -> bool) -> Result<(), ServeError> {
        while !stop() {
            let Some(connection) = self.0.accept()? else { continue };
            function.counts.clients.fetch_add(1, Ordering::Relaxed);
            tracing::info!("a client connected");
            let ended = serve(connection, function, stop);
            function.release();
            match ended {
                Ended::Stopped => break,
                Ended::Left => tracing::info!("the client left"),
                Ended::CutOff(reason) => {
                    function.counts.refused.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!(reason, "the client was cut off");
                }
            }
        }
        Ok(())
    }
}

fn serve(connection: io::Result<Connection>, function: &Function, stop: &dyn Fn() -> bool) -> Ended {
    match connection {
        Ok(connection) => Session::new(connection, function).run(stop),
        Err(_) => Ended::CutOff("its socket could not be set up"),
    }
}
