//! Hyper-V enlightenments that others need are switched on with them. One that the user switched off stays
//! off, and validation reports the conflict.

use crate::v1::{CpuFeature, FeatureHyperv, FeatureState, VirtualMachineInstanceSpec};

pub(super) fn complete(spec: &mut VirtualMachineInstanceSpec) {
    let Some(hyperv) = spec.domain.features.as_mut().and_then(|features| features.hyperv.as_mut()) else {
        return;
    };
    let nested = is_on(hyperv.evmcs.as_ref());
    needs(hyperv);
    // This enlightenment uses VMX, so the guest must have VMX.
    if nested {
        let features = &mut spec.domain.cpu.get_or_insert_default().features;
        match features.iter_mut().find(|feature| feature.name == VMX) {
            Some(vmx) => vmx.policy = Some(REQUIRE.to_owned()),
            None => features.push(CpuFeature { name: VMX.to_owned(), policy: Some(REQUIRE.to_owned()) }),
        }
    }
}

const VMX: &str = "vmx";
const REQUIRE: &str = "require";

/// Enlightenments come before those that they need, so that one switched on here switches on its own needs.
fn needs(hyperv: &mut FeatureHyperv) {
    let enable = |feature: &mut Option<FeatureState>| {
        feature.get_or_insert_with(|| FeatureState { enabled: Some(true) });
    };
    if is_on(hyperv.evmcs.as_ref()) {
        enable(&mut hyperv.vapic);
    }
    let flush = hyperv.tlbflush.as_ref().is_some_and(|flush| flush.enabled.unwrap_or(true));
    if flush || is_on(hyperv.ipi.as_ref()) {
        enable(&mut hyperv.vpindex);
    }
    if hyperv.synictimer.as_ref().is_some_and(|timer| timer.enabled.unwrap_or(true)) {
        enable(&mut hyperv.synic);
    }
    if is_on(hyperv.synic.as_ref()) {
        enable(&mut hyperv.vpindex);
    }
}

fn is_on(feature: Option<&FeatureState>) -> bool {
    feature.is_some_and(FeatureState::is_enabled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn completed(hyperv: &serde_json::Value) -> VirtualMachineInstanceSpec {
        let domain = json!({"devices": {}, "features": {"hyperv": hyperv}});
        let mut spec = serde_json::from_value(json!({ "domain": domain })).unwrap();
        complete(&mut spec);
        spec
    }

    fn hyperv(given: &serde_json::Value) -> FeatureHyperv {
        completed(given).domain.features.unwrap().hyperv.unwrap()
    }

    #[test]
    fn an_enlightenment_switches_on_its_dependencies() {
        let timer = hyperv(&json!({"synictimer": {}}));
        assert!(is_on(timer.synic.as_ref()) && is_on(timer.vpindex.as_ref()) && timer.vapic.is_none());
        assert!(is_on(hyperv(&json!({"ipi": {}})).vpindex.as_ref()));
        assert_eq!(hyperv(&json!({"ipi": {"enabled": false}})).vpindex, None);
    }

    #[test]
    fn an_enlightenment_that_is_off_stays_off() {
        let off = hyperv(&json!({"synictimer": {}, "synic": {"enabled": false}}));
        assert!(!is_on(off.synic.as_ref()) && off.vpindex.is_none());
    }

    #[test]
    fn nested_hyperv_requires_vmx() {
        let cpu = completed(&json!({"evmcs": {}})).domain.cpu.unwrap();
        assert_eq!(cpu.features, [CpuFeature { name: "vmx".into(), policy: Some("require".into()) }]);
    }
}
