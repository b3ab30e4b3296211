//! Firmware: identity of the machine and what boots it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Identity of the machine and what boots it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Firmware {
    /// SMBIOS system UUID. Derived from the instance's name and namespace when not given, so a restart keeps it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// SMBIOS system serial number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// What boots the machine; BIOS when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bootloader: Option<Bootloader>,
}

/// What boots the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bootloader {
    /// SeaBIOS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bios: Option<Bios>,
}

/// Settings of the BIOS.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bios {
    /// The BIOS writes to the serial port and not to the screen (QEMU's `-machine graphics=off`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_serial: Option<bool>,
}

impl Bios {
    /// Whether the BIOS writes to the serial port.
    pub fn uses_serial(&self) -> bool {
        self.use_serial.unwrap_or(false)
    }
}
