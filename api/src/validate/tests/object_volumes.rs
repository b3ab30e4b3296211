use super::*;

/// Adds a volume with this source, and a disk or a CD drive.
fn added(source: &str, value: Value, target: &str) -> Value {
    let object = with(right(), "/spec/volumes/-", json!({"name": "object", source: value}));
    with(object, "/spec/domain/devices/disks/-", json!({"name": "object", target: {}}))
}

#[test]
fn each_kind_may_be_a_disk_or_a_cd() {
    for (source, value) in [
        ("configMap", json!({"name": "a.b", "optional": true, "volumeLabel": "OEMDRV"})),
        ("secret", json!({"secretName": "a", "optional": false, "volumeLabel": "a b"})),
        ("serviceAccount", json!({"serviceAccountName": "a"})),
        ("sysprep", json!({"configMap": {"name": "a"}})),
        ("sysprep", json!({"secret": {"name": "a"}})),
        ("downwardAPI", json!({})),
        (
            "downwardAPI",
            json!({"volumeLabel": "me", "fields": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels", "apiVersion": "v1"}, "mode": 256},
                {"path": "a/team", "fieldRef": {"fieldPath": "metadata.annotations['example.com/Team']"}},
                {"path": "a/app", "fieldRef": {"fieldPath": "metadata.labels['app']"}},
                {"path": "cpu", "resourceFieldRef": {"containerName": "compute", "resource": "limits.cpu", "divisor": "1m"}},
                {"path": "memory", "resourceFieldRef": {"containerName": "compute", "resource": "requests.memory", "divisor": "1Mi"}},
                {"path": "huge", "resourceFieldRef": {"containerName": "compute", "resource": "limits.hugepages-2Mi", "divisor": "0"}},
            ]}),
        ),
    ] {
        for target in ["disk", "cdrom"] {
            assert_eq!(causes_of(&added(source, value.clone(), target)), [], "{source} as {target}");
        }
        let causes = causes_of(&added(source, value, "lun"));
        let rule = "lun can only be mapped to a DataVolume or PersistentVolumeClaim volume.";
        assert!(causes.iter().any(|cause| cause.message.ends_with(rule)), "{source}: {causes:?}");
    }
}

#[test]
fn names_labels_and_numbers() {
    let long = "x".repeat(33);
    check(rows![
        ["/spec/volumes/0" => {"name": "root", "configMap": {}}] => "spec.volumes[0].configMap.name", "spec.volumes[0].configMap.name is a required field";
        ["/spec/volumes/0" => {"name": "root", "configMap": {"name": "A"}}] => "spec.volumes[0].configMap.name", "'A' is not the name of a config map";
        ["/spec/volumes/0" => {"name": "root", "configMap": {"name": "a", "volumeLabel": long}}] => "spec.volumes[0].configMap.volumeLabel", "is not printable ASCII of at most 32 characters";
        ["/spec/volumes/0" => {"name": "root", "secret": {"secretName": ""}}] => "spec.volumes[0].secret.secretName", "is a required field";
        ["/spec/volumes/0" => {"name": "root", "secret": {"secretName": "../a"}}] => "spec.volumes[0].secret.secretName", "is not the name of a secret";
        ["/spec/volumes/0" => {"name": "root", "secret": {"secretName": "a", "volumeLabel": "a\nb"}}] => "spec.volumes[0].secret.volumeLabel", "is not printable ASCII";
        ["/spec/volumes/0" => {"name": "root", "downwardAPI": {"volumeLabel": "\u{e4}"}}] => "spec.volumes[0].downwardAPI.volumeLabel", "is not printable ASCII";
        ["/spec/volumes/0" => {"name": "root", "serviceAccount": {}}] => "spec.volumes[0].serviceAccount.serviceAccountName", "is a required field";
        ["/spec/volumes/0" => {"name": "root", "serviceAccount": {"serviceAccountName": "a"}}, "/spec/volumes/2" => {"name": "scratch", "serviceAccount": {"serviceAccountName": "a"}}] => "spec.volumes", "spec.volumes must have max one serviceAccount volume set";
        ["/spec/volumes/0" => {"name": "root", "sysprep": {}}] => "spec.volumes[0].sysprep", "spec.volumes[0].sysprep must have exactly one of configMap and secret set";
        ["/spec/volumes/0" => {"name": "root", "sysprep": {"configMap": {"name": "a"}, "secret": {"name": "a"}}}] => "spec.volumes[0].sysprep", "must have exactly one of configMap and secret set";
        ["/spec/volumes/0" => {"name": "root", "sysprep": {"configMap": {"name": ""}}}] => "spec.volumes[0].sysprep.configMap.name", "is a required field";
        ["/spec/volumes/0" => {"name": "root", "sysprep": {"secret": {"name": "A"}}}] => "spec.volumes[0].sysprep.secret.name", "is not the name of a secret";
    ]);
}

