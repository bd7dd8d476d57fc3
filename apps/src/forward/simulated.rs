//! stub
use super::options::Plan;
use super::summary::Tally;
use crate::error::AppError;
use pollring::bus::simulated::SoftwareDevice;
use std::sync::Arc;
pub(super) const PRIMER: &[u8] = &[0; 60];
pub(super) struct Rig;
impl Rig {
    pub(super) fn start(_: &Plan) -> Result<Rig, AppError> {
        Ok(Rig)
    }
    pub(super) fn devices(&self) -> Vec<Arc<dyn SoftwareDevice>> {
        vec![]
    }
    pub(super) fn offer(&self) {}
    pub(super) fn end_offer(&self) {}
    pub(super) fn outstanding_frames(&self) -> u64 {
        0
    }
    pub(super) fn stop(self) -> Tally {
        Tally::default()
    }
}
