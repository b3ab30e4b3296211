//! expose: a Service for a virtual machine, an instance, or the instances of a replica set.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use barevirt_api::names;
use barevirt_api::networks::is_secondary;
use barevirt_api::v1::{
    VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceReplicaSet, VirtualMachineInstanceSpec,
};
use clap::Args;
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::PostParams;
use kube::{Api, Resource};

use crate::session::{self, Kind, Session};

/// Why there is no service for a guest that is only on other networks.
const NO_POD_NETWORK: &str = "the guest has no interface on the pod network, and a service reaches a guest on no other network: \
                              start from a pod or a host on the guest's network";

/// Arguments of `virtctl expose`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # SSH of the instance 'myvm' on each node:\n  \
    virtctl expose vmi myvm --port=22 --name=myvm-ssh --type=NodePort\n\n  \
    # Port 8080 of the machine 'myvm' as port 80:\n  \
    virtctl expose vm myvm --port=80 --target-port=8080 --name=myvm-http\n\n  \
    # The ports that the instances of the replica set 'myvmirs' list:\n  \
    virtctl expose vmirs myvmirs --name=vmirs-service")]
pub(crate) struct Expose {
    /// virtualmachineinstance (vmi), virtualmachine (vm) or virtualmachineinstancereplicaset (vmirs).
    kind: String,
    /// Name of the object.
    object: String,
    /// Name of the service created for the exposure of the VM.
    #[arg(long)]
    name: String,
    /// The port that the service should serve on. Default: the ports of the interface on the pod's first network.
    #[arg(long)]
    port: Option<u16>,
    /// Name or number of the guest's port. Default: the service's port.
    #[arg(long)]
    target_port: Option<String>,
    /// Name of the port.
    #[arg(long)]
    port_name: Option<String>,
    /// TCP or UDP.
    #[arg(long, default_value = "TCP")]
    protocol: String,
    /// ClusterIP, NodePort or LoadBalancer.
    #[arg(long = "type", default_value = "ClusterIP")]
    type_: String,
    /// Address of the service; None for a headless one.
    #[arg(long)]
    cluster_ip: Option<String>,
    /// Additional address, not managed by the cluster, to accept for the service.
    #[arg(long)]
    external_ip: Option<String>,
    /// IPv4, IPv6, 'IPv4,IPv6' or 'IPv6,IPv4'.
    #[arg(long)]
    ip_family: Option<String>,
    /// SingleStack, PreferDualStack or RequireDualStack.
    #[arg(long)]
    ip_family_policy: Option<String>,
}

/// The exposed object. It owns the service, so that both are deleted together.
struct Target {
    owner: OwnerReference,
    ports: Vec<ServicePort>,
    selector: BTreeMap<String, String>,
}

impl Expose {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let kind = self.kind.to_lowercase();
        let target = self.target(session, &kind).await?;
        let service = self.service(target)?;
        let services: Api<Service> = Api::namespaced(session.client.clone(), &session.namespace);
        services
            .create(&PostParams::default(), &service)
            .await
            .map_err(session::plain)
            .context("service creation failed")?;
        println!("Service {} successfully created for {kind} {}", self.name, self.object);
        Ok(())
    }

    async fn target(&self, session: &Session, kind: &str) -> anyhow::Result<Target> {
        let client = session.client.clone();
        match Kind::parse(kind) {
            Some(Kind::Machine) => {
                let api: Api<VirtualMachine> = Api::namespaced(client, &session.namespace);
                let vm = api
                    .get(&self.object)
                    .await
                    .map_err(session::plain)
                    .context("error fetching VirtualMachine")?;
                target(&vm, &vm.spec.template.spec, of_instance(&self.object))
            }
            Some(Kind::Instance) => {
                let api: Api<VirtualMachineInstance> = Api::namespaced(client, &session.namespace);
                let vmi = api
                    .get(&self.object)
                    .await
                    .map_err(session::plain)
                    .context("error fetching VirtualMachineInstance")?;
                target(&vmi, &vmi.spec, of_instance(&self.object))
            }
            None if is_replica_set(kind) => {
                let api: Api<VirtualMachineInstanceReplicaSet> = Api::namespaced(client, &session.namespace);
                let set = api
                    .get(&self.object)
                    .await
                    .map_err(session::plain)
                    .context("error fetching VirtualMachineInstanceReplicaSet")?;
                target(&set, &set.spec.template.spec, of_replica_set(&set.spec.selector)?)
            }
            None => bail!("unsupported resource type: {kind}"),
        }
    }

    fn service(&self, target: Target) -> anyhow::Result<Service> {
        let ports = match self.port {
            Some(port) => vec![ServicePort {
                name: self.port_name.clone(),
                protocol: Some(one_of("protocol", &self.protocol, &["TCP", "UDP"])?),
                port: port.into(),
                target_port: self.target_port.as_deref().map(int_or_string),
                ..ServicePort::default()
            }],
            None => target.ports,
        };
        if ports.is_empty() {
            bail!("couldn't find port via --port flag or introspection");
        }
        let ip_families = match &self.ip_family {
            None => None,
            Some(text) => Some(
                text.split(',')
                    .map(|family| one_of("IPFamily/s", family, &["IPv4", "IPv6"]))
                    .collect::<anyhow::Result<Vec<_>>>()?,
            ),
        };
        let several = ip_families.as_ref().is_some_and(|families| families.len() > 1);
        let ip_family_policy = match &self.ip_family_policy {
            Some(text) => Some(one_of(
                "IPFamilyPolicy/s",
                text,
                &["SingleStack", "PreferDualStack", "RequireDualStack"],
            )?),
            None => several.then(|| "PreferDualStack".to_owned()),
        };
        Ok(Service {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                owner_references: Some(vec![target.owner]),
                ..ObjectMeta::default()
            },
            spec: Some(ServiceSpec {
                ports: Some(ports),
                selector: Some(target.selector),
                cluster_ip: self.cluster_ip.clone(),
                external_ips: self.external_ip.clone().map(|address| vec![address]),
                type_: Some(one_of("service type", &self.type_, &["ClusterIP", "NodePort", "LoadBalancer"])?),
                ip_families,
                ip_family_policy,
                ..ServiceSpec::default()
            }),
            ..Service::default()
        })
    }
}

