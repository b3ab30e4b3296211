//! One row for each field that an instance type sets: its result and its conflicts.

use super::*;
use serde_json::{Value, json};

/// The specification after an instance type of one vCPU and 1 GiB with these fields, or the conflicts.
fn applied(extra: Value, domain: Value, spec: Value, preference: Value) -> Result<Value, Vec<String>> {
    let mut instancetype = json!({"cpu": {"guest": 1}, "memory": {"guest": "1Gi"}});
    json_merge(&mut instancetype, extra);
    let mut whole = spec;
    json_merge(&mut whole, json!({"domain": {"devices": {}}}));
    json_merge(&mut whole["domain"], domain);
    let instancetype = serde_json::from_value(instancetype).unwrap();
    let preference: Option<VirtualMachinePreferenceSpec> = serde_json::from_value(preference).unwrap();
    let mut spec: VirtualMachineInstanceSpec = serde_json::from_value(whole).unwrap();
    let mut annotations = BTreeMap::from([("mine".to_owned(), "1".to_owned())]);
    let path = Path::new("spec");
    apply(&path, &instancetype, preference.as_ref(), &mut spec, &mut annotations)
        .map(|()| json!({"spec": spec, "annotations": annotations}))
        .map_err(|causes| causes.iter().map(|cause| format!("{} | {}", cause.field, cause.message)).collect())
}

fn json_merge(target: &mut Value, extra: Value) {
    match (target, extra) {
        (Value::Object(target), Value::Object(extra)) => {
            for (name, value) in extra {
                json_merge(target.entry(name).or_insert(Value::Null), value);
            }
        }
        (target, extra) => *target = extra,
    }
}

fn conflict_at(field: &str) -> String {
    format!("{field} | VM field(s) {field} conflicts with selected instance type")
}

#[test]
fn every_field_gets_to_its_place() {
    for (extra, place, wanted) in [
        (json!({}), "/spec/domain/memory/guest", json!("1Gi")),
        (json!({}), "/spec/domain/cpu", json!({"sockets": 1, "cores": 1, "threads": 1})),
        (json!({"cpu": {"guest": 4}}), "/spec/domain/cpu/sockets", json!(4)),
        (json!({"cpu": {"model": "Nehalem"}}), "/spec/domain/cpu/model", json!("Nehalem")),
        (
            json!({"cpu": {"dedicatedCPUPlacement": true}}),
            "/spec/domain/cpu/dedicatedCpuPlacement",
            json!(true),
        ),
        (
            json!({"cpu": {"isolateEmulatorThread": true}}),
            "/spec/domain/cpu/isolateEmulatorThread",
            json!(true),
        ),
        (
            json!({"cpu": {"numa": {"guestMappingPassthrough": {}}}}),
            "/spec/domain/cpu/numa",
            json!({"guestMappingPassthrough": {}}),
        ),
        (json!({"cpu": {"realtime": {"mask": "0"}}}), "/spec/domain/cpu/realtime", json!({"mask": "0"})),
        (json!({"cpu": {"maxSockets": 8}}), "/spec/domain/cpu/maxSockets", json!(8)),
        (
            json!({"memory": {"hugepages": {"pageSize": "2Mi"}}}),
            "/spec/domain/memory/hugepages",
            json!({"pageSize": "2Mi"}),
        ),
        (json!({"memory": {"maxGuest": "2Gi"}}), "/spec/domain/memory/maxGuest", json!("2Gi")),
        (
            json!({"memory": {"overcommitPercent": 50}}),
            "/spec/domain/resources/requests",
            json!({"memory": "512Mi"}),
        ),
        (json!({"ioThreadsPolicy": "auto"}), "/spec/domain/ioThreadsPolicy", json!("auto")),
        (
            json!({"ioThreads": {"supplementalPoolThreadCount": 2}}),
            "/spec/domain/ioThreads",
            json!({"supplementalPoolThreadCount": 2}),
        ),
        (json!({"launchSecurity": {"sev": {}}}), "/spec/domain/launchSecurity", json!({"sev": {}})),
        (json!({"gpus": [{"name": "g"}]}), "/spec/domain/devices/gpus", json!([{"name": "g"}])),
        (json!({"hostDevices": [{"name": "d"}]}), "/spec/domain/devices/hostDevices", json!([{"name": "d"}])),
        (json!({"nodeSelector": {"zone": "a"}}), "/spec/nodeSelector", json!({"zone": "a"})),
        (json!({"schedulerName": "late"}), "/spec/schedulerName", json!("late")),
        (json!({"annotations": {"a": "b", "mine": "1"}}), "/annotations", json!({"a": "b", "mine": "1"})),
    ] {
        let result = applied(extra.clone(), json!({}), json!({}), Value::Null).unwrap();
        assert_eq!(result.pointer(place), Some(&wanted), "{extra} in {result}");
    }
}

