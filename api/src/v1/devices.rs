//! `spec.domain.devices`.

use super::{Disk, Interface};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Devices of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Devices {
    /// Disks and CD drives; each takes its contents from the volume of the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub disks: Vec<Disk>,
    /// Network interfaces; each is connected to the network of the same name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub interfaces: Vec<Interface>,
    /// A source of randomness for the guest (virtio-rng).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rng: Option<Rng>,
    /// Whether there is a screen, reached by VNC; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoattach_graphics_device: Option<bool>,
    /// Whether there is a serial console; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoattach_serial_console: Option<bool>,
    /// Whether there is a memory balloon, which reports the guest's memory use; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoattach_mem_balloon: Option<bool>,
    /// Whether an instance without interfaces and networks gets one on the pod network; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoattach_pod_interface: Option<bool>,
}

/// A source of randomness; it has no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rng {}
