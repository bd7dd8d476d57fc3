//! Bring-up and shut-down as lists of steps (82576 datasheet 4.5).
//!
//! [`reset`] leaves a quiet device with its permanent address. [`configure`] prepares everything that needs no DMA, [`enable`] starts
//! queues once bus mastering is on, [`quiesce`] ends all DMA from the inside. Every wait has an end.

use super::regs::*;
use super::{CRC_BYTES, LONGEST_FRAME};
use pollring::bus::{Registers, wait_until};
use pollring::iova::Iova;
use pollring::port::{MacAddress, PortConfig, PortError, Promiscuous};
use std::time::Duration;

/// No wait of the bring-up takes longer on silicon: reset 3 ms, NVM 15 ms, queues 1 ms (datasheet 4.2, 4.5.9).
const STEP_LIMIT: Duration = Duration::from_millis(50);

/// A symmetric RSS key: both directions of a flow get the same hash, since the key repeats every 16 bits.
const SYMMETRIC_KEY: u32 = 0x5a6d_5a6d;

/// One port's registers, and its name for errors.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a> {
    pub registers: &'a Registers,
    pub port: &'a str,
}

/// Where a ring lies.
#[derive(Clone, Copy)]
pub(super) struct RingPlace {
    pub iova: Iova,
    pub bytes: usize,
}

/// Where all rings of a port lie, by queue.
#[derive(Default)]
pub(super) struct Places {
    pub rx: Vec<RingPlace>,
    pub tx: Vec<RingPlace>,
}

/// Quiets the device and resets it (4.5.2 to 4.5.3); gives its permanent address.
pub(super) fn reset(steps: Steps) -> Result<MacAddress, PortError> {
    steps.mask_interrupts();
    steps.quiesce();
    steps.reset_mac()?;
    steps.mask_interrupts();
    let mac = steps.permanent_address()?;
    steps.clear_statistics();
    Ok(mac)
}

/// Sets filters, limits and rings; nothing runs yet (4.5.5, 4.5.9, 4.5.10).
pub(super) fn configure(steps: Steps, config: &PortConfig, places: &Places) {
    steps.set_link_up();
    steps.set_multicast_table();
    steps.set_receive_limits(config);
    steps.set_receive_spread(config.queue_pairs);
    places.rx.iter().enumerate().for_each(|(queue, ring)| steps.set_receive_ring(queue, *ring, config));
    places.tx.iter().enumerate().for_each(|(queue, ring)| steps.set_transmit_ring(queue, *ring));
}

/// Starts the queues, then the two units (4.5.9, 4.5.10). Bus mastering is on by now.
pub(super) fn enable(steps: Steps, config: &PortConfig) -> Result<(), PortError> {
    for queue in 0..config.queue_pairs {
        steps.enable_queue(RXDCTL, queue, "enable a receive queue")?;
        steps.enable_queue(TXDCTL, queue, "enable a transmit queue")?;
    }
    let transmit = tctl::PAD_SHORT | tctl::COLLISION_THRESHOLD | tctl::RETRANSMIT_LATE_COLLISION;
    steps.registers.write(TCTL, tctl::ENABLE | transmit);
    steps.set_receive_control(config.promiscuous);
    Ok(())
}

