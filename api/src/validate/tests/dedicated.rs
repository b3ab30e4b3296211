use super::*;

#[test]
fn pinning_rules() {
    let field = "spec.domain.cpu.dedicatedCpuPlacement";
    let pinned = |more: Value| {
        let mut cpu = json!({"dedicatedCpuPlacement": true});
        cpu.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        cpu
    };
    let (two, three) = (pinned(json!({"cores": 2})), pinned(json!({"threads": 3})));
    let plain = pinned(json!({}));
    let cpu = "/spec/domain/cpu";
    let resources = "/spec/domain/resources";
    check(rows![
        [cpu => plain, resources => {"requests": {"cpu": "1500m", "memory": "1Gi"}}] => "spec.domain.resources.requests.cpu", "provided resources CPU requests must be an interger";
        [cpu => plain, resources => {"requests": {"cpu": "2", "memory": "1Gi"}, "limits": {"cpu": "2500m"}}, "/spec/domain/memory" => {}]
            => "spec.domain.resources.limits.cpu", "provided resources CPU limits must be an interger",
               field, "must be equal when DedicatedCPUPlacement is true";
        [cpu => plain, resources => {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"cpu": "2"}}] => field, "spec.domain.resources.requests.cpu or spec.domain.resources.limits.cpu must be equal when DedicatedCPUPlacement is true";
        [cpu => two, resources => {"requests": {"memory": "128Mi"}, "limits": {"memory": "256Mi"}}] => "spec.domain.resources.requests.memory", "spec.domain.resources.requests.memory must be equal to spec.domain.resources.limits.memory";
        [cpu => two, resources => {"requests": {"cpu": "4", "memory": "1Gi"}}] => field, "spec.domain.resources.requests.cpu or spec.domain.resources.limits.cpu must not be provided at the same time with spec.domain.cpu.cores when DedicatedCPUPlacement is true";
        [cpu => three, resources => {}] => field, "Not more than two threads must be provided at spec.domain.cpu.threads (got 3) when DedicatedCPUPlacement is true";
        [cpu => two, resources => {}, "/spec/domain/memory" => {}]
            => "spec.domain.resources.limits.memory", "spec.domain.resources.requests.memory, spec.domain.resources.limits.memory, spec.domain.memory.hugepages or spec.domain.memory.guest should be provided",
               "spec.domain.memory.guest", "no memory requested";
    ]);
    accepts(&[
        &[(cpu, two), (resources, json!({"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}))],
        &[(cpu, plain), (resources, json!({"limits": {"cpu": "4", "memory": "1Gi"}}))],
        &[(cpu, pinned(json!({"cores": 2, "isolateEmulatorThread": true}))), (resources, json!({}))],
        &[
            (
                cpu,
                pinned(
                    json!({"cores": 2, "numa": {"guestMappingPassthrough": {}}, "realtime": {"mask": "0,^1"}}),
                ),
            ),
            ("/spec/domain/memory", json!({"guest": "64Mi", "hugepages": {"pageSize": "2Mi"}})),
            (resources, json!({})),
        ],
    ]);
}

/// Validated before defaults, which give every guest a CPU.
#[test]
fn some_cpu_must_be_given() {
    let object = with(right(), "/spec/domain/cpu", json!({"dedicatedCpuPlacement": true}));
    let object = with(object, "/spec/domain/resources", json!({}));
    let causes = vmi(&instance(object), &Gates::default());
    let messages: Vec<&str> = causes.iter().map(|cause| cause.message.as_str()).collect();
    assert_eq!(
        messages,
        [
            "either spec.domain.resources.requests.cpu or spec.domain.resources.limits.cpu or spec.domain.cpu.cores must be provided when DedicatedCPUPlacement is true "
        ]
    );
}

#[test]
fn rules_of_what_needs_pinning() {
    let (dedicated, numa) =
        ("spec.domain.cpu.dedicatedCpuPlacement", "spec.domain.cpu.numa.guestMappingPassthrough");
    check(rows![
        ["/spec/domain/cpu/isolateEmulatorThread" => true] => "spec.domain.cpu.isolateEmulatorThread", "IsolateEmulatorThread should be only set in combination with DedicatedCPUPlacement";
        ["/spec/domain/cpu/numa" => {"guestMappingPassthrough": {}}]
            => numa, "spec.domain.cpu.dedicatedCpuPlacement must be set to true when NUMA topology strategy is set in spec.domain.cpu.numa.guestMappingPassthrough",
               numa, "spec.domain.memory.hugepages must be requested when NUMA topology strategy is set in spec.domain.cpu.numa.guestMappingPassthrough";
        ["/spec/domain/cpu/realtime" => {"mask": "1-0"}]
            => "spec.domain.cpu.realtime.mask", "spec.domain.cpu.realtime.mask 1-0 is not a list of virtual CPUs such as 0-3,^1",
               dedicated, "spec.domain.cpu.dedicatedCpuPlacement must be set to true when spec.domain.cpu.realtime is used",
               numa, "spec.domain.cpu.numa.guestMappingPassthrough must be defined when spec.domain.cpu.realtime is used";
        ["/spec/domain/cpu/realtime" => {}]
            => dedicated, "spec.domain.cpu.dedicatedCpuPlacement must be set to true when spec.domain.cpu.realtime is used",
               numa, "spec.domain.cpu.numa.guestMappingPassthrough must be defined when spec.domain.cpu.realtime is used";
    ]);
}
