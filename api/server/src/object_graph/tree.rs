//! Builds the tree from the objects. Pure.
//!
//! Kinds, groups and labels are KubeVirt's. An empty reference is left out, and an object that occurs twice
//! below the same node is listed once.

use std::collections::BTreeMap;

use barevirt_api::cdi;
use barevirt_api::firmware::{self, STATE_VOLUME};
use barevirt_api::instancetype::GROUP as INSTANCETYPE_GROUP;
use barevirt_api::instancetype::matcher::{Family, Scope};
use barevirt_api::v1::{
    AccessCredential, ObjectGraphNode, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec,
    Volume,
};
use k8s_openapi::api::core::v1::TypedObjectReference;
use kube::ResourceExt;

use super::LookedUpObjects;

/// Label of a node: the purpose of its object.
const TYPE_LABEL: &str = "kubevirt.io/dependency-type";
const KUBEVIRT: &str = "kubevirt.io";

/// The purpose of an object; the values of the label.
#[derive(Clone, Copy)]
enum Type {
    Storage,
    Network,
    Compute,
    Config,
}

/// A kind of objects: API group, kind, and purpose.
type Kind = (&'static str, &'static str, Type);

const VM: Kind = (KUBEVIRT, "VirtualMachine", Type::Compute);
const VMI: Kind = (KUBEVIRT, "VirtualMachineInstance", Type::Compute);
const POD: Kind = ("", "Pod", Type::Compute);
const REVISION: Kind = ("apps", "ControllerRevision", Type::Config);
const CONFIG_MAP: Kind = ("", "ConfigMap", Type::Config);
const SECRET: Kind = ("", "Secret", Type::Config);
const ACCOUNT: Kind = ("", "ServiceAccount", Type::Config);
const CLAIM: Kind = ("", "PersistentVolumeClaim", Type::Storage);
const DATA_VOLUME: Kind = (cdi::GROUP, "DataVolume", Type::Storage);
const NETWORK: Kind = ("k8s.cni.cncf.io", "NetworkAttachmentDefinition", Type::Network);

/// Whether the machine has an instance.
pub(super) fn is_created(vm: &VirtualMachine) -> bool {
    vm.status.as_ref().and_then(|status| status.created) == Some(true)
}

/// The tree of a machine.
pub(super) fn machine(vm: &VirtualMachine, seen: &LookedUpObjects) -> ObjectGraphNode {
    let namespace = vm.namespace().unwrap_or_default();
    let spec = &vm.spec.template.spec;
    let mut children = Children { namespace: &namespace, nodes: Vec::new() };
    if is_created(vm) {
        let mut instance = node(VMI, &namespace, &vm.name_any());
        instance.children.extend(seen.pod.iter().map(|pod| node(POD, &namespace, pod)));
        children.push(instance);
    }
    for family in Family::ALL {
        children.named(vm, family);
    }
    children.spec(spec, seen.state.as_deref());
    ObjectGraphNode { children: children.nodes, ..node(VM, &namespace, &vm.name_any()) }
}

/// The tree of an instance.
pub(super) fn instance(vmi: &VirtualMachineInstance, pod: Option<String>) -> ObjectGraphNode {
    let namespace = vmi.namespace().unwrap_or_default();
    let volumes = vmi.status.iter().flat_map(|status| &status.volume_status);
    let state = volumes
        .filter(|volume| volume.name == STATE_VOLUME)
        .find_map(|volume| volume.persistent_volume_claim_info.as_ref()?.claim_name.as_deref());
    let mut children = Children { namespace: &namespace, nodes: Vec::new() };
    children.add(POD, pod.as_deref());
    children.spec(&vmi.spec, state);
    ObjectGraphNode { children: children.nodes, ..node(VMI, &namespace, &vmi.name_any()) }
}

fn node((group, kind, of): Kind, namespace: &str, name: &str) -> ObjectGraphNode {
    let of = match of {
        Type::Storage => "storage",
        Type::Network => "network",
        Type::Compute => "compute",
        Type::Config => "config",
    };
    ObjectGraphNode {
        children: Vec::new(),
        labels: BTreeMap::from([(TYPE_LABEL.to_owned(), of.to_owned())]),
        // The group of Kubernetes' own kinds and the namespace of cluster-wide objects are present but empty.
        object_reference: TypedObjectReference {
            api_group: Some(group.to_owned()),
            kind: kind.to_owned(),
            name: name.to_owned(),
            namespace: Some(namespace.to_owned()),
        },
        optional: None,
    }
}

/// The objects that one object depends on, in order.
struct Children<'a> {
    namespace: &'a str,
    nodes: Vec<ObjectGraphNode>,
}

