//! One client: its messages in order, each answered unless it asks for no answer.
//!
//! The version comes first. What a message asks for wrongly is refused with an errno and has no effect; what is no message ends the
//! connection. Nothing that a client sends makes this process panic, allocate without a bound or wait without an end.

use super::Function;
use super::protocol::*;
use super::regions::REGIONS;
use super::socket::{Arrival, Connection};
use pollring::bus::simulated::{Interrupts, PeerWindow, Rights, Vectors};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Why a client is no longer served.
pub(super) enum Ended {
    Stopped,
    Left,
    CutOff(&'static str),
}

/// What this server can, for the client (the version message's data).
const CAPABILITIES: &str =
    concat!(r#"{"capabilities":{"max_msg_fds":16,"max_data_xfer_size":1048576,"pgsizes":4096}}"#, "\0");

/// The newest minor version that is spoken; what it adds to 0.0 is left to the client.
const NEWEST_MINOR: u16 = 1;

pub(super) struct Session<'a> {
    connection: Connection,
    function: &'a Function,
    agreed: bool,
    /// A writable window without a file was told of.
    told: bool,
    reply: Vec<u8>,
}

/// The head of a body.
fn head<T: FromBytes + KnownLayout + Immutable>(body: &[u8]) -> Result<(T, &[u8]), Refusal> {
    T::read_from_prefix(body).map_err(|_| Refusal::Invalid)
}

impl<'a> Session<'a> {
    pub(super) fn new(connection: Connection, function: &'a Function) -> Session<'a> {
        Session { connection, function, agreed: false, told: false, reply: Vec::new() }
    }

    /// Serves until the client leaves or `stop` says so.
    pub(super) fn run(mut self, stop: &dyn Fn() -> bool) -> Ended {
        while !stop() {
            let (header, fds) = match self.connection.receive() {
                Arrival::Nothing => continue,
                Arrival::Closed => return Ended::Left,
                Arrival::Broken(reason) => return Ended::CutOff(reason),
                Arrival::Message(header, fds) => (header, fds),
            };
            if header.flags & flag::TYPE_MASK != 0 {
                return Ended::CutOff("it answered a question that nobody asked");
            }
            if let Err(ended) = self.answer(header, fds) {
                return ended;
            }
        }
        Ended::Stopped
    }

    fn answer(&mut self, header: Header, fds: Vec<OwnedFd>) -> Result<(), Ended> {
        self.reply.clear();
        let result = self.handle(header.command, fds);
        let counts = &self.function.counts;
        match result {
            Ok(()) => counts.messages.fetch_add(1, Ordering::Relaxed),
            Err(refusal) => {
                tracing::debug!(?header, ?refusal, "a message was refused");
                self.reply.clear();
                counts.refused.fetch_add(1, Ordering::Relaxed)
            }
        };
        if header.flags & flag::NO_REPLY != 0 {
            return Ok(());
        }
        let (error, errno) = result.map_or_else(|refusal| (flag::ERROR, refusal as u32), |()| (0, 0));
        let bytes = (HEADER_BYTES + self.reply.len()) as u32;
        let reply = Header { bytes, flags: flag::REPLY | error, error: errno, ..header };
        self.connection.send(reply, &self.reply).map_err(|_| Ended::CutOff("it does not take its reply"))
    }

    fn handle(&mut self, command: u16, fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        if !self.agreed && command != command::VERSION {
            return Err(Refusal::Invalid);
        }
        match command {
            command::VERSION => self.agree(),
            command::DMA_MAP => self.map(fds),
            command::DMA_UNMAP => self.unmap(),
            command::GET_INFO => self.tell_device(),
            command::GET_REGION_INFO => self.tell_region(),
            command::GET_IRQ_INFO => self.tell_interrupt(),
            command::SET_IRQS => self.set_interrupts(&fds),
            command::REGION_READ => self.read(),
            command::REGION_WRITE => self.write(),
            command::RESET => {
                self.function.device.reset();
                self.function.waker.wake();
                Ok(())
            }
            _ => Err(Refusal::Unsupported),
        }
    }

    /// The client offers a minor version, and gets that one or the newest that is known.
    fn agree(&mut self) -> Result<(), Refusal> {
        let (version, data): (Version, _) = head(self.connection.body())?;
        if version.major != 0 || !is_object(data) {
            return Err(Refusal::Invalid);
        }
        self.agreed = true;
        let minor = version.minor.min(NEWEST_MINOR);
        self.reply.extend(Version { major: 0, minor }.as_bytes());
        self.reply.extend(CAPABILITIES.as_bytes());
        Ok(())
    }

    /// A window without a file is taken and reaches nothing: a client may have memory that it cannot share, and QEMU ends when that is
    /// refused.
    fn map(&mut self, mut fds: Vec<OwnedFd>) -> Result<(), Refusal> {
        let (map, _): (DmaMap, _) = head(self.connection.body())?;
        let rights = match map.flags {
            MAP_READ => Rights::Read,
            MAP_WRITE => Rights::Write,
            flags if flags == MAP_READ | MAP_WRITE => Rights::Both,
            _ => return Err(Refusal::Invalid),
        };
        let file = fds.pop();
        if !fds.is_empty() {
            return Err(Refusal::Invalid);
        }
        if file.is_none() && rights != Rights::Read && !self.told {
            self.told = true;
            tracing::warn!(
                iova = format!("{:#x}", map.iova),
                "memory comes without a file, and the device cannot reach it; give QEMU memory-backend-memfd,share=on"
            );
        }
        let window = PeerWindow { iova: map.iova, bytes: map.bytes, offset: map.offset, rights };
        self.function.iommu.map_peer(window, file).map_err(|error| {
            tracing::debug!(?window, %error, "a window was refused");
            Refusal::Invalid
        })
    }

    fn unmap(&mut self) -> Result<(), Refusal> {
        let (mut unmap, _): (DmaUnmap, _) = head(self.connection.body())?;
        match unmap.flags {
            0 => {
                let taken = self.function.iommu.unmap_peer(unmap.iova, unmap.bytes);
                unmap.bytes = taken.map_err(|_| Refusal::Invalid)?;
            }
            UNMAP_ALL => self.function.iommu.unmap_all(),
            _ => return Err(Refusal::Unsupported),
        }
        self.reply.extend(unmap.as_bytes());
        Ok(())
    }

    fn tell_device(&mut self) -> Result<(), Refusal> {
        let argument_bytes = size_of::<DeviceInfo>() as u32;
        let info =
            DeviceInfo { argument_bytes, flags: DEVICE_FLAGS, regions: REGIONS, interrupts: INTERRUPTS };
        self.reply.extend(info.as_bytes());
        Ok(())
    }

    fn tell_region(&mut self) -> Result<(), Refusal> {
        let (mut info, _): (RegionInfo, _) = head(self.connection.body())?;
        if info.index >= REGIONS || (info.argument_bytes as usize) < size_of::<RegionInfo>() {
            return Err(Refusal::Invalid);
        }
        info.argument_bytes = size_of::<RegionInfo>() as u32;
        info.bytes = self.function.regions.bytes(info.index) as u64;
        info.flags = if info.bytes > 0 { REGION_FLAGS } else { 0 };
        (info.capabilities_at, info.offset) = (0, 0);
        self.reply.extend(info.as_bytes());
        Ok(())
    }

    fn vectors(&self, index: u32) -> Option<&'a Vectors> {
        match index {
            MSI => Some(&self.function.lines.msi),
            MSIX => Some(&self.function.lines.msix),
            ERROR => Some(&self.function.lines.error),
            _ => None,
        }
    }

