//! Interfaces of a hypervisor that save work for its guest: Hyper-V's, and KVM's own.
//!
//! They are properties of the guest's CPU. Emulation has none of them, so they are left out there, which only
//! costs the guest time, and the launcher reports them.

use crate::cpu::Flag;
use crate::error::PlanError;
use crate::facts::Accelerator;
use barevirt_api::v1::{DomainSpec, FeatureHyperv, FeatureState};

const FEATURES: &str = "spec.domain.features";
const TIMERS: &str = "spec.domain.clock.timer";

/// The planned properties.
#[derive(Debug, Default)]
pub(super) struct Enlightenments {
    /// Properties of the CPU.
    pub(super) flags: Vec<Flag>,
    /// Fields that request features which this accelerator does not have.
    pub(super) left_out: Vec<String>,
}

impl Enlightenments {
    pub(super) fn of(domain: &DomainSpec, accelerator: &Accelerator) -> Result<Self, PlanError> {
        let mut requests = FeatureRequests::default();
        if let Some(features) = &domain.features {
            if let Some(hyperv) = &features.hyperv {
                requests.hyperv(hyperv)?;
            }
            if features.hyperv_passthrough.as_ref().is_some_and(|all| all.enabled.unwrap_or(true)) {
                requests.on(format!("{FEATURES}.hypervPassthrough"), "hv-passthrough");
            }
            if let Some(spinlock) = &features.pvspinlock {
                requests.state(format!("{FEATURES}.pvspinlock"), "kvm-pv-unhalt", spinlock.is_enabled());
            }
            if let Some(eoi) = features.apic.as_ref().and_then(|apic| apic.end_of_interrupt) {
                requests.state(format!("{FEATURES}.apic.endOfInterrupt"), "kvm-pv-eoi", eoi);
            }
            // With emulation, KVM is hidden anyway.
            if features.kvm.as_ref().and_then(|kvm| kvm.hidden) == Some(true) {
                requests.state(format!("{FEATURES}.kvm.hidden"), "kvm", false);
            }
        }
        let timer = domain.clock.as_ref().and_then(|clock| clock.timer.as_ref());
        if let Some(kvm) = timer.and_then(|timer| timer.kvm.as_ref()) {
            requests.state(format!("{TIMERS}.kvm"), "kvmclock", kvm.present.unwrap_or(true));
        }
        match timer.and_then(|timer| timer.hyperv.as_ref()) {
            Some(hyperv) => {
                requests.state(format!("{TIMERS}.hyperv"), "hv-time", hyperv.present.unwrap_or(true));
            }
            // The synthetic timers need this reference clock.
            None if requests.has("hv-stimer") => requests.on(format!("{TIMERS}.hyperv"), "hv-time"),
            None => {}
        }
        let panics = &domain.devices.panic_devices;
        if let Some(index) = panics.iter().position(|device| device.model.as_deref() == Some("hyperv")) {
            requests.on(format!("spec.domain.devices.panicDevices[{index}]"), "hv-crash");
        }
        Ok(requests.with(accelerator))
    }
}

/// Every request: its field, the flag with KVM, and whether it switches something on.
#[derive(Default)]
struct FeatureRequests(Vec<(String, Flag, bool)>);

impl FeatureRequests {
    fn on(&mut self, field: String, flag: &str) {
        self.state(field, flag, true);
    }

    fn state(&mut self, field: String, flag: &str, on: bool) {
        self.0.push((field, Flag::switch(flag, on), on));
    }

    fn has(&self, flag: &str) -> bool {
        self.0.iter().any(|(_, given, on)| *on && given.name() == flag)
    }

    fn with(self, accelerator: &Accelerator) -> Enlightenments {
        match accelerator {
            Accelerator::Kvm { .. } => Enlightenments {
                flags: self.0.into_iter().map(|(_, flag, _)| flag).collect(),
                left_out: Vec::new(),
            },
            Accelerator::Tcg { .. } => Enlightenments {
                flags: Vec::new(),
                left_out: self.0.into_iter().filter(|(_, _, on)| *on).map(|(field, ..)| field).collect(),
            },
        }
    }

