//! Names of ports: `SCHEME:REST`, as the user writes them.
//!
//! A name is parsed once, before anything is opened. PCI functions, simulated devices and those of other processes open; the other
//! schemes of the design are known by name and refused, so that nobody takes a typing error for a missing feature or the other way round.

use crate::error::AppError;
use pollring::bus::vfio_user::Peer;
use pollring::bus::{BadPciAddress, Device, PciAddress};
use pollring::iova::AddressSpace;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thiserror::Error;

/// What opens without any device, for error texts and `pollring devices`.
pub(crate) const SIMULATED_FORMS: &[(&str, &str)] = &[
    ("sim:igb", "software model of an Intel 82576 (8086:10c9)"),
    (
        "sim:igb,seed=N,delay=N",
        "the same with write-backs late by up to N steps, in an order that the seed decides",
    ),
];

/// Schemes of later versions, and what each needs.
const LATER: &[(&str, &str)] = &[
    ("memif", "shared-memory ports need memif"),
    ("tap", "TAP interfaces need their port"),
    ("af_packet", "kernel interfaces need their packet-socket port"),
    ("pcap", "capture files need the pcap port"),
    ("null", "the null port is not written yet"),
    ("ring", "ports between two programs need the ring port"),
];

/// A port that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortName {
    /// The name, as the user wrote it but for a PCI address, which is written out.
    pub(crate) uri: String,
    /// What it names.
    pub(crate) target: Target,
}

/// What a name stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// A PCI function, through VFIO.
    Pci(PciAddress),
    /// A software device of this process.
    Simulated(SimulatedIgb),
    /// A backend of a virtual switch, by its socket.
    VhostUser(VhostUserName),
    /// A PCI function that another process serves, by its socket.
    VfioUser(PathBuf),
}

/// A vhost-user backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VhostUserName {
    /// Its socket.
    pub(crate) path: PathBuf,
    /// Queue pairs, if the name says how many.
    pub(crate) queues: Option<usize>,
    /// Whether the queues are packed ones.
    pub(crate) packed: bool,
}

/// A software igb.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SimulatedIgb {
    /// Decides the order of late write-backs; `None` takes the run's seed.
    pub(crate) seed: Option<u64>,
    /// Steps by which a write-back is late at most; 0 writes back at once.
    pub(crate) delay_steps: u32,
}

/// Why a name is not a port.
#[derive(Debug, Error)]
pub(crate) enum UriError {
    /// No `SCHEME:`.
    #[error("port `{uri}` has no scheme; write SCHEME:NAME, for instance `sim:igb`; schemes: {}", schemes())]
    NoScheme {
        /// The whole name.
        uri: String,
    },
    /// A PCI address without its scheme.
    #[error("port `{0}` is a PCI address without a scheme; write `pci:{0}`")]
    BareAddress(PciAddress),
    /// A scheme that does not exist.
    #[error("port `{uri}`: there is no scheme `{scheme}`; schemes: {}", schemes())]
    UnknownScheme {
        /// The whole name.
        uri: String,
        /// What stands before the colon.
        scheme: String,
    },
    /// A scheme that the design has and this version has not.
    #[error(
        "port `{uri}` is not in this version: {needs}, which it does not have; use `sim:igb`, see `pollring devices`"
    )]
    NotInThisVersion {
        /// The whole name.
        uri: String,
        /// What it needs.
        needs: &'static str,
    },
    /// Behind `pci:` stands something else.
    #[error("port `pci:...`: {0}")]
    Address(#[from] BadPciAddress),
    /// A model that the simulator has not.
    #[error("port `{uri}`: the simulator has no model `{model}`; it has: igb")]
    UnknownModel {
        /// The whole name.
        uri: String,
        /// What stands behind `sim:`.
        model: String,
    },
    /// Behind `vfio-user:` stands no path.
    #[error("port `{0}` names no socket; write vfio-user:/path/of/socket")]
    NoSocket(String),
    /// Behind `vhost-user:` stands no path, or an option that it has not.
    #[error(
        "port `{uri}`: `{option}` is no part of it; write vhost-user:/path/of/socket, then queues=N (1 to 64) or packed, each once"
    )]
    BadVhostOption {
        /// The whole name.
        uri: String,
        /// The option with its value.
        option: String,
    },
    /// An option that the model has not, or a value that it cannot have.
    #[error(
        "port `{uri}`: `{option}` is no option of sim:igb; write seed=N (0 to 2^64-1) or delay=N (0 to 1000 steps), each once"
    )]
    BadOption {
        /// The whole name.
        uri: String,
        /// The option with its value.
        option: String,
    },
}

