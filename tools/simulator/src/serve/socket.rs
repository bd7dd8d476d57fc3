//! The socket: listening, whole messages with their descriptors, replies.
//!
//! Waits have an end, so that a stop is seen: between messages after a tenth of a second, inside one after five seconds, and then the
//! client is cut off. Descriptors that came with a message close when it is dropped.

use super::ServeError;
use super::protocol::{HEADER_BYTES, Header, MOST_BYTES, MOST_FDS};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, recvmsg};
use std::io::{self, ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// How long a wait for a client or a message lasts.
const GLANCE: Duration = Duration::from_millis(100);

/// How long the rest of a message may take, and a reply.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest name of a unix socket (unix(7)) is checked by the kernel; this is what identifies the file.
type Identity = (u64, u64);

pub(super) struct Listener {
    listener: UnixListener,
    path: PathBuf,
    identity: Option<Identity>,
}

fn identity(path: &Path) -> io::Result<Identity> {
    path.symlink_metadata().map(|facts| (facts.dev(), facts.ino()))
}

impl Listener {
    pub(super) fn bind(path: &Path) -> Result<Listener, ServeError> {
        remove_dead(path)?;
        let failed = |error| ServeError::Bind { path: path.to_owned(), error };
        let listener = UnixListener::bind(path).map_err(failed)?;
        let identity = identity(path).ok();
        let listener = Listener { listener, path: path.to_owned(), identity };
        set_socket_timeout(&listener.listener, Timeout::Recv, Some(GLANCE))
            .map_err(|error| failed(error.into()))?;
        Ok(listener)
    }

    /// The next client; `None` when none came for a while.
    pub(super) fn accept(&self) -> Result<Option<io::Result<Connection>>, ServeError> {
        match self.listener.accept() {
            Ok((stream, _)) => Ok(Some(Connection::new(stream))),
            Err(error) if is_not_now(&error) => Ok(None),
            Err(error) => Err(ServeError::Accept { path: self.path.clone(), error }),
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // Another server may have taken the name meanwhile.
        if self.identity.is_some() && identity(&self.path).ok() == self.identity {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Removes a socket that nobody listens to.
fn remove_dead(path: &Path) -> Result<(), ServeError> {
    let Ok(facts) = path.symlink_metadata() else { return Ok(()) };
    if !facts.file_type().is_socket() {
        return Err(ServeError::NoSocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == ErrorKind::ConnectionRefused => {
            std::fs::remove_file(path).map_err(|error| ServeError::Bind { path: path.to_owned(), error })
        }
        _ => Err(ServeError::InUse(path.to_owned())),
    }
}

fn is_not_now(error: &io::Error) -> bool {
    use ErrorKind::{ConnectionAborted, Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted | ConnectionAborted)
}

/// What waiting for a message gave.
pub(super) enum Arrival {
    Message(Header, Vec<OwnedFd>),
    /// None yet.
    Nothing,
    /// The client closed the connection.
    Closed,
    /// What came is no message, or not all of it came.
    Broken(&'static str),
}

pub(super) struct Connection {
    stream: UnixStream,
    body: Vec<u8>,
}

impl Connection {
    fn new(stream: UnixStream) -> io::Result<Connection> {
        stream.set_read_timeout(Some(GLANCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Connection { stream, body: Vec::new() })
    }

    /// The body of the message that arrived last.
    pub(super) fn body(&self) -> &[u8] {
        &self.body
    }

    /// Waits for a message.
    pub(super) fn receive(&mut self) -> Arrival {
        let mut bytes = [0; HEADER_BYTES];
        let mut fds = Vec::new();
        let first = match self.receive_header(&mut bytes, &mut fds) {
            Ok(0) => return Arrival::Closed,
            Ok(count) => count,
            Err(error) if is_not_now(&error) => return Arrival::Nothing,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return Arrival::Closed,
            Err(_) => return Arrival::Broken("its descriptors could not be received"),
        };
        let start = Instant::now();
        if read_all(&mut self.stream, &mut bytes[first..], start).is_err() {
            return Arrival::Broken("it left inside a header");
        }
        let Ok(header) = Header::read_from_bytes(&bytes) else { return Arrival::Broken("no header") };
        let length = header.bytes as usize;
        if !(HEADER_BYTES..=MOST_BYTES).contains(&length) {
            return Arrival::Broken("the size of its message is impossible");
        }
        self.body.resize(length - HEADER_BYTES, 0);
        match read_all(&mut self.stream, &mut self.body, start) {
            Ok(()) => Arrival::Message(header, fds),
            Err(_) => Arrival::Broken("it left inside a message"),
        }
    }

    /// Descriptors come with the first byte of their message.
    fn receive_header(&mut self, bytes: &mut [u8], fds: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(bytes)];
        let received = recvmsg(&self.stream, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)?;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        if received.flags.contains(ReturnFlags::CTRUNC) {
            return Err(ErrorKind::InvalidData.into());
        }
        Ok(received.bytes)
    }

    /// Sends a message.
    pub(super) fn send(&mut self, header: Header, body: &[u8]) -> io::Result<()> {
        let bytes = [header.as_bytes(), body].concat();
        self.stream.write_all(&bytes)
    }
}

/// Fills `bytes`, or fails when `PATIENCE` has passed since `start`.
fn read_all(stream: &mut UnixStream, bytes: &mut [u8], start: Instant) -> io::Result<()> {
    let mut filled = 0;
    while filled < bytes.len() {
        match stream.read(&mut bytes[filled..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if is_not_now(&error) && start.elapsed() < PATIENCE => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