    fn tell_interrupt(&mut self) -> Result<(), Refusal> {
        let (mut info, _): (InterruptInfo, _) = head(self.connection.body())?;
        if info.index >= INTERRUPTS {
            return Err(Refusal::Invalid);
        }
        info.count = self.vectors(info.index).map_or(0, |vectors| vectors.count() as u32);
        info.flags = if info.count > 0 { INTERRUPT_FLAGS } else { 0 };
        info.argument_bytes = size_of::<InterruptInfo>() as u32;
        self.reply.extend(info.as_bytes());
        Ok(())
    }

    fn set_interrupts(&mut self, fds: &[OwnedFd]) -> Result<(), Refusal> {
        let (set, data): (SetInterrupts, _) = head(self.connection.body())?;
        let vectors = self.vectors(set.index).ok_or(Refusal::Invalid)?;
        let (start, count) = (set.start as usize, set.count as usize);
        if start.checked_add(count).is_none_or(|end| end > vectors.count()) {
            return Err(Refusal::Invalid);
        }
        let first = start as u16;
        let with = set.flags & (DATA_NONE | DATA_BOOL | DATA_EVENTFD);
        if set.flags != with | TRIGGER {
            return Err(Refusal::Unsupported);
        }
        match with {
            DATA_EVENTFD if fds.len() == count => {
                let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
                vectors.set(first, &fds).map_err(|_| Refusal::Invalid)?;
            }
            DATA_EVENTFD if fds.is_empty() => vectors.clear(first, count),
            DATA_NONE if count == 0 => vectors.clear(0, usize::MAX),
            DATA_NONE => (first..first + count as u16).for_each(|vector| vectors.raise(vector)),
            DATA_BOOL if data.len() >= count => {
                let wanted = (first..).zip(&data[..count]).filter(|(_, wanted)| **wanted != 0);
                wanted.for_each(|(vector, _)| vectors.raise(vector));
            }
            _ => return Err(Refusal::Invalid),
        }
        Ok(())
    }

    fn read(&mut self) -> Result<(), Refusal> {
        let (access, _): (RegionAccess, _) = head(self.connection.body())?;
        let count = access.count as usize;
        if count > MOST_DATA_BYTES {
            return Err(Refusal::TooLong);
        }
        self.reply.extend(access.as_bytes());
        let start = self.reply.len();
        self.reply.resize(start + count, 0);
        let data = &mut self.reply[start..];
        self.function.regions.read(access.region, access.offset, data).map_err(|_| Refusal::Invalid)
    }

    fn write(&mut self) -> Result<(), Refusal> {
        let (access, data): (RegionAccess, _) = head(self.connection.body())?;
        let data = data.get(..access.count as usize).ok_or(Refusal::Invalid)?;
        let written = self.function.regions.write(access.region, access.offset, data);
        self.function.waker.wake();
        self.reply.extend(access.as_bytes());
        written.map_err(|_| Refusal::Invalid)
    }
}

/// Whether version data is nothing, or a JSON object with a NUL behind it.
fn is_object(data: &[u8]) -> bool {
    match data {
        [] => true,
        [text @ .., 0] => {
            serde_json::from_slice::<serde_json::Value>(text).is_ok_and(|value| value.is_object())
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_data_is_json_or_nothing() {
        for good in [&b""[..], b"{}\0", b"{\"capabilities\":{\"max_msg_fds\":8}}\0"] {
            assert!(is_object(good));
        }
        for bad in [&b"{}"[..], b"\0", b"[]\0", b"{\0", b"{}\0\0", b"\xff\0"] {
            assert!(!is_object(bad), "{bad:?}");
        }
        assert!(is_object(CAPABILITIES.as_bytes()));
    }
}