/// Parses what stands behind `vhost-user:`.
fn vhost_user(uri: &str, rest: &str) -> Result<PortName, UriError> {
    let mut parts = rest.split(',');
    let path = parts.next().unwrap_or_default();
    let mut name = VhostUserName { path: PathBuf::from(path), queues: None, packed: false };
    let bad = |option: &str| UriError::BadVhostOption { uri: uri.to_owned(), option: option.to_owned() };
    if path.is_empty() {
        return Err(bad(path));
    }
    for option in parts {
        match option.split_once('=') {
            None if option == "packed" && !name.packed => name.packed = true,
            Some(("queues", value)) if name.queues.is_none() => {
                let queues = value.parse().ok().filter(|queues| (1..=64).contains(queues));
                name.queues = Some(queues.ok_or_else(|| bad(option))?);
            }
            _ => return Err(bad(option)),
        }
    }
    Ok(PortName { uri: uri.to_owned(), target: Target::VhostUser(name) })
}

/// Opens the function that another process serves at `path`, in a space of its own: a port or an engine, as its driver says.
///
/// # Errors
/// Nobody listens, or the peer does not do its part.
pub(crate) fn open_vfio_user(uri: &str, path: &Path) -> Result<(Device, AddressSpace), AppError> {
    let peer = Peer::connect(path)?;
    let space = AddressSpace::new(uri, peer.clone());
    Ok((Device::open(uri, peer.open()?)?, space))
}

/// Steps that a write-back may be late.
const MOST_DELAY_STEPS: u32 = 1000;

fn schemes() -> String {
    let later: Vec<&str> = LATER.iter().map(|(scheme, _)| *scheme).collect();
    format!("pci, sim, vfio-user, vhost-user; in later versions also {}", later.join(", "))
}

impl FromStr for PortName {
    type Err = UriError;

    fn from_str(uri: &str) -> Result<PortName, UriError> {
        if let Ok(address) = uri.parse() {
            return Err(UriError::BareAddress(address));
        }
        let (scheme, rest) = uri.split_once(':').ok_or_else(|| UriError::NoScheme { uri: uri.to_owned() })?;
        match scheme {
            "sim" => simulated(uri, rest),
            "vhost-user" => vhost_user(uri, rest),
            "vfio-user" if rest.is_empty() => Err(UriError::NoSocket(uri.to_owned())),
            "vfio-user" => Ok(PortName { uri: uri.to_owned(), target: Target::VfioUser(rest.into()) }),
            "pci" => {
                let address: PciAddress = rest.parse()?;
                Ok(PortName { uri: format!("pci:{address}"), target: Target::Pci(address) })
            }
            _ => later(uri, scheme),
        }
    }
}

fn later(uri: &str, scheme: &str) -> Result<PortName, UriError> {
    let (uri, scheme) = (uri.to_owned(), scheme.to_owned());
    Err(match LATER.iter().find(|(name, _)| *name == scheme) {
        Some((_, needs)) => UriError::NotInThisVersion { uri, needs },
        None => UriError::UnknownScheme { uri, scheme },
    })
}

