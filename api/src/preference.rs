//! `instancetype.kubevirt.io`: preferences, the settings that a guest system runs best with.

pub mod apply;
pub mod requirements;
pub mod topology;

use crate::v1::{
    BlockSize, ClockOffset, CpuFeature, Efi, FeatureApic, FeatureHyperv, FeatureKvm, FeatureState,
    InterfaceMasquerade, LaunchSecurity, Rng, Timer, TpmDevice, VgpuOptions,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Processors a VM has to bring before it may use the preference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CpuPreferenceRequirement {
    /// Least number of vCPUs; a VM with fewer is refused.
    pub guest: i64,
}

/// Processor layout and features suggested for VMs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CpuPreferences {
    /// CPU flags and their policies, added to `-cpu`. A flag the VM already names keeps the VM's policy.
    #[serde(rename = "preferredCPUFeatures", default, skip_serializing_if = "Vec::is_empty")]
    pub preferred_cpu_features: Vec<CpuFeature>,
    /// What the instance type's vCPUs become: `sockets` (default), `cores`, `threads`, `spread` or `any` (as
    /// `sockets`). `preferCores` and the like are old spellings.
    #[serde(rename = "preferredCPUTopology", default, skip_serializing_if = "Option::is_none")]
    pub preferred_cpu_topology: Option<String>,
    /// Fine tuning of the topology `spread`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread_options: Option<SpreadOptions>,
}

/// Guest clock settings for VMs that leave them out.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClockPreferences {
    /// Starting time of the guest clock, as UTC with an offset or as a time zone (`-rtc base=`). Used when
    /// the VM gives neither.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_clock_offset: Option<ClockOffset>,
    /// Timers of the guest, such as HPET, PIT, RTC and the kvm or Hyper-V clock. Replaced as a whole by the
    /// VM's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_timer: Option<Timer>,
}

/// Device settings filled in where a VM is silent. Apart from `preferredDisableHotplug` the VM's own value
/// wins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DevicePreferences {
    /// Whether a display reachable over VNC is added when the VM leaves `autoattachGraphicsDevice` out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_autoattach_graphics_device: Option<bool>,
    /// Whether a tablet is added when the VM leaves `autoattachInputDevice` out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_autoattach_input_device: Option<bool>,
    /// Whether a `virtio-balloon-pci` device is added when the VM leaves `autoattachMemBalloon` out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_autoattach_mem_balloon: Option<bool>,
    /// Whether a VM without interfaces is joined to the pod network when it leaves `autoattachPodInterface`
    /// out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_autoattach_pod_interface: Option<bool>,
    /// Whether a serial console is added when the VM leaves `autoattachSerialConsole` out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_autoattach_serial_console: Option<bool>,
    /// Gives virtio disks one queue per vCPU (`num-queues=`) when the VM leaves `blockMultiQueue` out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_block_multi_queue: Option<bool>,
    /// Bus for CD-ROM drives that name none: `sata` or `scsi`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_cdrom_bus: Option<String>,
    /// Turns off plugging of devices into a running guest. Overrides what the VM says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_disable_hotplug: Option<bool>,
    /// Logical and physical sector size for disks without one (`logical_block_size=`,
    /// `physical_block_size=`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_disk_block_size: Option<BlockSize>,
    /// Bus for disks that name none: `virtio`, `scsi`, `sata` or `usb`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_disk_bus: Option<String>,
    /// Cache mode for disks that name none: `none`, `writethrough` or `writeback`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_disk_cache: Option<String>,
    /// Gives each `virtio` disk an I/O thread of its own unless the disk decides otherwise. Other buses are
    /// left alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_disk_dedicated_io_thread: Option<bool>,
    /// Asynchronous I/O for disks that name none: `native` or `threads` (`aio=` on the block device).
    #[serde(rename = "preferredDiskIO", default, skip_serializing_if = "Option::is_none")]
    pub preferred_disk_io: Option<String>,
    /// Bus for input devices that name none: `usb` or `virtio`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_input_bus: Option<String>,
    /// Kind for input devices that name none; VMs accept only `tablet`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_input_type: Option<String>,
    /// Makes interfaces on the pod network that choose no binding use masquerade, that is NAT behind the
    /// pod's address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_interface_masquerade: Option<InterfaceMasquerade>,
    /// Network card for interfaces that name none, for example `virtio`, `e1000e` or `rtl8139`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_interface_model: Option<String>,
    /// Bus for LUN disks that name none: `scsi`, `sata` or `virtio`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_lun_bus: Option<String>,
    /// Gives virtio network cards one queue pair per vCPU (`queues=`) when the VM leaves
    /// `networkInterfaceMultiqueue` out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_network_interface_multi_queue: Option<bool>,
    /// Device by which the guest reports a crash: `hyperv`, `isa` or `pvpanic`. One is added if the VM has
    /// none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_panic_device_model: Option<String>,
    /// Entropy source for VMs without one: `virtio-rng-pci` fed from the node's random device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_rng: Option<Rng>,
    /// Sound card for VMs that ask for sound without naming a model: `ich9` or `ac97`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_sound_model: Option<String>,
    /// Emulated TPM for VMs that do not mention one; it may keep its state across restarts.
    #[serde(rename = "preferredTPM", default, skip_serializing_if = "Option::is_none")]
    pub preferred_tpm: Option<TpmDevice>,
    /// Chooses virtio devices that also speak the legacy protocol, for old guests (the `-transitional` device
    /// variants).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_use_virtio_transitional: Option<bool>,
    /// Graphics card for VMs that name none: `virtio`, `vga`, `bochs` or `ramfb`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_video_type: Option<String>,
    /// Has no effect. Meant as display settings of virtual GPUs.
    #[serde(rename = "preferredVirtualGPUOptions", default, skip_serializing_if = "Option::is_none")]
    pub preferred_virtual_gpu_options: Option<VgpuOptions>,
}

