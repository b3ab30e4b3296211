//! Features of the machine: Hyper-V enlightenments, KVM, interrupt controller.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Features of the machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Features {
    /// ACPI: power button, tables. On unless switched off.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub acpi: Option<FeatureState>,
    /// Tunes the interrupt controller of x86 CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub apic: Option<FeatureApic>,
    /// Selects Hyper-V enlightenments one by one, for Windows guests. Not together with `hypervPassthrough`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hyperv: Option<FeatureHyperv>,
    /// Offers every enlightenment the node's KVM knows (`-cpu hv-passthrough`). Such a machine cannot be
    /// migrated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hyperv_passthrough: Option<HyperVPassthrough>,
    /// Hides KVM from the guest, or not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kvm: Option<FeatureKvm>,
    /// Whether waiting for a lock in the guest may halt the vCPU until it is woken (`-cpu kvm-pv-unhalt=on`
    /// or `off`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pvspinlock: Option<FeatureState>,
    /// Whether x86 firmware can use system management mode (`-machine smm=on` or `off`). Secure boot needs
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub smm: Option<FeatureState>,
}

/// A feature that is on or off.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FeatureState {
    /// Whether it is on; on when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

impl FeatureState {
    /// Whether it is on.
    pub fn is_enabled(&self) -> bool {
        self.enabled.unwrap_or(true)
    }
}

/// Local interrupt controller of x86 CPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FeatureApic {
    /// Whether the setting is on; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Offers the guest KVM's paravirtual end of interrupt, which saves exits (`-cpu kvm-pv-eoi=on`); false
    /// when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_of_interrupt: Option<bool>,
}

/// Hyper-V enlightenments: interfaces that make Windows run faster on KVM. Each one not given stays off
/// unless another needs it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FeatureHyperv {
    /// Enlightened VMCS for Hyper-V nested in the guest, Intel only: cheaper nested exits (`-cpu hv-evmcs`).
    /// Needs `vapic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub evmcs: Option<FeatureState>,
    /// Lets the guest read the TSC and APIC frequencies from registers instead of measuring them (`-cpu
    /// hv-frequencies`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frequencies: Option<FeatureState>,
    /// Sends interrupts between vCPUs by hypercall, good with many or overcommitted vCPUs (`-cpu hv-ipi`).
    /// Needs `vpindex`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ipi: Option<FeatureState>,
    /// Tells the guest when the TSC frequency changed, as after a migration (`-cpu hv-reenlightenment`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reenlightenment: Option<FeatureState>,
    /// Keeps Windows from crashing with a watchdog error when its vCPUs were not scheduled in time (`-cpu
    /// hv-relaxed`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub relaxed: Option<FeatureState>,
    /// Offers a register by which the guest can reset the machine (`-cpu hv-reset`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset: Option<FeatureState>,
    /// Offers a register with the time each vCPU really ran (`-cpu hv-runtime`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub runtime: Option<FeatureState>,
    /// Makes a vCPU that waits long for a spinlock yield to the host (`-cpu hv-spinlocks=`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spinlocks: Option<FeatureSpinlocks>,
    /// Hyper-V's synthetic interrupt controller, the base of the synthetic timers (`-cpu hv-synic`). Needs
    /// `vpindex`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synic: Option<FeatureState>,
    /// Synthetic timers per vCPU, which lower the load of an idle Windows guest (`-cpu hv-stimer`). Needs
    /// `synic`, `vpindex` and the Hyper-V clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub synictimer: Option<SynicTimer>,
    /// Flushes TLBs of other vCPUs by hypercall, so that idle ones need not be woken (`-cpu hv-tlbflush`).
    /// Needs `vpindex`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tlbflush: Option<TlbFlush>,
    /// Gives access to interrupt registers without costly exits, by the assist page (`-cpu hv-vapic`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vapic: Option<FeatureState>,
    /// Changes the hypervisor vendor the guest reads from CPUID (`-cpu hv-vendor-id=`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendorid: Option<FeatureVendorId>,
    /// Gives each vCPU a number the guest can read; other enlightenments rely on it (`-cpu hv-vpindex`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vpindex: Option<FeatureState>,
}

/// How visible KVM is to the guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FeatureKvm {
    /// Leaves KVM's signature out of CPUID, so that drivers looking for it do not find it (`-cpu kvm=off`);
    /// false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hidden: Option<bool>,
}

/// Switch and retry count of the spinlock enlightenment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FeatureSpinlocks {
    /// Whether the enlightenment is offered; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Tries to take a spinlock before the guest notifies the host; at least 4096, which is the default.
    /// Value of `-cpu hv-spinlocks=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spinlocks: Option<i64>,
}

/// Switch and text of the Hyper-V vendor.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FeatureVendorId {
    /// Whether the vendor is replaced; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Text shown in CPUID, at most 12 characters; QEMU's own is `Microsoft Hv`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendorid: Option<String>,
}

/// Switch for all enlightenments at once.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HyperVPassthrough {
    /// Whether all enlightenments of the node are passed on. Mutually exclusive with single ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// Switches of the synthetic timers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SynicTimer {
    /// Delivers an expired timer as an ordinary interrupt rather than as a message (`-cpu hv-stimer-direct`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<FeatureState>,
    /// Whether synthetic timers are offered; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
}

/// Switches of the TLB flush enlightenment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TlbFlush {
    /// Lets a nested guest's flush go straight to KVM, past the guest hypervisor (`-cpu hv-tlbflush-direct`).
    /// Good for Windows VBS.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub direct: Option<FeatureState>,
    /// Whether flushing by hypercall is offered; true when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Lets a flush name ranges of addresses instead of dropping everything (`-cpu hv-tlbflush-ext`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub extended: Option<FeatureState>,
}