impl Children<'_> {
    fn push(&mut self, node: ObjectGraphNode) {
        if !node.object_reference.name.is_empty() && !self.nodes.contains(&node) {
            self.nodes.push(node);
        }
    }

    fn add(&mut self, kind: Kind, name: Option<&str>) {
        self.push(node(kind, self.namespace, name.unwrap_or_default()));
    }

    /// An instance type or a preference, and the machine's copy of it. With a copy the machine does not need
    /// the original.
    fn named(&mut self, vm: &VirtualMachine, family: Family) {
        let Some(matcher) = family.matcher(vm) else { return };
        if let (Some(name), Ok(scope)) = (matcher.name, matcher.scope()) {
            let kind = (INSTANCETYPE_GROUP, family.object_kind(scope), Type::Config);
            let namespace = match scope {
                Scope::Namespaced => self.namespace,
                Scope::Cluster => "",
            };
            self.push(ObjectGraphNode { optional: Some(true), ..node(kind, namespace, name) });
        }
        let copy = match family.reference(vm) {
            Some(recorded) => recorded.controller_revision_ref.as_ref().and_then(|copy| copy.name.as_deref()),
            None => matcher.revision_name,
        };
        self.add(REVISION, copy);
    }

    fn spec(&mut self, spec: &VirtualMachineInstanceSpec, state: Option<&str>) {
        for credential in &spec.access_credentials {
            self.add(SECRET, secret_of(credential));
        }
        if let Some((_, container)) = firmware::kernel_boot(spec) {
            self.add(SECRET, container.image_pull_secret.as_deref());
        }
        for volume in &spec.volumes {
            self.volume(volume);
        }
        if firmware::needs_state(spec) {
            self.add(CLAIM, state);
        }
        for network in spec.networks.iter().filter_map(|network| network.multus.as_ref()) {
            let (namespace, name) =
                network.network_name.split_once('/').unwrap_or((self.namespace, &network.network_name));
            self.push(ObjectGraphNode { optional: Some(true), ..node(NETWORK, namespace, name) });
        }
    }

    /// The objects that a volume names. Other kinds of volumes name none.
    fn volume(&mut self, volume: &Volume) {
        let Volume {
            name: _,
            container_disk,
            cloud_init_no_cloud,
            empty_disk: _,
            cloud_init_config_drive,
            config_map,
            container_path: _,
            data_volume,
            downward_api: _,
            downward_metrics: _,
            ephemeral,
            host_disk: _,
            memory_dump,
            persistent_volume_claim,
            secret,
            service_account,
            sysprep,
        } = volume;
        if let Some(from) = data_volume {
            let claim = node(CLAIM, self.namespace, &from.name);
            let made_by = node(DATA_VOLUME, self.namespace, &from.name);
            self.push(ObjectGraphNode { children: vec![claim], ..made_by });
        }
        let beneath = ephemeral.as_ref().and_then(|from| from.persistent_volume_claim.as_ref());
        for from in persistent_volume_claim.iter().chain(beneath) {
            self.add(CLAIM, Some(&from.claim_name));
        }
        self.add(CLAIM, memory_dump.as_ref().map(|to| to.claim_name.as_str()));
        self.add(CONFIG_MAP, config_map.as_ref().and_then(|from| from.name.as_deref()));
        self.add(SECRET, secret.as_ref().and_then(|from| from.secret_name.as_deref()));
        self.add(ACCOUNT, service_account.as_ref().and_then(|from| from.service_account_name.as_deref()));
        if let Some(from) = cloud_init_no_cloud {
            for secret in [&from.secret_ref, &from.network_data_secret_ref] {
                self.add(SECRET, secret.as_ref().map(|secret| secret.name.as_str()));
            }
        }
        if let Some(from) = cloud_init_config_drive {
            for secret in [&from.secret_ref, &from.network_data_secret_ref] {
                self.add(SECRET, secret.as_ref().map(|secret| secret.name.as_str()));
            }
        }
        if let Some(from) = sysprep {
            self.add(CONFIG_MAP, from.config_map.as_ref().map(|map| map.name.as_str()));
            self.add(SECRET, from.secret.as_ref().map(|secret| secret.name.as_str()));
        }
        self.add(SECRET, container_disk.as_ref().and_then(|from| from.image_pull_secret.as_deref()));
    }
}

/// The secret that holds a credential.
fn secret_of(credential: &AccessCredential) -> Option<&str> {
    let AccessCredential { ssh_public_key, user_password } = credential;
    let key = ssh_public_key.as_ref().and_then(|key| key.source.secret.as_ref());
    let password = user_password.as_ref().and_then(|password| password.source.secret.as_ref());
    key.or(password).map(|secret| secret.secret_name.as_str())
}