#[test]
fn every_field_that_both_decide_is_a_conflict() {
    let (all, none) = (json!({}), json!({}));
    for (extra, domain, spec, field) in [
        (all.clone(), json!({"cpu": {"sockets": 1}}), none.clone(), "spec.domain.cpu.sockets"),
        (all.clone(), json!({"cpu": {"cores": 1}}), none.clone(), "spec.domain.cpu.cores"),
        (all.clone(), json!({"cpu": {"threads": 1}}), none.clone(), "spec.domain.cpu.threads"),
        (
            all.clone(),
            json!({"resources": {"requests": {"cpu": "1"}}}),
            none.clone(),
            "spec.domain.resources.requests.cpu",
        ),
        (
            all.clone(),
            json!({"resources": {"limits": {"cpu": "1"}}}),
            none.clone(),
            "spec.domain.resources.limits.cpu",
        ),
        (all.clone(), json!({"memory": {"guest": "1Gi"}}), none.clone(), "spec.domain.memory.guest"),
        (
            all.clone(),
            json!({"resources": {"requests": {"memory": "1Gi"}}}),
            none.clone(),
            "spec.domain.resources.requests.memory",
        ),
        (
            all.clone(),
            json!({"resources": {"limits": {"memory": "1Gi"}}}),
            none.clone(),
            "spec.domain.resources.limits.memory",
        ),
        (
            json!({"cpu": {"model": "a"}}),
            json!({"cpu": {"model": "a"}}),
            none.clone(),
            "spec.domain.cpu.model",
        ),
        (
            json!({"cpu": {"dedicatedCPUPlacement": false}}),
            json!({"cpu": {"dedicatedCpuPlacement": true}}),
            none.clone(),
            "spec.domain.cpu.dedicatedCPUPlacement",
        ),
        (
            json!({"cpu": {"isolateEmulatorThread": true}}),
            json!({"cpu": {"isolateEmulatorThread": true}}),
            none.clone(),
            "spec.domain.cpu.isolateEmulatorThread",
        ),
        (json!({"cpu": {"numa": {}}}), json!({"cpu": {"numa": {}}}), none.clone(), "spec.domain.cpu.numa"),
        (
            json!({"cpu": {"realtime": {}}}),
            json!({"cpu": {"realtime": {}}}),
            none.clone(),
            "spec.domain.cpu.realtime",
        ),
        (
            json!({"memory": {"hugepages": {"pageSize": "2Mi"}}}),
            json!({"memory": {"hugepages": {"pageSize": "2Mi"}}}),
            none.clone(),
            "spec.domain.memory.hugepages",
        ),
        (
            json!({"memory": {"maxGuest": "2Gi"}}),
            json!({"memory": {"maxGuest": "2Gi"}}),
            none.clone(),
            "spec.domain.memory.maxGuest",
        ),
        (
            json!({"ioThreadsPolicy": "auto"}),
            json!({"ioThreadsPolicy": "auto"}),
            none.clone(),
            "spec.domain.ioThreadsPolicy",
        ),
        (
            json!({"ioThreads": {"supplementalPoolThreadCount": 2}}),
            json!({"ioThreads": {"supplementalPoolThreadCount": 2}}),
            none.clone(),
            "spec.domain.ioThreads.supplementalPoolThreadCount",
        ),
        (
            json!({"launchSecurity": {"sev": {}}}),
            json!({"launchSecurity": {}}),
            none.clone(),
            "spec.domain.launchSecurity",
        ),
        (
            json!({"gpus": [{"name": "g"}]}),
            json!({"devices": {"gpus": [{"name": "h"}]}}),
            none.clone(),
            "spec.domain.devices.gpus",
        ),
        (
            json!({"hostDevices": [{"name": "g"}]}),
            json!({"devices": {"hostDevices": [{"name": "h"}]}}),
            none.clone(),
            "spec.domain.devices.hostDevices",
        ),
        (json!({"nodeSelector": {"a": "b"}}), none.clone(), json!({"nodeSelector": {}}), "spec.nodeSelector"),
        (json!({"schedulerName": "a"}), none.clone(), json!({"schedulerName": "a"}), "spec.schedulerName"),
        (json!({"annotations": {"mine": "2"}}), none.clone(), none.clone(), "annotations.mine"),
    ] {
        assert_eq!(applied(extra, domain, spec, Value::Null), Err(vec![conflict_at(field)]));
    }
}

