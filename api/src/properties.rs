//! Properties that hold for any input: decoding, defaults and validation of user input never panic.

mod schema;

use crate::defaults;
use crate::gates::Gates;
use crate::settings::{GuestDefaults, Settings};
use crate::sizing;
use crate::v1::{VirtualMachine, VirtualMachineInstance};
use crate::valid::ValidVmi;
use crate::validate::{self, Cause, Requester};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::JSONSchemaProps;
use proptest::prelude::*;
use schema::Tape;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::sync::LazyLock;

static INSTANCE: LazyLock<JSONSchemaProps> =
    LazyLock::new(|| schema::specification("VirtualMachineInstance"));
static MACHINE: LazyLock<JSONSchemaProps> = LazyLock::new(|| schema::specification("VirtualMachine"));

/// Bytes that decide choices: few bytes make simple objects, many make large ones.
fn tape() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..1500)
}

/// A value near what a field expects, or far from it.
fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        4 => prop::sample::select(vec![
            json!("a"), json!("b"), json!("default"), json!("virtio"), json!("sata"), json!("scsi"), json!("64Mi"), json!("1"),
            json!("100m"), json!("-1"), json!("0"), json!("99Ei"), json!("q35"), json!("amd64"), json!("None"),
            json!("TCP"), json!("02:00:00:00:00:01"), json!(""), json!(1), json!(0), json!(-1), json!(224),
            json!(65535), json!(i64::MAX), json!(u32::MAX), json!(true), json!(false), json!({}), json!([]),
        ]),
        1 => any::<i64>().prop_map(|number| json!(number)),
        1 => "\\PC{0,20}".prop_map(|text| json!(text)),
        1 => "[-+]?[0-9.]{0,20}[a-zA-Z]{0,2}".prop_map(|text| json!(text)),
        1 => Just(Value::Null),
    ]
}

/// Decodes like admission, adds defaults and validates.
fn judge(vmi: &Value) {
    let Ok(mut instance) = serde_json::from_value::<VirtualMachineInstance>(vmi.clone()) else { return };
    defaults::vmi(&mut instance);
    let once = instance.clone();
    defaults::vmi(&mut instance);
    assert_eq!(once, instance, "defaulting twice differs from once");
    let causes = validate::vmi_create(&instance, Requester::User, &Gates::default());
    check_messages(&causes);
    // After admission, every gate counts as on.
    let open = validate::vmi_create(&instance, Requester::User, &Gates::all());
    check_messages(&open);
    let written = serde_json::to_value(&instance).unwrap();
    let read: VirtualMachineInstance = serde_json::from_value(written).unwrap();
    assert_eq!(read, instance, "what is written reads the same");
    match ValidVmi::new(instance.clone()) {
        Ok(valid) => {
            assert!(open.is_empty());
            assert_eq!(valid.vmi(), &instance, "a defaulted valid object stays as it is");
            let resources =
                sizing::pod_resources(&valid, &Settings { use_emulation: true, ..Settings::default() });
            let memory = &resources.requests.as_ref().unwrap()["memory"];
            assert!(crate::quantity::bytes(memory).unwrap() > 0);
            assert_eq!(valid.disks().len(), valid.volumes().len());
        }
        Err(_) if instance.metadata.name.as_deref().is_none_or(str::is_empty) => {}
        Err(_) => assert!(!open.is_empty(), "refused without a cause"),
    }
}

/// Messages have a limited length, and a field that breaks a rule is only refused once.
fn check_messages(causes: &[Cause]) {
    for cause in causes {
        assert!(!cause.message.is_empty() && cause.message.len() < 2000);
        if cause.message == format!("{} is not supported yet", cause.field) {
            let about = causes.iter().filter(|other| {
                let rest = other.field.strip_prefix(&cause.field);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
            });
            assert_eq!(about.count(), 1, "{}: {causes:?}", cause.field);
        }
    }
}

