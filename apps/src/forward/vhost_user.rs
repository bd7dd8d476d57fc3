//! Ports of a vhost-user backend: `vhost-user:PATH[,queues=N][,packed]`.

use super::options::Plan;
use crate::error::AppError;
use crate::ports::VhostUserName;
use pollring::bus::BusError;
use pollring::iova::AddressSpace;
use pollring::port::{Port, PortError};
use pollring_drivers::nic::virtio::{Layout, VirtioOptions, vhost_user};

/// Connects to the backend; its space takes the port's pool.
///
/// # Errors
/// Nobody listens, the backend lacks something, or the name and the command line disagree about queues.
pub(super) fn open(
    plan: &Plan,
    uri: &str,
    name: &VhostUserName,
) -> Result<(Box<dyn Port>, AddressSpace), AppError> {
    if let Some(queues) = name.queues.filter(|queues| *queues != plan.queues) {
        let text = format!(
            "port `{uri}`: queues={queues}, but every port runs {}; say --queues {queues} too",
            plan.queues
        );
        return Err(AppError::Usage(text));
    }
    let layout = if name.packed { Layout::Packed } else { Layout::Split };
    let options = VirtioOptions { layout, ..VirtioOptions::default() };
    vhost_user::open(uri, &name.path, options).map_err(|error| match error {
        // A backend that does not listen or refuses is a precondition that is missing.
        PortError::Bus(BusError::Refused { .. }) => AppError::Usage(error.to_string()),
        error => error.into(),
    })
}
