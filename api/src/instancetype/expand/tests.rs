//! What admission, the calls that expand and the controller make of a machine.

use super::*;
use crate::gates::Gates;
use crate::validate::{self, Requester};
use proptest::prelude::*;
use serde_json::{Value, json};

fn vm(extra: Value) -> VirtualMachine {
    let mut whole = json!({
        "metadata": {"name": "vm", "namespace": "ns"},
        "spec": {
            "runStrategy": "Always", "instancetype": {"name": "small"},
            "template": {"spec": {
                "domain": {"devices": {}},
                "volumes": [{"name": "disk", "containerDisk": {"image": "i:1"}}],
            }},
        },
    });
    for (name, value) in extra.as_object().unwrap() {
        whole["spec"][name] = value.clone();
    }
    serde_json::from_value(whole).unwrap()
}

fn small() -> VirtualMachineInstancetypeSpec {
    serde_json::from_value(json!({"cpu": {"guest": 2}, "memory": {"guest": "1Gi"}})).unwrap()
}

fn linux() -> VirtualMachinePreferenceSpec {
    serde_json::from_value(json!({
        "annotations": {"os": "linux"}, "cpu": {"preferredCPUTopology": "cores"},
        "devices": {"preferredDiskBus": "virtio", "preferredInterfaceModel": "virtio"},
        "requirements": {"cpu": {"guest": 1}, "memory": {"guest": "1Gi"}},
    }))
    .unwrap()
}

fn alone(vm: &VirtualMachine, chosen: &Chosen) -> Result<VirtualMachine, Vec<Cause>> {
    on_its_own(vm, chosen, &GuestDefaults::default())
}

fn admit(
    old: Option<&VirtualMachine>,
    new: VirtualMachine,
    lookups: &Lookups,
) -> Result<VirtualMachine, Vec<Cause>> {
    super::admit(old, new, lookups, Binding::default())
}

fn found(preference: Option<VirtualMachinePreferenceSpec>) -> Lookups {
    Lookups {
        instancetype: Lookup::Found(small()),
        preference: preference.map_or(Lookup::None, Lookup::Found),
    }
}

fn refused(old: Option<&VirtualMachine>, new: VirtualMachine, lookups: &Lookups) -> Vec<String> {
    admit(old, new, lookups)
        .unwrap_err()
        .iter()
        .map(|cause| format!("{} {}: {}", cause.kind.reason(), cause.field, cause.message))
        .collect()
}

#[test]
fn a_machine_without_memory_of_its_own_is_valid_with_an_instance_type() {
    let admitted = admit(None, vm(json!({"preference": {"name": "linux"}})), &found(Some(linux()))).unwrap();
    let spec = &admitted.spec.template.spec;
    assert_eq!(spec.domain.memory.as_ref().unwrap().guest, Some(Quantity("1Gi".to_owned())));
    assert_eq!(spec.domain.cpu.as_ref().unwrap().cores, Some(2));
    // The preference chooses the bus of disks that are added by default.
    assert_eq!(spec.domain.devices.disks[0].disk.as_ref().unwrap().bus.as_deref(), Some("virtio"));
    assert_eq!(spec.domain.devices.interfaces[0].model.as_deref(), Some("virtio"));
    assert_eq!(validate::vm(&admitted, Requester::User, &Gates::default()), []);
    assert!(admitted.spec.instancetype.is_some());
}

#[test]
fn defaults_of_the_machine_do_not_conflict() {
    let mut machine = vm(json!({}));
    defaults::admit_vm(&mut machine, &GuestDefaults::default());
    admit(None, machine, &found(None)).unwrap();
}

#[test]
fn a_machine_that_names_nothing_stays_as_it_is() {
    let machine = vm(json!({"instancetype": null}));
    assert_eq!(admit(None, machine.clone(), &Lookups::default()), Ok(machine.clone()));
    assert_eq!(alone(&machine, &Chosen::default()), Ok(machine));
}

