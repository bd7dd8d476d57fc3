//! The device's way to memory: by IOVA, through the IOMMU, and only while it is bus master.

use pollring::bus::simulated::SimulatedIommu;
use std::sync::Arc;

/// An access did not reach memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

#[derive(Default)]
pub(super) struct Memory {
    iommu: Option<Arc<SimulatedIommu>>,
    pub(super) open: bool,
    pub(super) faults: u64,
}

impl Memory {
    pub(super) fn attach(&mut self, iommu: Arc<SimulatedIommu>) {
        self.iommu = Some(iommu);
    }

    pub(super) fn read(&mut self, iova: u64, into: &mut [u8]) -> Result<(), Lost> {
        let iommu = self.iommu.as_ref().filter(|_| self.open).ok_or(Lost)?;
        iommu.dma_read(iova, into).map_err(|_| {
            self.faults += 1;
            Lost
        })
    }

    pub(super) fn write(&mut self, iova: u64, from: &[u8]) -> Result<(), Lost> {
        let iommu = self.iommu.as_ref().filter(|_| self.open).ok_or(Lost)?;
        iommu.dma_write(iova, from).map_err(|_| {
            self.faults += 1;
            Lost
        })
    }

    pub(super) fn read16(&mut self, iova: u64) -> Result<u16, Lost> {
        let mut bytes = [0; 2];
        self.read(iova, &mut bytes)?;
        Ok(u16::from_le_bytes(bytes))
    }
}
