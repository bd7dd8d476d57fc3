//! What the IOMMU refused while a run went on.
//!
//! A simulated IOMMU counts by itself; of a real one only the kernel's log tells, and not of every fault: it shows a few each five seconds.
//! A device that reaches for memory which it was not given was told a wrong address or made one up, so each fault is a failure of
//! the run. Without permission to read the log a run goes on and says so.

use super::setup::OpenPort;
use pollring::bus::PciAddress;
use pollring::bus::faults::FaultWatch;
use pollring::bus::simulated::SimulatedIommu;
use pollring::iova::AddressSpace;
use std::sync::Arc;

/// Watches the ports of a run.
pub(super) struct Faults {
    log: Option<FaultWatch>,
    functions: Vec<(PciAddress, AddressSpace)>,
    simulated: Vec<(String, Arc<SimulatedIommu>)>,
    seen: Vec<String>,
}

impl Faults {
    /// Watches `ports` from now on; gives what the user should know if it cannot.
    pub(super) fn watch(ports: &[OpenPort]) -> (Faults, Option<String>) {
        let functions: Vec<_> =
            ports.iter().filter_map(|open| Some((open.function?, open.space.clone()))).collect();
        let simulated =
            ports.iter().filter_map(|open| Some((open.uri.clone(), open.iommu.clone()?))).collect();
        let watch = (!functions.is_empty()).then(FaultWatch::new);
        let (log, note) = match watch {
            Some(Ok(log)) => (Some(log), None),
            Some(Err(error)) => (None, Some(format!("note: {error}"))),
            None => (None, None),
        };
        (Faults { log, functions, simulated, seen: Vec::new() }, note)
    }

    /// What the log told since the last look.
    pub(super) fn look(&mut self) -> Vec<String> {
        let told = self.log.as_mut().map_or_else(Vec::new, |log| log.poll().unwrap_or_default());
        let ours = told.into_iter().filter_map(|fault| {
            let (_, space) = self.functions.iter().find(|(address, _)| *address == fault.device)?;
            Some(format!("the IOMMU refused an access: {}", fault.among(&space.mapped())))
        });
        let ours: Vec<String> = ours.collect();
        self.seen.extend(ours.iter().cloned());
        ours
    }

    /// All of the run, once its devices stand still.
    pub(super) fn end(mut self) -> Vec<String> {
        self.look();
        for (uri, iommu) in &self.simulated {
            let (count, kept) = iommu.faults();
            if let Some(first) = kept.first() {
                self.seen.push(format!(
                    "port `{uri}`: the IOMMU refused its device {count} accesses, the first {first:?}"
                ));
            }
        }
        self.seen
            .iter()
            .map(|text| format!("{text}: a bug of the driver or the device, please report it"))
            .collect()
    }
}
