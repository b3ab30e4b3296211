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