#[test]
fn conflicts_name_the_template() {
    let machine = vm(json!({"template": {"spec": {
        "domain": {"devices": {}, "cpu": {"sockets": 1}, "memory": {"guest": "1Gi"}}}}}));
    let fields = ["spec.template.spec.domain.cpu.sockets", "spec.template.spec.domain.memory.guest"];
    assert_eq!(
        refused(None, machine.clone(), &found(None)),
        fields.map(|field| format!(
            "FieldValueInvalid {field}: VM field(s) {field} conflicts with selected instance type"
        ))
    );
    let causes = alone(&machine, &Chosen { instancetype: Some(small()), preference: None }).unwrap_err();
    assert_eq!(
        sentence(&causes),
        format!("VM field(s) {} conflicts with selected instance type", fields.join(", "))
    );
}

#[test]
fn a_missing_instance_type_is_no_reason_to_refuse() {
    let lookups = Lookups {
        instancetype: Lookup::Missing("instancetypes \"small\" not found".to_owned()),
        preference: Lookup::Missing("preferences \"linux\" not found".to_owned()),
    };
    let machine = vm(json!({"preference": {"name": "linux"}}));
    let admitted = admit(None, machine, &lookups).unwrap();
    assert_eq!(validate::vm(&admitted, Requester::User, &Gates::default()), []);
    // A field that every instance type sets is still a conflict.
    let own = vm(json!({"preference": {"name": "linux"},
        "template": {"spec": {"domain": {"devices": {}, "memory": {"guest": "1Gi"}}}}}));
    assert_eq!(refused(None, own, &lookups).len(), 1);
}

#[test]
fn requirements_are_compared_after_defaults() {
    let mut preference = linux();
    preference.requirements.as_mut().unwrap().memory.as_mut().unwrap().guest = Quantity("2Gi".to_owned());
    assert_eq!(
        refused(None, vm(json!({"preference": {"name": "linux"}})), &found(Some(preference.clone()))),
        [
            "FieldValueNotFound spec.instancetype: failure checking preference requirements: insufficient Memory resources of \
          1Gi provided by instance type, preference requires 2Gi"
        ]
    );
    let own = vm(json!({"instancetype": null, "preference": {"name": "linux"}, "template": {"spec": {
        "domain": {"devices": {}, "resources": {"requests": {"memory": "2Gi", "cpu": "3"}}}}}}));
    let lookups = Lookups { instancetype: Lookup::None, preference: Lookup::Found(preference) };
    admit(None, own, &lookups).unwrap();
}

#[test]
fn the_matcher_itself_comes_first() {
    let machine = vm(json!({"instancetype": {"name": "small", "kind": "Pod"}}));
    assert_eq!(
        refused(None, machine, &found(None)),
        ["FieldValueInvalid spec.instancetype.kind: got unexpected kind in InstancetypeMatcher: Pod"]
    );
    let old = vm(json!({"instancetype": {"name": "small", "revisionName": "r"}}));
    let new = vm(json!({"instancetype": {"name": "big", "revisionName": "r"}}));
    assert_eq!(
        refused(Some(&old), new.clone(), &found(None)),
        [
            "FieldValueInvalid spec.instancetype.revisionName: the Matcher Name has been updated without updating the \
          RevisionName"
        ]
    );
    let mut leaving = new;
    leaving.metadata.deletion_timestamp =
        Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH));
    assert!(admit(Some(&old), leaving, &Lookups::default()).is_ok());
}

/// A field without effect is refused from a preference just as from a user.
#[test]
fn a_preference_hides_nothing_from_validation() {
    let preference: VirtualMachinePreferenceSpec = serde_json::from_value(json!({
        "clock": {"preferredTimer": {"hpet": {"tickPolicy": "delay"}}},
    }))
    .unwrap();
    let admitted = admit(None, vm(json!({"preference": {"name": "w"}})), &found(Some(preference))).unwrap();
    let fields: Vec<String> = validate::vm(&admitted, Requester::User, &Gates::default())
        .into_iter()
        .map(|cause| cause.message)
        .collect();
    let wanted = "spec.template.spec.domain.clock.timer.hpet.tickPolicy is not supported yet";
    assert!(fields.iter().any(|field| field == wanted), "{fields:?}");
}