/// Whether a word means replica sets, in one of their spellings.
fn is_replica_set(word: &str) -> bool {
    let all = ["vmirs", "vmirss", "virtualmachineinstancereplicaset", "virtualmachineinstancereplicasets"];
    all.contains(&word)
}

/// The labels of the pods of the instance of that name, which its machine's name is, too.
fn of_instance(name: &str) -> BTreeMap<String, String> {
    [(names::VMI_ID_LABEL.to_owned(), names::vmi_id(name))].into()
}

/// The labels of the pods of a replica set. A service cannot select by anything else.
fn of_replica_set(selector: &LabelSelector) -> anyhow::Result<BTreeMap<String, String>> {
    let labels = selector.match_labels.clone().unwrap_or_default();
    ensure!(!labels.is_empty(), "cannot expose VirtualMachineInstanceReplicaSet without any selector labels");
    ensure!(
        selector.match_expressions.as_ref().is_none_or(Vec::is_empty),
        "cannot expose VirtualMachineInstanceReplicaSet with match expressions"
    );
    Ok(labels)
}

fn target<K: Resource<DynamicType = ()>>(
    object: &K,
    spec: &VirtualMachineInstanceSpec,
    selector: BTreeMap<String, String>,
) -> anyhow::Result<Target> {
    ensure!(is_on_pod_network(spec), NO_POD_NETWORK);
    let mut owner = object.controller_owner_ref(&()).context("the object has no uid")?;
    owner.block_owner_deletion = Some(false);
    Ok(Target { owner, ports: ports(spec), selector })
}

/// Whether the guest is on its pod's first network. It is, too, where a machine names no network and does not decline it.
fn is_on_pod_network(spec: &VirtualMachineInstanceSpec) -> bool {
    if spec.networks.is_empty() {
        return spec.domain.devices.autoattach_pod_interface.unwrap_or(true);
    }
    !spec.networks.iter().all(is_secondary)
}

/// The ports that the interface on the pod's first network lists.
fn ports(spec: &VirtualMachineInstanceSpec) -> Vec<ServicePort> {
    let Some(network) = spec.networks.iter().find(|network| !is_secondary(network)) else {
        return Vec::new();
    };
    let interfaces = spec.domain.devices.interfaces.iter().filter(|iface| iface.name == network.name);
    interfaces
        .flat_map(|iface| &iface.ports)
        .enumerate()
        .map(|(index, port)| ServicePort {
            name: port.name.clone().or_else(|| Some(format!("port-{}", index + 1))),
            protocol: port.protocol.clone(),
            port: port.port,
            ..ServicePort::default()
        })
        .collect()
}

fn int_or_string(text: &str) -> IntOrString {
    text.parse().map_or_else(|_| IntOrString::String(text.to_owned()), IntOrString::Int)
}

