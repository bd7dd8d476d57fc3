//! The function's state behind its lock: registers as software sees them, and the gates to memory.

use super::Counters;
use super::config::{ConfigSpace, Effect};
use super::engine::CHUNK;
use crate::hostile::{Liar, Lie};
use pollring::bus::simulated::{Interrupts, SimulatedIommu};
use pollring_drivers::copy::ioat::regs::{capability, chancmd, chanctrl, chansts, intrctrl};
use std::sync::Arc;

/// 3.2, the version that Linux, DPDK and Linux's vfio selftest all know.
const VERSION: u32 = 0x32;

/// The longest transfer is 2^20 bytes.
const XFERCAP: u32 = 20;

pub(super) struct State {
    pub(super) config: ConfigSpace,
    pub(super) iommu: Option<Arc<SimulatedIommu>>,
    pub(super) interrupts: Option<Arc<dyn Interrupts>>,
    pub(super) unplugged: bool,
    pub(super) flips: bool,
    /// Data on its way.
    pub(super) chunk: Box<[u8]>,
    pub(super) liar: Option<Liar>,
    pub(super) counters: Counters,
    pub(super) channel: Channel,
    interrupt_control: u8,
    attention: u32,
}

/// The channel's registers.
#[derive(Default)]
pub(super) struct Channel {
    pub(super) control: u16,
    /// As written by software: how far it may go.
    pub(super) allowed: u16,
    pub(super) executed: u16,
    /// The next descriptor's address.
    pub(super) current: u64,
    /// The last completed descriptor's address.
    pub(super) completed: u64,
    pub(super) state: u64,
    pub(super) chain: u64,
    pub(super) completion: u64,
    pub(super) errors: u32,
    mask: u32,
    dca: u32,
}

impl Channel {
    fn after_reset() -> Channel {
        Channel { state: chansts::HALTED, ..Channel::default() }
    }

    /// Descriptors that it may still execute.
    pub(super) fn pending(&self) -> u16 {
        match self.state {
            chansts::HALTED | chansts::SUSPENDED => 0,
            _ => self.allowed.wrapping_sub(self.executed),
        }
    }

    pub(super) fn status(&self) -> u64 {
        self.completed & chansts::ADDRESS | self.state
    }

    /// A write of the chain's address begins it anew, whichever half comes last.
    fn set_chain(&mut self, chain: u64) {
        *self = Channel { chain, current: chain, executed: 0, allowed: 0, state: chansts::ARMED, ..*self };
    }

    fn command(&mut self, command: u8) {
        if command & chancmd::RESET != 0 {
            *self = Channel::after_reset();
        } else if command & chancmd::SUSPEND != 0 && self.state != chansts::HALTED {
            self.state = chansts::SUSPENDED;
        }
    }
}

fn with_half(word: u64, high: bool, value: u32) -> u64 {
    let (value, shift) = (u64::from(value), if high { 32 } else { 0 });
    word & !(0xffff_ffff << shift) | value << shift
}

impl State {
    pub(super) fn new(flips: bool, liar: Option<Liar>) -> State {
        State {
            config: ConfigSpace::default(),
            iommu: None,
            interrupts: None,
            unplugged: false,
            flips,
            chunk: vec![0; CHUNK].into(),
            liar,
            counters: Counters::default(),
            channel: Channel::after_reset(),
            interrupt_control: 0,
            attention: 0,
        }
    }

    pub(super) fn reset(&mut self) {
        (self.config, self.channel) = (ConfigSpace::default(), Channel::after_reset());
        (self.interrupt_control, self.attention) = (0, 0);
    }

    pub(super) fn config_write(&mut self, offset: u16, value: u32) {
        if self.config.write(offset, value) == Effect::Reset {
            self.reset();
        }
    }

    pub(super) fn read(&mut self, offset: usize) -> u32 {
        if self.unplugged {
            return u32::MAX;
        }
        let channel = &self.channel;
        match offset {
            0x00 => 1 | XFERCAP << 8 | u32::from(self.interrupt_control) << 24,
            0x04 => std::mem::take(&mut self.attention),
            0x08 => VERSION,
            0x10 => capability::FILL,
            0x80 => u32::from(channel.control),
            0x84 => u32::from(channel.allowed) << 16,
            0x88 => self.status() as u32,
            0x8c => (channel.status() >> 32) as u32,
            0x90 => channel.chain as u32,
            0x94 => (channel.chain >> 32) as u32,
            0x98 => channel.completion as u32,
            0x9c => (channel.completion >> 32) as u32,
            0xa8 => channel.errors,
            0xac => channel.mask,
            0xb0 => channel.dca,
            _ => 0,
        }
    }

    fn status(&mut self) -> u64 {
        let lies = self
            .liar
            .as_mut()
            .and_then(|liar| liar.tempted(&[Lie::RegistersRandom]).map(|_| liar.random.next()));
        lies.unwrap_or(self.channel.status())
    }

    pub(super) fn write(&mut self, offset: usize, value: u32) {
        let channel = &mut self.channel;
        match offset {
            0x00 => {
                self.interrupt_control =
                    (value >> 24) as u8 & (intrctrl::MASTER_ENABLE | intrctrl::MSIX_CONTROL)
            }
            0x80 => channel.control = value as u16 & !chanctrl::INTERRUPT_REARM,
            0x84 => {
                channel.allowed = (value >> 16) as u16;
                channel.command(value as u8);
                // At once, not in the next step: Linux looks for it within microseconds.
                if channel.pending() > 0 {
                    channel.state = chansts::ACTIVE;
                }
            }
            0x90 => channel.set_chain(with_half(channel.chain, false, value)),
            0x94 => channel.set_chain(with_half(channel.chain, true, value)),
            0x98 => channel.completion = with_half(channel.completion, false, value),
            0x9c => channel.completion = with_half(channel.completion, true, value),
            0xa8 => channel.errors &= !value,
            0xac => channel.mask = value,
            0xb0 => channel.dca = value,
            _ => {}
        }
    }

    /// The way to memory, while the function may use it.
    pub(super) fn memory(&self) -> Option<&SimulatedIommu> {
        self.iommu.as_deref().filter(|_| self.config.bus_master() && !self.unplugged)
    }

    pub(super) fn interrupt(&mut self) {
        self.attention |= 1;
        if self.interrupt_control & (intrctrl::MASTER_ENABLE | intrctrl::MSIX_CONTROL) != 0
            && let Some(interrupts) = &self.interrupts
        {
            self.counters.interrupts += 1;
            interrupts.raise(0);
        }
    }
}
