//! `pollring bind` and `pollring unbind`: PCI functions from their kernel drivers to vfio-pci, and back.
//!
//! The framework's [`Sysfs`] checks and does it; this file parses, says what happened and what comes next. `bind` takes all functions
//! or none; `unbind` goes on after one that fails and ends with what failed. Arguments are checked before anything is changed.

use crate::error::AppError;
use crate::output::{self, Format};
use pollring::bus::PciAddress;
use pollring::bus::sysfs::{Before, Bound, Changed, Force, GiveTo, Released, Sysfs, User};
use serde::Serialize;

/// Arguments of `pollring bind`.
#[derive(clap::Args)]
pub(crate) struct BindArguments {
    /// PCI addresses, as `0000:01:00.0`; `pollring devices` lists them
    #[arg(required = true, value_name = "ADDRESS", value_parser = address)]
    addresses: Vec<PciAddress>,
    /// Take along what shares an IOMMU group with them
    #[arg(long)]
    group: bool,
    /// Take functions whose interfaces have routes, and functions that are no NICs
    #[arg(long)]
    force: bool,
    /// Make this user (name or number) the owner of the groups in /dev/vfio
    #[arg(long, value_name = "USER")]
    user: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Arguments of `pollring unbind`.
#[derive(clap::Args)]
pub(crate) struct UnbindArguments {
    /// PCI addresses, as `0000:01:00.0`; `pollring devices` lists them
    #[arg(required = true, value_name = "ADDRESS", value_parser = address)]
    addresses: Vec<PciAddress>,
    /// The kernel driver that gets them; left out, the one that had them
    #[arg(long, value_name = "NAME")]
    driver: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A function that VFIO has.
#[derive(Debug, Serialize)]
struct Taken {
    address: String,
    uri: String,
    group: u32,
    node: String,
    /// The kernel driver that had it.
    previous_driver: Option<String>,
    already_bound: bool,
    /// The user that may open it, when one was named.
    user: Option<String>,
}

/// A function that a kernel driver has, or none.
#[derive(Debug, Serialize)]
struct Given {
    address: String,
    driver: Option<String>,
    changed: bool,
}

#[derive(Debug, Serialize)]
struct Listing<T> {
    functions: Vec<T>,
}

/// An address, with or without the scheme of its port.
fn address(text: &str) -> Result<PciAddress, String> {
    let plain = text.strip_prefix("pci:").unwrap_or(text);
    plain.parse().map_err(|error: pollring::bus::BadPciAddress| error.to_string())
}

/// Binds functions to vfio-pci.
pub(crate) fn bind(arguments: &BindArguments) -> Result<(), AppError> {
    let sysfs = Sysfs::new();
    let user = arguments.user.as_deref().map(|name| sysfs.user(name)).transpose();
    let user = user.map_err(|error| AppError::Usage(format!("--user: {error}")))?;
    let addresses = match arguments.group {
        true => sysfs.with_groups(&arguments.addresses),
        false => arguments.addresses.clone(),
    };
    let force = if arguments.force { Force::Yes } else { Force::No };
    let bound = sysfs.bind_all(&addresses, force)?;
    for one in bound.iter().filter(|_| user.is_some()) {
        user.as_ref().map_or(Ok(()), |user| sysfs.give_group(one.address, one.group, user))?;
    }
    let functions = bound.iter().map(|one| Taken::new(one, user.as_ref())).collect();
    let listing = Listing { functions };
    match Format::from_switch(arguments.json) {
        Format::Json => output::write_json(&listing),
        Format::People => output::write_text(&told(&listing, user.as_ref())),
    }
}

impl Taken {
    fn new(bound: &Bound, user: Option<&User>) -> Taken {
        Taken {
            address: bound.address.to_string(),
            uri: format!("pci:{}", bound.address),
            group: bound.group,
            node: bound.node.display().to_string(),
            previous_driver: match &bound.before {
                Before::Driver(driver) => Some(driver.clone()),
                Before::AlreadyBound | Before::NoDriver => None,
            },
            already_bound: bound.before == Before::AlreadyBound,
            user: user.map(|user| user.name.clone()),
        }
    }

