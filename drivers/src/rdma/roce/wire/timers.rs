//! Answers and durations as the wire says them: AETH syndromes (IBTA 9.7.5.2) and receiver-not-ready timers (table 45).

/// What an AETH says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Everything up to this PSN arrived. The credits are how many more SENDs the peer has receives for; `None` means that it
    /// does not say.
    Ack { credits: Option<u32> },
    /// No receive was posted: try again after so many nanoseconds.
    NotReady { wait_ns: u64 },
    /// This PSN is the one that is missing.
    SequenceError,
    /// Malformed, or more than the peer serves.
    InvalidRequest,
    /// Key, right or bounds.
    RemoteAccess,
    /// The peer failed by itself.
    RemoteOperation,
}

const NO_CREDIT_LIMIT: u8 = 0x1f;
const NOT_READY: u8 = 0x20;
const NAK: u8 = 0x60;

impl Answer {
    /// What a syndrome means; `None` for reserved ones and those of services that we do not speak.
    pub(crate) fn of(syndrome: u8) -> Option<Answer> {
        let code = syndrome & 0x1f;
        match (syndrome & 0xe0, code) {
            (0, NO_CREDIT_LIMIT) => Some(Answer::Ack { credits: None }),
            (0, _) => Some(Answer::Ack { credits: Some(credits(code)) }),
            (NOT_READY, _) => Some(Answer::NotReady { wait_ns: rnr_nanoseconds(code) }),
            (NAK, 0) => Some(Answer::SequenceError),
            (NAK, 1) => Some(Answer::InvalidRequest),
            (NAK, 2) => Some(Answer::RemoteAccess),
            (NAK, 3) => Some(Answer::RemoteOperation),
            _ => None,
        }
    }

    /// The syndrome of an answer of ours. Credits are never limited: whoever has no receive answers "not ready".
    pub(crate) fn syndrome(self, rnr_code: u8) -> u8 {
        match self {
            Answer::Ack { .. } => NO_CREDIT_LIMIT,
            Answer::NotReady { .. } => NOT_READY | rnr_code,
            Answer::SequenceError => NAK,
            Answer::InvalidRequest => NAK | 1,
            Answer::RemoteAccess => NAK | 2,
            Answer::RemoteOperation => NAK | 3,
        }
    }
}

/// 0, 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on to 32768 (IBTA 9.7.7.2).
fn credits(code: u8) -> u32 {
    let base = u32::from(2 + code % 2) << (code / 2);
    if code < 2 { u32::from(code) } else { base / 2 }
}

/// Hundredths of a millisecond by code; code 0 is the longest.
const RNR: [u32; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

/// The duration of a timer code.
pub(crate) fn rnr_nanoseconds(code: u8) -> u64 {
    u64::from(RNR[usize::from(code & 31)]) * 10_000
}

/// The code of the shortest duration that is not shorter than asked; the longest there is when none is.
pub(crate) fn rnr_code(at_least_ns: u64) -> u8 {
    (1..32).find(|code| rnr_nanoseconds(*code) >= at_least_ns).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_those_of_the_table() {
        let known = [(0, 655_360_000), (1, 10_000), (12, 640_000), (13, 960_000), (31, 491_520_000)];
        assert!(known.iter().all(|(code, ns)| rnr_nanoseconds(*code) == *ns));
        assert_eq!((rnr_code(0), rnr_code(10_001), rnr_code(600_000_000), rnr_code(u64::MAX)), (1, 2, 0, 0));
    }

    #[test]
    fn credit_codes_grow_as_the_book_says() {
        let first: Vec<u32> = (0..11).map(credits).collect();
        assert_eq!(first, [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32]);
        assert_eq!(credits(0x1e), 32768);
    }

    #[test]
    fn syndromes_are_inverse() {
        for code in [0x1f, 0x60, 0x61, 0x62, 0x63] {
            assert_eq!(Answer::of(code).unwrap().syndrome(0), code);
        }
        assert_eq!(Answer::of(0x25).unwrap().syndrome(5), 0x25);
        assert!([0x40, 0x64, 0x80, 0xff].into_iter().all(|code| Answer::of(code).is_none()));
    }
}
