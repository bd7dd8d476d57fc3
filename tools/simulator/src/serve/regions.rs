//! Regions: the BARs and config space of a device, read and written in bytes.
//!
//! Registers have 32 bits. An access of another size becomes accesses of the words that it touches, lowest first. A write of a part of a
//! word reads it first, with the side effects that reading has; no driver of a real device does that where it matters.

use pollring::bus::RegisterFile;
use pollring::bus::simulated::SoftwareDevice;
use std::sync::Arc;

/// Index of config space (VFIO_PCI_CONFIG_REGION_INDEX of `vfio.h`).
const CONFIG: usize = 7;

/// BARs come first.
const BARS: u8 = 6;

/// With the expansion ROM, config space and VGA.
pub(super) const REGIONS: u32 = 9;

/// Extended config space (PCI Express 2.0, 7.2.2).
const CONFIG_BYTES: usize = 4096;

/// Bytes of a word.
const WORD: usize = 4;

/// No such region, or an access behind its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutOfBounds;

pub(super) struct Regions {
    device: Arc<dyn SoftwareDevice>,
    bars: Vec<Option<(Arc<dyn RegisterFile>, usize)>>,
}

enum Words<'a> {
    Registers(&'a dyn RegisterFile),
    Config(&'a dyn SoftwareDevice),
}

impl Words<'_> {
    fn read(&self, offset: usize) -> u32 {
        match self {
            Words::Registers(file) => file.read32(offset),
            Words::Config(device) => device.config_read32(offset as u16),
        }
    }

    fn write(&self, offset: usize, value: u32) {
        match self {
            Words::Registers(file) => file.write32(offset, value),
            Words::Config(device) => device.config_write32(offset as u16, value),
        }
    }
}

impl Regions {
    pub(super) fn of(device: Arc<dyn SoftwareDevice>) -> Regions {
        let bars = (0..BARS).map(|bar| device.bar(bar)).collect();
        Regions { device, bars }
    }

    /// Size of a region; 0 for one that the device does not have.
    pub(super) fn bytes(&self, index: u32) -> usize {
        match index as usize {
            CONFIG => CONFIG_BYTES,
            bar => self.bars.get(bar).and_then(Option::as_ref).map_or(0, |(_, bytes)| *bytes),
        }
    }

    fn words(&self, index: u32, offset: u64, count: usize) -> Result<(Words<'_>, usize), OutOfBounds> {
        let bytes = self.bytes(index) as u64;
        if offset.checked_add(count as u64).is_none_or(|end| end > bytes) {
            return Err(OutOfBounds);
        }
        let words = match self.bars.get(index as usize) {
            Some(Some((file, _))) => Words::Registers(&**file),
            _ => Words::Config(&*self.device),
        };
        Ok((words, offset as usize))
    }

    /// Reads bytes of a region.
    pub(super) fn read(&self, index: u32, offset: u64, data: &mut [u8]) -> Result<(), OutOfBounds> {
        let (words, mut at) = self.words(index, offset, data.len())?;
        let mut rest = data;
        while !rest.is_empty() {
            let inside = at % WORD;
            let count = rest.len().min(WORD - inside);
            let word = words.read(at - inside).to_le_bytes();
            let (part, more) = rest.split_at_mut(count);
            part.copy_from_slice(&word[inside..inside + count]);
            (rest, at) = (more, at + count);
        }
        Ok(())
    }

    /// Writes bytes of a region.
    pub(super) fn write(&self, index: u32, offset: u64, data: &[u8]) -> Result<(), OutOfBounds> {
        let (words, mut at) = self.words(index, offset, data.len())?;
        let mut rest = data;
        while !rest.is_empty() {
            let inside = at % WORD;
            let (part, more) = rest.split_at(rest.len().min(WORD - inside));
            let mut word = if part.len() == WORD { [0; WORD] } else { words.read(at - inside).to_le_bytes() };
            word[inside..inside + part.len()].copy_from_slice(part);
            words.write(at - inside, u32::from_le_bytes(word));
            (rest, at) = (more, at + part.len());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::igb::{Igb, IgbConfig};
    use crate::wire::{WireConfig, pair};

    #[test]
    fn accesses_of_any_size_reach_the_words_that_they_touch() {
        let (near, _far) = pair(WireConfig::default());
        let regions = Regions::of(Igb::new(IgbConfig::new([2, 0, 0, 0, 0, 1], near)));
        let read = |region, offset, count| {
            let mut data = vec![0xee; count];
            regions.read(region, offset, &mut data).map(|()| data)
        };
        assert_eq!(read(7, 1, 4).unwrap(), [0x80, 0xc9, 0x10, 0]);
        regions.write(7, 4, &[2, 0]).unwrap();
        // The receive buffer size of queue 0, and the ring base of queue 1.
        regions.write(0, 0xc00c, &0x1234_5678u32.to_le_bytes()).unwrap();
        regions.write(0, 0xc00e, &[0xab]).unwrap();
        assert_eq!(read(0, 0xc00d, 3).unwrap(), [0x56, 0xab, 0x12]);
        regions.write(0, 0xc040, &0x1122_3344_5566_7788u64.to_le_bytes()).unwrap();
        assert_eq!(read(0, 0xc040, 8).unwrap(), 0x1122_3344_5566_7788u64.to_le_bytes());
        regions.write(3, 0, &[1; 16]).unwrap();
        assert_eq!(read(3, 6, 4).unwrap(), [1; 4]);
        assert_eq!(read(7, 0, 4096).unwrap()[..4], [0x86, 0x80, 0xc9, 0x10]);
    }

    #[test]
    fn nothing_lies_outside() {
        let (near, _far) = pair(WireConfig::default());
        let regions = Regions::of(Igb::new(IgbConfig::new([2, 0, 0, 0, 0, 1], near)));
        let sizes: Vec<usize> = (0..10).map(|index| regions.bytes(index)).collect();
        assert_eq!(sizes, [128 << 10, 0, 0, 16 << 10, 0, 0, 0, 4096, 0, 0]);
        for (index, offset, count) in [
            (0, 128 << 10, 1),
            (0, (128 << 10) - 1, 2),
            (7, u64::MAX, 2),
            (1, 0, 1),
            (6, 0, 4),
            (u32::MAX, 0, 4),
        ] {
            assert_eq!(regions.read(index, offset, &mut vec![0; count]), Err(OutOfBounds));
            assert_eq!(regions.write(index, offset, &vec![0; count]), Err(OutOfBounds));
        }
    }
}