#[test]
fn the_instances_annotations_name_instance_type_and_preference() {
    for (kind, instancetype, preference) in [
        (Value::Null, CLUSTER_INSTANCETYPE_ANNOTATION, CLUSTER_PREFERENCE_ANNOTATION),
        (json!("namespaced"), INSTANCETYPE_ANNOTATION, PREFERENCE_ANNOTATION),
    ] {
        let kinds = if kind.is_null() {
            [Value::Null, Value::Null]
        } else {
            [json!("VirtualMachineInstancetype"), json!("virtualmachinepreferences")]
        };
        let machine = vm(json!({
            "instancetype": {"name": "small", "kind": kinds[0]}, "preference": {"name": "linux", "kind": kinds[1]},
        }));
        let bare: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "vm"}, "spec": machine.spec.template.spec,
        }))
        .unwrap();
        let chosen = Chosen { instancetype: Some(small()), preference: Some(linux()) };
        let vmi = instance(&machine, &chosen, Binding::default(), bare).unwrap();
        let wanted = [(instancetype, "small"), (preference, "linux"), ("os", "linux")];
        let wanted: BTreeMap<String, String> =
            wanted.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        assert_eq!(vmi.metadata.annotations, Some(wanted));
        assert_eq!(vmi.spec.domain.cpu.unwrap().cores, Some(2));
    }
}

#[test]
fn on_its_own_a_machine_names_nothing_and_starts_the_same() {
    let mut machine = vm(json!({"preference": {"name": "linux"}}));
    machine.status = serde_json::from_value(json!({
        "ready": true, "instancetypeRef": {"name": "small"}, "preferenceRef": {"name": "linux"},
    }))
    .unwrap();
    let chosen = Chosen { instancetype: Some(small()), preference: Some(linux()) };
    let shown = alone(&machine, &chosen).unwrap();
    assert!(shown.spec.instancetype.is_none() && shown.spec.preference.is_none());
    let status = shown.status.as_ref().unwrap();
    assert!(
        status.instancetype_ref.is_none() && status.preference_ref.is_none() && status.ready == Some(true)
    );
    let mut started = admit(None, machine, &found(Some(linux()))).unwrap().spec.template.spec;
    defaults::spec(&mut started);
    assert_eq!(shown.spec.template.spec, started);
    assert_eq!(shown.spec.template.metadata.unwrap().annotations.unwrap()["os"], "linux");
}

#[test]
fn a_machine_with_the_values_written_out_starts_the_same() {
    let machine = vm(json!({"preference": {"name": "linux"}}));
    let chosen = Chosen { instancetype: Some(small()), preference: Some(linux()) };
    let written = written_out(&machine, &chosen, Binding::default()).unwrap();
    assert!(written.spec.instancetype.is_none() && written.spec.preference.is_none());
    let spec = &written.spec.template.spec;
    assert_eq!(spec.domain.cpu.as_ref().unwrap().cores, Some(2));
    assert_eq!(spec.domain.devices.disks[0].disk.as_ref().unwrap().bus.as_deref(), Some("virtio"));
    // What neither sets is left to the start.
    assert_eq!(spec.termination_grace_period_seconds, None);
    assert_eq!(validate::vm(&written, Requester::User, &Gates::default()), []);
    let started = |machine: &VirtualMachine, chosen: &Chosen| {
        let bare: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": {"name": "vm"}, "spec": machine.spec.template.spec,
        }))
        .unwrap();
        let mut vmi = instance(machine, chosen, Binding::default(), bare).unwrap();
        defaults::spec(&mut vmi.spec);
        vmi.spec
    };
    assert_eq!(started(&written, &Chosen::default()), started(&machine, &chosen));
}