    fn told(&self) -> String {
        let how = match (&self.previous_driver, self.already_bound) {
            (_, true) => "was bound to vfio-pci already".to_owned(),
            (Some(driver), _) => format!("bound to vfio-pci; {driver} had it"),
            (None, _) => "bound to vfio-pci; no driver had it".to_owned(),
        };
        let owner =
            self.user.as_ref().map_or_else(String::new, |user| format!(", which belongs to {user} now"));
        format!("{}: {how}; IOMMU group {} is {}{owner}\n", self.address, self.group, self.node)
    }
}

/// What a user needs beside the node. Memory in a memfd needs no mount and no right on hugetlbfs.
fn told(listing: &Listing<Taken>, user: Option<&User>) -> String {
    let mut text: String = listing.functions.iter().map(Taken::told).collect();
    if let Some(user) = user.filter(|user| user.id != 0) {
        text.push_str(&format!(
            "\n{user} also needs a limit on locked memory that holds the packet memory: a line `{user} - memlock unlimited` in \
             /etc/security/limits.conf and a new login, or LimitMEMLOCK=infinity in the systemd unit\n"
        ));
    }
    let uris: Vec<&str> = listing.functions.iter().map(|one| &*one.uri).collect();
    text.push_str(&format!("\nOpen with: pollring forward {}\n", uris.join(" ")));
    let addresses: Vec<&str> = listing.functions.iter().map(|one| &*one.address).collect();
    text.push_str(&format!("Give back with: pollring unbind {}\n", addresses.join(" ")));
    text
}

/// Gives functions back to their kernel drivers.
pub(crate) fn unbind(arguments: &UnbindArguments) -> Result<(), AppError> {
    let sysfs = Sysfs::new();
    let to = arguments.driver.clone().map_or(GiveTo::Remembered, GiveTo::Driver);
    let (mut functions, mut failed) = (Vec::new(), Vec::new());
    for address in &arguments.addresses {
        match sysfs.unbind(*address, &to) {
            Ok(released) => functions.push(Given::new(&released)),
            Err(error) => failed.push(error),
        }
    }
    let listing = Listing { functions };
    match Format::from_switch(arguments.json) {
        Format::Json => output::write_json(&listing)?,
        Format::People => output::write_text(&listing.functions.iter().map(Given::told).collect::<String>())?,
    }
    // One error keeps its kind, which decides the exit status.
    match failed.len() {
        0 => Ok(()),
        1 => Err(failed.remove(0).into()),
        _ => Err(AppError::Failed(failed.iter().map(ToString::to_string).collect())),
    }
}

impl Given {
    fn new(released: &Released) -> Given {
        Given {
            address: released.address.to_string(),
            driver: released.driver.clone(),
            changed: released.changed == Changed::Yes,
        }
    }

    fn told(&self) -> String {
        let driver = self.driver.as_deref();
        match (driver, self.changed) {
            (Some(driver), true) => format!("{}: given back to {driver}\n", self.address),
            (Some(driver), false) => format!("{}: {driver} has it already\n", self.address),
            (None, _) => format!("{}: given back; no driver has it, as before\n", self.address),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bound(before: Before) -> Bound {
        Bound { address: address("01:00.0").unwrap(), group: 7, node: "/dev/vfio/7".into(), before }
    }

    #[test]
    fn addresses_may_be_ports() {
        assert_eq!(address("pci:0000:01:00.0"), address("01:00.0"));
        assert!(address("eth0").unwrap_err().contains("lspci -D"));
    }

    #[test]
    fn a_bound_function_says_how_it_was_and_what_comes_next() {
        let ada = User { id: 1000, name: "ada".into() };
        let functions = vec![
            Taken::new(&bound(Before::Driver("igb".into())), Some(&ada)),
            Taken::new(&bound(Before::AlreadyBound), None),
            Taken::new(&bound(Before::NoDriver), None),
        ];
        let listing = Listing { functions };
        let text = told(&listing, Some(&ada));
        for word in [
            "0000:01:00.0: bound to vfio-pci; igb had it; IOMMU group 7 is /dev/vfio/7, which belongs to ada now\n",
            "was bound to vfio-pci already",
            "no driver had it",
            "ada - memlock unlimited",
            "pollring forward pci:0000:01:00.0 pci:0000:01:00.0",
            "pollring unbind 0000:01:00.0",
        ] {
            assert!(text.contains(word), "{word}: {text}");
        }
        assert!(!told(&listing, None).contains("memlock"));
    }

    #[test]
    fn a_function_that_was_given_back_names_its_driver() {
        let told = |driver: Option<&str>, changed| {
            let address = address("01:00.0").unwrap();
            Given::new(&Released { address, driver: driver.map(str::to_owned), changed }).told()
        };
        assert_eq!(told(Some("igb"), Changed::Yes), "0000:01:00.0: given back to igb\n");
        assert!(told(Some("igb"), Changed::No).contains("igb has it already"));
        assert!(told(None, Changed::Yes).contains("no driver"));
    }
}
