//! Bring-up and halt of the channel, as named steps. No step waits longer than [`STEP_LIMIT`].

use super::regs::*;
use pollring::bus::{BusError, Register, Registers, wait_until};
use pollring::copy::EngineError;
use pollring::iova::Iova;
use std::io;
use std::time::Duration;

/// How long the engine may take for one step.
const STEP_LIMIT: Duration = Duration::from_millis(100);

/// The oldest version with this driver's descriptors: 3.2.
const OLDEST: u8 = 0x32;

/// What the engine says of itself.
pub(super) struct Identity {
    pub(super) max_bytes: usize,
    pub(super) fills: bool,
}

/// The registers and the name that errors carry.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a> {
    pub(super) registers: &'a Registers,
    pub(super) device: &'a str,
}

impl Steps<'_> {
    pub(super) fn identify(self) -> Result<Identity, EngineError> {
        let unsupported = |what| Err(EngineError::Unsupported { device: self.device.to_owned(), what });
        let (version, channels) = (self.registers.read8(CBVER.at(0)), self.registers.read8(CHANCNT.at(0)));
        if version < OLDEST || version == u8::MAX {
            return unsupported(format!("version {version:#04x}, this driver runs 0x32 (3.2) and later"));
        }
        if channels & 0x1f == 0 {
            return unsupported("it has no channel; it may be switched off in the firmware's set-up".into());
        }
        let exponent = self.registers.read8(XFERCAP.at(0)) & 0x1f;
        // Below a page the engine would be of no use, and 0 is what a broken one reads as.
        if exponent < 12 {
            return unsupported(format!("it takes 2^{exponent} bytes at a time; use another engine"));
        }
        let fills = self.registers.read(DMACAPABILITY) & capability::FILL != 0;
        Ok(Identity { max_bytes: 1 << exponent, fills })
    }

    /// Resets the channel and clears its errors; it is halted and does no DMA afterwards.
    pub(super) fn reset(self) -> Result<(), BusError> {
        self.registers.write8(CHANCMD.at(0), chancmd::RESET);
        let ended = || self.registers.read8(CHANCMD.at(0)) & chancmd::RESET == 0;
        if !wait_until(STEP_LIMIT, ended) {
            return Err(self.timed_out("reset the channel"));
        }
        self.registers.write(CHANERR, self.registers.read(CHANERR));
        Ok(())
    }

    /// Tells the channel where its chain begins and where completions go; nothing is executed before DMACOUNT is written.
    pub(super) fn arm(self, first: Iova, completion: Iova) -> Result<(), BusError> {
        let control = chanctrl::ANY_ERROR_ABORT | chanctrl::ERROR_COMPLETION;
        self.registers.write16(CHANCTRL.at(0), control);
        self.write_pair(CHANCMP_LOW, CHANCMP_HIGH, completion);
        self.write_pair(CHAINADDR_LOW, CHAINADDR_HIGH, first);
        let armed = || self.status() & chansts::STATE != chansts::HALTED;
        if wait_until(STEP_LIMIT, armed) { Ok(()) } else { Err(self.timed_out("arm the channel")) }
    }

    /// Stops fetching and waits until what was begun has ended. Whether that was seen.
    pub(super) fn suspend(self) -> bool {
        self.registers.write8(CHANCMD.at(0), chancmd::SUSPEND);
        wait_until(STEP_LIMIT, || {
            let state = self.status() & chansts::STATE;
            state == chansts::SUSPENDED || state == chansts::HALTED
        })
    }

    /// CHANSTS. Reading it pushes the engine's earlier writes to memory (PCI ordering).
    pub(super) fn status(self) -> u64 {
        self.registers.read_pair(CHANSTS_LOW, CHANSTS_HIGH)
    }

    fn write_pair(self, low: Register, high: Register, iova: Iova) {
        self.registers.write(low, iova.bits() as u32);
        self.registers.write(high, (iova.bits() >> 32) as u32);
    }

    fn timed_out(self, step: &'static str) -> BusError {
        BusError::Refused { step, device: self.device.to_owned(), error: io::ErrorKind::TimedOut.into() }
    }
}
