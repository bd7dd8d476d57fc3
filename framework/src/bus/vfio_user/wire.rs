//! The socket: one message out, its reply in.
//!
//! A [`Wire`] has one owner at a time, so a reply belongs to the message before it. Its size is checked against what the caller has room for
//! before a byte is read into it, and descriptors close with the reply that brought them. After any [`PeerError`] but `Refused` the two
//! ends may not agree where a message begins: the wire is of no use any more.

use super::protocol::{HEADER_BYTES, Header, flag};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with,
};
use std::io::{self, ErrorKind, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};
use thiserror::Error;
use zerocopy::{FromBytes, IntoBytes};

/// How long a peer may take to answer one message.
pub const REPLY_LIMIT: Duration = Duration::from_secs(3);

/// Descriptors in one message, at most.
const MOST_FDS: usize = 16;

/// Why a message has no answer that can be used.
#[derive(Debug, Error)]
pub enum PeerError {
    /// It says no, with its errno.
    #[error("the peer refuses: {0}; its log may say why")]
    Refused(io::Error),
    /// What it sent cannot be.
    #[error(
        "the peer broke the protocol ({0}) and was cut off; this is a fault of the peer, report it there"
    )]
    Broken(&'static str),
    /// It takes or sends nothing in time.
    #[error("the peer gave no answer in time and was cut off; it serves another client, is stopped or hangs")]
    Silent,
    /// The connection is over.
    #[error("the peer is away; start it again, and then this program")]
    Away,
}

impl From<PeerError> for io::Error {
    fn from(error: PeerError) -> io::Error {
        let kind = match &error {
            PeerError::Refused(errno) => errno.kind(),
            PeerError::Broken(_) => ErrorKind::InvalidData,
            PeerError::Silent => ErrorKind::TimedOut,
            PeerError::Away => ErrorKind::NotConnected,
        };
        io::Error::new(kind, error)
    }
}

/// What came back: a body no longer than asked for, and descriptors.
pub(super) struct Reply {
    pub(super) body: Vec<u8>,
    pub(super) fds: Vec<OwnedFd>,
}

/// A connected socket.
pub(super) struct Wire {
    stream: UnixStream,
    next_id: u16,
    limit: Duration,
}

type Done<T> = Result<T, PeerError>;

impl Wire {
    /// Connects; a listener that takes nobody is given up after the limit as well.
    pub(super) fn connect(path: &Path) -> io::Result<Wire> {
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        set_socket_timeout(&socket, Timeout::Send, Some(REPLY_LIMIT))?;
        connect(&socket, &SocketAddrUnix::new(path)?)?;
        Wire::over(UnixStream::from(socket), REPLY_LIMIT)
    }

    pub(super) fn over(stream: UnixStream, limit: Duration) -> io::Result<Wire> {
        set_socket_timeout(&stream, Timeout::Send, Some(limit))?;
        set_socket_timeout(&stream, Timeout::Recv, Some(limit))?;
        Ok(Wire { stream, next_id: 0, limit })
    }

    /// Sends a message and waits for its reply, whose body has at most `most` bytes.
    pub(super) fn ask(
        &mut self,
        command: u16,
        body: &[&[u8]],
        fds: &[BorrowedFd<'_>],
        most: usize,
    ) -> Done<Reply> {
        let sent = self.send(command, 0, body, fds)?;
        let start = Instant::now();
        let mut bytes = [0; HEADER_BYTES];
        let fds = self.receive(&mut bytes, start)?;
        let header = Header::read_from_bytes(&bytes).map_err(|_| PeerError::Broken("no header"))?;
        let length = check(header, sent, most)?;
        let mut body = vec![0; length];
        if !self.receive(&mut body, start)?.is_empty() {
            return Err(PeerError::Broken("descriptors inside a message"));
        }
        if header.flags & flag::ERROR != 0 {
            return Err(PeerError::Refused(io::Error::from_raw_os_error(header.error as i32)));
        }
        Ok(Reply { body, fds })
    }

    /// Sends a message that has no reply.
    pub(super) fn post(&mut self, command: u16, body: &[&[u8]]) -> Done<()> {
        self.send(command, flag::NO_REPLY, body, &[]).map(drop)
    }

    fn send(&mut self, command: u16, flags: u32, body: &[&[u8]], fds: &[BorrowedFd<'_>]) -> Done<Header> {
        self.next_id = self.next_id.wrapping_add(1);
        let length = HEADER_BYTES + body.iter().map(|part| part.len()).sum::<usize>();
        let header = Header { id: self.next_id, command, bytes: length as u32, flags, error: 0 };
        let message = [&[header.as_bytes()], body].concat().concat();
        let (start, mut done) = (Instant::now(), 0);
        while done < message.len() {
            // Descriptors go with the first byte.
            let with = if done == 0 { fds } else { &[] };
            match send_some(&self.stream, &message[done..], with) {
                Ok(count) => done += count,
                Err(error) => self.again(&error, start)?,
            }
        }
        Ok(header)
    }

    /// Fills `bytes`; gives the descriptors that came.
    fn receive(&mut self, bytes: &mut [u8], start: Instant) -> Done<Vec<OwnedFd>> {
        let (mut filled, mut fds) = (0, Vec::new());
        while filled < bytes.len() {
            match receive_some(&self.stream, &mut bytes[filled..], &mut fds) {
                Ok(0) => return Err(PeerError::Away),
                Ok(count) if start.elapsed() <= self.limit => filled += count,
                Ok(_) => return Err(PeerError::Silent),
                Err(error) => self.again(&error, start)?,
            }
            if fds.len() > MOST_FDS {
                return Err(PeerError::Broken("too many descriptors"));
            }
        }
        Ok(fds)
    }

    /// Whether an error is only a signal of this process, with time left.
    fn again(&self, error: &io::Error, start: Instant) -> Done<()> {
        match error.kind() {
            ErrorKind::Interrupted if start.elapsed() < self.limit => Ok(()),
            ErrorKind::Interrupted | ErrorKind::WouldBlock | ErrorKind::TimedOut => Err(PeerError::Silent),
            ErrorKind::InvalidData => Err(PeerError::Broken("too many descriptors")),
            _ => Err(PeerError::Away),
        }
    }
}

/// The length of the body of a reply to `sent`.
fn check(reply: Header, sent: Header, most: usize) -> Done<usize> {
    if reply.flags & flag::TYPE_MASK != flag::REPLY {
        return Err(PeerError::Broken("a message that is no reply; DMA by messages is not done"));
    }
    if (reply.id, reply.command) != (sent.id, sent.command) {
        return Err(PeerError::Broken("a reply to another message"));
    }
    let length = (reply.bytes as usize).checked_sub(HEADER_BYTES).filter(|length| *length <= most);
    length.ok_or(PeerError::Broken("the size of a reply"))
}

pub(super) fn send_some(stream: &UnixStream, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(ErrorKind::InvalidInput.into());
    }
    Ok(sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

pub(super) fn receive_some(
    stream: &UnixStream,
    bytes: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(stream, &mut [IoSliceMut::new(bytes)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        Err(ErrorKind::InvalidData.into())
    } else {
        Ok(received.bytes)
    }
}
