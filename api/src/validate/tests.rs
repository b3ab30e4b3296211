//! One row for each rule: the change of a valid manifest, and the causes that follow.

mod architecture;
mod bounds;
mod compute;
mod credentials;
mod dedicated;
mod devices;
mod disks;
mod gates;
mod host_devices;
mod machine;
mod network;
mod object_volumes;
mod pod;
mod root_complex;
mod update;
mod volumes;

use super::*;
use crate::defaults;
use crate::gates::Gates;
use crate::v1::VirtualMachine;
use crate::v1::VirtualMachineInstance;
use serde_json::{Value, json};

/// A valid instance with one device or setting of each kind.
fn right() -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "vm", "namespace": "default"},
        "spec": {
            "hostname": "vm", "terminationGracePeriodSeconds": 30,
            "domain": {
                "cpu": {"cores": 2, "model": "host-model"},
                "memory": {"guest": "128Mi"},
                "resources": {"requests": {"memory": "128Mi", "cpu": "1"}, "limits": {"memory": "256Mi", "cpu": "2"}},
                "machine": {"type": "q35"},
                "firmware": {"uuid": "5d307ca9-b3ef-428c-8861-06e72d69f223", "serial": "abc"},
                "devices": {
                    "disks": [
                        {"name": "root", "bootOrder": 1, "serial": "S1", "cache": "none", "io": "native",
                         "disk": {"bus": "virtio"}},
                        {"name": "seed", "cdrom": {"bus": "sata"}},
                        {"name": "scratch", "disk": {"bus": "scsi", "readonly": true}},
                    ],
                    "interfaces": [{
                        "name": "default", "model": "virtio", "masquerade": {}, "bootOrder": 2,
                        "macAddress": "02:11:22:33:44:55",
                        "ports": [{"name": "http", "port": 80, "protocol": "TCP"}],
                        "dhcpOptions": {"bootFileName": "f", "tftpServerName": "t", "ntpServers": ["10.0.0.1"],
                                        "privateOptions": [{"option": 224, "value": "x"}]},
                    }],
                },
            },
            "networks": [{"name": "default", "pod": {}}],
            "volumes": [
                {"name": "root", "containerDisk": {"image": "localhost/guest:devel", "path": "/disk/a.qcow2"}},
                {"name": "seed", "cloudInitNoCloud": {"userData": "#!/bin/sh"}},
                {"name": "scratch", "emptyDisk": {"capacity": "1Gi"}},
            ],
        },
    })
}

/// The object with `value` at a JSON pointer; `Null` removes the member.
fn with(mut object: Value, pointer: &str, value: Value) -> Value {
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    let parent = object.pointer_mut(parent).unwrap_or_else(|| panic!("no {parent}"));
    match parent {
        Value::Array(list) => match last.parse::<usize>() {
            Ok(index) if index < list.len() => list[index] = value,
            _ => list.push(value),
        },
        Value::Object(members) if value.is_null() => {
            members.remove(last);
        }
        Value::Object(members) => {
            members.insert(last.to_owned(), value);
        }
        other => panic!("{other} has no members"),
    }
    object
}

fn instance(object: Value) -> VirtualMachineInstance {
    serde_json::from_value(object).unwrap()
}

fn machine(spec: Value) -> VirtualMachine {
    serde_json::from_value(json!({"metadata": {"name": "vm", "namespace": "default"}, "spec": spec})).unwrap()
}

fn causes_with(object: &Value, gates: &Gates) -> Vec<Cause> {
    let mut instance = instance(object.clone());
    defaults::vmi(&mut instance);
    vmi(&instance, gates)
}

fn causes_of(object: &Value) -> Vec<Cause> {
    causes_with(object, &Gates::default())
}

/// Whether the cause only says that a field has no effect.
fn is_refusal(cause: &Cause) -> bool {
    cause.message == format!("{} is not supported yet", cause.field)
}

/// All causes except those about fields without effect. No field has such a cause in addition to another one.
fn rules_of(causes: &[Cause]) -> Vec<&Cause> {
    let (refused, broken): (Vec<&Cause>, Vec<&Cause>) = causes.iter().partition(|cause| is_refusal(cause));
    for refusal in refused {
        let told = broken.iter().find(|cause| {
            let rest = cause.field.strip_prefix(&refusal.field);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        });
        assert!(told.is_none(), "{refusal} beside {told:?}");
    }
    broken
}

/// Changes; for each cause that follows, its field and a part of its message.
type Row = (&'static [(&'static str, Value)], Vec<(&'static str, &'static str)>);

fn check(rows: Vec<Row>) {
    check_with(&Gates::default(), rows);
}

fn check_with(gates: &Gates, rows: Vec<Row>) {
    for (changes, expected) in rows {
        let object =
            changes.iter().fold(right(), |object, (pointer, value)| with(object, pointer, value.clone()));
        let causes = causes_with(&object, gates);
        let rules = rules_of(&causes);
        assert_eq!(rules.len(), expected.len(), "{changes:?}: {causes:#?}");
        for (cause, (field, message)) in rules.iter().zip(expected) {
            assert_eq!(cause.field, field, "{changes:?}: {causes:#?}");
            assert!(cause.message.contains(message), "{changes:?}: {causes:#?}");
        }
    }
}

/// Changes that request features without effect: each is only refused at its field.
fn check_refused(rows: Vec<Row>) {
    for (changes, expected) in rows {
        let object =
            changes.iter().fold(right(), |object, (pointer, value)| with(object, pointer, value.clone()));
        let causes = causes_of(&object);
        let fields: Vec<&str> = causes.iter().map(|cause| cause.field.as_str()).collect();
        let expected: Vec<&str> = expected.iter().map(|(field, _)| *field).collect();
        assert_eq!(fields, expected, "{changes:?}: {causes:#?}");
        assert!(causes.iter().all(is_refusal), "{changes:?}: {causes:#?}");
    }
}

/// Valid changes.
fn accepts(rows: &[&[(&str, Value)]]) {
    for changes in rows {
        let object =
            changes.iter().fold(right(), |object, (pointer, value)| with(object, pointer, value.clone()));
        assert_eq!(causes_of(&object), [], "{changes:?}");
    }
}

macro_rules! rows {
    ($([$($pointer:expr => $value:tt),* $(,)?] => $($field:expr, $message:expr),+;)*) => {
        vec![$((
            Box::leak(vec![$(($pointer, json!($value))),*].into_boxed_slice()) as &'static [_],
            vec![$(($field, $message)),+],
        )),*]
    };
}
use rows;

#[test]
fn nothing_is_wrong_with_the_right_one() {
    assert_eq!(causes_of(&right()), []);
}

#[test]
fn messages_repeat_little_of_what_a_user_wrote() {
    let object = with(right(), "/spec/hostname", json!("\u{1b}[31m".repeat(1000)));
    let causes = causes_of(&object);
    assert!(causes[0].message.len() < 400);
    assert!(!causes[0].message.contains('\u{1b}'));
}

#[test]
fn a_cause_reads_well() {
    let field = Path::new("spec").child("volumes").index(2).child("name");
    assert_eq!(field.to_string(), "spec.volumes[2].name");
    assert_eq!(Cause::invalid(&field, "is wrong").to_string(), "spec.volumes[2].name: is wrong");
    assert_eq!(Cause::not_supported_yet(&field, "").to_string(), "spec.volumes[2].name is not supported yet");
}
