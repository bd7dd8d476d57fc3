//! Opcodes as their parts: service, operation, place in the message, and what is attached (IBTA table 38;
//! drivers/infiniband/sw/rxe/rxe_opcode.c). [`Shape::of`] and [`Shape::opcode`] are inverse over all opcodes that this
//! transport speaks.

use pollring::rdma::QpType;

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Data for a posted receive.
    Send,
    /// Data for an address.
    Write,
    /// Asks for data.
    ReadRequest,
    /// Brings it.
    ReadResponse,
    /// ACK or NAK.
    Acknowledge,
    /// Brings the old value of an atomic.
    AtomicAcknowledge,
    /// Compare and swap.
    CompareAndSwap,
    /// Fetch and add.
    FetchAndAdd,
}

/// Where a packet stands in its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Position {
    /// The first of several.
    First,
    /// Neither first nor last.
    Middle,
    /// The last of several.
    Last,
    /// The whole message.
    Only,
}

impl Position {
    /// The position of packet `index` of `packets`.
    pub fn of(index: u32, packets: u32) -> Position {
        match (index == 0, index + 1 >= packets) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, true) => Position::Last,
            (false, false) => Position::Middle,
        }
    }

    /// Whether a message begins here.
    pub fn begins(self) -> bool {
        matches!(self, Position::First | Position::Only)
    }

    /// Whether a message ends here.
    pub fn ends(self) -> bool {
        matches!(self, Position::Last | Position::Only)
    }
}

/// What is attached to the end of a SEND or WRITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Extra {
    /// Nothing.
    None,
    /// Immediate data.
    Immediate,
    /// A key to invalidate.
    Invalidate,
}

/// An opcode, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shape {
    /// The service.
    pub service: QpType,
    /// What for.
    pub operation: Operation,
    /// Where in the message.
    pub position: Position,
    /// What is attached.
    pub extra: Extra,
}

/// Congestion notification (IBTA annex A17.9); not an operation of any service.
pub(crate) const CNP: u8 = 0x81;

const RC: u8 = 0x00;
const UC: u8 = 0x20;
const UD: u8 = 0x60;

/// Operation, position and attachment of the low five bits.
const ROWS: [(u8, Operation, Position, Extra); 23] = {
    use Extra::{Immediate, Invalidate, None};
    use Operation::*;
    use Position::*;
    [
        (0x00, Send, First, None),
        (0x01, Send, Middle, None),
        (0x02, Send, Last, None),
        (0x03, Send, Last, Immediate),
        (0x04, Send, Only, None),
        (0x05, Send, Only, Immediate),
        (0x06, Write, First, None),
        (0x07, Write, Middle, None),
        (0x08, Write, Last, None),
        (0x09, Write, Last, Immediate),
        (0x0a, Write, Only, None),
        (0x0b, Write, Only, Immediate),
        (0x0c, ReadRequest, Only, None),
        (0x0d, ReadResponse, First, None),
        (0x0e, ReadResponse, Middle, None),
        (0x0f, ReadResponse, Last, None),
        (0x10, ReadResponse, Only, None),
        (0x11, Acknowledge, Only, None),
        (0x12, AtomicAcknowledge, Only, None),
        (0x13, CompareAndSwap, Only, None),
        (0x14, FetchAndAdd, Only, None),
        (0x16, Send, Last, Invalidate),
        (0x17, Send, Only, Invalidate),
    ]
};

/// The last opcode of UC is WRITE ONLY with immediate.
const UC_ROWS: usize = 12;

static SHAPES: [Option<Shape>; 256] = {
    let mut shapes = [None; 256];
    let mut row = 0;
    while row < ROWS.len() {
        let (code, operation, position, extra) = ROWS[row];
        shapes[(RC | code) as usize] = Some(Shape { service: QpType::Rc, operation, position, extra });
        if row < UC_ROWS {
            shapes[(UC | code) as usize] = Some(Shape { service: QpType::Uc, operation, position, extra });
        }
        if code == 0x04 || code == 0x05 {
            shapes[(UD | code) as usize] = Some(Shape { service: QpType::Ud, operation, position, extra });
        }
        row += 1;
    }
    shapes
};

impl Shape {
    /// The parts of an opcode; `None` when this transport does not speak it.
    #[inline]
    pub fn of(opcode: u8) -> Option<Shape> {
        SHAPES[usize::from(opcode)]
    }

    /// The opcode of these parts. Our own code asks for none that is not in the table.
    pub fn opcode(&self) -> u8 {
        let base = match self.service {
            QpType::Rc => RC,
            QpType::Uc => UC,
            QpType::Ud => UD,
        };
        base | low_bits(self.operation, self.position, self.extra)
    }

    /// Whether a responder answers it, as opposed to a requester that waits for it.
    pub fn is_request(&self) -> bool {
        use Operation::{Acknowledge, AtomicAcknowledge, ReadResponse};
        !matches!(self.operation, ReadResponse | Acknowledge | AtomicAcknowledge)
    }

    /// Whether the packet carries data of a message.
    pub fn has_payload(&self) -> bool {
        matches!(self.operation, Operation::Send | Operation::Write | Operation::ReadResponse)
    }

    pub(crate) fn has_reth(&self) -> bool {
        self.operation == Operation::ReadRequest
            || self.operation == Operation::Write && self.position.begins()
    }

    pub(crate) fn has_aeth(&self) -> bool {
        matches!(self.operation, Operation::Acknowledge | Operation::AtomicAcknowledge)
            || self.operation == Operation::ReadResponse && self.position != Position::Middle
    }

    pub(crate) fn is_atomic(&self) -> bool {
        matches!(self.operation, Operation::CompareAndSwap | Operation::FetchAndAdd)
    }
}

fn low_bits(operation: Operation, position: Position, extra: Extra) -> u8 {
    use Operation::{Acknowledge, AtomicAcknowledge, CompareAndSwap, FetchAndAdd};
    use Operation::{ReadRequest, ReadResponse, Send, Write};
    let place = match position {
        Position::First => 0,
        Position::Middle => 1,
        Position::Last => 2,
        Position::Only => 4,
    };
    let response = if position == Position::Only { 3 } else { place };
    match (operation, extra) {
        (Send, Extra::Invalidate) => 0x16 + u8::from(position == Position::Only),
        (Send, _) => place + u8::from(extra == Extra::Immediate),
        (Write, _) => 0x06 + place + u8::from(extra == Extra::Immediate),
        (ReadRequest, _) => 0x0c,
        (ReadResponse, _) => 0x0d + response,
        (Acknowledge, _) => 0x11,
        (AtomicAcknowledge, _) => 0x12,
        (CompareAndSwap, _) => 0x13,
        (FetchAndAdd, _) => 0x14,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_opcodes_are_inverse() {
        let known: Vec<u8> = (0..=255).filter(|code| Shape::of(*code).is_some()).collect();
        assert_eq!(known.len(), 23 + 12 + 2);
        for code in known {
            assert_eq!(Shape::of(code).unwrap().opcode(), code);
        }
        assert!(Shape::of(CNP).is_none() && Shape::of(0x15).is_none() && Shape::of(0x2c).is_none());
    }

    #[test]
    fn positions_of_messages() {
        let of = |packets| (0..packets).map(|index| Position::of(index, packets)).collect::<Vec<_>>();
        assert_eq!(of(1), [Position::Only]);
        assert_eq!(of(3), [Position::First, Position::Middle, Position::Last]);
    }
}
