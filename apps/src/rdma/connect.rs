//! Lanes: queue pairs of two sides, in RTS, connected to each other.

use super::load::{Lane, Shape};
use super::machine::Machine;
use crate::error::AppError;
use pollring::rdma::{Access, AddressVector, Attempts, CompletionQueue, Connection, CqConfig, Device, Init};
use pollring::rdma::{Modify, Psn, QpConfig, QpLimits, QpType, Qpn, QueuePair, ReadyToReceive, ReadyToSend};
use pollring::rdma::{Receives, Retry, Signalling};
use std::time::Duration;

/// Software on a core that others use too answers late, so silence is long before it is loss.
const RETRY: Retry = Retry {
    ack_timeout: Duration::from_millis(50),
    retries: Attempts::UntilDead,
    rnr_retries: Attempts::UntilDead,
    dead_after: Duration::from_secs(5),
};

/// READs and atomics of a queue pair at a time.
const DEPTH: u8 = 16;

/// A completion queue of each side.
pub(super) type Cqs = [Box<dyn CompletionQueue>; 2];

/// A completion queue for each side, and `count` lanes that complete there.
///
/// # Errors
/// More than the device has.
pub(super) fn lanes(
    machine: &mut Machine,
    shape: &Shape,
    count: usize,
) -> Result<(Cqs, Vec<Lane>), AppError> {
    let config = CqConfig { entries: (count * shape.depth) as u32, vector: 0, channel: None };
    let [near, far] = &mut machine.sides;
    let cqs = [near.device.create_cq(&config)?, far.device.create_cq(&config)?];
    let lanes = (0..count).map(|_| lane(machine, shape, &cqs)).collect::<Result<_, _>>()?;
    Ok((cqs, lanes))
}

fn lane(machine: &mut Machine, shape: &Shape, cqs: &Cqs) -> Result<Lane, AppError> {
    let mut near = queue_pair(machine, shape, cqs, 0)?;
    let mut far = queue_pair(machine, shape, cqs, 1)?;
    let numbers = [near.number(), far.number()];
    join(machine, &mut *near, 0, numbers[1])?;
    join(machine, &mut *far, 1, numbers[0])?;
    Ok(Lane::new(near, far, shape.depth))
}

fn queue_pair(
    machine: &mut Machine,
    shape: &Shape,
    cqs: &Cqs,
    side: usize,
) -> Result<Box<dyn QueuePair>, AppError> {
    let (cq, depth) = (cqs[side].number(), shape.depth as u32);
    let limits = QpLimits {
        send_requests: depth,
        receive_requests: depth,
        send_sges: 1,
        receive_sges: 1,
        inline_bytes: 0,
    };
    let (receives, signalling) = (Receives::Own, Signalling::OnRequest);
    let config = QpConfig { kind: QpType::Rc, send_cq: cq, receive_cq: cq, receives, limits, signalling };
    let side = &mut machine.sides[side];
    Ok(side.device.create_qp(&side.pd, &config)?)
}

/// Brings a queue pair to RTS. Both sides are this process, so the first sequence number need not be secret: nobody else is on the wire.
fn join(machine: &Machine, qp: &mut dyn QueuePair, side: usize, destination: Qpn) -> Result<(), AppError> {
    let (ours, theirs) = (&machine.sides[side], &machine.sides[1 - side]);
    let address = AddressVector {
        destination: theirs.address.into(),
        source: ours.address.into(),
        flow_label: 0,
        hop_limit: 64,
        traffic_class: 0,
        service_level: 0,
    };
    let (psn, mtu) = (Psn::new(0), ours.device.port().mtu);
    let connection = Connection { destination, address, mtu, receive_psn: psn };
    let min_rnr = Duration::from_micros(10);
    let steps = [
        Modify::Init(Init::Connected { pkey_index: 0, access: Access::all() }),
        Modify::ReadyToReceive(ReadyToReceive::Reliable { connection, responder_resources: DEPTH, min_rnr }),
        Modify::ReadyToSend(ReadyToSend::Reliable { send_psn: psn, initiator_depth: DEPTH, retry: RETRY }),
    ];
    for step in steps {
        qp.modify(step).map_err(|error| AppError::Failed(vec![error.to_string()]))?;
    }
    Ok(())
}
