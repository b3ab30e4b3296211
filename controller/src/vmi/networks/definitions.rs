//! The network attachment definitions that an instance names: whether they exist, and which resources of nodes come with them.

use crate::cluster::Cluster;
use crate::macs::{Segment, Segments};
use crate::vmi::status::age;
use barevirt_api::network_resource::{NetworkResource, RESOURCE_ANNOTATION};
use barevirt_api::networks::{self, Attachment};
use barevirt_api::settings::Bindings;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_component::request::{Error, call_opt};
use barevirt_plan::pod::networks::Resources;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::Api;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a running pod may lack the report of its networks.
pub(super) const ATTACHES: Duration = Duration::from_secs(10);
/// At most this many characters of a definition's text are repeated in a message.
const SHOWN: usize = 64;
/// Group and version of definitions.
const GROUP_VERSION: &str = "k8s.cni.cncf.io/v1";
/// The gate under which another component adds the resources of definitions to pods.
const INJECTION: &str = "ExternalNetResourceInjection";

/// The definitions that an instance names, as far as they were looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::vmi) struct Definitions {
    /// Those that do not exist.
    missing: BTreeSet<String>,
    /// The cluster does not have this kind.
    no_such_kind: bool,
    /// SR-IOV networks whose definition names no resource, each with the definition.
    without_resource: Vec<(String, String)>,
    /// Definitions that name something with which no network comes, each with what it names.
    not_given: Vec<(String, String)>,
    /// Resources of nodes that come with the networks.
    pub(in crate::vmi) resources: Resources,
}

/// A definition is attached for a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Use {
    network: String,
    /// The network's card is a PCI function of the node.
    is_function: bool,
}

/// Networks beside the pod's first and those that replace it, without networks of leaving cards, and networks of plugins: their
/// definitions, each with its uses.
pub(super) fn definitions(
    vmi: &VirtualMachineInstance,
    bindings: &Bindings,
) -> BTreeMap<Attachment, Vec<Use>> {
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let mut named: BTreeMap<Attachment, Vec<Use>> = BTreeMap::new();
    for network in &vmi.spec.networks {
        let mut cards = vmi.spec.domain.devices.interfaces.iter();
        let card = cards.find(|card| card.name == network.name);
        let mut add = |definition: &str, is_function: bool| {
            let attachment = Attachment::of(namespace, definition);
            named.entry(attachment).or_default().push(Use { network: network.name.clone(), is_function });
        };
        if let Some(multus) = network.multus.as_ref().filter(|_| !card.is_some_and(networks::is_absent)) {
            add(&multus.network_name, card.is_some_and(|card| card.sriov.is_some()));
        }
        if let Some(own) = card.and_then(|card| bindings.of(card)?.definition.as_deref()) {
            add(own, false);
        }
    }
    named
}

/// Looks up the definitions: if `begins`, because a pod is to be made; otherwise only if the pod takes long.
pub(in crate::vmi) async fn observe(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    pod: Option<&Pod>,
    begins: bool,
) -> Result<Definitions, Error> {
    let created = pod.and_then(|pod| pod.metadata.creation_timestamp.as_ref());
    let is_late = created.is_some_and(|created| age(created.0, Timestamp::now()) >= ATTACHES);
    let settings = cluster.config().settings;
    let named = if begins || is_late { definitions(vmi, &settings.bindings) } else { BTreeMap::new() };
    let mut found = Definitions::default();
    let injects = settings.gates.is_on(INJECTION);
    for (attachment, uses) in named {
        match get(cluster, &attachment).await? {
            Some(definition) => {
                let resource = definition.annotations().get(RESOURCE_ANNOTATION).map(String::as_str);
                found.add(&attachment.to_string(), &uses, resource, injects);
            }
            None => drop(found.missing.insert(attachment.to_string())),
        }
    }
    if !found.missing.is_empty() {
        let subject = || format!("kinds of {GROUP_VERSION}");
        let kinds = cluster.client.list_api_group_resources(GROUP_VERSION);
        found.no_such_kind = call_opt("list", subject, kinds).await?.is_none();
    }
    Ok(found)
}

