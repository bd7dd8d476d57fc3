//! Names of ports: `SCHEME:REST`, as the user writes them.
//!
//! A name is parsed once, before anything is opened. Today only simulated devices open; the other schemes of the design are
//! known by name and refused, so that nobody takes a typing error for a missing feature or the other way round.

use pollring::bus::{BadPciAddress, PciAddress};
use std::str::FromStr;
use thiserror::Error;

/// What opens in this version, for error texts and `pollring devices`.
pub(crate) const SIMULATED_FORMS: &[(&str, &str)] = &[
    ("sim:igb", "software model of an Intel 82576 (8086:10c9)"),
    (
        "sim:igb,seed=N,delay=N",
        "the same with write-backs late by up to N steps, in an order that the seed decides",
    ),
];

/// Schemes of later versions, and what each needs.
const LATER: &[(&str, &str)] = &[
    ("pci", "PCI functions need VFIO"),
    ("vfio-user", "devices of another process need the vfio-user client"),
    ("vhost-user", "ports of a virtual machine need the vhost-user front end"),
    ("memif", "shared-memory ports need memif"),
    ("tap", "TAP interfaces need their port"),
    ("af_packet", "kernel interfaces need their packet-socket port"),
    ("pcap", "capture files need the pcap port"),
    ("null", "the null port is not written yet"),
    ("ring", "ports between two programs need the ring port"),
];

/// A port that can be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SimulatedIgb {
    /// The name as the user wrote it.
    pub(crate) uri: String,
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
    #[error(
        "port `{0}` is a PCI address without a scheme; write `pci:{0}` (from the version that has VFIO), or `sim:igb` now"
    )]
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

/// Steps that a write-back may be late.
const MOST_DELAY_STEPS: u32 = 1000;

fn schemes() -> String {
    let later: Vec<&str> = LATER.iter().map(|(scheme, _)| *scheme).collect();
    format!("sim; in later versions also {}", later.join(", "))
}

impl FromStr for SimulatedIgb {
    type Err = UriError;

    fn from_str(uri: &str) -> Result<SimulatedIgb, UriError> {
        if let Ok(address) = uri.parse() {
            return Err(UriError::BareAddress(address));
        }
        let (scheme, rest) = uri.split_once(':').ok_or_else(|| UriError::NoScheme { uri: uri.to_owned() })?;
        match scheme {
            "sim" => simulated(uri, rest),
            "pci" => {
                let _: PciAddress = rest.parse()?;
                later(uri, scheme)
            }
            _ => later(uri, scheme),
        }
    }
}

fn later(uri: &str, scheme: &str) -> Result<SimulatedIgb, UriError> {
    let (uri, scheme) = (uri.to_owned(), scheme.to_owned());
    Err(match LATER.iter().find(|(name, _)| *name == scheme) {
        Some((_, needs)) => UriError::NotInThisVersion { uri, needs },
        None => UriError::UnknownScheme { uri, scheme },
    })
}

fn simulated(uri: &str, rest: &str) -> Result<SimulatedIgb, UriError> {
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
    Ok(SimulatedIgb { uri: uri.to_owned(), seed, delay_steps: delay.unwrap_or(0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_of(uri: &str) -> String {
        uri.parse::<SimulatedIgb>().unwrap_err().to_string()
    }

    #[test]
    fn simulated_devices_take_options_in_any_order() {
        let plain = SimulatedIgb { uri: "sim:igb".into(), seed: None, delay_steps: 0 };
        assert_eq!("sim:igb".parse::<SimulatedIgb>().unwrap(), plain);
        let odd = "sim:igb,delay=9,seed=18446744073709551615".parse::<SimulatedIgb>().unwrap();
        assert_eq!((odd.seed, odd.delay_steps), (Some(u64::MAX), 9));
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
        for (scheme, needs) in LATER.iter().filter(|(scheme, _)| *scheme != "pci") {
            let text = text_of(&format!("{scheme}:x"));
            assert!(text.contains("not in this version") && text.contains(needs), "{text}");
        }
        assert!(text_of("pci:0000:01:00.0").contains("VFIO"));
        assert!(text_of("pci:zebra").contains("lspci"));
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
