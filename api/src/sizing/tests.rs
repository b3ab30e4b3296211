use super::*;
use serde_json::{Value, json};

fn valid(domain: Value) -> ValidVmi {
    let vmi = json!({"metadata": {"name": "vm", "namespace": "ns"}, "spec": {"domain": domain}});
    ValidVmi::new(serde_json::from_value(vmi).unwrap()).unwrap()
}

fn emulated() -> Settings {
    Settings { use_emulation: true, ..Settings::default() }
}

#[test]
fn guest_memory_is_whole_mebibytes() {
    for (guest, expected) in [("64M", 62), ("64Mi", 64), ("1Gi", 1024), ("1000001", 1)] {
        assert_eq!(
            valid(json!({"devices": {}, "memory": {"guest": guest}})).guest_memory(),
            expected * MIB,
            "{guest}"
        );
    }
    let both = valid(json!({
        "devices": {}, "memory": {"guest": "64Mi"}, "resources": {"requests": {"memory": "128Mi"}}}));
    assert_eq!(both.guest_memory(), 64 * MIB);
}

#[test]
fn the_overhead_is_the_sum_of_its_parts() {
    let plain = json!({"devices": {}, "memory": {"guest": "1Gi"}});
    // launcher 8, QEMU 48, one CPU 8, page tables and memory file 5, screen 32
    assert_eq!(overhead_bytes(&valid(plain.clone()), &Settings::default()), 101 * MIB);
    // and emulation 128 + 16
    assert_eq!(overhead_bytes(&valid(plain), &emulated()), 245 * MIB);
    let small = json!({
        "devices": {"autoattachGraphicsDevice": false}, "memory": {"guest": "1Gi"}, "cpu": {"sockets": 1, "maxSockets": 4}});
    assert_eq!(overhead_bytes(&valid(small), &Settings::default()), (8 + 48 + 8 + 5) * MIB);
    let roomy = json!({
        "devices": {"autoattachGraphicsDevice": false}, "memory": {"guest": "1Gi", "maxGuest": "17Gi"}, "cpu": {"sockets": 3}});
    assert_eq!(overhead_bytes(&valid(roomy), &Settings::default()), (8 + 48 + 3 * 8 + 5 + 2) * MIB);
}

fn resources(domain: Value, settings: &Settings) -> Value {
    serde_json::to_value(pod_resources(&valid(domain), settings)).unwrap()
}

#[test]
fn requests_without_anything_given() {
    let domain = json!({"devices": {}, "memory": {"guest": "1Gi"}, "cpu": {"cores": 2}});
    assert_eq!(
        resources(domain, &Settings::default()),
        // 1024 + 8 + 48 + 2 * 8 + 5 + 32 MiB; 2 CPUs / 10
        json!({"requests": {"cpu": "200m", "memory": "1133Mi"}})
    );
}

#[test]
fn overcommit_makes_the_request_smaller() {
    let settings = Settings { memory_overcommit: 200, cpu_allocation_ratio: 1, ..Settings::default() };
    let domain = json!({"devices": {}, "memory": {"guest": "1Gi"}});
    assert_eq!(resources(domain, &settings), json!({"requests": {"cpu": "1", "memory": "613Mi"}}));
}

#[test]
fn given_resources_get_the_overhead_and_others_stay() {
    let domain = json!({
        "devices": {"autoattachGraphicsDevice": false},
        "resources": {
            "requests": {"memory": "512Mi", "cpu": "500m", "example.com/x": "1"},
            "limits": {"memory": "1Gi", "cpu": "1"},
        },
    });
    assert_eq!(
        resources(domain, &Settings::default()),
        json!({
            // 8 + 48 + 8 + 3 MiB more
            "requests": {"memory": "579Mi", "cpu": "500m", "example.com/x": "1"},
            "limits": {"memory": "1091Mi", "cpu": "1"},
        })
    );
}

#[test]
fn the_overhead_can_be_left_out_of_the_request_but_not_of_the_limit() {
    let domain = json!({
        "devices": {"autoattachGraphicsDevice": false},
        "resources": {
            "overcommitGuestOverhead": true, "requests": {"memory": "512Mi"}, "limits": {"memory": "512Mi"},
        },
    });
    let resources = resources(domain, &Settings::default());
    assert_eq!(resources["requests"]["memory"], "512Mi");
    assert_eq!(resources["limits"]["memory"], "579Mi");
}

#[test]
fn a_topology_has_no_zeros() {
    let topology = Topology::of(Some(&Cpu { sockets: Some(0), threads: Some(2), ..Default::default() }));
    assert_eq!(topology, Topology { sockets: 1, cores: 1, threads: 2, max_sockets: 1 });
    assert_eq!(topology.vcpus(), 2);
    assert_eq!(Topology::of(None).max_vcpus(), 1);
}

#[test]
fn huge_pages_are_a_resource_of_their_own() {
    let domain = json!({
        "devices": {"autoattachGraphicsDevice": false}, "memory": {"guest": "64Mi", "hugepages": {"pageSize": "2Mi"}},
        "resources": {"requests": {"memory": "70Mi"}, "limits": {"memory": "80Mi"}}});
    let overhead = overhead_bytes(&valid(domain.clone()), &Settings::default()) / MIB;
    let given = resources(domain, &Settings::default());
    assert_eq!(given["requests"]["hugepages-2Mi"], "64Mi");
    assert_eq!(given["limits"]["hugepages-2Mi"], "64Mi");
    // What is left of both, and the overhead.
    assert_eq!(given["requests"]["memory"], format!("{}Mi", 6 + overhead));
    assert_eq!(given["limits"]["memory"], format!("{}Mi", 16 + overhead));
}
