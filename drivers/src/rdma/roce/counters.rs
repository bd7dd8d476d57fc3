//! What happened to packets: one counter for each reason why one was dropped, and what each queue pair saw last.
//!
//! Counters are plain words of the engine, which one worker uses; [`Counters`] is copied out by `Roce::counters`.

use pollring::rdma::Psn;

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $text:literal,)*) => {
        /// Why a packet was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum DropReason { $($(#[$doc])* $name,)* }

        impl DropReason {
            /// All of them.
            pub const ALL: &[DropReason] = &[$(DropReason::$name),*];

            /// Its name in statistics.
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$name => $text,)* }
            }
        }
    };
}

reasons! {
    /// An IP or UDP header that contradicts itself or the frame, or a wrong checksum of either.
    Network = "network_header",
    /// A fragment; RoCE packets are never fragmented.
    Fragment = "fragment",
    /// Shorter than its headers, or not a multiple of four bytes.
    Truncated = "truncated",
    /// The invariant CRC does not match.
    Icrc = "icrc",
    /// An opcode that this transport does not speak.
    Opcode = "opcode",
    /// A transport version other than 0.
    Version = "version",
    /// Payload of a length that its opcode cannot have.
    Length = "length",
    /// Another partition.
    PKey = "p_key",
    /// Another datagram group.
    QKey = "q_key",
    /// No such queue pair.
    NoQp = "no_qp",
    /// The queue pair has another service.
    Service = "service",
    /// The queue pair cannot receive in its state.
    State = "state",
    /// Not from the connected peer, or not to the address that the connection uses.
    SourceAddress = "source_address",
    /// Not from an address of the allow-list.
    NotAllowed = "not_allowed",
    /// The destination is no address of the port.
    NotOurs = "not_ours",
    /// A sequence number that was done already and cannot be answered again.
    Duplicate = "duplicate",
    /// A sequence number ahead of the expected one.
    PsnGap = "psn_gap",
    /// A response to nothing that is outstanding.
    Ghost = "ghost_response",
    /// A response out of order, or of another kind than what is outstanding.
    Response = "unexpected_response",
    /// A syndrome that is reserved.
    Syndrome = "syndrome",
    /// An opcode that may not follow the one before it.
    Sequence = "opcode_sequence",
    /// Key, domain or right denied.
    RKey = "rkey",
    /// Outside the region.
    Bounds = "bounds",
    /// No receive was posted.
    NotReady = "no_receive",
    /// The receive is too small.
    ReceiveTooSmall = "receive_too_small",
    /// More READs or atomics at a time than are served.
    Resources = "resources",
    /// A sent packet whose destination has no known address.
    Unreachable = "unreachable",
}

/// Packets counted since the transport was made.
#[derive(Clone, Debug, Default)]
pub struct Counters {
    /// Packets taken in whole.
    pub received: u64,
    /// Packets given to the port.
    pub sent: u64,
    /// Packets sent again.
    pub retransmitted: u64,
    /// Times that a silent peer was asked again.
    pub timeouts: u64,
    /// Answers of peers: PSN sequence error.
    pub sequence_naks: u64,
    /// Answers of peers: receiver not ready.
    pub rnr_naks: u64,
    /// Packets that carried a congestion mark.
    pub marked: u64,
    /// Congestion notifications of peers.
    pub notifications: u64,
    /// Payload bytes copied into memory of this side.
    pub copied_in_bytes: u64,
    /// Payload bytes copied for the port, since it does not gather or the piece is small.
    pub copied_out_bytes: u64,
    /// Payload bytes that the port gathered from where they lie.
    pub gathered_bytes: u64,
    /// The last CRC mismatch: what the packet should have had, and what it had.
    pub last_icrc: Option<(u32, u32)>,
    drops: [u64; DropReason::ALL.len()],
}

impl Counters {
    /// Packets dropped for a reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    /// Packets dropped for any reason.
    pub fn all_dropped(&self) -> u64 {
        self.drops.iter().sum()
    }

    pub(crate) fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }
}

/// What a queue pair saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpEvent {
    /// A packet was dropped.
    Dropped(DropReason),
    /// It went back to its oldest unacknowledged packet.
    Rewound,
    /// The peer was silent for too long.
    TimedOut,
    /// The peer had no receive.
    PeerNotReady,
    /// This side had no receive.
    NotReady,
    /// This side asked for a missing packet.
    AskedAgain,
    /// The peer asked for less.
    Congested,
    /// It failed.
    Failed,
}

/// The last events of a queue pair, oldest first, with time in nanoseconds and PSN.
#[derive(Clone, Copy, Debug, Default)]
pub struct History {
    ring: [Option<(u64, QpEvent, Psn)>; 8],
    next: u8,
}

impl History {
    pub(crate) fn note(&mut self, now_ns: u64, event: QpEvent, psn: Psn) {
        self.ring[usize::from(self.next & 7)] = Some((now_ns, event, psn));
        self.next = self.next.wrapping_add(1);
    }

    /// The events.
    pub fn iter(&self) -> impl Iterator<Item = (u64, QpEvent, Psn)> + '_ {
        (0..8).filter_map(|back| self.ring[usize::from(self.next.wrapping_add(back) & 7)])
    }
}
