//! A transport packet as values: every field is copied out and checked before anything acts on it.

use super::super::counters::DropReason;
use super::headers::{Aeth, AtomicAckEth, AtomicEth, Bth, Deth, Reth, from_24};
use super::opcode::{CNP, Extra, Operation, Shape};
use super::{ICRC_BYTES, icrc};
use pollring::rdma::{PKey, Psn, QKey, QpType, Qpn, RKey};
use zerocopy::FromBytes;

/// UDP header in front of BTH.
const UDP_BYTES: usize = 8;

/// A packet from BTH on, checked by itself; whether its queue pair wants it is not known yet. Fields of headers that it does
/// not have are zero.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// What it is; `None` is a congestion notification.
    pub shape: Option<Shape>,
    /// Whether the receiver's completion wakes who waits for solicited ones.
    pub solicited: bool,
    /// Whether an acknowledgement is asked for.
    pub ack_request: bool,
    /// Partition.
    pub p_key: PKey,
    /// For whom.
    pub destination: Qpn,
    /// Sequence number.
    pub psn: Psn,
    /// DETH: which datagrams.
    pub q_key: QKey,
    /// DETH: from whom.
    pub source: Qpn,
    /// RETH and AtomicETH: address.
    pub address: u64,
    /// RETH and AtomicETH: key.
    pub rkey: RKey,
    /// RETH: length of the whole message.
    pub dma_bytes: u32,
    /// AtomicETH: the new value, or what to add.
    pub swap_or_add: u64,
    /// AtomicETH: what is expected.
    pub compare: u64,
    /// AETH: syndrome.
    pub syndrome: u8,
    /// AETH: messages that the peer completed.
    pub msn: u32,
    /// AtomicAckETH: old value.
    pub original: u64,
    /// ImmDt or IETH.
    pub attached: u32,
    /// Data, without padding.
    pub payload: &'a [u8],
}

/// Takes headers off the front of a packet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    #[inline]
    fn take<T: FromBytes>(&mut self) -> Result<T, DropReason> {
        let (value, rest) = T::read_from_prefix(self.0).map_err(|_| DropReason::Truncated)?;
        self.0 = rest;
        Ok(value)
    }
}

impl<'a> Packet<'a> {
    /// Compares the CRC of a packet that begins with its IP header of `ip_bytes`.
    ///
    /// # Errors
    /// What it should have been and what it was; `None` when there is no room for either.
    #[inline]
    pub fn verify(packet: &[u8], ip_bytes: usize) -> Result<(), Option<(u32, u32)>> {
        let Some((body, found)) = packet.split_last_chunk::<ICRC_BYTES>() else { return Err(None) };
        if body.len() < ip_bytes + UDP_BYTES + size_of::<Bth>() {
            return Err(None);
        }
        let (expected, found) = (icrc::of_packet(body, ip_bytes), u32::from_le_bytes(*found));
        if expected == found { Ok(()) } else { Err(Some((expected, found))) }
    }

    /// Reads a UDP payload from BTH to ICRC, whose CRC was compared.
    ///
    /// # Errors
    /// The first field that is wrong.
    #[inline]
    pub fn parse(udp_payload: &'a [u8]) -> Result<Packet<'a>, DropReason> {
        let (body, _) = udp_payload.split_last_chunk::<ICRC_BYTES>().ok_or(DropReason::Truncated)?;
        let mut reader = Reader(body);
        let bth: Bth = reader.take()?;
        if bth.version() != 0 {
            return Err(DropReason::Version);
        }
        let mut packet = Packet::of(&bth);
        if bth.opcode == CNP {
            return Ok(packet);
        }
        let shape = Shape::of(bth.opcode).ok_or(DropReason::Opcode)?;
        packet.shape = Some(shape);
        packet.extended(&shape, &mut reader)?;
        packet.data(&shape, reader.0, bth.pad())?;
        Ok(packet)
    }

    fn of(bth: &Bth) -> Packet<'a> {
        Packet {
            shape: None,
            solicited: bth.solicited(),
            ack_request: bth.ack_request(),
            p_key: PKey(bth.p_key.get()),
            destination: bth.destination(),
            psn: bth.psn(),
            q_key: QKey(0),
            source: Qpn::new(0),
            address: 0,
            rkey: RKey(0),
            dma_bytes: 0,
            swap_or_add: 0,
            compare: 0,
            syndrome: 0,
            msn: 0,
            original: 0,
            attached: 0,
            payload: &[],
        }
    }

    #[inline]
    fn extended(&mut self, shape: &Shape, reader: &mut Reader<'a>) -> Result<(), DropReason> {
        if shape.service == QpType::Ud {
            let deth: Deth = reader.take()?;
            (self.q_key, self.source) = (QKey(deth.q_key.get()), Qpn::new(from_24(deth.source)));
        }
        if shape.has_reth() {
            let reth: Reth = reader.take()?;
            (self.address, self.rkey) = (reth.address.get(), RKey(reth.rkey.get()));
            self.dma_bytes = reth.bytes.get();
        }
        if shape.extra != Extra::None {
            self.attached = u32::from_be_bytes(reader.take()?);
        }
        if shape.is_atomic() {
            let atomic: AtomicEth = reader.take()?;
            (self.address, self.rkey) = (atomic.address.get(), RKey(atomic.rkey.get()));
            (self.swap_or_add, self.compare) = (atomic.swap_or_add.get(), atomic.compare.get());
        }
        if shape.has_aeth() {
            let aeth: Aeth = reader.take()?;
            (self.syndrome, self.msn) = (aeth.syndrome, from_24(aeth.msn));
        }
        if shape.operation == Operation::AtomicAcknowledge {
            let atomic: AtomicAckEth = reader.take()?;
            self.original = atomic.original.get();
        }
        Ok(())
    }

    #[inline]
    fn data(&mut self, shape: &Shape, rest: &'a [u8], pad: usize) -> Result<(), DropReason> {
        if !rest.len().is_multiple_of(4) {
            return Err(DropReason::Truncated);
        }
        let Some(bytes) = rest.len().checked_sub(pad) else { return Err(DropReason::Length) };
        let whole = shape.has_payload() && !shape.position.ends();
        let wrong = if shape.has_payload() { whole && pad != 0 } else { !rest.is_empty() };
        if wrong {
            return Err(DropReason::Length);
        }
        self.payload = &rest[..bytes];
        Ok(())
    }
}
