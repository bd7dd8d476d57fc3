//! Taking functions from their kernel drivers for vfio-pci.
//!
//! First everything is checked, for all functions that are asked for; then each is taken in this order: remember its driver, set
//! `driver_override`, unbind it from its driver, probe, look who has it. A step that fails is undone, and so are the
//! functions that the same call took before. Checks that look at other functions race with whoever changes those.

use super::error::Failure;
use super::{BindError, Function, IommuState, NoGroup, Sysfs, Traffic};
use crate::bus::{PciAddress, wait_until};
use std::io;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

const VFIO_PCI: &str = "vfio-pci";

/// Drivers are bound before the write to `drivers_probe` returns; what follows (links, nodes) may be a little later.
const SETTLED: Duration = Duration::from_secs(1);

/// Whether a function is taken though the host may need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Force {
    /// It is not.
    No,
    /// The user means it: interfaces with routes, and functions that are no NICs.
    Yes,
}

/// How a function was before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Before {
    /// VFIO had it already; nothing was changed.
    AlreadyBound,
    /// A kernel driver had it.
    Driver(String),
    /// No driver had it.
    NoDriver,
}

/// A function that VFIO has now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// The function.
    pub address: PciAddress,
    /// Its IOMMU group.
    pub group: u32,
    /// The group's node, which a process opens.
    pub node: PathBuf,
    /// How it was.
    pub before: Before,
}

impl Sysfs {
    /// Binds one function to vfio-pci.
    ///
    /// # Errors
    /// As [`Sysfs::bind_all`].
    pub fn bind(&self, address: PciAddress, force: Force) -> Result<Bound, BindError> {
        let bound = self.bind_all(&[address], force)?;
        // One comes back for each that went in.
        bound.into_iter().next().ok_or_else(|| self.unknown(address).into())
    }

    /// Binds functions to vfio-pci, all or none; the kernel must be able to open their groups afterwards.
    ///
    /// # Errors
    /// A check that failed, before anything is changed; or a step that the kernel refused, and what was undone.
    pub fn bind_all(&self, addresses: &[PciAddress], force: Force) -> Result<Vec<Bound>, BindError> {
        let mut checked = Vec::new();
        for (at, address) in addresses.iter().enumerate() {
            if !addresses[..at].contains(address) {
                checked.push(self.check_bind(*address, addresses, force)?);
            }
        }
        if checked.iter().any(|(function, _)| !function.is_bound_to_vfio()) {
            self.have_vfio_pci()?;
        }
        let mut bound: Vec<Bound> = Vec::new();
        for (function, group) in &checked {
            match self.take(function, *group) {
                Ok(one) => bound.push(one),
                Err(error) => return Err(self.give_all_back(error, &bound)),
            }
        }
        Ok(bound)
    }

    fn check_bind(
        &self,
        address: PciAddress,
        together: &[PciAddress],
        force: Force,
    ) -> Result<(Function, u32), BindError> {
        // Read first: routes that cannot be read must not look like none.
        self.routes().map_err(|error| BindError::Read { path: self.path("proc/net/route"), error })?;
        let function = self.function(address)?;
        if function.is_bridge() {
            return Err(BindError::Bridge { address });
        }
        if !function.is_network() && force == Force::No {
            return Err(BindError::NotNetwork { address, class: function.class >> 8 });
        }
        let group = function.group.ok_or_else(|| self.no_group(address))?;
        if !function.is_bound_to_vfio() {
            check_use(&function, force)?;
        }
        let members = self.group(group).into_iter();
        let members: Vec<_> =
            members.filter(|member| member.blocks() && !together.contains(&member.address)).collect();
        if members.is_empty() {
            return Ok((function, group));
        }
        let mut all: Vec<PciAddress> =
            together.iter().copied().chain(members.iter().map(|member| member.address)).collect();
        all.dedup();
        let command = format!("pollring bind {}", super::error::list(&all).replace(',', ""));
        Err(BindError::NotViable { address, group, members, command })
    }

