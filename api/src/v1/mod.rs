//! `kubevirt.io/v1`: wire types with the same fields as KubeVirt's, one file per area.
//!
//! These types accept anything that can be written, even if it is invalid: enumerations are strings, so that
//! an unknown value is a validation cause ([`crate::validate`]) and never an object that cannot be decoded. A
//! field is only here if some component acts on it or validation refuses it by name. Any other field is
//! unknown to the API server, which names it. All other code works on [`crate::valid::ValidVmi`], which
//! cannot be invalid.

mod access_credentials;
mod clock;
mod condition;
mod configuration;
mod cpu;
mod devices;
mod disks;
mod domain;
mod features;
mod firmware;
mod guest_agent;
mod interfaces;
mod kubevirt;
mod launch_security;
mod memory;
mod migration;
mod networks;
mod options;
mod preset;
mod probes;
mod replica_set;
mod status;
mod vm;
mod vmi;
mod volumes;

pub use access_credentials::{
    AccessCredential, AccessCredentialSecretSource, ConfigDriveSshPublicKeyAccessCredentialPropagation,
    NoCloudSshPublicKeyAccessCredentialPropagation, QemuGuestAgentSshPublicKeyAccessCredentialPropagation,
    QemuGuestAgentUserPasswordAccessCredentialPropagation, SshPublicKeyAccessCredential,
    SshPublicKeyAccessCredentialPropagationMethod, SshPublicKeyAccessCredentialSource,
    UserPasswordAccessCredential, UserPasswordAccessCredentialPropagationMethod,
    UserPasswordAccessCredentialSource,
};
pub use clock::{Clock, ClockOffsetUtc, HpetTimer, HypervTimer, KvmTimer, PitTimer, RtcTimer, Timer};
pub use condition::{Condition, merge_condition};
pub use configuration::{
    ArchConfiguration, ArchSpecificConfiguration, ChangedBlockTrackingSelectors,
    CommonInstancetypesDeployment, ConfidentialComputeConfiguration, CustomProfile, DeveloperConfiguration,
    DisableFreePageReporting, DisableSerialConsoleLog, DiskVerification, HypervisorConfiguration,
    InstancetypeConfiguration, InterfaceBindingMigration, InterfaceBindingPlugin, KsmConfiguration,
    KubeVirtConfiguration, LiveUpdateConfiguration, LogVerbosity, MediatedDevicesConfiguration,
    MediatedHostDevice, MigrationConfiguration, NetworkConfiguration, NodeMediatedDeviceTypesConfig,
    PciHostDevice, PermittedHostDevices, PersistentReservationConfiguration, RateLimiter,
    ReloadableComponentConfiguration, ResourceRequirementsWithoutClaims, RestClientConfiguration,
    SeccompConfiguration, SmBiosConfiguration, SupportContainerResources, TdxAttestationConfiguration,
    TdxConfiguration, TlsConfiguration, TokenBucketRateLimiter, UsbHostDevice, UsbSelector,
    VirtTemplateDeployment, VirtualMachineInstanceProfile, VirtualMachineOptions,
};
pub use cpu::{Cpu, CpuFeature, CpuTopology, Numa, NumaGuestMappingPassthrough, Realtime};
pub use devices::{
    ClientPassthroughDevices, Devices, Diag288Watchdog, DownwardMetrics, Gpu, HostDevice, I6300EsbWatchdog,
    Input, PanicDevice, Rng, SoundDevice, TpmDevice, VgpuDisplayOptions, VgpuOptions, VideoDevice, Watchdog,
};
pub use disks::{
    BlockSize, CdRomTarget, CustomBlockSize, Disk, DiskTarget, Filesystem, FilesystemVirtiofs, LunTarget,
};
pub use domain::{DiskIoThreads, DomainSpec, Machine, ResourceRequirements};
pub use features::{
    FeatureApic, FeatureHyperv, FeatureKvm, FeatureSpinlocks, FeatureState, FeatureVendorId, Features,
    HyperVPassthrough, SynicTimer, TlbFlush,
};
pub use firmware::{Acpi, Bios, Bootloader, Chassis, Efi, Firmware, KernelBoot, KernelBootContainer};
pub use guest_agent::{
    GuestAgentCommandInfo, VirtualMachineInstanceFileSystem, VirtualMachineInstanceFileSystemDisk,
    VirtualMachineInstanceFileSystemInfo, VirtualMachineInstanceFileSystemList,
    VirtualMachineInstanceGuestAgentInfo, VirtualMachineInstanceGuestOsUser,
    VirtualMachineInstanceGuestOsUserList,
};
pub use interfaces::{
    DeprecatedInterfaceMacvtap, DeprecatedInterfacePasst, DeprecatedInterfaceSlirp, DhcpOptions,
    DhcpPrivateOption, Interface, InterfaceBridge, InterfaceMasquerade, InterfacePasstBinding,
    InterfaceSriov, PluginBinding, Port, PortRange,
};
pub use kubevirt::{
    CertConfig, ComponentConfig, CustomizeComponents, CustomizeComponentsPatch, Flags, GenerationStatus,
    KubeVirt, KubeVirtCertificateRotateStrategy, KubeVirtSelfSignConfiguration, KubeVirtSpec, KubeVirtStatus,
    KubeVirtWorkloadUpdateStrategy, NodePlacement,
};
pub use launch_security::{LaunchSecurity, Sev, SevAttestation, SevPolicy, SevSnp, Tdx};
pub use memory::{Hugepages, Memory, MemoryStatus, ReservedOverhead};
pub use migration::{
    DowntimeTuningOptions, ExperimentalMigrationOptions, StallDetectorOptions,
    VirtualMachineInstanceMigration, VirtualMachineInstanceMigrationPhaseTransitionTimestamp,
    VirtualMachineInstanceMigrationSource, VirtualMachineInstanceMigrationSourceState,
    VirtualMachineInstanceMigrationSpec, VirtualMachineInstanceMigrationState,
    VirtualMachineInstanceMigrationStatus, VirtualMachineInstanceMigrationTarget,
    VirtualMachineInstanceMigrationTargetState, VmimConfigurationOptions,
};
pub use networks::{ClaimRequest, MultusNetwork, Network, PodNetwork};
pub use options::{
    ClockOffset, EvacuateCancelOptions, FreezeUnfreezeTimeout, MigrateOptions, ObjectGraphNode,
    ObjectGraphOptions, PauseOptions, RestartOptions, SevMeasurementInfo, SevPlatformInfo, SevSecretOptions,
    SevSessionOptions, StartOptions, StopOptions, UnpauseOptions,
};
pub use preset::{VirtualMachineInstancePreset, VirtualMachineInstancePresetSpec};
pub use probes::{GuestAgentPing, Probe, are_agent_pings_paused};
pub use replica_set::{
    VirtualMachineInstanceReplicaSet, VirtualMachineInstanceReplicaSetSpec,
    VirtualMachineInstanceReplicaSetStatus,
};
pub use status::{
    ChangedBlockTrackingStatus, ContainerDiskInfo, DomainMemoryDumpInfo, GuestOsInfo, HotplugVolumeStatus,
    InitrdInfo, KernelBootStatus, KernelInfo, NetworkInterfaceStatus, PersistentVolumeClaimInfo,
    PhaseTransitionTimestamp, StorageMigratedVolumeInfo, TopologyHints, VirtualMachineInstanceBackupStatus,
    VirtualMachineInstanceBackupVolumeInfo, VirtualMachineInstanceStatus, VolumeStatus,
    record_phase_transition,
};
pub use vm::{
    AddVolumeOptions, ControllerRevisionRef, DataVolumeTemplateDummyStatus, DataVolumeTemplateSpec,
    HotplugVolumeSource, InstancetypeMatcher, InstancetypeStatusRef, PreferenceMatcher, RemoveVolumeOptions,
    StartFailure, StateChangeRequest, VirtualMachine, VirtualMachineInstanceTemplateSpec,
    VirtualMachineMemoryDumpRequest, VirtualMachineSpec, VirtualMachineStatus, VirtualMachineVolumeRequest,
    VolumeMigrationState, VolumeSnapshotStatus, VolumeUpdateState,
};
pub use vmi::{VirtualMachineInstance, VirtualMachineInstanceResourceClaim, VirtualMachineInstanceSpec};
pub use volumes::{
    CloudInitConfigDriveSource, CloudInitNoCloudSource, ConfigMapVolumeSource, ContainerDiskSource,
    ContainerPathVolumeSource, DataVolumeSource, DownwardApiVolumeSource, DownwardMetricsVolumeSource,
    EmptyDiskSource, EphemeralVolumeSource, HostDisk, LocalSecret, MemoryDumpVolumeSource,
    PersistentVolumeClaimVolumeSource, SecretVolumeSource, ServiceAccountVolumeSource, SysprepSource,
    UtilityVolume, Volume, VolumeClaim,
};

use schemars::{Schema, SchemaGenerator, json_schema};

/// API group of all kinds in this module.
pub const GROUP: &str = "kubevirt.io";
/// The stored version.
pub const VERSION: &str = "v1";
/// The older version, served with the same schema.
pub const VERSION_V1ALPHA3: &str = "v1alpha3";

/// Metadata inside a template is kept unchanged, including unknown fields, as in KubeVirt.
pub(crate) fn embedded_metadata(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true })
}
