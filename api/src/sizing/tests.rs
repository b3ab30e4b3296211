use super::*;
use crate::settings::QuotaLimits;
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
    // The rest of request and limit, and the overhead.
    assert_eq!(given["requests"]["memory"], format!("{}Mi", 6 + overhead));
    assert_eq!(given["limits"]["memory"], format!("{}Mi", 16 + overhead));
}

/// The pod's request, which has to be its limit, too.
fn guaranteed(domain: Value, annotations: Value) -> (Value, Value) {
    let mut domain = domain;
    domain["devices"] = json!({"autoattachGraphicsDevice": false});
    let vmi = json!({"metadata": {"name": "vm", "namespace": "ns", "annotations": annotations}, "spec": {"domain": domain}});
    let valid = ValidVmi::new(serde_json::from_value(vmi).unwrap()).unwrap();
    assert!(is_guaranteed(&valid));
    let settings = Settings { memory_overcommit: 200, ..Settings::default() };
    let resources = serde_json::to_value(pod_resources(&valid, &settings)).unwrap();
    assert_eq!(resources["requests"], resources["limits"]);
    (resources["requests"]["cpu"].clone(), resources["requests"]["memory"].clone())
}

#[test]
fn dedicated_cpus_are_whole_ones_and_requests_are_limits() {
    let cpu = |more: Value| {
        let mut cpu = json!({"cores": 2, "dedicatedCpuPlacement": true});
        cpu.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        cpu
    };
    let memory = json!({"guest": "1Gi"});
    // 1024 + 8 + 48 + 2 * 8 + 5 MiB, whatever is overcommitted elsewhere.
    let plain = json!({"cpu": cpu(json!({})), "memory": memory});
    assert_eq!(guaranteed(plain.clone(), json!({})), (json!("2"), json!("1101Mi")));
    let mut given = plain.clone();
    given["resources"] = json!({"overcommitGuestOverhead": true, "limits": {"cpu": "2", "memory": "2Gi"}});
    assert_eq!(guaranteed(given, json!({})), (json!("2"), json!("2125Mi")));
    let even = json!({"alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity": ""});
    let isolated = |more: Value| {
        json!({"cpu": cpu(json!({"isolateEmulatorThread": true})), "memory": memory,
        "ioThreadsPolicy": more, "ioThreads": {"supplementalPoolThreadCount": 3}})
    };
    for (policy, annotations, cpus) in [
        ("auto", json!({}), "3"),
        ("auto", even.clone(), "4"),
        ("supplementalPool", json!({}), "6"),
        ("supplementalPool", even, "6"),
    ] {
        let found = guaranteed(isolated(json!(policy)), annotations.clone());
        assert_eq!(found.0, json!(cpus), "{policy} {annotations}");
    }
}

#[test]
fn huge_pages_are_no_part_of_dedicated_memory() {
    let domain = json!({"cpu": {"cores": 1, "dedicatedCpuPlacement": true},
        "memory": {"guest": "64Mi", "hugepages": {"pageSize": "2Mi"}}});
    let (_, memory) = guaranteed(domain, json!({}));
    assert_eq!(memory, "65Mi");
}

#[test]
fn threads_of_the_pool_count_as_cpus() {
    let domain = json!({"devices": {}, "memory": {"guest": "1Gi"}, "cpu": {"cores": 2},
        "ioThreadsPolicy": "supplementalPool", "ioThreads": {"supplementalPoolThreadCount": 3}});
    assert_eq!(resources(domain, &Settings::default())["requests"]["cpu"], "500m");
}

#[test]
fn limits_that_a_quota_wants_are_set_where_none_are_given() {
    let quota = QuotaLimits { cpu: true, memory: Some(QuotaLimits::MEMORY) };
    let mut settings = Settings::default();
    settings.pods.quota = quota;
    let domain = json!({
        "devices": {"autoattachGraphicsDevice": false}, "cpu": {"cores": 2}, "memory": {"guest": "512Mi"},
    });
    let wanted = resources(domain.clone(), &settings);
    // Twice the request, which holds the overhead: 512 + 8 + 48 + 16 + 3 MiB.
    assert_eq!(wanted["requests"]["memory"], "587Mi");
    assert_eq!(wanted["limits"], json!({"cpu": "2", "memory": "1174Mi"}));
    settings.pods.quota = QuotaLimits { memory: None, ..quota };
    assert_eq!(resources(domain.clone(), &settings)["limits"], json!({"cpu": "2"}));
    let mut given = domain;
    given["resources"] = json!({"limits": {"cpu": "3", "memory": "600Mi"}});
    assert_eq!(resources(given, &settings)["limits"]["cpu"], "3");
}

#[test]
fn limits_that_are_the_requests_make_a_guaranteed_pod() {
    let of = |requests: Value, limits: Value| {
        is_guaranteed(&valid(json!({"devices": {}, "memory": {"guest": "64Mi"},
            "resources": {"requests": requests, "limits": limits}})))
    };
    let both = json!({"cpu": "1", "memory": "128Mi"});
    assert!(of(both.clone(), json!({"cpu": "1000m", "memory": "128Mi"})));
    assert!(!of(both.clone(), json!({"memory": "128Mi"})));
    assert!(!of(json!({"memory": "64Mi"}), both));
}