    pub(super) fn no_group(&self, address: PciAddress) -> NoGroup {
        let iommu: IommuState = self.iommu();
        NoGroup { address, iommu }
    }

    fn have_vfio_pci(&self) -> Result<(), BindError> {
        let have = || self.path("sys/bus/pci/drivers").join(VFIO_PCI).exists();
        if have() {
            return Ok(());
        }
        self.load(VFIO_PCI).map_err(|reason| BindError::NoModule { reason })?;
        // The module's own messages say why it is there and its driver is not.
        let reason =
            || "modprobe loaded it, but the driver is not there; see dmesg | grep -i vfio".to_owned();
        wait_until(SETTLED, have).then_some(()).ok_or_else(|| BindError::NoModule { reason: reason() })
    }

    /// Loads a module, where this kernel has modules; otherwise says what to do.
    pub(super) fn load(&self, module: &str) -> Result<(), String> {
        if !self.path("proc/sys/kernel/modprobe").exists() {
            return Err(format!(
                "this kernel loads no modules (no /proc/sys/kernel/modprobe), so {module} must be built in; boot a kernel \
                 that has it"
            ));
        }
        self.kernel.load_module(module).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                format!("modprobe was not found; load the module as root: modprobe {module}")
            }
            _ => format!(
                "`modprobe {module}`: {error}; it needs root and the module (CONFIG_VFIO_PCI for vfio-pci)"
            ),
        })
    }

    /// Takes a checked function.
    fn take(&self, function: &Function, group: u32) -> Result<Bound, BindError> {
        let (address, node) = (function.address, self.node(group));
        if function.is_bound_to_vfio() {
            return Ok(Bound { address, group, node, before: Before::AlreadyBound });
        }
        self.remember(function).map_err(|(path, error)| {
            let step = "remember its driver".to_owned();
            Failure { step, path, error }.into_error(address, "nothing was changed".to_owned())
        })?;
        if let Err(failure) = self.hand_over(address, VFIO_PCI) {
            let after = self.undo(function, failure.error.kind());
            return Err(failure.into_error(address, after));
        }
        wait_until(SETTLED, || node.exists());
        let before = function.driver.clone().map_or(Before::NoDriver, Before::Driver);
        Ok(Bound { address, group, node, before })
    }

    /// Moves a function from the driver that has it to `driver`, and nothing else may take it meanwhile.
    pub(super) fn hand_over(&self, address: PciAddress, driver: &str) -> Result<(), Failure> {
        self.set_override(address, Some(driver))?;
        self.unbind_driver(address)?;
        self.probe(address)?;
        if wait_until(SETTLED, || self.driver_of(address).as_deref() == Some(driver)) {
            return Ok(());
        }
        let now = self.driver_of(address).unwrap_or_else(|| "no driver".to_owned());
        let error =
            format!("{driver} did not take it, {now} has it; the kernel log may say why: dmesg | tail");
        Err(Failure {
            step: format!("bind it to {driver}"),
            path: self.device(address),
            error: io::Error::other(error),
        })
    }

    /// Sets the only driver that may take the function, or none.
    pub(super) fn set_override(&self, address: PciAddress, driver: Option<&str>) -> Result<(), Failure> {
        let path = self.device(address).join("driver_override");
        self.write("set driver_override", path, driver.unwrap_or("\n"))
    }

    /// Takes the function from its driver, if one has it.
    pub(super) fn unbind_driver(&self, address: PciAddress) -> Result<(), Failure> {
        match self.driver_of(address) {
            Some(driver) => {
                let path = self.device(address).join("driver/unbind");
                self.write(&format!("take it from {driver}"), path, &address.to_string())
            }
            None => Ok(()),
        }
    }

    /// Gives the function, which has no driver, to one whose table of ids knows it.
    pub(super) fn bind_driver(&self, address: PciAddress, driver: &str) -> Result<(), Failure> {
        let path = self.path("sys/bus/pci/drivers").join(driver).join("bind");
        let step = format!("give it to {driver}");
        let given = self.write(&step, path, &address.to_string());
        given.map_err(|failure| match failure.error.raw_os_error() {
            Some(libc::ENODEV) => {
                let text =
                    format!("{}; {driver} does not know this device or did not take it", failure.error);
                Failure { error: io::Error::other(text), ..failure }
            }
            _ => failure,
        })
    }

    /// Lets the kernel look for a driver for the function.
    pub(super) fn probe(&self, address: PciAddress) -> Result<(), Failure> {
        self.write("probe", self.path("sys/bus/pci/drivers_probe"), &address.to_string())
    }

    /// A write that is given up after some time: in the kernel it may wait for what nobody lets go.
    fn write(&self, step: &str, path: PathBuf, text: &str) -> Result<(), Failure> {
        let (kernel, file, text) = (self.kernel.clone(), path.clone(), text.to_owned());
        let (done, waiting) = mpsc::channel();
        let thread = std::thread::Builder::new().name("sysfs write".to_owned());
        let started = thread.spawn(move || done.send(kernel.write(&file, &text)));
        let late = || {
            let text = format!("the kernel did not finish it in {:?}; it may still do", self.patience);
            Err(io::Error::new(io::ErrorKind::TimedOut, text))
        };
        let result = match started {
            Ok(_) => waiting.recv_timeout(self.patience).unwrap_or_else(|_| late()),
            Err(error) => Err(error),
        };
        result.map_err(|error| Failure { step: step.to_owned(), path, error })
    }

    /// Gives a half-taken function back; the text says how it is now.
    fn undo(&self, function: &Function, why: io::ErrorKind) -> String {
        let address = function.address;
        let mut undone = self.set_override(address, function.driver_override.as_deref());
        // What waits in the kernel holds the device's lock: more steps would wait behind it.
        if undone.is_ok() && why != io::ErrorKind::TimedOut && self.driver_of(address) != function.driver {
            undone = self.unbind_driver(address);
            if undone.is_ok() && function.driver.is_some() {
                undone = self.probe(address);
            }
        }
        let now = self.driver_of(address);
        let words = |driver: &Option<String>| driver.clone().unwrap_or_else(|| "no driver".to_owned());
        if undone.is_ok() && now == function.driver {
            self.forget(address);
            return format!("undone: {} has it, as before", words(&now));
        }
        let why = undone
            .err()
            .map_or_else(String::new, |failure| format!(" ({}: {})", failure.step, failure.error));
        let again = function.driver.as_ref().map_or_else(String::new, |driver| format!(" --driver {driver}"));
        format!(
            "this could not be undone{why}: {} has it now; try `pollring unbind{again} {address}`",
            words(&now)
        )
    }

    fn give_all_back(&self, error: BindError, bound: &[Bound]) -> BindError {
        let changed = bound.iter().rev().filter(|one| one.before != Before::AlreadyBound);
        let given: Vec<String> = changed
            .map(|one| match self.unbind(one.address, &super::GiveTo::Remembered) {
                Ok(released) => released.to_string(),
                Err(error) => format!("not {}: {error}", one.address),
            })
            .collect();
        match given.is_empty() {
            true => error,
            false => BindError::Several { error: Box::new(error), given_back: given.join(", ") },
        }
    }
}

/// Whether the host can do without the function.
fn check_use(function: &Function, force: Force) -> Result<(), BindError> {
    let address = function.address;
    if function.virtual_functions > 0 {
        return Err(BindError::VirtualFunctions { address, count: function.virtual_functions });
    }
    let Some(used) = function.busiest().filter(|_| force == Force::No) else { return Ok(()) };
    let (kind, carrier) = match &used.traffic {
        Traffic::None => return Ok(()),
        Traffic::Routes { interface } => ("routes lead", interface),
        Traffic::DefaultRoute { interface } => ("the default route leads", interface),
    };
    let what = match *carrier == used.name {
        true => format!("{kind} through it"),
        false => format!("{kind} through {carrier}, which stands on it"),
    };
    Err(BindError::InUse { address, interface: used.name.clone(), what })
}

#[cfg(test)]
mod tests;
