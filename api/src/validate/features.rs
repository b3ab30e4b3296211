//! Rules for Hyper-V enlightenments: some only work together with others.

use super::{Cause, Path};
use crate::v1::{FeatureHyperv, FeatureState, VirtualMachineInstanceSpec};

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let Some(features) = spec.domain.features.as_ref() else { return };
    let Some(hyperv) = features.hyperv.as_ref() else { return };
    let field = path.child("domain.features.hyperv");
    needs(&field, hyperv, causes);
    if features.hyperv_passthrough.is_some() {
        causes.push(Cause::invalid(
            &field,
            "Cannot explicitly set hyperV features if HypervPassthrough is being used. Please use either HyperV or HypervPassthrough.",
        ));
    }
}

/// Needed enlightenments that are not given are switched on automatically, so only one that is switched off
/// is a conflict.
fn needs(field: &Path, hyperv: &FeatureHyperv, causes: &mut Vec<Cause>) {
    let on = |feature: Option<&FeatureState>| feature.is_some_and(FeatureState::is_enabled);
    let off = |feature: Option<&FeatureState>| feature.is_some_and(|feature| !feature.is_enabled());
    let (synic, vpindex, vapic) = (hyperv.synic.as_ref(), hyperv.vpindex.as_ref(), hyperv.vapic.as_ref());
    let synictimer = hyperv.synictimer.as_ref().is_some_and(|timer| timer.enabled.unwrap_or(true));
    let tlbflush = hyperv.tlbflush.as_ref().is_some_and(|flush| flush.enabled.unwrap_or(true));
    for (given, name, needed, needed_off) in [
        (on(hyperv.evmcs.as_ref()), "evmcs", "vapic", off(vapic)),
        (on(hyperv.ipi.as_ref()), "ipi", "vpindex", off(vpindex)),
        (tlbflush, "tlbflush", "vpindex", off(vpindex)),
        (synictimer, "synictimer", "synic", off(synic)),
        (on(synic) || (synictimer && !off(synic)), "synic", "vpindex", off(vpindex)),
    ] {
        if given && needed_off {
            let (field, needed) = (field.child(name), field.child(needed));
            causes
                .push(Cause::invalid(&field, format!("'{field}' requires '{needed}', which was disabled.")));
        }
    }
}
