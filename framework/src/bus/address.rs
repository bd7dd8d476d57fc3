//! PCI addresses, as lspci writes them.

use thiserror::Error;

/// A PCI address: domain, bus, device, function, as in `0000:01:00.0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PciAddress {
    /// Segment group.
    pub domain: u16,
    /// Bus number.
    pub bus: u8,
    /// Device number, 0 to 31.
    pub device: u8,
    /// Function number, 0 to 7.
    pub function: u8,
}

impl std::fmt::Display for PciAddress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

/// The text is not a PCI address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "`{0}` is not a PCI address; write it as in lspci -D: 0000:01:00.0 (domain:bus:device.function, in hex)"
)]
pub struct BadPciAddress(String);

impl std::str::FromStr for PciAddress {
    type Err = BadPciAddress;

    fn from_str(text: &str) -> Result<PciAddress, BadPciAddress> {
        let parse = || {
            let (rest, function) = text.rsplit_once('.')?;
            let mut fields = rest.rsplit(':');
            let device = u8::from_str_radix(fields.next()?, 16).ok().filter(|device| *device < 32)?;
            let bus = u8::from_str_radix(fields.next()?, 16).ok()?;
            let domain = fields.next().map_or(Some(0), |domain| u16::from_str_radix(domain, 16).ok())?;
            let function = u8::from_str_radix(function, 16).ok().filter(|function| *function < 8)?;
            fields.next().is_none().then_some(PciAddress { domain, bus, device, function })
        };
        parse().ok_or_else(|| BadPciAddress(text.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_read_and_print_as_lspci_does() {
        let address: PciAddress = "0000:0a:1f.7".parse().unwrap();
        assert_eq!(address, PciAddress { domain: 0, bus: 10, device: 31, function: 7 });
        assert_eq!(address.to_string(), "0000:0a:1f.7");
        assert_eq!("01:00.0".parse::<PciAddress>().unwrap().to_string(), "0000:01:00.0");
        for bad in ["", "01", "01:00", "01:20.0", "01:00.8", "x:01:00.0", "0:0:0:0.0", "01:00.", "eth0"] {
            assert!(bad.parse::<PciAddress>().is_err(), "{bad}");
        }
    }
}
