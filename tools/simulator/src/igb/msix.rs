//! BAR 3: the vector table and the pending bits (PCI Local Bus 3.0, 6.8.2).
//!
//! The table keeps what is written. Whoever delivers the vectors holds its own copy, as the kernel's VFIO and QEMU do, so nothing here
//! masks or redirects a vector, and no bit is ever pending.

use super::config::VECTORS;
use pollring::bus::RegisterFile;
use std::sync::atomic::{AtomicU32, Ordering};

/// Words of an entry: address low and high, data, control.
const ENTRY_WORDS: usize = 4;

/// Control: the vector is masked.
const MASKED: u32 = 1;

pub(super) struct VectorTable([AtomicU32; ENTRY_WORDS * VECTORS as usize]);

impl Default for VectorTable {
    fn default() -> VectorTable {
        let table = VectorTable([const { AtomicU32::new(0) }; ENTRY_WORDS * VECTORS as usize]);
        table.reset();
        table
    }
}

impl VectorTable {
    /// Every vector is masked.
    pub(super) fn reset(&self) {
        for (at, word) in self.0.iter().enumerate() {
            word.store(if at % ENTRY_WORDS == 3 { MASKED } else { 0 }, Ordering::Relaxed);
        }
    }
}

impl RegisterFile for VectorTable {
    fn read32(&self, offset: usize) -> u32 {
        self.0.get(offset / 4).map_or(0, |word| word.load(Ordering::Relaxed))
    }

    fn write32(&self, offset: usize, value: u32) {
        let Some(word) = self.0.get(offset / 4) else { return };
        let value = if offset / 4 % ENTRY_WORDS == 3 { value & MASKED } else { value };
        word.store(value, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_keep_what_is_written_and_start_masked() {
        let table = VectorTable::default();
        table.write32(9 * 16, 0xfee0_0000);
        table.write32(9 * 16 + 12, 0xffff_fffe);
        table.write32(10 * 16, 7);
        assert_eq!([0, 12].map(|at| table.read32(9 * 16 + at)), [0xfee0_0000, 0]);
        assert_eq!((table.read32(12), table.read32(10 * 16), table.read32(0x2000)), (MASKED, 0, 0));
        table.reset();
        assert_eq!([0, 12].map(|at| table.read32(9 * 16 + at)), [0, MASKED]);
    }
}