impl Steps<'_> {
    /// All interrupts off, causes cleared (4.5.2).
    fn mask_interrupts(self) {
        self.registers.write(IMC, u32::MAX);
        self.registers.write(EIMC, u32::MAX);
        self.registers.read(ICR);
    }

    /// Ends all DMA from the inside: both units off, then no more requests until none is pending (5.2.3.3). A device that
    /// does not answer is left to the caller's bus master gate.
    pub(super) fn quiesce(self) -> bool {
        self.registers.write(RCTL, self.registers.read(RCTL) & !rctl::ENABLE);
        self.registers.write(TCTL, self.registers.read(TCTL) & !tctl::ENABLE);
        self.registers.write(CTRL, self.registers.read(CTRL) | ctrl::MASTER_DISABLE);
        wait_until(STEP_LIMIT, || self.registers.read(STATUS) & status::MASTER_ENABLED == 0)
    }

    /// Global reset; the bit clears itself (4.5.3).
    fn reset_mac(self) -> Result<(), PortError> {
        self.registers.write(CTRL, self.registers.read(CTRL) | ctrl::RESET);
        self.wait("reset the MAC", || self.registers.read(CTRL) & ctrl::RESET == 0)
    }

    /// The address that the reset loaded from the NVM, or the NVM's first three words where it did not (4.5.5, 6.2.1).
    fn permanent_address(self) -> Result<MacAddress, PortError> {
        let (low, high) = (self.registers.read_at(RAL, 0), self.registers.read_at(RAH, 0));
        let [a, b, c, d] = low.to_le_bytes();
        let [e, f, ..] = high.to_le_bytes();
        let loaded = MacAddress([a, b, c, d, e, f]);
        if high & rah::VALID != 0 && loaded.is_unicast() {
            return Ok(loaded);
        }
        let words = [self.nvm_word(0)?, self.nvm_word(1)?, self.nvm_word(2)?].map(u16::to_le_bytes);
        let stored =
            MacAddress([words[0][0], words[0][1], words[1][0], words[1][1], words[2][0], words[2][1]]);
        if !stored.is_unicast() {
            let what = format!("its NVM holds {stored}, which is no unicast address; repair the NVM");
            return Err(PortError::Config { port: self.port.to_owned(), what });
        }
        self.set_address(stored);
        Ok(stored)
    }

    fn set_address(self, mac: MacAddress) {
        let [a, b, c, d, e, f] = mac.0;
        self.registers.write_at(RAL, 0, u32::from_le_bytes([a, b, c, d]));
        self.registers.write_at(RAH, 0, u32::from(u16::from_le_bytes([e, f])) | rah::VALID);
    }

    /// One 16-bit word of the NVM (8.4.2).
    fn nvm_word(self, address: u32) -> Result<u16, PortError> {
        self.registers.write(EERD, address << eerd::ADDRESS_SHIFT | eerd::START);
        let mut value = 0;
        self.wait("read the NVM", || {
            value = self.registers.read(EERD);
            value & eerd::DONE != 0
        })?;
        Ok((value >> eerd::DATA_SHIFT) as u16)
    }

    /// Counters clear by reading (4.5.8).
    fn clear_statistics(self) {
        let counters =
            REGISTERS.iter().filter(|register| register.access == pollring::bus::Access::ReadClears);
        for register in counters {
            (0..register.count).for_each(|at| {
                self.registers.read_at(*register, at);
            });
        }
    }

    /// The MAC follows the PHY; DMA requests are allowed again (4.5.7).
    fn set_link_up(self) {
        let value = self.registers.read(CTRL) & !ctrl::MASTER_DISABLE;
        self.registers.write(CTRL, value | ctrl::SET_LINK_UP);
    }

    fn set_multicast_table(self) {
        (0..MTA.count).for_each(|at| self.registers.write_at(MTA, at, 0));
    }

    /// The longest frame on the wire. The device drops what is longer, so no honest device writes behind a buffer, although SRRCTL
    /// counts buffers in whole KiB and theirs ends in between.
    fn set_receive_limits(self, config: &PortConfig) {
        let longest = config.max_frame_bytes().min(usize::from(LONGEST_FRAME) + CRC_BYTES);
        self.registers.write(RLPML, longest as u32);
        self.registers.write(RXCSUM, 0);
    }

    /// RSS over all pairs, by addresses and ports (7.1.1.7).
    fn set_receive_spread(self, queue_pairs: usize) {
        if queue_pairs == 1 {
            self.registers.write(MRQC, 0);
            return;
        }
        (0..RSSRK.count).for_each(|at| self.registers.write_at(RSSRK, at, SYMMETRIC_KEY));
        for at in 0..RETA.count {
            let entries: [u8; 4] = std::array::from_fn(|entry| ((at * 4 + entry) % queue_pairs) as u8);
            self.registers.write_at(RETA, at, u32::from_le_bytes(entries));
        }
        let v4 = mrqc::HASH_IPV4 | mrqc::HASH_TCP_IPV4 | mrqc::HASH_UDP_IPV4;
        let v6 = mrqc::HASH_IPV6 | mrqc::HASH_TCP_IPV6 | mrqc::HASH_UDP_IPV6;
        self.registers.write(MRQC, mrqc::RSS | v4 | v6);
    }

    fn set_receive_ring(self, queue: usize, ring: RingPlace, config: &PortConfig) {
        self.registers.write_at(RXDCTL, queue, 0);
        self.set_ring([RDBAL, RDBAH, RDLEN, RDH, RDT], queue, ring);
        let buffer_kib = config.rx_pool.room_bytes().div_ceil(1024) as u32 & srrctl::BUFFER_KIB_MASK;
        // Without DROP_ENABLE one full queue stops all others (7.1.3.2).
        let value = buffer_kib | srrctl::ADVANCED_ONE_BUFFER | srrctl::DROP_ENABLE;
        self.registers.write_at(SRRCTL, queue, value);
    }

    fn set_transmit_ring(self, queue: usize, ring: RingPlace) {
        self.registers.write_at(TXDCTL, queue, 0);
        self.set_ring([TDBAL, TDBAH, TDLEN, TDH, TDT], queue, ring);
    }

    fn set_ring(
        self,
        [low, high, length, head, tail]: [pollring::bus::Register; 5],
        queue: usize,
        ring: RingPlace,
    ) {
        self.registers.write_at(low, queue, ring.iova.bits() as u32);
        self.registers.write_at(high, queue, (ring.iova.bits() >> 32) as u32);
        self.registers.write_at(length, queue, ring.bytes as u32);
        self.registers.write_at(head, queue, 0);
        self.registers.write_at(tail, queue, 0);
    }

    /// Enables one queue and sees it enabled. Descriptors are fetched 8 at a time; write-backs are not held up, since polling has
    /// no interrupt that would flush them (7.1.4, 7.2.2.5).
    fn enable_queue(
        self,
        control: pollring::bus::Register,
        queue: usize,
        step: &'static str,
    ) -> Result<(), PortError> {
        let thresholds = 8 << dctl::PREFETCH_SHIFT | 1 << dctl::HOST_SHIFT;
        self.registers.write_at(control, queue, dctl::ENABLE | thresholds);
        self.wait(step, || self.registers.read_at(control, queue) & dctl::ENABLE != 0)
    }

    pub(super) fn set_receive_control(self, promiscuous: Promiscuous) {
        let all = match promiscuous {
            Promiscuous::On => rctl::UNICAST_PROMISCUOUS | rctl::MULTICAST_PROMISCUOUS,
            Promiscuous::Off => 0,
        };
        let value = rctl::ENABLE | rctl::LONG_PACKETS | rctl::BROADCAST | rctl::STRIP_CRC;
        self.registers.write(RCTL, value | all);
    }

    fn wait(self, step: &'static str, done: impl FnMut() -> bool) -> Result<(), PortError> {
        if wait_until(STEP_LIMIT, done) {
            return Ok(());
        }
        let waited_ms = STEP_LIMIT.as_millis() as u64;
        Err(PortError::Timeout { step, port: self.port.to_owned(), waited_ms })
    }
}
