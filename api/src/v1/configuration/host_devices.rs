//! Devices of the nodes that guests may have.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Mediated devices (such as vGPUs) to create on the nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MediatedDevicesConfiguration {
    /// False leaves creating and removing mediated devices to other programs; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Types to create on nodes without an entry of their own, as named in sysfs, for example `nvidia-222`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mediated_device_types: Vec<String>,
    /// Deprecated: use `mediatedDeviceTypes`. Read only where that is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mediated_devices_types: Vec<String>,
    /// Types for chosen nodes, instead of the general ones. A node that several entries match gets the types
    /// of all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_mediated_device_types: Vec<NodeMediatedDeviceTypesConfig>,
}

/// A type of mediated device that guests may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MediatedHostDevice {
    /// True if another device plugin hands the devices out; default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_resource_provider: Option<bool>,
    /// Name of the type as sysfs shows it, for example `GRID T4-1Q`. Spaces do not matter.
    pub mdev_name_selector: String,
    /// Resource that pods request for one device, for example `nvidia.com/GRID_T4-1Q`.
    pub resource_name: String,
}

/// Mediated devices to create on certain nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeMediatedDeviceTypesConfig {
    /// Types to create there, as named in sysfs, for example `nvidia-222`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mediated_device_types: Vec<String>,
    /// Deprecated: use `mediatedDeviceTypes`. Read only where that is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mediated_devices_types: Vec<String>,
    /// Labels a node must have, all of them, for the entry to count.
    pub node_selector: BTreeMap<String, String>,
}

/// A kind of PCI device that guests may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PciHostDevice {
    /// True if another device plugin hands the devices out; default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_resource_provider: Option<bool>,
    /// Vendor and device number in hexadecimal, `vendor:device`, for example `10DE:1EB8`.
    pub pci_vendor_selector: String,
    /// Resource that pods request for one device, for example `nvidia.com/TU104GL_Tesla_T4`.
    pub resource_name: String,
}

/// Devices of the nodes that may be passed to guests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PermittedHostDevices {
    /// Mediated devices, such as vGPUs; QEMU's `vfio-pci` with a `sysfsdev`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub mediated_devices: Vec<MediatedHostDevice>,
    /// Whole PCI devices or functions; QEMU's `vfio-pci`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pci_host_devices: Vec<PciHostDevice>,
    /// USB devices; QEMU's `usb-host`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub usb: Vec<UsbHostDevice>,
}

/// A set of USB devices that guests may use together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsbHostDevice {
    /// True if another device plugin hands the devices out; default false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub external_resource_provider: Option<bool>,
    /// Resource that pods request for the set, for example `kubevirt.io/storage`.
    pub resource_name: String,
    /// The devices of the set; a guest gets one for each entry.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selectors: Vec<UsbSelector>,
}

/// Numbers of a USB device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UsbSelector {
    /// Product number, four hexadecimal digits, for example `7777`.
    pub product: String,
    /// Vendor number, four hexadecimal digits, for example `46f4`.
    pub vendor: String,
}