/// Platform features suggested for VMs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FeaturePreferences {
    /// Whether the guest gets ACPI tables (`acpi=` of `-machine`). Overrides what the VM says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_acpi: Option<FeatureState>,
    /// Local interrupt controller of the guest, if the VM does not configure it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_apic: Option<FeatureApic>,
    /// Hyper-V enlightenments for Windows guests (`hv-*` CPU flags), merged one by one into those of the VM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_hyperv: Option<FeatureHyperv>,
    /// KVM settings such as hiding the hypervisor from the guest (`kvm=off` on `-cpu`), if the VM gives none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_kvm: Option<FeatureKvm>,
    /// Paravirtual spinlocks (`kvm-pv-unhalt` on `-cpu`), if the VM does not decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_pvspinlock: Option<FeatureState>,
    /// System Management Mode (`smm=` of `-machine`), which Secure Boot needs, if the VM does not decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_smm: Option<FeatureState>,
}

/// Firmware for VMs that choose no boot loader.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FirmwarePreferences {
    /// Boots with UEFI, including its Secure Boot and persistence settings, unless the VM already chose BIOS
    /// or UEFI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_efi: Option<Efi>,
    /// When true boots with BIOS (SeaBIOS), unless the VM already chose BIOS or UEFI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_use_bios: Option<bool>,
    /// Whether BIOS messages also go to the serial port. Only with BIOS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_use_bios_serial: Option<bool>,
    /// Deprecated: use `preferredEfi`, which wins over it. When true boots with UEFI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_use_efi: Option<bool>,
    /// Deprecated: use `preferredEfi`. Whether UEFI enforces Secure Boot where the VM leaves it open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_use_secure_boot: Option<bool>,
}

/// Board emulated for VMs that name none.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MachinePreferences {
    /// Machine type, for example `q35`, for VMs without one. Becomes `-machine`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_machine_type: Option<String>,
}

/// Memory a VM has to bring before it may use the preference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MemoryPreferenceRequirement {
    /// Least guest RAM, for example `2Gi`; a VM with less is refused.
    pub guest: Quantity,
}

/// What a VM must meet to be admitted with the preference.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PreferenceRequirements {
    /// Only architecture allowed, such as `amd64`, `arm64` or `s390x`; any when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Lower bound for vCPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuPreferenceRequirement>,
    /// Lower bound for guest RAM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemoryPreferenceRequirement>,
}

/// How the topology `spread` divides vCPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpreadOptions {
    /// Levels that share the vCPUs: `SocketsCores` (default), `SocketsCoresThreads` or `CoresThreads`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub across: Option<String>,
    /// Cores per socket, 2 when not given. With `CoresThreads` it is threads per core and must be 2.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ratio: Option<i64>,
}

/// Settings that suit a guest system, used for fields that a VM leaves empty.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "instancetype.kubevirt.io",
    version = "v1beta1",
    kind = "VirtualMachinePreference",
    plural = "virtualmachinepreferences",
    doc = "Preferred settings of a guest, used where the virtual machine sets nothing.",
    namespaced,
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmpref",
    shortname = "vmprefs",
    shortname = "vmp",
    shortname = "vmps",
    category = "all"
)]
pub struct VirtualMachinePreferenceSpec {
    /// Annotations added to the VMI; keys already there stay as they are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Time base and timers of the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clock: Option<ClockPreferences>,
    /// CPU topology and feature flags.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuPreferences>,
    /// Buses, models and automatic devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<DevicePreferences>,
    /// ACPI, SMM, Hyper-V and similar switches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<FeaturePreferences>,
    /// BIOS or UEFI.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub firmware: Option<FirmwarePreferences>,
    /// Emulated board.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<MachinePreferences>,
    /// Cores per socket for the topology `spread`, 2 when not given. `cpu.spreadOptions.ratio` wins over it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefer_spread_socket_to_core_ratio: Option<i64>,
    /// CPU architecture for VMs that name none, for example `amd64` or `arm64`; it limits the nodes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_architecture: Option<String>,
    /// Memory encryption (SEV, SEV-SNP, TDX) or s390x Secure Execution for VMs that set none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_launch_security: Option<LaunchSecurity>,
    /// DNS subdomain for VMs without one; with the host name it forms the guest's full name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_subdomain: Option<String>,
    /// Seconds a guest may take to shut down before it is killed, for VMs that do not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_termination_grace_period_seconds: Option<i64>,
    /// Least vCPUs, memory and the architecture that a VM needs to use this preference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requirements: Option<PreferenceRequirements>,
    /// Storage class for the VM's DataVolume templates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub volumes: Option<VolumePreferences>,
}

/// Storage settings for the VM's DataVolume templates.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VolumePreferences {
    /// Storage class for DataVolume templates that name none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub preferred_storage_class_name: Option<String>,
}

/// Preferred settings of a guest system, for all namespaces.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[kube(
    crates(kube_core = "::kube_core"),
    group = "instancetype.kubevirt.io",
    version = "v1beta1",
    kind = "VirtualMachineClusterPreference",
    plural = "virtualmachineclusterpreferences",
    doc = "Preferred settings of a guest, for virtual machines of all namespaces.",
    derive = "PartialEq",
    derive = "Default",
    shortname = "vmcp",
    shortname = "vmcps"
)]
pub struct VirtualMachineClusterPreferenceSpec {
    /// The same as in the namespaced kind.
    #[serde(flatten)]
    pub spec: VirtualMachinePreferenceSpec,
}
