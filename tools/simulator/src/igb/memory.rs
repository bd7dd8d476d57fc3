//! The device's way to memory: by IOVA, through the IOMMU, and only while it may.
//!
//! The gate has three parts: the bus master bit of config space, CTRL.GIO_MASTER_DISABLE, and whether the device was attached at
//! all. A refused access is counted, and the device goes on, as silicon does.

use pollring::bus::simulated::SimulatedIommu;
use std::sync::Arc;

/// An access did not reach memory: refused by the IOMMU, or not tried since the gate is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lost;

#[derive(Default)]
pub(super) struct Memory {
    iommu: Option<Arc<SimulatedIommu>>,
    open: bool,
    faults: u64,
}

impl Memory {
    pub(super) fn attach(&mut self, iommu: Arc<SimulatedIommu>) {
        self.iommu = Some(iommu);
    }

    pub(super) fn set_gate(&mut self, bus_master: bool, master_disable: bool) {
        self.open = bus_master && !master_disable;
    }

    /// Whether the device may start DMA now.
    #[inline]
    pub(super) fn is_open(&self) -> bool {
        self.open && self.iommu.is_some()
    }

    pub(super) fn faults(&self) -> u64 {
        self.faults
    }

    #[inline]
    pub(super) fn read(&mut self, iova: u64, destination: &mut [u8]) -> Result<(), Lost> {
        let Some(iommu) = self.iommu.as_ref().filter(|_| self.open) else { return Err(Lost) };
        iommu.dma_read(iova, destination).map_err(|_| {
            self.faults += 1;
            Lost
        })
    }

    /// Two words, of which the second becomes visible last.
    #[inline]
    pub(super) fn write_pair(&mut self, iova: u64, words: [u64; 2]) -> Result<(), Lost> {
        let Some(iommu) = self.iommu.as_ref().filter(|_| self.open) else { return Err(Lost) };
        iommu.dma_write_pair(iova, words).map_err(|_| {
            self.faults += 1;
            Lost
        })
    }

    #[inline]
    pub(super) fn write(&mut self, iova: u64, source: &[u8]) -> Result<(), Lost> {
        let Some(iommu) = self.iommu.as_ref().filter(|_| self.open) else { return Err(Lost) };
        iommu.dma_write(iova, source).map_err(|_| {
            self.faults += 1;
            Lost
        })
    }
}