mod any_input {
    //! Any content of an object that the API server stores.

    use super::*;

    fn text() -> impl Strategy<Value = Value> {
        prop::sample::select(vec![
            "",
            "virtio",
            "sata",
            "spread",
            "preferSpread",
            "cores",
            "any",
            "CoresThreads",
            "x",
        ])
        .prop_map(|text| json!(text))
    }

    fn number() -> impl Strategy<Value = Value> {
        prop_oneof![
            prop::sample::select(vec![
                i64::MIN,
                -1,
                0,
                1,
                2,
                3,
                4,
                7,
                100,
                101,
                i64::from(u32::MAX),
                i64::MAX
            ]),
            1..64_i64,
        ]
        .prop_map(|number| json!(number))
    }

    fn quantity() -> impl Strategy<Value = Value> {
        prop::sample::select(vec!["", "0", "-1", "128Mi", "1Gi", "99Ei", "1e30", "x"])
            .prop_map(|text| json!(text))
    }

    fn maybe(value: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
        prop_oneof![1 => Just(Value::Null), 2 => value]
    }

    prop_compose! {
        fn instancetype()(
            guest in number(), most in maybe(number()), memory in quantity(), over in maybe((-1..120_i64).prop_map(|percent| json!(percent))),
            model in maybe(text()), policy in maybe(text()),
        ) -> Value {
            json!({
                "cpu": {"guest": guest, "maxSockets": most, "model": model},
                "memory": {"guest": memory, "overcommitPercent": over}, "ioThreadsPolicy": policy,
            })
        }
    }

    prop_compose! {
        fn preference()(
            topology in maybe(text()), across in maybe(text()), ratio in maybe(number()), old in maybe(number()),
            bus in maybe(text()), model in maybe(text()), vcpus in number(), memory in quantity(), grace in maybe(number()),
        ) -> Value {
            json!({
                "cpu": {"preferredCPUTopology": topology, "spreadOptions": {"across": across, "ratio": ratio}},
                "preferSpreadSocketToCoreRatio": old, "preferredTerminationGracePeriodSeconds": grace,
                "devices": {"preferredDiskBus": bus, "preferredInterfaceModel": model, "preferredDiskDedicatedIoThread": true},
                "requirements": {"cpu": {"guest": vcpus}, "memory": {"guest": memory}},
            })
        }
    }

    fn chosen(instancetype: Value, preference: Value) -> Chosen {
        Chosen {
            instancetype: serde_json::from_value(instancetype).unwrap(),
            preference: serde_json::from_value(preference).unwrap(),
        }
    }

    proptest! {
        #[test]
        fn expansion_never_panics_and_stays_as_it_is(
            instancetype in maybe(instancetype()), preference in maybe(preference()),
        ) {
            let chosen = chosen(instancetype, preference);
            let machine = vm(json!({"preference": {"name": "p"}}));
            let lookups = Lookups {
                instancetype: chosen.instancetype.clone().map_or(Lookup::None, Lookup::Found),
                preference: chosen.preference.clone().map_or(Lookup::None, Lookup::Found),
            };
            let admitted = admit(None, machine.clone(), &lookups);
            if let Ok(admitted) = &admitted {
                let _causes = validate::vm(admitted, Requester::User, &Gates::default());
            }
            if let Ok(shown) = alone(&machine, &chosen) {
                prop_assert_eq!(alone(&shown, &Chosen::default()), Ok(shown.clone()));
                // The preference has nothing left to fill in.
                let named = VirtualMachine {
                    spec: crate::v1::VirtualMachineSpec { preference: machine.spec.preference.clone(), ..shown.spec.clone() },
                    ..shown.clone()
                };
                let preferred = Chosen { instancetype: None, preference: chosen.preference.clone() };
                prop_assert_eq!(alone(&named, &preferred), Ok(shown));
            }
        }
    }
}
