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
    /// Adds ACPI tables with licence data to those QEMU makes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acpi: Option<Acpi>,
    /// Starts a kernel directly, without a boot loader on disk (`-kernel`, `-initrd`, `-append`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_boot: Option<KernelBoot>,
}

/// What boots the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Bootloader {
    /// SeaBIOS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bios: Option<Bios>,
    /// Boots by UEFI firmware instead of BIOS, from two flash images: code and variables.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub efi: Option<Efi>,
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

/// Extra ACPI tables with a Windows licence of the vendor, taken from Secret volumes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Acpi {
    /// Name of a Secret volume holding the binary MSDM table, the product key since Windows 8 (`-acpitable`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub msdm_name_ref: Option<String>,
    /// Name of a Secret volume holding the binary SLIC table, the licence of older Windows (`-acpitable`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slic_name_ref: Option<String>,
}

/// Enclosure data for the guest's SMBIOS (`-smbios type=3`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Chassis {
    /// Asset tag of the enclosure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub asset: Option<String>,
    /// Maker of the enclosure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub manufacturer: Option<String>,
    /// Serial number of the enclosure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Stock keeping number of the enclosure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sku: Option<String>,
    /// Version of the enclosure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
}

/// UEFI firmware, and whether its variables are kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Efi {
    /// Keeps UEFI variables, such as boot entries, on the state volume from one start to the next; false when
    /// not given: each start has fresh ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
    /// Runs only signed boot loaders, with firmware made for it; true when not given, false on arm64. On x86
    /// `features.smm` must be on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secure_boot: Option<bool>,
}

/// Direct start of a kernel from a container image.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KernelBoot {
    /// Image the kernel and the initial RAM disk are taken from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<KernelBootContainer>,
    /// Kernel command line (`-append`). Only together with a kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_args: Option<String>,
}

/// Where kernel and initial RAM disk lie. At least one of the two paths is needed.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KernelBootContainer {
    /// Reference of the container image with the files.
    pub image: String,
    /// When the node pulls the image: `Always` (default for tag `latest`), `IfNotPresent` (default otherwise)
    /// or `Never`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
    /// Name of an existing Secret in the namespace with the registry's credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image_pull_secret: Option<String>,
    /// Absolute path, inside the image, of the initial RAM disk (`-initrd`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initrd_path: Option<String>,
    /// Absolute path, inside the image, of the kernel (`-kernel`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel_path: Option<String>,
}
