//! The far end of an emulated NIC's wire: one frame a datagram on a pair of unix sockets, as QEMU's `dgram` netdev has it.
//!
//! Frames come without CRC. Those for the guest are padded to 60 bytes by QEMU, those from it come as they are. QEMU queues
//! 10,000 frames for a slow reader and drops in silence after that, and a NIC model may drop when its ring is full: keep a window.

use crate::{MachineError, host};
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Largest frame that is read, bytes.
const LARGEST: usize = 65536;

/// Between two looks at an empty socket.
const PAUSE: Duration = Duration::from_micros(50);

/// One end of a wire. It may be used from another thread.
#[derive(Debug)]
pub struct Wire {
    socket: UnixDatagram,
    peer: PathBuf,
    buffer: Vec<u8>,
}

impl Wire {
    /// Binds `own` and sends to `peer`.
    ///
    /// # Errors
    /// The errno of bind.
    pub fn bind(own: &Path, peer: &Path) -> Result<Wire, MachineError> {
        let socket = UnixDatagram::bind(own).map_err(host(format!("bind {}", own.display())))?;
        socket.set_nonblocking(true).map_err(host("set a socket non-blocking"))?;
        Ok(Wire { socket, peer: peer.to_owned(), buffer: vec![0; LARGEST] })
    }

    /// Sends one frame; false when the other end is not there or has no room now.
    ///
    /// # Errors
    /// Any other errno.
    pub fn send(&self, frame: &[u8]) -> io::Result<bool> {
        match self.socket.send_to(frame, &self.peer) {
            Ok(_) => Ok(true),
            Err(error) if is_not_now(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// The next frame, or `None` when none comes within `limit`.
    ///
    /// # Errors
    /// The errno of recv.
    pub fn receive(&mut self, limit: Duration) -> io::Result<Option<&[u8]>> {
        let start = Instant::now();
        let bytes = loop {
            match self.socket.recv(&mut self.buffer) {
                Ok(bytes) => break bytes,
                Err(error) if !is_not_now(&error) => return Err(error),
                Err(_) if start.elapsed() >= limit => return Ok(None),
                Err(_) => std::thread::sleep(PAUSE),
            }
        };
        Ok(Some(&self.buffer[..bytes]))
    }
}

fn is_not_now(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionRefused, Interrupted, NotFound, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted | NotFound | ConnectionRefused)
        // ENOBUFS
        || error.raw_os_error() == Some(105)
}