#[test]
fn pod_fields_that_kubernetes_would_refuse_are_refused() {
    let name = json!({"fieldPath": "metadata.name"});
    let file = |more: Value| {
        let mut file = json!({"path": "a"});
        file.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        vec![file]
    };
    let resource = |resource: &str, divisor: &str| {
        file(
            json!({"resourceFieldRef": {"containerName": "compute", "resource": resource, "divisor": divisor}}),
        )
    };
    let path = |path: &str| vec![json!({"path": path, "fieldRef": name})];
    for (fields, field, message) in [
        (file(json!({})), "[0]", "must have exactly one of fieldRef and resourceFieldRef set"),
        (path(""), "[0].path", "is not a relative path"),
        (path("/etc/shadow"), "[0].path", "is not a relative path"),
        (path("a/../../b"), "[0].path", "is not a relative path"),
        (path("..data/x"), "[0].path", "is not a relative path"),
        (path("1/2/3/4/5/6/7/8/9"), "[0].path", "is not a relative path"),
        (path(&"x".repeat(129)), "[0].path", "is not a relative path"),
        (
            path(&["x".repeat(128), "y".repeat(127)].join("/")),
            "[0].path",
            "of at most 255 bytes and 8 parts of at most 128",
        ),
        (file(json!({"fieldRef": name, "mode": 512})), "[0].mode", "must be between 0 and 0777"),
        (file(json!({"fieldRef": {"fieldPath": "spec.nodeName"}})), "[0].fieldRef.fieldPath", "is none of"),
        (
            file(json!({"fieldRef": {"fieldPath": "metadata.labels['a b']"}})),
            "[0].fieldRef.fieldPath",
            "is none of",
        ),
        (
            file(json!({"fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v2"}})),
            "[0].fieldRef.apiVersion",
            "'v2' must be v1",
        ),
        (
            file(json!({"resourceFieldRef": {"containerName": "mine", "resource": "limits.cpu"}})),
            "[0].resourceFieldRef.containerName",
            "must be compute",
        ),
        (resource("limits.gpu", "1"), "[0].resourceFieldRef.resource", "is not limits or requests of"),
        (resource("limits.cpu", "1Mi"), "[0].resourceFieldRef.divisor", "must be one of 1 and 1m"),
        (resource("limits.memory", "3"), "[0].resourceFieldRef.divisor", "must be one of 1, 1k, 1Ki"),
        (
            [path("a"), path("a")].concat(),
            "[1].path",
            "is that of spec.volumes[3].downwardAPI.fields[0] as well",
        ),
        ([path("a"), path("a/b/c")].concat(), "[1].path", "is beneath a file"),
    ] {
        let causes = causes_of(&added("downwardAPI", json!({"fields": fields}), "disk"));
        assert_eq!(causes.len(), 1, "{fields:?}: {causes:#?}");
        assert_eq!(causes[0].field, format!("spec.volumes[3].downwardAPI.fields{field}"), "{fields:?}");
        assert!(causes[0].message.contains(message), "{fields:?}: {causes:?}");
    }
}
