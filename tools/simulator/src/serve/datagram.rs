//! A wire that ends in a pair of unix datagram sockets: one frame a datagram, as QEMU's `-netdev dgram` has it.
//!
//! The local socket is bound when the wire is made and removed when it is dropped. A frame that the peer has no room for waits; one for a
//! peer that is not there is dropped and counted, as by a cable that nobody plugged in. Frames that arrive are padded to 60 bytes, which
//! whoever sent them left to us.

use super::Steps;
use crate::packet;
use crate::wire::WireEnd;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Shortest frame without CRC (IEEE 802.3, 3.2.8).
const SHORTEST_BYTES: usize = 60;

/// Largest frame that is read.
const LARGEST_BYTES: usize = 16 << 10;

/// Frames that are moved in one turn and direction.
const BUDGET_FRAMES: usize = 64;

/// Until a frame that the peer had no room for is tried again.
const RETRY: Duration = Duration::from_micros(200);

/// The ethertype of ARP: without it no frame would ever be sent that a test could find corrupt.
const ARP: [u8; 2] = [0x08, 0x06];

/// What happens to frames on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tamper {
    /// Nothing.
    Nothing,
    /// One bit of the last byte of the payload is flipped in each frame except for ARP: the lowest on the way to the device, the next
    /// one on the way from it, so that a frame that passes both ways does not come out as it was. No checksum is mended. It
    /// shows that a check finds what it looks for.
    FlipBit,
}

/// What is flipped, by direction.
const TO_DEVICE: u8 = 1;
const FROM_DEVICE: u8 = 2;

/// Frames that passed.
#[derive(Default)]
pub struct WireCounts {
    into: AtomicU64,
    out: AtomicU64,
    lost: AtomicU64,
}

impl WireCounts {
    /// Frames from the peer to the device.
    pub fn received(&self) -> u64 {
        self.into.load(Ordering::Relaxed)
    }

    /// Frames from the device to the peer.
    pub fn sent(&self) -> u64 {
        self.out.load(Ordering::Relaxed)
    }

    /// Frames from the device that nobody was there for.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

/// The wire.
pub struct DatagramWire {
    socket: UnixDatagram,
    local: PathBuf,
    remote: PathBuf,
    end: WireEnd,
    tamper: Tamper,
    counts: Arc<WireCounts>,
    buffer: Box<[u8]>,
    /// The frame that is sent next, when `waits`.
    frame: Vec<u8>,
    waits: bool,
}

impl DatagramWire {
    /// Binds `local`, sends to `remote` what `end` receives, and sends from `end` what `local` receives.
    ///
    /// # Errors
    /// The errno of bind: EADDRINUSE when the path exists.
    pub fn bind(local: &Path, remote: &Path, end: WireEnd, tamper: Tamper) -> io::Result<DatagramWire> {
        let socket = UnixDatagram::bind(local)?;
        let wire = DatagramWire {
            socket,
            local: local.to_owned(),
            remote: remote.to_owned(),
            end,
            tamper,
            counts: Arc::default(),
            buffer: vec![0; LARGEST_BYTES].into(),
            frame: Vec::new(),
            waits: false,
        };
        wire.socket.set_nonblocking(true)?;
        Ok(wire)
    }

    /// What passed, also after the wire itself went to a thread.
    pub fn counts(&self) -> Arc<WireCounts> {
        self.counts.clone()
    }

    fn receive(&mut self) -> usize {
        let mut done = 0;
        while done < BUDGET_FRAMES && self.end.room() > 0 {
            let Ok(bytes) = self.socket.recv(&mut self.buffer) else { break };
            let padded = bytes.max(SHORTEST_BYTES);
            self.buffer[bytes..padded].fill(0);
            let frame = &mut self.buffer[..padded];
            tamper(self.tamper, TO_DEVICE, frame);
            // This thread alone sends here, so there is room as it was seen.
            let _ = self.end.transmit(frame);
            self.counts.into.fetch_add(1, Ordering::Relaxed);
            done += 1;
        }
        done
    }