    fn hyperv(&mut self, hyperv: &FeatureHyperv) -> Result<(), PlanError> {
        let FeatureHyperv {
            evmcs,
            frequencies,
            ipi,
            reenlightenment,
            relaxed,
            reset,
            runtime,
            spinlocks,
            synic,
            synictimer,
            tlbflush,
            vapic,
            vendorid,
            vpindex,
        } = hyperv;
        let field = |name: &str| format!("{FEATURES}.hyperv.{name}");
        let mut plain = |state: &Option<FeatureState>, name: &str, flag: &str| {
            if state.as_ref().is_some_and(FeatureState::is_enabled) {
                self.on(field(name), flag);
            }
        };
        plain(relaxed, "relaxed", "hv-relaxed");
        plain(vapic, "vapic", "hv-vapic");
        plain(vpindex, "vpindex", "hv-vpindex");
        plain(runtime, "runtime", "hv-runtime");
        plain(synic, "synic", "hv-synic");
        plain(reset, "reset", "hv-reset");
        plain(frequencies, "frequencies", "hv-frequencies");
        plain(reenlightenment, "reenlightenment", "hv-reenlightenment");
        plain(ipi, "ipi", "hv-ipi");
        plain(evmcs, "evmcs", "hv-evmcs");
        if let Some(timer) = synictimer.as_ref().filter(|timer| timer.enabled.unwrap_or(true)) {
            self.on(field("synictimer"), "hv-stimer");
            if timer.direct.as_ref().is_some_and(FeatureState::is_enabled) {
                self.on(field("synictimer.direct"), "hv-stimer-direct");
            }
        }
        if let Some(flush) = tlbflush.as_ref().filter(|flush| flush.enabled.unwrap_or(true)) {
            self.on(field("tlbflush"), "hv-tlbflush");
            if flush.direct.as_ref().is_some_and(FeatureState::is_enabled) {
                self.on(field("tlbflush.direct"), "hv-tlbflush-direct");
            }
            if flush.extended.as_ref().is_some_and(FeatureState::is_enabled) {
                self.on(field("tlbflush.extended"), "hv-tlbflush-ext");
            }
        }
        if let Some(spinlocks) = spinlocks.as_ref().filter(|spinlocks| spinlocks.enabled.unwrap_or(true)) {
            let tries = spinlocks.spinlocks.unwrap_or(SPINLOCK_TRIES);
            let Some(tries) = u32::try_from(tries).ok().filter(|tries| i64::from(*tries) >= LEAST_TRIES)
            else {
                return Err(PlanError::Unsupported {
                    field: field("spinlocks.spinlocks"),
                    value: tries.to_string(),
                    why: "4096 and more are, up to 4294967295",
                });
            };
            self.0.push((field("spinlocks"), Flag::new("hv-spinlocks", &format!("{tries:#x}")), true));
        }
        if let Some(vendor) = vendorid.as_ref().filter(|vendor| vendor.enabled.unwrap_or(true)) {
            let text = vendor.vendorid.clone().unwrap_or_default();
            // This option has no way to quote a comma.
            if text.len() > VENDOR_BYTES
                || !text.chars().all(|letter| (' '..='~').contains(&letter) && letter != ',')
            {
                return Err(PlanError::Unsupported {
                    field: field("vendorid.vendorid"),
                    value: text,
                    why: "up to 12 ASCII characters without a comma are",
                });
            }
            if !text.is_empty() {
                self.0.push((field("vendorid"), Flag::new("hv-vendor-id", &text), true));
            }
        }
        Ok(())
    }
}

/// Default number of attempts to take a spinlock; KubeVirt's.
const SPINLOCK_TRIES: i64 = 4096;
/// Smallest number that Hyper-V's interface allows.
const LEAST_TRIES: i64 = 4096;
/// Longest vendor text in CPUID.
const VENDOR_BYTES: usize = 12;
