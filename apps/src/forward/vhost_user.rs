//! Ports of a vhost-user backend: `vhost-user:PATH[,queues=N][,packed]`.

use super::options::Plan;
use crate::error::AppError;
use crate::ports::VhostUserName;
use pollring::iova::AddressSpace;
use pollring::port::Port;
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
    Ok(vhost_user::open(uri, &name.path, VirtioOptions { layout, ..VirtioOptions::default() })?)
}
