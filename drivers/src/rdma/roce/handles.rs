//! The caller's ends of queue pairs, completion queues and shared receive queues. Each call locks the engine once; a batch is
//! one call. Dropping a handle ends what it names.

use super::device::source_vlan;
use super::engine::{Engine, has_partition};
use super::qp::{Peer, Qp};
use super::requester::MAX_MESSAGE_PACKETS;
use super::stack::lock;
use super::wire::network::Path;
use super::wire::rnr_code;
use pollring::copy::Fifo;
use pollring::port::MacAddress;
use pollring::rdma::{Armed, AsyncEvent, CompletionQueue, Completions, Connection, CqNumber, Failure, Init};
use pollring::rdma::{Modify, ModifyError, Mtu, Notify, PostError, QpAttributes, QpConfig, QpLimits, QpType};
use pollring::rdma::{Qpn, QueuePair, ReadyToReceive, ReadyToSend, ReceiveRequest, Receives, Refused};
use pollring::rdma::{
    SendOperation, SendRequest, SharedReceiveQueue, SrqConfig, SrqNumber, State, WorkQueue,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;

type SharedEngine = Arc<Mutex<Engine>>;

/// READs and atomics at a time, either way.
const MAX_DEPTH: u8 = 128;

/// The handle of a completion queue.
pub(super) struct CqHandle {
    engine: SharedEngine,
    number: CqNumber,
    capacity: usize,
}

impl CqHandle {
    pub(super) fn new(engine: SharedEngine, number: CqNumber, capacity: usize) -> CqHandle {
        CqHandle { engine, number, capacity }
    }
}

impl CompletionQueue for CqHandle {
    fn number(&self) -> CqNumber {
        self.number
    }

    fn capacity(&self) -> usize {
        self.capacity
    }

    fn poll(&mut self, completions: &mut Completions) -> usize {
        let mut engine = lock(&self.engine);
        let cq = engine.world.cqs.get_mut(self.number.0 as usize).and_then(Option::as_mut);
        cq.map_or(0, |cq| cq.poll(completions))
    }

    fn arm(&mut self, notify: Notify) -> Armed {
        let mut engine = lock(&self.engine);
        let cq = engine.world.cqs.get_mut(self.number.0 as usize).and_then(Option::as_mut);
        cq.map_or(Armed::NotEmpty, |cq| cq.arm(notify))
    }
}

impl Drop for CqHandle {
    fn drop(&mut self) {
        let mut engine = lock(&self.engine);
        engine.fail_users(self.number, "its completion queue was dropped; drop queue pairs first");
        engine.world.cqs[self.number.0 as usize] = None;
    }
}

/// The handle of a shared receive queue.
pub(super) struct SrqHandle {
    engine: SharedEngine,
    number: SrqNumber,
    config: SrqConfig,
}

impl SrqHandle {
    pub(super) fn new(engine: SharedEngine, number: SrqNumber, config: SrqConfig) -> SrqHandle {
        SrqHandle { engine, number, config }
    }
}

impl SharedReceiveQueue for SrqHandle {
    fn number(&self) -> SrqNumber {
        self.number
    }

    fn config(&self) -> SrqConfig {
        self.config
    }

    fn post_receive(&mut self, batch: &mut Fifo<ReceiveRequest>) -> Result<usize, Refused> {
        let mut engine = lock(&self.engine);
        let Some(srq) = engine.world.srqs.get_mut(self.number.0 as usize).and_then(Option::as_mut) else {
            return Ok(0);
        };
        take_receives(batch, &mut srq.queue, self.config.requests, self.config.sges)
    }

    fn flush(&mut self) {}

    fn arm_limit(&mut self, requests: u32) {
        let mut engine = lock(&self.engine);
        let Some(Some(srq)) = engine.world.srqs.get_mut(self.number.0 as usize) else { return };
        let below = srq.queue.len() < requests as usize;
        srq.limit = if below { 0 } else { requests };
        if below {
            engine.world.event(AsyncEvent::SrqLimit(self.number));
        }
    }
}

impl Drop for SrqHandle {
    fn drop(&mut self) {
        lock(&self.engine).world.srqs[self.number.0 as usize] = None;
    }
}

fn take_receives(
    batch: &mut Fifo<ReceiveRequest>,
    queue: &mut std::collections::VecDeque<ReceiveRequest>,
    most: u32,
    sges: u16,
) -> Result<usize, Refused> {
    let mut accepted = 0;
    while let Some(request) = batch.front() {
        request.check(sges).map_err(|reason| Refused { accepted, reason })?;
        if queue.len() >= most as usize {
            break;
        }
        queue.extend(batch.pop());
        accepted += 1;
    }
    Ok(accepted)
}

/// The handle of a queue pair.
pub(super) struct QpHandle {
    engine: SharedEngine,
    number: Qpn,
    kind: QpType,
    limits: QpLimits,
    mac: MacAddress,
    port_mtu: Mtu,
}

impl QpHandle {
    pub(super) fn new(
        engine: SharedEngine,
        number: Qpn,
        config: &QpConfig,
        mac: MacAddress,
        port_mtu: Mtu,
    ) -> QpHandle {
        QpHandle { engine, number, kind: config.kind, limits: config.limits, mac, port_mtu }
    }

    /// Runs `call` on the queue pair, which exists as long as its handle.
    fn with<T>(&self, call: impl FnOnce(&mut Engine, Qpn) -> T) -> T {
        call(&mut lock(&self.engine), self.number)
    }

    fn look<T>(&self, call: impl FnOnce(&Qp) -> T) -> T {
        let engine = lock(&self.engine);
        let Some(qp) = engine.qps.get(&self.number.bits()) else {
            unreachable!("only dropping the handle removes its queue pair")
        };
        call(qp)
    }

    fn connect(&self, engine: &mut Engine, connection: &Connection) -> Result<(), ModifyError> {
        let vlan =
            source_vlan(engine, &connection.address).map_err(|_| ModifyError::NotOfPort("the path"))?;
        if connection.mtu > self.port_mtu {
            let (asked, limit) = (connection.mtu.bytes() as u64, self.port_mtu.bytes() as u64);
            return Err(ModifyError::Limit { what: "path MTU", asked, limit });
        }
        let path = Path::new(&connection.address, self.mac, vlan, self.number.bits());
        let Some(qp) = engine.qps.get_mut(&self.number.bits()) else { return Ok(()) };
        qp.mtu = connection.mtu.bytes();
        qp.responder.expected = connection.receive_psn;
        qp.peer = Some(Box::new(Peer { connection: *connection, path }));
        Ok(())
    }
}

fn depth(what: &'static str, asked: u8) -> Result<(), ModifyError> {
    let limit = u64::from(MAX_DEPTH);
    if asked > MAX_DEPTH { Err(ModifyError::Limit { what, asked: asked.into(), limit }) } else { Ok(()) }
}

fn initialize(qp: &mut Qp, init: Init) -> Result<(), ModifyError> {
    let (Init::Connected { pkey_index, .. } | Init::Datagram { pkey_index, .. }) = init;
    qp.p_key = has_partition(pkey_index).ok_or(ModifyError::NotOfPort("the partition"))?;
    match init {
        Init::Connected { access, .. } => qp.access = access,
        Init::Datagram { q_key, .. } => qp.q_key = q_key,
    }
    Ok(())
}

fn start_sending(qp: &mut Qp, send: ReadyToSend) -> Result<(), ModifyError> {
    let (ReadyToSend::Reliable { send_psn, .. }
    | ReadyToSend::Unreliable { send_psn }
    | ReadyToSend::Datagram { send_psn }) = send;
    if let ReadyToSend::Reliable { initiator_depth, retry, .. } = send {
        depth("initiator depth", initiator_depth)?;
        qp.requester.depth = initiator_depth;
        qp.requester.retry = Some(retry);
    }
    qp.requester.start(send_psn);
    Ok(())
}

impl QpHandle {
    fn apply(&self, engine: &mut Engine, change: Modify) -> Result<(), ModifyError> {
        if let Modify::ReadyToReceive(
            ReadyToReceive::Reliable { connection, .. } | ReadyToReceive::Unreliable { connection },
        ) = &change
        {
            if let Modify::ReadyToReceive(ReadyToReceive::Reliable { responder_resources, .. }) = change {
                depth("responder resources", responder_resources)?;
            }
            self.connect(engine, connection)?;
        }
        let Engine { qps, world, .. } = engine;
        let Some(qp) = qps.get_mut(&self.number.bits()) else { return Ok(()) };
        match change {
            Modify::Reset => qp.reset(),
            Modify::Init(init) => initialize(qp, init)?,
            Modify::ReadyToReceive(ReadyToReceive::Reliable { responder_resources, min_rnr, .. }) => {
                qp.responder.resources = responder_resources;
                qp.responder.rnr_code = rnr_code(u64::try_from(min_rnr.as_nanos()).unwrap_or(u64::MAX));
            }
            Modify::ReadyToReceive(_) => {}
            Modify::ReadyToSend(send) => start_sending(qp, send)?,
            Modify::Resume => qp.drain = None,
            Modify::Drain(drain) => qp.drain = Some(drain),
            Modify::Error => qp.enter_error(world),
        }
        Ok(())
    }
}

impl QueuePair for QpHandle {
    fn number(&self) -> Qpn {
        self.number
    }

    fn kind(&self) -> QpType {
        self.kind
    }

    fn limits(&self) -> QpLimits {
        self.limits
    }

    fn state(&self) -> State {
        self.look(|qp| qp.state)
    }

    fn attributes(&self) -> QpAttributes {
        self.look(|qp| {
            let next = qp.responder.expected;
            let connection = qp.peer.as_ref().map(|peer| Connection { receive_psn: next, ..peer.connection });
            let rnr_ns = super::wire::rnr_nanoseconds(qp.responder.rnr_code);
            QpAttributes {
                state: qp.state,
                connection,
                access: qp.access,
                q_key: (qp.config.kind == QpType::Ud).then_some(qp.q_key),
                send_psn: qp.requester.next(),
                retry: qp.requester.retry,
                min_rnr: Duration::from_nanos(rnr_ns),
                initiator_depth: qp.requester.depth,
                responder_resources: qp.responder.resources,
            }
        })
    }

    fn modify(&mut self, change: Modify) -> Result<(), ModifyError> {
        let from = self.state();
        let to = change.check(from, self.kind)?;
        self.with(|engine, number| {
            self.apply(engine, change)?;
            let Engine { qps, world, .. } = engine;
            if let Some(qp) = qps.get_mut(&number.bits()) {
                qp.state = to;
                qp.check_drained(world);
            }
            engine.touch(number);
            Ok(())
        })
    }

    fn post_send(&mut self, batch: &mut Fifo<SendRequest>) -> Result<usize, Refused> {
        let (kind, limits) = (self.kind, self.limits);
        self.with(|engine, number| {
            let Engine { qps, world, .. } = engine;
            let Some(qp) = qps.get_mut(&number.bits()) else { return Ok(0) };
            let largest = if kind == QpType::Ud { 1 } else { MAX_MESSAGE_PACKETS };
            let most_bytes = (u64::from(largest) * qp.mtu as u64).min(1 << 31) as u32;
            let mut accepted = 0;
            while let Some(request) = batch.front() {
                let refused = |reason| Refused { accepted, reason };
                request.check(kind, qp.state, &limits, most_bytes).map_err(refused)?;
                check_destination(request, qp).map_err(refused)?;
                if qp.requester.queue.len() >= limits.send_requests as usize {
                    break;
                }
                let Some(request) = batch.pop() else { break };
                qp.requester.post(request, qp.mtu);
                accepted += 1;
                if matches!(qp.state, State::Sqe | State::Err) {
                    qp.flush(world);
                }
            }
            Ok(accepted)
        })
    }

    fn post_receive(&mut self, batch: &mut Fifo<ReceiveRequest>) -> Result<usize, Refused> {
        let limits = self.limits;
        self.with(|engine, number| {
            let Engine { qps, world, .. } = engine;
            let Some(qp) = qps.get_mut(&number.bits()) else { return Ok(0) };
            if !qp.state.accepts(WorkQueue::Receive) {
                return Err(Refused { accepted: 0, reason: PostError::State(qp.state) });
            }
            if qp.config.receives != Receives::Own {
                return Ok(0);
            }
            let taken = take_receives(batch, &mut qp.receives, limits.receive_requests, limits.receive_sges);
            if qp.state == State::Err {
                qp.flush(world);
            }
            taken
        })
    }

    fn flush(&mut self) {
        self.with(|engine, number| engine.touch(number));
    }

    fn failure(&self) -> Option<Failure> {
        self.look(|qp| qp.failure.clone())
    }
}

fn check_destination(request: &SendRequest, qp: &Qp) -> Result<(), PostError> {
    match &request.operation {
        SendOperation::SendDatagram { to, .. } if !to.address.pd().is(&qp.pd) => Err(PostError::Domain),
        _ => Ok(()),
    }
}

impl Drop for QpHandle {
    fn drop(&mut self) {
        let ended = self.with(|engine, number| engine.qps.remove(&number.bits()));
        // Regions and address handles of what was outstanding drop here, without the lock.
        drop(ended);
    }
}
