//! Restricts connections to the components as far as a network policy can: to their own ports.
//!
//! The sources of connections cannot be restricted. The API server does not run in a pod, or connects through an agent of
//! the cloud; the kubelet probes from its node; monitoring may run anywhere. Certificates and the limits of the servers
//! decide what clients may do. Outgoing connections are not restricted: a policy does not know the address of the API
//! server.

use crate::objects::namespaced;
use barevirt_api::names::APP_LABEL;
use serde_json::{Value, json};

/// The policy of a component's pods.
pub(crate) fn policy(component: &str, ports: &[u16]) -> Value {
    let ports: Vec<Value> = ports.iter().map(|port| json!({"protocol": "TCP", "port": port})).collect();
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": namespaced(component, component),
        "spec": {
            "podSelector": {"matchLabels": {APP_LABEL: component}},
            "policyTypes": ["Ingress"],
            "ingress": [{"ports": ports}],
        },
    })
}

#[cfg(test)]
mod tests {
    use crate::operator::NAME;
    use crate::{Images, manifest, strategy};
    use serde_json::{Value, json};
    use std::collections::{BTreeMap, BTreeSet};

    /// Exactly the ports of our pods are open; and each container with servers has a memory limit.
    #[test]
    fn the_ports_of_the_components_are_open_and_no_others() {
        let all = [manifest(&Images::default()), strategy(&Images::default())].concat();
        let of_kind = |kind: &'static str| all.iter().filter(move |object| object["kind"] == kind);
        let numbers = |list: &Value, key: &str| -> BTreeSet<u64> {
            list.as_array().into_iter().flatten().filter_map(|port| port[key].as_u64()).collect()
        };
        let mut open: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
        for policy in of_kind("NetworkPolicy") {
            let spec = &policy["spec"];
            assert_eq!(spec["policyTypes"], json!(["Ingress"]));
            assert_eq!(spec["ingress"].as_array().map(Vec::len), Some(1));
            let of = spec["podSelector"]["matchLabels"]["kubevirt.io"].as_str().unwrap().to_owned();
            assert!(open.insert(of, numbers(&spec["ingress"][0]["ports"], "port")).is_none());
        }
        for workload in of_kind("Deployment").chain(of_kind("DaemonSet")) {
            let pod = &workload["spec"]["template"];
            let component = pod["metadata"]["labels"]["kubevirt.io"].as_str().unwrap();
            let container = &pod["spec"]["containers"][0];
            let ports = numbers(&container["ports"], "containerPort");
            assert_eq!(open.remove(component), Some(ports), "{component}");
            let limits = &container["resources"]["limits"];
            assert!(limits["memory"].is_string(), "{component}");
        }
        assert!(open.is_empty(), "{open:?}");
        let deployments: Vec<&str> =
            of_kind("Deployment").filter_map(|object| object["metadata"]["name"].as_str()).collect();
        assert_eq!(deployments, [NAME, "virt-controller", "virt-api"]);
    }

    /// A pod of a former version has the webhooks on another port: the service finds the port by name. And probes do not
    /// share a listener with the webhooks.
    #[test]
    fn probes_have_a_port_of_their_own_and_services_name_theirs() {
        let all = [manifest(&Images::default()), strategy(&Images::default())].concat();
        for name in ["virt-api", NAME] {
            let deployment = all
                .iter()
                .find(|object| object["kind"] == "Deployment" && object["metadata"]["name"] == name)
                .unwrap();
            let container = &deployment["spec"]["template"]["spec"]["containers"][0];
            let service = all
                .iter()
                .find(|object| {
                    object["kind"] == "Service" && object["spec"]["selector"]["kubevirt.io"] == name
                })
                .unwrap();
            let target = &service["spec"]["ports"][0]["targetPort"];
            let ports = container["ports"].as_array().unwrap();
            let served = ports.iter().find(|port| port["name"] == *target).unwrap();
            for probe in ["readinessProbe", "livenessProbe"] {
                assert_ne!(container[probe]["httpGet"]["port"], served["containerPort"], "{name}");
            }
        }
    }

    /// A flood of one of its other ports does not get a pod killed.
    #[test]
    fn every_component_is_alive_at_the_port_of_probes() {
        let all = [manifest(&Images::default()), strategy(&Images::default())].concat();
        let mut count = 0;
        for workload in
            all.iter().filter(|one| ["Deployment", "DaemonSet"].contains(&one["kind"].as_str().unwrap()))
        {
            let container = &workload["spec"]["template"]["spec"]["containers"][0];
            assert_eq!(
                container["livenessProbe"]["httpGet"]["port"], 8443,
                "{}",
                workload["metadata"]["name"]
            );
            count += 1;
        }
        assert_eq!(count, 4);
    }
}