async fn get(cluster: &Cluster, of: &Attachment) -> Result<Option<DynamicObject>, Error> {
    let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
    let resource = ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions");
    let all: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), &of.namespace, &resource);
    call_opt("get", || format!("network attachment definition {of}"), all.get(&of.name)).await
}

/// What is to be said about cards of an instance whose MAC address another instance has on the same network. Definitions are
/// looked up where an address is on two of them, and only if the instance's pod is to be made or `changes`.
pub(in crate::vmi) async fn same_addresses(
    cluster: &Cluster,
    vmi: &VirtualMachineInstance,
    changes: bool,
) -> Result<Vec<String>, Error> {
    let mut segments = Segments::new();
    let compared = if changes { cluster.macs.compared(vmi) } else { BTreeSet::new() };
    for attachment in compared {
        let definition = get(cluster, &attachment).await?;
        let config = definition.as_ref().and_then(|found| found.data["spec"]["config"].as_str());
        if let Some(segment) = config.and_then(Segment::of) {
            segments.insert(attachment, segment);
        }
    }
    Ok(cluster.macs.same(vmi, &segments))
}

impl Definitions {
    /// Adds the resource of a definition for each of its uses. With `injects`, another component asks for it.
    pub(super) fn add(&mut self, definition: &str, uses: &[Use], resource: Option<&str>, injects: bool) {
        let named = resource.filter(|resource| !resource.is_empty());
        for Use { network, is_function } in uses {
            let given = named.and_then(|resource| NetworkResource::new(network, resource));
            match (given, named) {
                (Some(given), _) => {
                    self.resources.asked.extend((!injects).then(|| given.resource.clone()));
                    self.resources.of_cards.extend(is_function.then_some(given));
                }
                (None, _) if *is_function => {
                    self.without_resource.push((network.clone(), definition.to_owned()));
                }
                (None, Some(resource)) if !injects => {
                    let shown = resource.chars().take(SHOWN).collect();
                    self.not_given.push((definition.to_owned(), shown));
                }
                (None, _) => {}
            }
        }
    }

    /// Why no pod can be made: a definition that is missing, in KubeVirt's words, or one that names no resource.
    pub(in crate::vmi) fn refusal(&self) -> Option<String> {
        self.fault().map(unmade)
    }

    /// The missing definition, in KubeVirt's words.
    pub(in crate::vmi) fn trouble(&self) -> Option<String> {
        self.not_found().map(unmade)
    }

    /// What is wrong with the definitions.
    pub(super) fn fault(&self) -> Option<String> {
        let lacks = || {
            let (network, definition) = self.without_resource.first()?;
            Some(format!(
                "network {network} is for an SR-IOV card, and its network attachment definition {definition} has no \
                 annotation {RESOURCE_ANNOTATION} that names a resource of nodes"
            ))
        };
        let names = || {
            let (definition, resource) = self.not_given.first()?;
            Some(format!(
                "the annotation {RESOURCE_ANNOTATION} of network attachment definition {definition} names {resource:?}, \
                 which comes with no network"
            ))
        };
        self.not_found().or_else(lacks).or_else(names)
    }

    fn not_found(&self) -> Option<String> {
        if self.missing.is_empty() {
            return None;
        }
        let missing: Vec<&str> = self.missing.iter().map(String::as_str).collect();
        let definition = if missing.len() == 1 { "definition" } else { "definitions" };
        let missing = missing.join(", ");
        let hint = if self.no_such_kind {
            format!(
                ": the cluster has no kind NetworkAttachmentDefinition ({GROUP_VERSION}), which comes with Multus"
            )
        } else {
            String::new()
        };
        Some(format!("failed to locate network attachment {definition} {missing}{hint}"))
    }

    /// Builds definitions for tests.
    #[cfg(test)]
    pub(in crate::vmi) fn of(missing: &[&str], no_such_kind: bool) -> Self {
        let missing = missing.iter().map(|name| (*name).to_owned()).collect();
        Definitions { missing, no_such_kind, ..Definitions::default() }
    }
}

/// A fault that keeps a pod from being made.
fn unmade(fault: String) -> String {
    format!("failed to render launch manifest: {fault}")
}