/// A machine as admission decodes and judges it, on create and on update.
fn judge_machine(machine: Value) {
    let Ok(mut machine) = serde_json::from_value::<VirtualMachine>(machine) else { return };
    defaults::admit_vm(&mut machine, &GuestDefaults::default());
    let once = machine.clone();
    defaults::admit_vm(&mut machine, &GuestDefaults::default());
    assert_eq!(once, machine, "defaulting twice differs from once");
    let causes = validate::vm(&machine, Requester::User, &Gates::default());
    check_messages(&causes);
    assert_eq!(causes, validate::vm_update(&machine, &machine, Requester::User, &Gates::default()));
    if causes.is_empty() {
        let mut instance = VirtualMachineInstance { spec: machine.spec.template.spec, ..Default::default() };
        instance.metadata.name = Some("vm".to_owned());
        defaults::vmi(&mut instance);
        // Memory may come from an instance type later, before there is an instance.
        let others = validate::vmi(&instance, &Gates::default());
        let others = others.into_iter().filter(|cause| !cause.message.starts_with("no memory requested"));
        assert_eq!(others.collect::<Vec<_>>(), [], "what a right machine starts is right");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_specification_is_judged(tape in tape()) {
        let spec = schema::value(&INSTANCE, &mut Tape::new(&tape));
        judge(&json!({"metadata": {"name": "vm", "namespace": "ns"}, "spec": spec}));
    }

    #[test]
    fn any_machine_is_judged(tape in tape()) {
        let spec = schema::value(&MACHINE, &mut Tape::new(&tape));
        judge_machine(json!({"metadata": {"name": "vm", "namespace": "ns"}, "spec": spec}));
    }

    /// A valid manifest with any additional fields.
    #[test]
    fn a_manifest_with_more_in_it_is_judged(tape in tape()) {
        let mut manifest = right();
        manifest["spec"] = schema::grafted(manifest["spec"].take(), &INSTANCE, &mut Tape::new(&tape));
        judge(&manifest);
        judge_machine(json!({
            "metadata": {"name": "vm", "namespace": "ns"},
            "spec": {"runStrategy": "Always", "template": {"spec": manifest["spec"]}},
        }));
    }

    /// An instance that changes into any other instance.
    #[test]
    fn a_change_is_judged(before in tape(), after in tape()) {
        let make = |tape: &[u8]| {
            let mut manifest = right();
            manifest["spec"] = schema::grafted(manifest["spec"].take(), &INSTANCE, &mut Tape::new(tape));
            serde_json::from_value::<VirtualMachineInstance>(manifest)
        };
        if let (Ok(old), Ok(new)) = (make(&before), make(&after)) {
            for requester in [Requester::User, Requester::Component] {
                prop_assert!(validate::vmi_update(&old, &old, requester, &Gates::all()).is_empty());
                let passes = validate::vmi_update(&old, &new, requester, &Gates::all()).is_empty();
                let may = requester == Requester::Component && validate::differs_live(&old, &new);
                prop_assert!(!passes || may || old.spec == new.spec);
                prop_assert!(passes || old.spec != new.spec);
            }
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        if let Ok(value) = serde_json::from_slice::<Value>(&bytes) {
            judge(&value);
        }
    }

    /// A valid manifest with one value replaced by any other.
    #[test]
    fn a_manifest_with_one_wrong_value_is_judged(which in any::<prop::sample::Index>(), value in leaf()) {
        let mut manifest = right();
        let mut pointers = Vec::new();
        collect(&manifest, String::new(), &mut pointers);
        let pointer = which.get(&pointers);
        *manifest.pointer_mut(pointer).unwrap() = value;
        judge(&manifest);
    }
}

/// The generator produces nearly every field, in objects that can be decoded.
#[test]
fn every_field_is_reached() {
    let mut all = Vec::new();
    schema::fields(&INSTANCE, "spec", &mut all);
    let mut reached = BTreeSet::new();
    let mut state = 1_u64;
    let mut byte = || {
        // A linear congruential generator: the same tapes every time.
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    for _ in 0..4_000 {
        let tape: Vec<u8> = (0..1_000).map(|_| byte()).collect();
        let spec = schema::value(&INSTANCE, &mut Tape::new(&tape));
        let manifest = json!({"metadata": {"name": "vm"}, "spec": spec});
        if serde_json::from_value::<VirtualMachineInstance>(manifest).is_ok() {
            schema::given(&spec, "spec", &mut reached);
        }
    }
    // Affinity has hundreds of fields that we only pass on.
    let ours: Vec<&String> = all.iter().filter(|field| !field.starts_with("spec.affinity.")).collect();
    let missed: Vec<&&String> = ours.iter().filter(|field| !reached.contains(field.as_str())).collect();
    assert!(ours.len() > 300, "{} fields", ours.len());
    assert!(missed.len() * 50 < ours.len(), "{} of {}: {missed:?}", missed.len(), ours.len());
}

#[test]
fn the_right_manifest_is_valid() {
    assert!(ValidVmi::new(serde_json::from_value(right()).unwrap()).is_ok());
    judge(&right());
}

fn collect(value: &Value, pointer: String, pointers: &mut Vec<String>) {
    match value {
        Value::Object(members) => {
            for (name, member) in members {
                collect(member, format!("{pointer}/{name}"), pointers);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                collect(item, format!("{pointer}/{index}"), pointers);
            }
        }
        _ => {}
    }
    pointers.push(pointer);
}

fn right() -> Value {
    json!({
        "metadata": {"name": "vm", "namespace": "ns", "labels": {"a": "b"}},
        "spec": {
            "domain": {
                "cpu": {"sockets": 1, "cores": 2, "threads": 1, "maxSockets": 2, "model": "host-model"},
                "memory": {"guest": "64Mi"},
                "resources": {"requests": {"memory": "64Mi", "cpu": "1"}, "limits": {"memory": "1Gi", "cpu": "2"}},
                "machine": {"type": "q35"},
                "firmware": {"uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223", "bootloader": {"bios": {"useSerial": true}}},
                "features": {"acpi": {"enabled": true}},
                "devices": {
                    "rng": {},
                    "disks": [
                        {"name": "a", "bootOrder": 1, "serial": "s", "cache": "none", "io": "native", "disk": {"bus": "virtio"}},
                        {"name": "b", "cdrom": {"bus": "sata", "readonly": true}},
                    ],
                    "interfaces": [{"name": "default", "model": "virtio", "masquerade": {}, "bootOrder": 2,
                        "macAddress": "02:11:22:33:44:55", "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
                        "dhcpOptions": {"bootFileName": "x", "ntpServers": ["010.0.0.1"],
                            "privateOptions": [{"option": 240, "value": "v"}]}}],
                },
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [
                {"name": "a", "containerDisk": {"image": "i", "path": "/disk/x", "imagePullPolicy": "Always"}},
                {"name": "b", "cloudInitNoCloud": {"userDataBase64": "eA==", "networkData": "n"}},
            ],
            "hostname": "h", "subdomain": "s.t", "terminationGracePeriodSeconds": 5,
            "dnsPolicy": "None", "dnsConfig": {"nameservers": ["010.0.0.1"], "searches": ["a.b"], "options": [{"name": "x"}]},
            "evictionStrategy": "None", "architecture": "amd64",
        },
    })
}