fn simulated(uri: &str, rest: &str) -> Result<PortName, UriError> {
    let mut parts = rest.split(',');
    let model = parts.next().unwrap_or_default();
    if model != "igb" {
        return Err(UriError::UnknownModel { uri: uri.to_owned(), model: model.to_owned() });
    }
    let (mut seed, mut delay) = (None, None);
    for option in parts {
        let known = match option.split_once('=') {
            Some(("seed", value)) if seed.is_none() => value.parse().ok().map(|value| seed = Some(value)),
            Some(("delay", value)) if delay.is_none() => {
                value.parse().ok().filter(|steps| *steps <= MOST_DELAY_STEPS).map(|steps| delay = Some(steps))
            }
            _ => None,
        };
        known.ok_or_else(|| UriError::BadOption { uri: uri.to_owned(), option: option.to_owned() })?;
    }
    let device = SimulatedIgb { seed, delay_steps: delay.unwrap_or(0) };
    Ok(PortName { uri: uri.to_owned(), target: Target::Simulated(device) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(uri: &str) -> String {
        uri.parse::<PortName>().unwrap_err().to_string()
    }

    #[test]
    fn simulated_devices_take_options_in_any_order() {
        let named = |uri: &str| uri.parse::<PortName>().unwrap();
        let plain = Target::Simulated(SimulatedIgb { seed: None, delay_steps: 0 });
        assert_eq!(named("sim:igb"), PortName { uri: "sim:igb".into(), target: plain });
        let odd = Target::Simulated(SimulatedIgb { seed: Some(u64::MAX), delay_steps: 9 });
        assert_eq!(named("sim:igb,delay=9,seed=18446744073709551615").target, odd);
    }

    #[test]
    fn options_that_do_not_exist_are_named() {
        for option in ["seed", "seed=", "seed=-1", "seed=x", "delay=1001", "delay=1.5", "colour=red", ""] {
            let text = text_of(&format!("sim:igb,{option}"));
            assert!(text.contains(&format!("`{option}`")) && text.contains("delay=N"), "{text}");
        }
        assert!(text_of("sim:igb,seed=1,seed=2").contains("`seed=2`"));
        assert!(text_of("sim:e1000").contains("no model `e1000`"));
        assert!(text_of("sim:").contains("it has: igb"));
    }

    #[test]
    fn later_schemes_are_refused_by_name() {
        for (scheme, needs) in LATER {
            let text = text_of(&format!("{scheme}:x"));
            assert!(text.contains("not in this version") && text.contains(needs), "{text}");
        }
        assert!(text_of("pci:zebra").contains("lspci"));
    }

    #[test]
    fn pci_functions_are_written_out() {
        let short = "pci:01:00.0".parse::<PortName>().unwrap();
        assert_eq!(short, "pci:0000:01:00.0".parse().unwrap());
        assert_eq!(short.uri, "pci:0000:01:00.0");
    }

    #[test]
    fn backends_are_named_by_their_socket() {
        let target = |uri: &str| uri.parse::<PortName>().unwrap().target;
        let name = |queues, packed| VhostUserName { path: PathBuf::from("/tmp/a b"), queues, packed };
        assert_eq!(target("vhost-user:/tmp/a b"), Target::VhostUser(name(None, false)));
        assert_eq!(target("vhost-user:/tmp/a b,packed,queues=2"), Target::VhostUser(name(Some(2), true)));
        for option in ["queues=0", "queues=65", "queues", "packed=1", ""] {
            assert!(text_of(&format!("vhost-user:/s,{option}")).contains(&format!("`{option}`")));
        }
        assert!(text_of("vhost-user:").contains("vhost-user:/path"));
        assert_eq!(target("vfio-user:/tmp/a,b"), Target::VfioUser(PathBuf::from("/tmp/a,b")));
        assert!(text_of("vfio-user:").contains("vfio-user:/path"));
    }

    #[test]
    fn what_is_no_scheme_lists_those_that_are() {
        assert!(text_of("eth0").contains("no scheme"));
        assert!(text_of("").contains("sim:igb"));
        assert!(text_of("dpdk:0").contains("there is no scheme `dpdk`"));
        assert!(text_of("dpdk:0").contains("af_packet"));
        assert!(text_of("0000:01:00.0").contains("`pci:0000:01:00.0`"));
    }
}
