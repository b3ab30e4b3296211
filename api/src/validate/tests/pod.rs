use super::*;

#[test]
fn pod_rules() {
    check(rows![
        ["/spec/hostname" => "Upper"] => "spec.hostname", "spec.hostname does not conform to the kubernetes DNS_LABEL rules : ";
        ["/spec/hostname" => "a.b"] => "spec.hostname", "DNS_LABEL";
        ["/spec/subdomain" => "-a"] => "spec.subdomain", "spec.subdomain does not conform to the kubernetes DNS_SUBDOMAIN rules : ";
        ["/spec/terminationGracePeriodSeconds" => (-1)] => "spec.terminationGracePeriodSeconds", "greater than or equal to 0";
        ["/spec/evictionStrategy" => "x"] => "spec.evictionStrategy", "spec.evictionStrategy is set with an unrecognized option: x";
        ["/spec/serviceAccountName" => "A B"] => "spec.serviceAccountName", "spec.serviceAccountName is not a valid service account name: ";
        ["/spec/serviceAccountName" => "a", "/spec/volumes/2" => {"name": "scratch", "serviceAccount": {"serviceAccountName": "b"}}]
            => "spec.serviceAccountName", "spec.serviceAccountName \"a\" and serviceAccount volume \"b\" must reference the same service account";
        ["/spec/dnsPolicy" => "x"] => "spec.dnsPolicy", "DNSPolicy: x is not supported, valid values: [ClusterFirstWithHostNet ClusterFirst Default None]";
        ["/spec/dnsPolicy" => "None"] => "spec.dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None";
        ["/spec/dnsPolicy" => "None", "/spec/dnsConfig" => {}] => "spec.dnsConfig.nameservers", "must provide at least one DNS nameserver";
        ["/spec/dnsConfig" => {"nameservers": ["1.1.1.1", "1.1.1.2", "1.1.1.3", "::1"]}] => "spec.dnsConfig.nameservers", "must not have more than 3 nameservers";
        ["/spec/dnsConfig" => {"nameservers": ["x"]}] => "spec.dnsConfig.nameservers[0]", "must be valid IP address: x";
        ["/spec/dnsConfig" => {"searches": ["a", "b", "c", "d", "e", "f", "g"]}] => "spec.dnsConfig.searches", "must not have more than 6 search paths";
        ["/spec/dnsConfig" => {"searches": ["A_"]}] => "spec.dnsConfig.searches[0]", "is not DNS labels";
        ["/spec/dnsConfig" => {"options": [{"value": "x"}]}] => "spec.dnsConfig.options[0]", "Option.Name must not be empty";
    ]);
    let long = "a".repeat(60);
    check(
        rows![["/spec/dnsConfig" => {"searches": [long, long, long, long, long]}] => "spec.dnsConfig.searches", "must not have more than 256 characters";],
    );
}

