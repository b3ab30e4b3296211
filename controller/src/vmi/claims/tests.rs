use super::*;
use serde_json::json;

fn found(claim: Value, filling: Option<&str>) -> Found {
    let filling = filling.map(|phase| Filling { phase: phase.to_owned(), ..Filling::default() });
    Found { claim: serde_json::from_value(claim).unwrap(), filling }
}

fn claims(claim: Value, filling: Option<&str>) -> Claims {
    Claims::of([("c".to_owned(), found(claim, filling))])
}

#[test]
fn an_instance_waits_for_its_claims() {
    let vmi: VirtualMachineInstance = serde_json::from_value(
        json!({"metadata": {"name": "vm", "namespace": "ns"}, "spec": {"domain": {"devices": {}}}}),
    )
    .unwrap();
    let there = json!({"metadata": {"name": "c"}});
    let going = json!({"metadata": {"name": "c", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    for (claim, filling, expected) in [
        (there.clone(), None, None),
        (there.clone(), Some("Succeeded"), None),
        (json!(null), None, Some("PVC ns/c does not exist, waiting for it to appear")),
        (going, None, Some("PVC ns/c is being deleted")),
        (there.clone(), Some("ImportInProgress"), Some("DataVolume ns/c is not ready: ImportInProgress")),
        (json!(null), Some(""), Some("DataVolume ns/c is not ready: Pending")),
        // The launcher is the pod that it waits for.
        (there.clone(), Some("PendingPopulation"), None),
        (json!(null), Some("PendingPopulation"), Some("PVC ns/c does not exist, waiting for it to appear")),
        // It waits for a pod only while it exists and is not bound.
        (there.clone(), Some("WaitForFirstConsumer"), None),
        (
            json!({"metadata": {"name": "c"}, "status": {"phase": "Bound"}}),
            Some("WaitForFirstConsumer"),
            Some("DataVolume ns/c is not ready: WaitForFirstConsumer"),
        ),
        (
            json!(null),
            Some("WaitForFirstConsumer"),
            Some("DataVolume ns/c is not ready: WaitForFirstConsumer"),
        ),
    ] {
        let trouble = claims(claim, filling).trouble(&vmi).map(|(_, message)| message);
        assert_eq!(trouble.as_deref(), expected);
    }
}

#[test]
fn the_first_consumer_is_missing_until_the_claim_is_bound() {
    let claim = |phase: &str| json!({"metadata": {"name": "c"}, "status": {"phase": phase}});
    let going = json!({"metadata": {"name": "c", "deletionTimestamp": "2026-01-01T00:00:00Z"}});
    for (claim, filling, waits, is_being_bound) in [
        (claim("Pending"), "WaitForFirstConsumer", true, true),
        (claim(""), "WaitForFirstConsumer", true, true),
        (claim("Bound"), "WaitForFirstConsumer", false, false),
        (json!(null), "WaitForFirstConsumer", false, false),
        (going, "WaitForFirstConsumer", false, true),
        (claim("Pending"), "PendingPopulation", false, true),
        (claim("Pending"), "ImportInProgress", false, true),
        (claim("Bound"), "ImportInProgress", false, false),
    ] {
        let claims = claims(claim.clone(), Some(filling));
        assert_eq!(claims.wait_for_consumer(), waits, "{filling} {claim}");
        assert_eq!(claims.are_being_bound(), is_being_bound, "{filling} {claim}");
    }
    assert!(!claims(claim("Pending"), None).wait_for_consumer());
    assert!(!claims(claim("Pending"), None).are_being_bound());
}

#[test]
fn data_volumes_are_ready_together() {
    let condition = |told: &[&str]| {
        let each = told.iter().enumerate().map(|(number, ready)| {
            let filling = Filling { ready: (*ready).to_owned(), ..Filling::default() };
            (number.to_string(), Found { claim: None, filling: Some(filling) })
        });
        Claims::of(each.chain([("plain".to_owned(), Found::default())])).condition()
    };
    assert_eq!(condition(&[]), None);
    for (told, status, reason) in [
        (&["True", "True"][..], "True", "AllDVsReady"),
        (&["True", "", "False"], "False", "NotAllDVsReady"),
        (&["Unknown", "True"], "Unknown", "NotAllDVsReady"),
        (&[""], "Unknown", "NotAllDVsReady"),
    ] {
        let condition = condition(told).unwrap();
        assert_eq!((condition.status.as_str(), condition.reason.as_deref()), (status, Some(reason)));
    }
}

#[test]
fn the_state_of_a_data_volume_has_phase_and_readiness() {
    let told = |status: Value| Filling::of(&json!({ "status": status }));
    let conditions = json!([{"type": "Bound", "status": "True"}, {"type": "Ready", "status": "False"}]);
    let filling = told(json!({"phase": "ImportInProgress", "conditions": conditions}));
    assert_eq!((filling.phase.as_str(), filling.ready.as_str()), ("ImportInProgress", "False"));
    assert_eq!((told(Value::Null), filling.error), (Filling::default(), None));
    assert_eq!(told(json!({"phase": 3, "conditions": "none"})), Filling::default());
}

#[test]
fn a_failed_data_volume_is_distinguished_from_an_unfinished_one() {
    let running = |status: &str, reason: &str| json!([{"type": "Running", "status": status, "reason": reason, "message": "no route"}]);
    let stopped = "the pod that fills it has stopped with an error: no route";
    for (phase, conditions, reason, why) in [
        ("ImportInProgress", running("True", "Pod is running"), "DataVolumeNotReady", "ImportInProgress"),
        ("ImportScheduled", running("False", "ContainerCreating"), "DataVolumeNotReady", "ImportScheduled"),
        ("ImportInProgress", running("False", "Error"), "FailedDataVolumeImport", stopped),
        ("ImportInProgress", running("True", "Error"), "DataVolumeNotReady", "ImportInProgress"),
        ("ImportScheduled", running("False", "ImagePullFailed"), "FailedDataVolumeImport", stopped),
        ("Failed", json!(null), "FailedDataVolumeImport", "Failed"),
        ("", json!(null), "DataVolumeNotReady", "Pending"),
    ] {
        let filling = Filling::of(&json!({"status": {"phase": phase, "conditions": conditions}}));
        assert_eq!(filling.trouble(), (reason, why.to_owned()), "{phase} {conditions}");
    }
}

#[test]
fn a_claim_is_filled_by_the_data_volume_that_controls_it() {
    let is = |version: &str, kind: &str, name: &str, controls: bool| {
        let owner =
            json!({"apiVersion": version, "kind": kind, "name": name, "uid": "d", "controller": controls});
        let claim = json!({"metadata": {"name": "c", "ownerReferences": [owner]}});
        is_of_data_volume(&serde_json::from_value(claim).unwrap())
    };
    assert!(is("cdi.kubevirt.io/v1beta1", "DataVolume", "c", true));
    for other in [
        is("cdi.kubevirt.io/v1beta1", "DataVolume", "c", false),
        is("cdi.kubevirt.io/v1beta1", "DataVolume", "../d", true),
        is("cdi.kubevirt.io/v1beta1", "DataImportCron", "c", true),
        is("example.com/v1", "DataVolume", "c", true),
    ] {
        assert!(!other);
    }
    assert!(!is_of_data_volume(&PersistentVolumeClaim::default()));
}

#[test]
fn the_status_has_each_volume_on_a_claim() {
    let vmi: VirtualMachineInstance = serde_json::from_value(json!({
        "metadata": {"name": "vm"},
        "spec": {"domain": {"devices": {}}, "volumes": [
            {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}, {"name": "x", "emptyDisk": {"capacity": "1Mi"}},
        ]},
    }))
    .unwrap();
    let claims = claims(
        json!({
            "metadata": {"name": "c"},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "volumeMode": "Block",
                "resources": {"requests": {"storage": "1Gi"}},
            },
            "status": {"capacity": {"storage": "2Gi"}},
        }),
        None,
    );
    let mut volumes = vec![];
    claims.note(&vmi, &mut volumes);
    claims.note(&vmi, &mut volumes);
    let told = json!([{"name": "data", "target": "", "persistentVolumeClaimInfo": {
        "claimName": "c", "accessModes": ["ReadWriteOnce"], "volumeMode": "Block",
        "requests": {"storage": "1Gi"}, "capacity": {"storage": "2Gi"},
    }}]);
    assert_eq!(serde_json::to_value(volumes).unwrap(), told);
    assert_eq!((claims.mode("c"), claims.mode("other")), (Mode::Block, Mode::Filesystem));
}

#[test]
fn a_claim_says_by_annotations_that_its_space_is_allocated() {
    let says = |annotations: Value| {
        let claim = json!({"metadata": {"name": "c", "annotations": annotations}});
        info(&serde_json::from_value(claim).unwrap()).preallocated
    };
    for name in ["cdi.kubevirt.io/storage.preallocation", "user.custom.annotation/storage.thick-provisioned"]
    {
        assert_eq!(says(json!({ name: "true" })), Some(true), "{name}");
        assert_eq!(says(json!({ name: "false" })), None, "{name}");
    }
    assert_eq!(says(json!({"storage.thick-provisioned": "true"})), None);
}

#[test]
fn a_device_of_another_guest_is_waited_for_once_it_is_there() {
    let vmi = VirtualMachineInstance::default();
    let claim = serde_json::json!({"spec": {"volumeMode": "Block"}});
    let mut claims = Claims::of([("c".to_owned(), found(claim, None))]);
    assert_eq!(claims.trouble(&vmi), None);
    claims.1 = Some("taken".to_owned());
    assert_eq!(claims.trouble(&vmi), Some((REASON_CLAIM_IN_USE, "taken".to_owned())));
    let missing = Claims(Claims::of([("c".to_owned(), Found::default())]).0, Some("taken".to_owned()));
    assert_eq!(missing.trouble(&vmi).map(|(reason, _)| reason), Some(REASON_PVC_NOT_FOUND));
}