    fn send(&mut self) -> usize {
        let mut done = 0;
        while done < BUDGET_FRAMES {
            if !self.waits {
                if !self.end.receive_into(&mut self.frame) {
                    break;
                }
                tamper(self.tamper, FROM_DEVICE, &mut self.frame);
            }
            self.waits = false;
            match self.socket.send_to(&self.frame, &self.remote) {
                Ok(_) => self.counts.out.fetch_add(1, Ordering::Relaxed),
                Err(error) if is_full(&error) => {
                    self.waits = true;
                    break;
                }
                Err(_) => self.counts.lost.fetch_add(1, Ordering::Relaxed),
            };
            done += 1;
        }
        done
    }
}

fn is_full(error: &io::Error) -> bool {
    // ENOBUFS has no kind of its own.
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
        || error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error())
}

fn tamper(tamper: Tamper, bit: u8, frame: &mut [u8]) {
    if tamper == Tamper::Nothing || frame.get(12..14) == Some(&ARP) {
        return;
    }
    let end = packet::layout(frame).map_or(frame.len(), |layout| layout.end);
    if let Some(byte) = frame[..end].last_mut() {
        *byte ^= bit;
    }
}

impl Steps for DatagramWire {
    fn step(&mut self) -> usize {
        self.receive() + self.send()
    }

    fn rest(&self) -> Duration {
        if self.waits { RETRY } else { Duration::MAX }
    }

    /// While the device takes nothing, what arrives is no reason to wake up.
    fn readable(&self) -> Option<BorrowedFd<'_>> {
        (self.end.room() > 0).then(|| self.socket.as_fd())
    }
}

impl Drop for DatagramWire {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.local);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{WireConfig, pair};

    fn wire(name: &str, tamper: Tamper) -> (DatagramWire, WireEnd, PathBuf) {
        let folder = std::env::temp_dir().join(format!("pollring-datagram-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let (near, far) = pair(WireConfig::default());
        let wire = DatagramWire::bind(&folder.join("a"), &folder.join("b"), far, tamper).unwrap();
        (wire, near, folder)
    }

    #[test]
    fn frames_pass_both_ways_whether_or_not_the_peer_is_there() {
        let (mut wire, device, folder) = wire("both", Tamper::Nothing);
        device.transmit(&[1; 60]).unwrap();
        assert_eq!((wire.step(), wire.counts().lost()), (1, 1));
        let peer = UnixDatagram::bind(folder.join("b")).unwrap();
        peer.send_to(&[7; 42], folder.join("a")).unwrap();
        device.transmit(&[2; 60]).unwrap();
        assert_eq!(wire.step(), 2);
        let mut frame = Vec::new();
        assert!(device.receive_into(&mut frame));
        assert_eq!((frame.len(), &frame[41..44]), (60, &[7, 0, 0][..]));
        let mut buffer = [0; 100];
        assert_eq!((peer.recv(&mut buffer).unwrap(), buffer[0]), (60, 2));
        let counts = wire.counts();
        drop(wire);
        assert_eq!((counts.received(), counts.sent()), (1, 1));
        assert!(!folder.join("a").exists());
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_full_peer_loses_nothing() {
        let (mut wire, device, folder) = wire("full", Tamper::Nothing);
        let peer = UnixDatagram::bind(folder.join("b")).unwrap();
        peer.set_nonblocking(true).unwrap();
        let (mut sent, mut received) = (0u32, 0u32);
        let mut buffer = [0; 100];
        while received < 5000 {
            while sent < 5000 && device.transmit(&[sent.to_le_bytes(); 15].concat()).is_ok() {
                sent += 1;
            }
            wire.step();
            if wire.waits || sent == 5000 {
                while peer.recv(&mut buffer).is_ok() {
                    assert_eq!(buffer[..4], received.to_le_bytes());
                    received += 1;
                }
            }
        }
        assert_eq!(wire.counts().lost(), 0);
        drop(wire);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn tampering_flips_one_bit_of_the_payload() {
        let mut frame = vec![0; 60];
        frame[12..18].copy_from_slice(&[8, 0, 0x45, 0, 0, 40]);
        let before = frame.clone();
        tamper(Tamper::FlipBit, TO_DEVICE, &mut frame);
        let changed: Vec<usize> = (0..60).filter(|at| frame[*at] != before[*at]).collect();
        assert_eq!((changed, frame[53]), (vec![53], 1));
        let mut arp = [&[0; 12][..], &ARP, &[0; 46]].concat();
        tamper(Tamper::FlipBit, FROM_DEVICE, &mut arp);
        assert_eq!(arp[59], 0);
        tamper(Tamper::FlipBit, FROM_DEVICE, &mut []);
    }
}
