//! `spec.domain.devices`.

use super::{Disk, FeatureState, Filesystem, Interface};
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
    /// Adds a tablet when `inputs` is empty, for an exact pointer over VNC; false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub autoattach_input_device: Option<bool>,
    /// Adds a vsock with a context id unique in the cluster (`vhost-vsock-pci,guest-cid=`); false when not
    /// given.
    #[serde(rename = "autoattachVSOCK", default, skip_serializing_if = "Option::is_none")]
    pub autoattach_vsock: Option<bool>,
    /// Gives virtio disks one queue per vCPU (`num-queues=`); false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_multi_queue: Option<bool>,
    /// Adds four USB slots into which a remote client can redirect its devices (`usb-redir`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_passthrough: Option<ClientPassthroughDevices>,
    /// Leaves out what is needed to plug in disks while the machine runs; false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disable_hotplug: Option<bool>,
    /// Adds a serial port on which the guest can ask for host metrics (`virtserialport`, name
    /// `org.github.vhostmd.1`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub downward_metrics: Option<DownwardMetrics>,
    /// Volumes shared with the guest as file systems rather than disks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub filesystems: Vec<Filesystem>,
    /// GPUs and virtual GPUs handed to the guest (`vfio-pci`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<Gpu>,
    /// Other host devices handed to the guest: PCI and mediated (`vfio-pci`) or USB (`usb-host`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub host_devices: Vec<HostDevice>,
    /// Pointing devices of the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub inputs: Vec<Input>,
    /// Copies serial console output to the log of the pod's container `guest-console-log`; the cluster's
    /// setting when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_serial_console: Option<bool>,
    /// Gives virtio interfaces one queue pair per vCPU (`queues=`, `mq=on`); false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_interface_multiqueue: Option<bool>,
    /// Devices by which a crashing guest kernel reports it; QEMU then sends the event `GUEST_PANICKED`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub panic_devices: Vec<PanicDevice>,
    /// Adds a sound card; there is none when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sound: Option<SoundDevice>,
    /// Adds a TPM 2.0, emulated by swtpm (`-tpmdev emulator`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tpm: Option<TpmDevice>,
    /// Makes virtio devices speak virtio 0.9 too, for very old guests (`-transitional` device variants);
    /// false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub use_virtio_transitional: Option<bool>,
    /// Selects the graphics card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub video: Option<VideoDevice>,
    /// Adds a watchdog, which acts when the guest stops feeding it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub watchdog: Option<Watchdog>,
}

/// A source of randomness; it has no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rng {}

/// Presence adds the USB redirection slots; there are no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClientPassthroughDevices {}

impl ClientPassthroughDevices {
    /// Number of slots.
    pub const SLOTS: usize = 4;
}

/// Watchdog of s390x machines (`-device diag288`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Diag288Watchdog {
    /// What happens when it expires: `poweroff`, `reset` (default) or `shutdown` (`-action watchdog=`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
}

/// Presence adds the metrics port; there are no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DownwardMetrics {}

/// One GPU of the node for the guest, found by device plugin or by resource claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gpu {
    /// Entry of the instance's `resourceClaims` that holds the device; goes with `requestName`, instead of
    /// `deviceName`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// Resource name under which a device plugin offers the GPU, such as `nvidia.com/TU104GL_Tesla_T4`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// Name of this entry, unique among the machine's GPUs.
    pub name: String,
    /// Request inside the resource claim whose device is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_name: Option<String>,
    /// Free text listed with the GPU's address in the device metadata of the cloud-init config drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Display settings; only for a mediated device (vGPU).
    #[serde(rename = "virtualGPUOptions", default, skip_serializing_if = "Option::is_none")]
    pub virtual_gpu_options: Option<VgpuOptions>,
}

/// One device of the node for the guest, found by device plugin or by resource claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HostDevice {
    /// Entry of the instance's `resourceClaims` that holds the device; goes with `requestName`, instead of
    /// `deviceName`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub claim_name: Option<String>,
    /// Resource name under which a device plugin offers the device, such as `intel.com/qat`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_name: Option<String>,
    /// Name of this entry, unique among the machine's host devices.
    pub name: String,
    /// Request inside the resource claim whose device is taken.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_name: Option<String>,
    /// Free text listed with the device's address in the device metadata of the cloud-init config drive.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// PCI watchdog of Intel chipsets (`-device i6300esb`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct I6300EsbWatchdog {
    /// What happens when it expires: `poweroff`, `reset` (default) or `shutdown` (`-action watchdog=`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub action: Option<String>,
}

/// One input device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Input {
    /// Bus of the device: `usb` (default) or `virtio`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bus: Option<String>,
    /// Name of this entry, unique among the inputs.
    pub name: String,
    /// Kind of device; only `tablet`, a pointer with absolute coordinates (`usb-tablet` or
    /// `virtio-tablet-pci`).
    pub type_: String,
}

/// One device for crash reports of the guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PanicDevice {
    /// `isa` (`pvpanic`), `pvpanic` (PCI, `pvpanic-pci`) or `hyperv` (`-cpu hv-crash`). When not given, what
    /// fits the architecture.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
}

/// Sound card without an output on the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SoundDevice {
    /// `ich9` (default; `ich9-intel-hda`) or `ac97` (`AC97`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Name of the sound card.
    pub name: String,
}

/// Trusted platform module of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TpmDevice {
    /// Whether there is a TPM; true when not given. `false` refuses the one a preference would add.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Keeps the TPM's contents on the state volume from one start to the next, as disk encryption needs
    /// (`tpm-crb`); false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persistent: Option<bool>,
}

/// Screen output of a vGPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VgpuDisplayOptions {
    /// Whether the vGPU drives the machine's screen (`vfio-pci,display=on`); true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Shows a simple framebuffer until the guest's vGPU driver is loaded (`ramfb=on`); on when not given.
    #[serde(rename = "ramFB", default, skip_serializing_if = "Option::is_none")]
    pub ram_fb: Option<FeatureState>,
}

/// Settings that only vGPUs have.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VgpuOptions {
    /// Configures the screen output of the vGPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display: Option<VgpuDisplayOptions>,
}

/// Graphics card of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VideoDevice {
    /// `virtio`, `vga`, `bochs` or `ramfb`. When not given: on amd64 `vga` with BIOS and `bochs` with UEFI,
    /// `virtio` elsewhere.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
}

/// Watchdog device; give the member that fits the architecture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Watchdog {
    /// Watchdog of s390x.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diag288: Option<Diag288Watchdog>,
    /// PCI watchdog; taken on amd64 when no kind is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub i6300esb: Option<I6300EsbWatchdog>,
    /// Name of the watchdog.
    pub name: String,
}
