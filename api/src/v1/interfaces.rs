//! Network interfaces of the guest.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A network interface of the guest, on the network of the same name. Exactly one binding is given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    /// Name of the interface and of its network.
    pub name: String,
    /// Device model: `virtio` (default), `e1000`, `e1000e`, `igb`, `ne2k_pci`, `pcnet` or `rtl8139`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The guest has a private address and shares the pod's by translation. Only on the pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub masquerade: Option<InterfaceMasquerade>,
    /// The guest is connected to the network by a bridge. On the pod network it takes over the pod's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridge: Option<InterfaceBridge>,
    /// Ports that reach the guest; all of them when the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
    /// The guest's hardware address; derived from the instance when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mac_address: Option<String>,
    /// Place in the boot order, from 1; unique among disks and interfaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_order: Option<i32>,
    /// What DHCP gives the guest beyond its address.
    #[serde(rename = "dhcpOptions", default, skip_serializing_if = "Option::is_none")]
    pub dhcp_options: Option<DhcpOptions>,
    /// Number from 1 to 16383, unique in the machine, by which guests name the interface (`eno<N>`) whatever
    /// its PCI slot (`acpi-index=`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acpi_index: Option<i32>,
    /// Connects the interface by a binding plugin instead of a built-in binding.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub binding: Option<PluginBinding>,
    /// Deprecated: the binding was removed from KubeVirt in v1.3; a plugin takes its place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub macvtap: Option<DeprecatedInterfaceMacvtap>,
    /// Deprecated: the binding was removed from KubeVirt in v1.3; use `passtBinding`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passt: Option<DeprecatedInterfacePasst>,
    /// Connects through a passt process in user space, which needs no bridge or tap device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub passt_binding: Option<InterfacePasstBinding>,
    /// Fixed PCI address in the guest, such as `0000:81:01.0`. Chosen automatically when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci_address: Option<String>,
    /// Ranges of ports that reach the guest, for `masquerade` only. Not together with `ports`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub port_ranges: Vec<PortRange>,
    /// Deprecated: the binding was removed from KubeVirt in v1.3.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slirp: Option<DeprecatedInterfaceSlirp>,
    /// Hands the guest a virtual function of an SR-IOV card (`vfio-pci`), with no host networking between.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sriov: Option<InterfaceSriov>,
    /// Wanted state: `up` (default) or `down` for the link (QMP `set_link`), `absent` to unplug the interface
    /// from the running machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Free text listed with the interface's address in the device metadata of the cloud-init config drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// The masquerade binding; it has no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceMasquerade {}

/// The bridge binding; it has no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct InterfaceBridge {}

/// A port that reaches the guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Port {
    /// A name for it, unique in the interface.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// `TCP` (default) or `UDP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
    /// Its number, 1 to 65535; the same inside and outside.
    pub port: i32,
}

/// What DHCP gives the guest beyond its address.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DhcpOptions {
    /// Boot file (option 67).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub boot_file_name: Option<String>,
    /// TFTP server (option 66).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tftp_server_name: Option<String>,
    /// Time servers (option 42), IPv4 addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ntp_servers: Vec<String>,
    /// Options for private use.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub private_options: Vec<DhcpPrivateOption>,
}

/// A DHCP option for private use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DhcpPrivateOption {
    /// Its number, 224 to 254.
    pub option: i32,
    /// Its value, sent as it is.
    pub value: String,
}

/// Deprecated: removed from KubeVirt in v1.3.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeprecatedInterfaceMacvtap {}

/// Deprecated: removed from KubeVirt in v1.3.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeprecatedInterfacePasst {}

/// Deprecated: removed from KubeVirt in v1.3.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DeprecatedInterfaceSlirp {}

/// Presence selects passt; there are no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfacePasstBinding {}

/// Presence selects SR-IOV; there are no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InterfaceSriov {}

/// Choice of a binding plugin.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PluginBinding {
    /// Key of the plugin in the cluster configuration, under `network.binding`.
    pub name: String,
}

/// Consecutive ports of one protocol to be reached from outside.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PortRange {
    /// Last port, 1 to 65535; not below `start`.
    pub end: i32,
    /// `TCP` or `UDP`.
    pub protocol: String,
    /// First port, 1 to 65535.
    pub start: i32,
}
