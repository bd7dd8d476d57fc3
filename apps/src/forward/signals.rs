//! SIGINT and SIGTERM: the first asks for a clean stop, a second one kills at once.

use crate::error::AppError;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a signal came.
pub(crate) struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Watches both signals from now on.
    ///
    /// # Errors
    /// The kernel's errno from sigaction(2).
    pub(crate) fn install() -> Result<StopFlag, AppError> {
        let asked = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            // In this order: at the first signal the flag is still down, so the default action waits for a second one.
            flag::register_conditional_default(signal, asked.clone())
                .and_then(|_| flag::register(signal, asked.clone()))
                .map_err(|error| AppError::System {
                    step: "watch for SIGINT and SIGTERM: sigaction",
                    error,
                })?;
        }
        Ok(StopFlag(asked))
    }

    /// Whether a clean stop was asked for.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
