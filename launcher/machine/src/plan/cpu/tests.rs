use super::*;
use crate::host_cpu::CpuQuestion;
use crate::plan::tests::{facts, valid, vmi};
use serde_json::{Value, json};

const KVM: Accelerator = Accelerator::Kvm { device: None };

fn with_cpu(cpu: &Value) -> ValidVmi {
    let mut manifest = vmi(&[]);
    manifest["spec"]["domain"]["cpu"] = cpu.clone();
    valid(manifest)
}

/// A host that has `aes`, has no `vmx`, and lacks `avx2` of the model Big.
fn host(question: &CpuQuestion) -> HostCpu {
    let props = json!({"aes": true, "vmx": false, "lahf-lm": true, "sse4.2": true, "avx2": false,
        "family": 6, "model-id": "A, B", "vendor": "GenuineIntel"});
    let mut offer = props.clone();
    offer["invtsc"] = json!(true);
    let lacking = match question.named.as_deref() {
        Some("Big") => Some(vec!["avx2".to_owned()]),
        Some("Small") => Some(Vec::new()),
        _ => None,
    };
    let map = |props: Value| props.as_object().unwrap().clone();
    HostCpu::new(map(props), map(offer), lacking)
}

/// The argument of `-cpu`.
fn cpu(cpu: &Value, accelerator: &Accelerator) -> Result<String, String> {
    let vmi = with_cpu(cpu);
    let host_cpu = CpuQuestion::of(&vmi, accelerator).map(|question| host(&question));
    let facts = Facts { accelerator: accelerator.clone(), host_cpu, ..facts(&vmi) };
    let planned = plan(&vmi, &facts, &Enlightenments::default());
    planned.map(|cpu| cpu.model()).map_err(|error| error.to_string())
}

#[test]
fn only_models_that_need_qemus_answer_query_it() {
    let tcg = facts(&with_cpu(&json!({}))).accelerator;
    let question = |cpu: Value, accelerator: &Accelerator| CpuQuestion::of(&with_cpu(&cpu), accelerator);
    assert_eq!(question(json!({}), &tcg), None);
    assert_eq!(question(json!({"model": "Small"}), &tcg), None);
    assert_eq!(question(json!({"features": [{"name": "aes"}]}), &tcg).unwrap().all, "max");
    assert_eq!(question(json!({"model": "host-passthrough"}), &KVM), None);
    assert_eq!(question(json!({}), &KVM), Some(CpuQuestion { all: "host", named: None }));
    assert_eq!(question(json!({"model": "Small"}), &KVM).unwrap().named.as_deref(), Some("Small"));
}

#[test]
fn the_hosts_model_is_spelled_out_so_that_another_host_can_have_it() {
    let spelled = cpu(&json!({"model": "host-model"}), &KVM).unwrap();
    assert_eq!(
        spelled,
        "base,host-phys-bits=on,aes=on,family=6,lahf-lm=on,model-id=A  B,sse4.2=on,vendor=GenuineIntel"
    );
    assert_eq!(cpu(&json!({"model": "host-passthrough"}), &KVM).unwrap(), "host");
}

#[test]
fn each_policy_does_what_it_says() {
    let tcg = facts(&with_cpu(&json!({}))).accelerator;
    for (name, policy, expected) in [
        ("aes", "", Ok("max,aes=on")),
        ("aes", "require", Ok("max,aes=on")),
        (
            "vmx",
            "require",
            Err(
                "spec.domain.cpu.features[0].name: \"vmx\" is not supported: this node has no such CPU feature",
            ),
        ),
        ("vmx", "force", Ok("max,vmx=on")),
        ("aes", "optional", Ok("max,aes=on")),
        ("vmx", "optional", Ok("max,vmx=off")),
        ("aes", "disable", Ok("max,aes=off")),
        ("vmx", "forbid", Ok("max,vmx=off")),
        (
            "aes",
            "forbid",
            Err("spec.domain.cpu.features[0].name: \"aes\" is not supported: this node has that CPU feature"),
        ),
        ("lahf_lm", "require", Ok("max,lahf-lm=on")),
        ("invtsc", "require", Ok("max,invtsc=on")),
        (
            "family",
            "force",
            Err(
                "spec.domain.cpu.features[0].name: \"family\" is not supported: QEMU has no CPU feature of that name",
            ),
        ),
        (
            "aes=on,x",
            "force",
            Err(
                "spec.domain.cpu.features[0].name: \"aes=on,x\" is not supported: QEMU has no CPU feature of that name",
            ),
        ),
    ] {
        let manifest = json!({"features": [{"name": name, "policy": policy}]});
        let planned = cpu(&manifest, &tcg);
        assert_eq!(planned.as_deref().map_err(String::as_str), expected, "{name} {policy}");
    }
}

#[test]
fn a_model_that_the_host_is_no_match_for_is_refused_with_what_is_missing() {
    assert_eq!(cpu(&json!({"model": "Small"}), &KVM).unwrap(), "Small");
    let error = cpu(&json!({"model": "Big"}), &KVM).unwrap_err();
    assert_eq!(error, "spec.domain.cpu.model: \"Big\" is not available on this node, whose CPU lacks avx2");
    let error = cpu(&json!({"model": "Bigger"}), &KVM).unwrap_err();
    assert!(error.ends_with("QEMU has no CPU model of that name"), "{error}");
    // Without the missing feature the model can be used.
    let without = json!({"model": "Big", "features": [{"name": "avx2", "policy": "disable"}]});
    assert_eq!(cpu(&without, &KVM).unwrap(), "Big,avx2=off");
}
