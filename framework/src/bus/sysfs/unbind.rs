//! Giving functions back to their kernel drivers.
//!
//! The kernel waits in `unbind` for as long as a process holds the function, and nothing ends that wait; so holders are looked for
//! first, and a function that is held stays as it is. The driver is the one that was remembered, one that the user names, or
//! whichever the kernel finds.

use super::error::Failure;
use super::state::Memory;
use super::{BindError, Function, Sysfs};
use crate::bus::PciAddress;
use std::fmt;
use std::io;

/// Which driver gets a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GiveTo {
    /// The one that had it; the kernel's choice when that is unknown.
    Remembered,
    /// This one.
    Driver(String),
}

/// A function that VFIO does not have any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    /// The function.
    pub address: PciAddress,
    /// The driver that has it now.
    pub driver: Option<String>,
    /// Whether anything was changed.
    pub changed: Changed,
}

/// Whether a call changed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changed {
    /// It did.
    Yes,
    /// It was so already.
    No,
}

impl fmt::Display for Released {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address, self.driver.as_deref().unwrap_or("no driver"))
    }
}

/// Where a function goes.
enum Target {
    Driver(String),
    /// To whichever driver the kernel finds.
    Any,
    /// To none: none had it.
    None,
}

impl Sysfs {
    /// Gives a function back.
    ///
    /// # Errors
    /// A check that failed, before anything is changed; or a step that the kernel refused, and how the function is now.
    pub fn unbind(&self, address: PciAddress, to: &GiveTo) -> Result<Released, BindError> {
        let function = self.function(address)?;
        if let Some(driver) = function.driver.as_ref().filter(|_| !function.is_bound_to_vfio()) {
            return self.already(&function, driver, to);
        }
        let memory = self.recall(&function);
        let before = memory.clone().unwrap_or(Memory { driver: None, driver_override: None });
        let target = match (to, memory) {
            (GiveTo::Driver(name), _) => Target::Driver(name.clone()),
            (GiveTo::Remembered, None) => Target::Any,
            (GiveTo::Remembered, Some(Memory { driver: Some(name), .. })) => Target::Driver(name),
            (GiveTo::Remembered, Some(_)) => Target::None,
        };
        if let Target::Driver(name) = &target {
            self.have_driver(name)?;
        }
        let holders = self.holders(&function);
        if !holders.is_empty() {
            return Err(BindError::Held { address, holders });
        }
        let given = self.give(&function, &target, before.driver_override.as_deref());
        given.map_err(|failure| {
            let after = self.take_back(&function, failure.error.kind());
            failure.into_error(address, after)
        })?;
        self.forget(address);
        Ok(Released { address, driver: self.driver_of(address), changed: Changed::Yes })
    }

    /// A kernel driver has it already.
    fn already(&self, function: &Function, driver: &str, to: &GiveTo) -> Result<Released, BindError> {
        let address = function.address;
        match to {
            GiveTo::Driver(wanted) if wanted != driver => {
                Err(BindError::NotOurs { address, driver: driver.to_owned() })
            }
            _ => {
                self.forget(address);
                Ok(Released { address, driver: Some(driver.to_owned()), changed: Changed::No })
            }
        }
    }

    fn have_driver(&self, name: &str) -> Result<(), BindError> {
        let no_driver = |reason: String| BindError::NoDriver { driver: name.to_owned(), reason };
        let plain = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.+".contains(&byte));
        if !plain || name.is_empty() || name.starts_with('.') {
            return Err(no_driver("such a name cannot be one".to_owned()));
        }
        let folder = self.path("sys/bus/pci/drivers").join(name);
        if folder.exists() {
            return Ok(());
        }
        self.load(name).map_err(no_driver)?;
        match folder.exists() {
            true => Ok(()),
            false => Err(no_driver("the module of that name has no PCI driver of that name".to_owned())),
        }
    }

    fn give(&self, function: &Function, target: &Target, before: Option<&str>) -> Result<(), Failure> {
        let address = function.address;
        // Without an override of ours: with one, the kernel would let any driver take any device.
        self.set_override(address, before)?;
        self.unbind_driver(address)?;
        match target {
            Target::Driver(name) => return self.bind_driver(address, name),
            Target::Any => self.probe(address)?,
            Target::None => {}
        }
        match self.driver_of(address).filter(|driver| super::is_vfio(driver)) {
            None => Ok(()),
            Some(driver) => Err(Failure {
                step: "give it back".to_owned(),
                path: self.device(address),
                error: io::Error::other(format!(
                    "{driver} took it again: its parameter `ids` or a driver_override names it; name its driver with --driver"
                )),
            }),
        }
    }

    /// Lets VFIO have a function again that was not given back; the text says how it is now.
    fn take_back(&self, function: &Function, why: io::ErrorKind) -> String {
        let address = function.address;
        if function.is_bound_to_vfio() && why != io::ErrorKind::TimedOut && self.driver_of(address).is_none()
        {
            let vfio = function.driver.as_deref().unwrap_or_default();
            let taken = self.hand_over(address, vfio);
            return match taken {
                Ok(()) => format!("undone: {vfio} has it, as before"),
                Err(failure) => format!("this could not be undone ({}: {})", failure.step, failure.error),
            };
        }
        match self.driver_of(address) {
            Some(driver) => format!("{driver} has it now"),
            None => format!("no driver has it now; try `pollring unbind --driver NAME {address}`"),
        }
    }
}
