use super::*;

/// The messages about lists and texts that are too long, after one change.
fn too_long(pointer: &str, value: Value) -> Vec<String> {
    let causes = causes_of(&with(right(), pointer, value));
    let long = |cause: &Cause| {
        cause.message.contains(" limit in length") || cause.message.contains("is longer than")
    };
    causes.into_iter().filter(long).map(|cause| cause.message).collect()
}

#[test]
fn lists_of_devices_have_an_end() {
    let many = |item: Value| Value::Array(vec![item; 257]);
    for (pointer, item, field) in [
        ("/spec/domain/devices/disks", json!({"name": "a"}), "spec.domain.devices.disks"),
        ("/spec/domain/devices/interfaces", json!({"name": "a"}), "spec.domain.devices.interfaces"),
        ("/spec/domain/devices/inputs", json!({"name": "a", "type": "tablet"}), "spec.domain.devices.inputs"),
        ("/spec/domain/devices/gpus", json!({"name": "a"}), "spec.domain.devices.gpus"),
        ("/spec/volumes", json!({"name": "a"}), "spec.volumes"),
        ("/spec/networks", json!({"name": "a"}), "spec.networks"),
        ("/spec/accessCredentials", json!({}), "spec.accessCredentials"),
    ] {
        assert_eq!(
            too_long(pointer, many(item)),
            [format!("{field} list exceeds the 256 element limit in length")]
        );
    }
}

#[test]
fn other_lists_maps_and_texts_have_an_end_too() {
    let ports: Vec<Value> = (1..=1025).map(|port| json!({"port": port})).collect();
    assert_eq!(
        too_long("/spec/domain/devices/interfaces/0/ports", json!(ports)),
        ["spec.domain.devices.interfaces[0].ports list exceeds the 1024 element limit in length"]
    );
    assert!(too_long("/spec/domain/devices/interfaces/0/ports", json!(ports[..1024])).is_empty());
    let labels: serde_json::Map<String, Value> = (0..1025).map(|n| (n.to_string(), json!("x"))).collect();
    assert_eq!(
        too_long("/spec/nodeSelector", Value::Object(labels)),
        ["spec.nodeSelector list exceeds the 1024 element limit in length"]
    );
    assert_eq!(
        too_long("/spec/schedulerName", json!("x".repeat((32 << 10) + 1))),
        ["spec.schedulerName is longer than 32768 bytes"]
    );
    assert!(too_long("/spec/schedulerName", json!("x".repeat(32 << 10))).is_empty());
}