#[test]
fn placement_rules() {
    let required = "requiredDuringSchedulingIgnoredDuringExecution";
    let preferred = "preferredDuringSchedulingIgnoredDuringExecution";
    let nodes = |terms: Value| json!({"nodeAffinity": {required: {"nodeSelectorTerms": terms}}});
    let rule = |rule: Value| nodes(json!([{"matchExpressions": [rule]}]));
    let of_name = |rule: Value| nodes(json!([{"matchFields": [rule]}]));
    let pods = |term: Value| json!({"podAffinity": {required: [term]}});
    let others = |weight: i32| {
        let term = json!({"topologyKey": "zone"});
        json!({"podAntiAffinity": {preferred: [{"weight": weight, "podAffinityTerm": term}]}})
    };
    let rows = [
        (nodes(json!([])), "nodeSelectorTerms", "Required value: must have at least one node selector term"),
        (
            rule(json!({"key": "zone", "operator": "In"})),
            "matchExpressions[0].values",
            "Required value: must be specified when `operator` is 'In' or 'NotIn'",
        ),
        (
            rule(json!({"key": "zone", "operator": "Exists", "values": ["a"]})),
            "matchExpressions[0].values",
            "Forbidden: may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
        ),
        (
            rule(json!({"key": "size", "operator": "Gt", "values": ["1", "2"]})),
            "matchExpressions[0].values",
            "Required value: must be specified single value when `operator` is 'Lt' or 'Gt'",
        ),
        (
            rule(json!({"key": "zone", "operator": "Near", "values": ["a"]})),
            "matchExpressions[0].operator",
            "Invalid value: \"Near\": not a valid selector operator",
        ),
        (
            rule(json!({"key": "a b", "operator": "Exists"})),
            "matchExpressions[0].key",
            "Invalid value: \"a b\": not the key of a label",
        ),
        (
            of_name(json!({"key": "zone", "operator": "In", "values": ["a"]})),
            "matchFields[0].key",
            "Invalid value: \"zone\": not a valid field selector key",
        ),
        (
            of_name(json!({"key": "metadata.name", "operator": "In", "values": ["a", "b"]})),
            "matchFields[0].values",
            "Required value: must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
        ),
        (
            of_name(json!({"key": "metadata.name", "operator": "In", "values": ["A"]})),
            "matchFields[0].values[0]",
            "Invalid value: \"A\": not the name of a node",
        ),
        (
            json!({"nodeAffinity": {preferred: [{"weight": 0, "preference": {}}]}}),
            "[0].weight",
            "Invalid value: 0: must be in the range 1-100",
        ),
        (pods(json!({"topologyKey": ""})), "[0].topologyKey", "Required value: can not be empty"),
        (
            pods(json!({"topologyKey": "zone", "namespaces": ["A"]})),
            "[0].namespaces[0]",
            "Invalid value: \"A\": not the name of a namespace",
        ),
        (
            pods(json!({"topologyKey": "zone", "labelSelector": {"matchLabels": {"app": "a b"}}})),
            "[0].labelSelector.matchLabels",
            "Invalid value: \"a b\": not the value of a label",
        ),
        (others(255), "[0].weight", "Invalid value: 255: must be in the range 1-100"),
    ];
    for (affinity, field, message) in rows {
        let causes = causes_of(&with(right(), "/spec/affinity", affinity.clone()));
        let [cause] = causes.as_slice() else { panic!("{affinity}: {causes:#?}") };
        assert!(cause.field.starts_with("spec.affinity.") && cause.field.ends_with(field), "{cause:?}");
        assert_eq!(cause.message, format!("{}: {message}", cause.field));
    }
    for affinity in [
        json!({"nodeAffinity": {}, "podAffinity": {}, "podAntiAffinity": {}}),
        rule(json!({"key": "topology.kubernetes.io/zone", "operator": "NotIn", "values": ["a", "b"]})),
        rule(json!({"key": "size", "operator": "Lt", "values": ["3"]})),
        of_name(json!({"key": "metadata.name", "operator": "In", "values": ["node01.example"]})),
        pods(json!({"topologyKey": "kubernetes.io/hostname", "namespaces": ["shop"],
            "labelSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]}})),
        others(100),
    ] {
        assert_eq!(causes_of(&with(right(), "/spec/affinity", affinity.clone())), [], "{affinity}");
    }
}

#[test]
fn spread_rules() {
    check(rows![
        ["/spec/topologySpreadConstraints" => [{"maxSkew": 0, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]]
            => "spec.topologySpreadConstraints[0].maxSkew", "spec.topologySpreadConstraints[0].maxSkew: Invalid value: 0: must be greater than zero";
        ["/spec/topologySpreadConstraints" => [{"maxSkew": 1, "topologyKey": "", "whenUnsatisfiable": "DoNotSchedule"}]]
            => "spec.topologySpreadConstraints[0].topologyKey", "Required value: can not be empty";
        ["/spec/topologySpreadConstraints" => [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "Never"}]]
            => "spec.topologySpreadConstraints[0].whenUnsatisfiable", "Unsupported value: \"Never\": supported values: \"DoNotSchedule\", \"ScheduleAnyway\"";
        ["/spec/topologySpreadConstraints" => [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchExpressions": [{"key": "app", "operator": "In"}]}}]]
            => "spec.topologySpreadConstraints[0].labelSelector.matchExpressions[0].values", "must be specified when `operator` is 'In' or 'NotIn'";
        ["/spec/topologySpreadConstraints" => [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}, {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"}]]
            => "spec.topologySpreadConstraints[0]", "Duplicate value: \"{zone, DoNotSchedule}\"";
    ]);
    let zone = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": "web"}}});
    let host = json!({"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "DoNotSchedule"});
    accepts(&[&[("/spec/topologySpreadConstraints", json!([zone, host]))]]);
}

#[test]
fn probe_rules() {
    check(rows![
        ["/spec/readinessProbe" => {}] => "spec.readinessProbe", "either spec.readinessProbe.tcpSocket, spec.readinessProbe.exec or spec.readinessProbe.httpGet must be set if a spec.readinessProbe is specified";
        ["/spec/livenessProbe" => {"exec": {"command": ["true"]}, "guestAgentPing": {}}] => "spec.livenessProbe", "spec.livenessProbe must have exactly one probe type set";
        ["/spec/networks" => [], "/spec/domain/devices/interfaces" => [], "/spec/domain/devices/autoattachPodInterface" => false, "/spec/readinessProbe" => {"tcpSocket": {"port": 80}}]
            => "spec.readinessProbe.tcpSocket", "spec.readinessProbe.tcpSocket is only allowed if the Pod Network is attached";
        ["/spec/networks" => [], "/spec/domain/devices/interfaces" => [], "/spec/domain/devices/autoattachPodInterface" => false, "/spec/livenessProbe" => {"httpGet": {"port": 80}}]
            => "spec.livenessProbe.httpGet", "spec.livenessProbe.httpGet is only allowed if the Pod Network is attached";
        ["/spec/startStrategy" => "Sideways"] => "spec.startStrategy", "spec.startStrategy is set with an unrecognized option: Sideways";
        ["/spec/startStrategy" => "Paused", "/spec/livenessProbe" => {"guestAgentPing": {}}]
            => "spec.startStrategy", "either spec.startStrategy or spec.livenessProbe should be provided.Pausing VMI with LivenessProbe is not supported";
    ]);
    check(rows![
        ["/spec/readinessProbe" => {"exec": {}}] => "spec.readinessProbe.exec.command", "is a required field";
        ["/spec/readinessProbe" => {"exec": {"command": []}}] => "spec.readinessProbe.exec.command", "is a required field";
    ]);
    let probes = [
        json!({"tcpSocket": {"port": 80}, "failureThreshold": 2, "successThreshold": 3}),
        json!({"httpGet": {"port": "web", "path": "/", "httpHeaders": [{"name": "a", "value": "b"}]}}),
        json!({"exec": {"command": ["true"]}, "timeoutSeconds": 5}),
        json!({"guestAgentPing": {}, "periodSeconds": 5, "initialDelaySeconds": 20}),
    ];
    for probe in probes {
        let object = with(right(), "/spec/readinessProbe", probe.clone());
        assert_eq!(causes_of(&with(object, "/spec/livenessProbe", probe)), []);
    }
}
