//! The life of a port from start to stop, the same for every driver.
//!
//! A driver says how its device is brought up, cut off and counted ([`Lifecycle`]); the order is kept here. [`start`]: nothing runs and
//! no queue of the last run is alive, the configuration fits, then bring-up; if that fails, DMA is ended and frames go home. [`abort`]:
//! queues are told to do nothing more, DMA ends, the run is counted, frames go home. [`stop`] is an abort that takes the queues
//! back. A driver's `Drop` calls [`abort`].

use super::{Capabilities, PortConfig, PortError, Queues};
use crate::buffer::{Both, Pool};
use crate::ring::Session;

/// What a port keeps of its life. `Run` is what a driver holds from start to stop.
pub struct Life<Run> {
    /// From start to stop.
    pub run: Option<Run>,
    /// Of this run, or of the last one: its queues may have outlived it.
    pub session: Session,
    /// What the receive queues are filled from: it stays open while they run, whoever else drops it.
    rx_pool: Option<Pool<Both>>,
}

impl<Run> Default for Life<Run> {
    fn default() -> Life<Run> {
        Life { run: None, session: Session::new(), rx_pool: None }
    }
}

/// What a driver does at each turn of its port's life.
pub trait Lifecycle {
    /// What it holds from start to stop.
    type Run;
    /// The port's URI.
    fn name(&self) -> &str;
    /// What the port can do.
    fn abilities(&self) -> &Capabilities;
    /// Where the life is kept.
    fn life(&mut self) -> &mut Life<Self::Run>;
    /// Looks at what [`PortConfig::validate`] does not know.
    ///
    /// # Errors
    /// [`PortError::Config`].
    fn check(&self, _config: &PortConfig) -> Result<(), PortError> {
        Ok(())
    }
    /// Resets the device, makes rings and queues under leases of the session, and lets it run.
    ///
    /// # Errors
    /// What the device or the system refuses; what was begun is ended by the caller.
    fn bring_up(&mut self, config: &PortConfig) -> Result<(Self::Run, Queues), PortError>;
    /// Ends DMA, whatever state the device is in.
    ///
    /// # Errors
    /// It cannot be made sure.
    fn end_dma(&mut self) -> Result<(), PortError>;
    /// Keeps what a run counted; DMA has ended.
    fn keep_counts(&mut self, run: &Self::Run);
    /// The device broke its contract.
    fn fail(&self, reason: &str);
}

/// Starts `port`.
///
/// # Errors
/// It runs, queues of its last run are alive, numbers do not fit, or bring-up failed.
pub fn start<P: Lifecycle>(port: &mut P, config: &PortConfig) -> Result<Queues, PortError> {
    if port.life().run.is_some() && port.life().session.live() > 0 {
        return Err(wrong_state(port, "start", "started already"));
    }
    all_queues_home(port)?;
    config.validate(port.name(), port.abilities())?;
    port.check(config)?;
    abort(port)?;
    port.life().session = Session::new();
    let started = port.bring_up(config);
    if started.is_err() {
        // The error that is reported is the first one; the device is cut off in any case.
        let _ = port.end_dma();
        port.life().session.end();
    }
    if let Err(PortError::Timeout { step, .. }) = &started {
        port.fail(&format!("it did not {step} in time"));
    }
    let (run, queues) = started?;
    port.life().run = Some(run);
    port.life().rx_pool = Some(config.rx_pool.clone());
    Ok(queues)
}

/// Stops `port` and takes its queues back.
///
/// # Errors
/// It does not run, a queue is missing, or the end of DMA is not sure.
pub fn stop<P: Lifecycle>(port: &mut P, queues: Queues) -> Result<(), PortError> {
    if port.life().run.is_none() {
        return Err(wrong_state(port, "stop", "not started"));
    }
    let ended = abort(port);
    drop(queues);
    ended?;
    all_queues_home(port)
}

/// Ends DMA without the queues; nothing for a port that does not run.
///
/// # Errors
/// The end of DMA is not sure.
pub fn abort<P: Lifecycle>(port: &mut P) -> Result<(), PortError> {
    let Some(run) = port.life().run.take() else { return Ok(()) };
    port.life().session.revoke();
    let ended = port.end_dma();
    port.keep_counts(&run);
    port.life().session.end();
    port.life().rx_pool = None;
    ended
}

/// The error of a call in the wrong state.
pub fn wrong_state<P: Lifecycle>(port: &P, step: &'static str, state: &'static str) -> PortError {
    PortError::State { step, port: port.name().to_owned(), state }
}

fn all_queues_home<P: Lifecycle>(port: &mut P) -> Result<(), PortError> {
    match port.life().session.live() {
        0 => Ok(()),
        alive => Err(PortError::QueuesAlive { port: port.name().to_owned(), alive }),
    }
}