#[test]
fn conflicts_come_all_at_once() {
    let domain = json!({"cpu": {"sockets": 2, "threads": 2}, "memory": {"guest": "1Gi"}});
    assert_eq!(
        applied(json!({}), domain, json!({}), Value::Null).unwrap_err(),
        ["spec.domain.cpu.sockets", "spec.domain.cpu.threads", "spec.domain.memory.guest"].map(conflict_at)
    );
}

#[test]
fn zero_and_empty_values_are_no_conflict() {
    let domain = json!({
        "cpu": {"sockets": 0, "model": "", "dedicatedCpuPlacement": false}, "memory": {}, "resources": {"requests": {}},
    });
    let extra = json!({"cpu": {"model": "a", "dedicatedCPUPlacement": true}, "schedulerName": ""});
    let result = applied(extra, domain, json!({"schedulerName": ""}), Value::Null).unwrap();
    assert_eq!(
        result["spec"]["domain"]["cpu"],
        json!({"sockets": 1, "cores": 1, "threads": 1, "model": "a", "dedicatedCpuPlacement": true})
    );
    // Fields that only the machine sets stay.
    let domain = json!({"cpu": {"model": "b"}, "memory": {"maxGuest": "4Gi"}, "ioThreadsPolicy": "shared"});
    let result = applied(json!({}), domain, json!({"nodeSelector": {"a": "b"}}), Value::Null).unwrap();
    assert_eq!(result.pointer("/spec/domain/cpu/model"), Some(&json!("b")));
    assert_eq!(result.pointer("/spec/domain/memory/maxGuest"), Some(&json!("4Gi")));
    assert_eq!(result.pointer("/spec/nodeSelector/a"), Some(&json!("b")));
}

#[test]
fn the_preference_lays_the_vcpus_out() {
    let of = |topology: Value| {
        applied(json!({"cpu": {"guest": 4}}), json!({}), json!({}), json!({"cpu": topology}))
            .map(|result| result["spec"]["domain"]["cpu"].clone())
    };
    assert_eq!(
        of(json!({"preferredCPUTopology": "cores"})),
        Ok(json!({"sockets": 1, "cores": 4, "threads": 1}))
    );
    assert_eq!(
        of(json!({"preferredCPUTopology": "spread"})),
        Ok(json!({"sockets": 2, "cores": 2, "threads": 1}))
    );
    assert_eq!(
        of(json!({"preferredCPUTopology": "spread", "spreadOptions": {"ratio": 3}})),
        Err(vec![
            "instancetype.spec.cpu.guest | 4 vCPUs provided by the instance type are not divisible by the \
             Spec.PreferSpreadSocketToCoreRatio or Spec.CPU.PreferSpreadOptions.Ratio of 3 provided by the preference"
                .to_owned()
        ])
    );
    assert_eq!(
        of(json!({"preferredCPUTopology": "ring"})),
        Err(vec!["preference.spec.cpu.preferredCPUTopology | unknown preferredCPUTopology ring".to_owned()])
    );
}

#[test]
fn values_that_cannot_be_used_are_named() {
    for (extra, message) in [
        (
            json!({"cpu": {"guest": 0}}),
            "instancetype.spec.cpu.guest | instancetype.spec.cpu.guest '0' is not a number of vCPUs",
        ),
        (
            json!({"cpu": {"guest": -1}}),
            "instancetype.spec.cpu.guest | instancetype.spec.cpu.guest '-1' is not a number of vCPUs",
        ),
        (
            json!({"cpu": {"maxSockets": -1}}),
            "instancetype.spec.cpu.maxSockets | instancetype.spec.cpu.maxSockets '-1' is not a number of sockets",
        ),
        (
            json!({"memory": {"overcommitPercent": 101}}),
            "instancetype.spec.memory.overcommitPercent | instancetype.spec.memory.overcommitPercent '101': must be in range \
             between 0 and 100.",
        ),
    ] {
        assert_eq!(applied(extra, json!({}), json!({}), Value::Null), Err(vec![message.to_owned()]));
    }
}

/// As Go's `int64(float32(bytes) * (1 - float32(percent)/100))` gives them.
#[test]
fn overcommit_counts_as_kubevirt_does() {
    for (guest, percent, bytes) in [("128Mi", 15, 114_085_072), ("512Mi", 50, 268_435_456), ("1Gi", 100, 0)] {
        let request = requested(&Quantity(guest.to_owned()), percent).unwrap();
        assert_eq!(quantity::bytes(&request), Ok(bytes), "{guest} {percent}");
    }
}