/// The matching word of the list, in the list's spelling.
fn one_of(what: &str, text: &str, words: &[&str]) -> anyhow::Result<String> {
    words
        .iter()
        .find(|word| word.eq_ignore_ascii_case(text))
        .map(|word| (*word).to_owned())
        .with_context(|| format!("unknown {what}: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        expose: Expose,
    }

    fn service(arguments: &[&str]) -> anyhow::Result<serde_json::Value> {
        service_on(&serde_json::json!([{ "name": "default", "pod": {} }]), arguments)
    }

    /// The service for a machine with these networks, and an interface on the one of the name `default`.
    fn service_on(networks: &serde_json::Value, arguments: &[&str]) -> anyhow::Result<serde_json::Value> {
        let vm: VirtualMachine = serde_json::from_value(serde_json::json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": { "name": "web", "uid": "1" },
            "spec": { "running": true, "template": { "spec": {
                "domain": { "devices": { "interfaces": [
                    { "name": "default", "masquerade": {}, "ports": [{ "port": 80 }, { "name": "ssh", "port": 22 }] },
                ] } },
                "networks": networks,
            } } },
        }))?;
        let all = ["x", "vm", "web", "--name=svc"].iter().chain(arguments);
        let expose = Command::try_parse_from(all)?.expose;
        let target = target(&vm, &vm.spec.template.spec, of_instance("web"))?;
        Ok(serde_json::to_value(expose.service(target)?)?)
    }

    #[test]
    fn the_service_selects_the_machine_s_pods_and_belongs_to_it() {
        let service = service(&["--port=80", "--target-port=http", "--type=nodeport"]).unwrap();
        assert_eq!(service["spec"]["selector"]["vmi.kubevirt.io/id"], "web");
        assert_eq!(service["spec"]["type"], "NodePort");
        assert_eq!(service["spec"]["ports"][0]["targetPort"], "http");
        assert_eq!(service["metadata"]["ownerReferences"][0]["blockOwnerDeletion"], false);
    }

    #[test]
    fn a_replica_set_is_selected_by_its_labels_and_by_nothing_else() {
        let of = |selector: serde_json::Value| {
            let found = of_replica_set(&serde_json::from_value(selector).unwrap());
            found.map_err(|error| error.to_string())
        };
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        assert_eq!(of(serde_json::json!({ "matchLabels": { "app": "web" } })), Ok(labels));
        assert!(of(serde_json::json!({})).unwrap_err().ends_with("without any selector labels"));
        let expressions = serde_json::json!([{ "key": "a", "operator": "Exists" }]);
        let selector =
            serde_json::json!({ "matchLabels": { "app": "web" }, "matchExpressions": expressions });
        assert!(of(selector).unwrap_err().ends_with("with match expressions"));
        assert!(is_replica_set("vmirs") && !is_replica_set("vmi"));
    }

    #[test]
    fn without_a_port_the_interface_s_ports_are_used() {
        let service = service(&[]).unwrap();
        assert_eq!(service["spec"]["ports"][0]["name"], "port-1");
        assert_eq!(service["spec"]["ports"][1]["name"], "ssh");
    }

    #[test]
    fn the_first_network_may_be_one_of_multus_and_others_are_refused() {
        let network =
            |multus: serde_json::Value| serde_json::json!([{ "name": "default", "multus": multus }]);
        let default = network(serde_json::json!({ "networkName": "a", "default": true }));
        let service = service_on(&default, &[]).unwrap();
        assert_eq!(service["spec"]["ports"][1]["port"], 22);
        let secondary = network(serde_json::json!({ "networkName": "a" }));
        for arguments in [&[][..], &["--port=80"]] {
            assert_eq!(service_on(&secondary, arguments).unwrap_err().to_string(), NO_POD_NETWORK);
        }
        // A machine without networks gets the pod network, unless it declines it.
        let mut spec = VirtualMachineInstanceSpec::default();
        assert!(is_on_pod_network(&spec));
        spec.domain.devices.autoattach_pod_interface = Some(false);
        assert!(!is_on_pod_network(&spec));
    }

    #[test]
    fn two_families_prefer_dual_stack() {
        let service = service(&["--port=1", "--ip-family=ipv4,ipv6"]).unwrap();
        assert_eq!(service["spec"]["ipFamilyPolicy"], "PreferDualStack");
        assert_eq!(service["spec"]["ipFamilies"], serde_json::json!(["IPv4", "IPv6"]));
    }

    #[test]
    fn unknown_words_are_named() {
        for flag in ["--protocol=sctp", "--type=ExternalName", "--ip-family=IPX", "--ip-family-policy=Any"] {
            let error = service(&["--port=1", flag]).unwrap_err().to_string();
            assert!(error.starts_with("unknown "), "{error}");
        }
    }
}
