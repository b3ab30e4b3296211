//! The address of a PCI function of a node, as `0000:65:00.0`. Such addresses come from variables and
//! annotations that others write, and become part of QEMU's command line: any other text is refused.

use crate::pci::{self, Place};
use std::fmt::{Display, Formatter};
use std::str::FromStr;

/// Slots of a bus.
const SLOTS: u16 = 32;

/// The address of a PCI function.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PciAddress {
    domain: u16,
    place: Place,
}

/// The text is not the address of a PCI function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a PCI address, as 0000:65:00.0")]
pub struct NotPciAddress;

impl FromStr for PciAddress {
    type Err = NotPciAddress;

    fn from_str(text: &str) -> Result<Self, NotPciAddress> {
        let (domain, place) = pci::parse(text).ok_or(NotPciAddress)?;
        if place.slot < SLOTS { Ok(PciAddress { domain, place }) } else { Err(NotPciAddress) }
    }
}

impl Display for PciAddress {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let PciAddress { domain, place } = self;
        write!(f, "{domain:04x}:{place}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_address_is_read() {
        for text in ["0000:65:00.0", "ffff:ff:1f.7"] {
            assert_eq!(text.parse::<PciAddress>().unwrap().to_string(), text);
        }
        assert_eq!("0000:AB:00.0".parse::<PciAddress>().unwrap().to_string(), "0000:ab:00.0");
        for wrong in [
            "",
            "65:00.0",
            "0000:65:20.0",
            "0000:65:00.8",
            "0000:65:00.0,display=on",
            "0000:65:00.0\n",
            " 0000:65:00.0",
            "../../0000:65",
        ] {
            assert_eq!(wrong.parse::<PciAddress>(), Err(NotPciAddress), "{wrong:?}");
        }
    }
}
