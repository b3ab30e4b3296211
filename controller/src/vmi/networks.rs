//! Networks that Multus attaches: missing definitions, attached networks, and changes while the guest runs.
//!
//! ```text
//!   before the pod    a definition is missing               --> reported, looked at again
//!   the pod runs      a network is not reported on it       --> not handed over; an error after a while
//!                     all networks are reported             --> handed over, and status.interfaces has them
//!   the guest runs    the instance has other networks       --> the pod asks for them, and still for what the guest has
//!                     they are reported                     --> status.interfaces; the handler does the rest
//!                     not after a while                     --> MigrationRequired: the next pod has them
//!                     one is for an SR-IOV card             --> MigrationRequired at once: only a new pod gets functions
//!                     and its definition is missing         --> MigrationRequired says so: no pod can be made with it
//! ```
//!
//! Instances without such networks are skipped.

mod required;

use super::action::{Action, Plan};
use super::observed::Observed;
use super::status::{age, status_patch};
use crate::cluster::Cluster;
use barevirt_api::names::CONDITION_MIGRATION_REQUIRED;
use barevirt_api::network_resource::{NetworkResource, RESOURCE_ANNOTATION};
use barevirt_api::networks::{self, Attachment, SOURCE_MULTUS};
use barevirt_api::settings::Bindings;
use barevirt_api::v1::{Condition, Network, NetworkInterfaceStatus, VirtualMachineInstance};
use barevirt_component::notes::Note;
use barevirt_component::request::{Error, call_opt};
use barevirt_plan::pod::networks::{
    NETWORK_STATUS, NETWORKS, Noted, Resources, differs, is_of, noted, wanted,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::Api;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

pub(super) use required::is_overdue;

/// How long a running pod may lack the report of its networks.
const ATTACHES: Duration = Duration::from_secs(10);
/// How often a missing object is looked at.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);
/// At most this many characters of a definition's text are repeated in a message.
const SHOWN: usize = 64;
/// Group and version of definitions.
const GROUP_VERSION: &str = "k8s.cni.cncf.io/v1";
/// The gate under which another component adds the resources of definitions to pods.
const INJECTION: &str = "ExternalNetResourceInjection";

/// The definitions that an instance names, as far as they were looked up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Definitions {
    /// Those that do not exist.
    missing: BTreeSet<String>,
    /// The cluster does not have this kind.
    no_such_kind: bool,
    /// SR-IOV networks whose definition names no resource, each with the definition.
    without_resource: Vec<(String, String)>,
    /// Definitions that name something with which no network comes, each with what it names.
    not_given: Vec<(String, String)>,
    /// Resources of nodes that come with the networks.
    pub(super) resources: Resources,
}

/// A definition is attached for a network.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Use {
    network: String,
    /// The network's card is a PCI function of the node.
    is_function: bool,
}

/// Networks beside the pod's first and those that replace it, without networks of leaving cards, and networks of plugins: their
/// definitions, each with its uses.
fn definitions(vmi: &VirtualMachineInstance, bindings: &Bindings) -> BTreeMap<Attachment, Vec<Use>> {
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
pub(super) async fn observe(
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
    for (Attachment { namespace, name }, uses) in named {
        let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
        let resource = ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions");
        let all: Api<DynamicObject> = Api::namespaced_with(cluster.client.clone(), &namespace, &resource);
        let subject = || format!("network attachment definition {namespace}/{name}");
        match call_opt("get", subject, all.get(&name)).await? {
            Some(definition) => {
                let resource = definition.annotations().get(RESOURCE_ANNOTATION).map(String::as_str);
                found.add(&format!("{namespace}/{name}"), &uses, resource, injects);
            }
            None => drop(found.missing.insert(format!("{namespace}/{name}"))),
        }
    }
    if !found.missing.is_empty() {
        let subject = || format!("kinds of {GROUP_VERSION}");
        let kinds = cluster.client.list_api_group_resources(GROUP_VERSION);
        found.no_such_kind = call_opt("list", subject, kinds).await?.is_none();
    }
    Ok(found)
}

impl Definitions {
    /// Adds the resource of a definition for each of its uses. With `injects`, another component asks for it.
    fn add(&mut self, definition: &str, uses: &[Use], resource: Option<&str>, injects: bool) {
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
    pub(super) fn refusal(&self) -> Option<String> {
        self.fault().map(unmade)
    }

    /// The missing definition, in KubeVirt's words.
    pub(super) fn trouble(&self) -> Option<String> {
        self.not_found().map(unmade)
    }

    /// What is wrong with the definitions.
    fn fault(&self) -> Option<String> {
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
    pub(super) fn of(missing: &[&str], no_such_kind: bool) -> Self {
        let missing = missing.iter().map(|name| (*name).to_owned()).collect();
        Definitions { missing, no_such_kind, ..Definitions::default() }
    }
}

/// A fault that keeps a pod from being made.
fn unmade(fault: String) -> String {
    format!("failed to render launch manifest: {fault}")
}

/// Plugins that an instance names and that the installation does not have, in KubeVirt's words.
pub(super) fn unknown_binding(vmi: &VirtualMachineInstance, bindings: &Bindings) -> Option<String> {
    let name = bindings.missing(&vmi.spec).into_iter().next()?;
    Some(format!(
        "failed to render launch manifest: unable to find the network binding plugin '{name}' in Kubevirt configuration"
    ))
}

/// The report on a network's link. In older pods it has an ordinal name, which may also be that of a plugin's own network:
/// so there its definition counts, too.
fn reported_link<'a>(
    vmi: &VirtualMachineInstance,
    links: &'a [Noted],
    network: &Network,
) -> Option<&'a Noted> {
    let named = |name: &str| links.iter().find(|noted| noted.link == name);
    named(&networks::link(network)).or_else(|| {
        let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
        let definition = &network.multus.as_ref()?.network_name;
        let older = named(&networks::ordinal_link(&vmi.spec, &network.name));
        older.filter(|noted| is_of(noted, namespace, definition))
    })
}

/// How long a running pod is not yet handed over because a network is not reported on it, and the message after that time.
pub(super) fn unattached(observed: &Observed, pod: &Pod) -> Option<(Duration, String)> {
    let links = noted(pod);
    let reported = links.as_deref().unwrap_or_default();
    let is_missing = |network: &Network| reported_link(&observed.vmi, reported, network).is_none();
    let missing = networks::attached_next(&observed.vmi).find(|(network, _)| is_missing(network))?.0;
    let link = networks::link(missing);
    let why = match &links {
        None => format!("no annotation {NETWORK_STATUS}: nothing like Multus has attached networks to it"),
        Some(_) => format!("no link {link} in its annotation {NETWORK_STATUS}"),
    };
    let definition = missing.multus.as_ref().map(|multus| multus.network_name.as_str()).unwrap_or_default();
    let message = format!(
        "network {} ({definition}) is not attached to the launcher pod {}, which has {why}",
        missing.name,
        pod.name_any()
    );
    let since = pod.status.as_ref().and_then(|status| status.start_time.as_ref());
    let since = since.or(pod.metadata.creation_timestamp.as_ref()).map_or(observed.now, |since| since.0);
    Some((ATTACHES.saturating_sub(age(since, observed.now)), message))
}

/// Updates the status of networks beside the first by the report on the pod. All other fields stay.
pub(super) fn note(vmi: &VirtualMachineInstance, pod: &Pod, told: &mut Vec<NetworkInterfaceStatus>) {
    let links = noted(pod).unwrap_or_default();
    for (network, _) in networks::secondary(&vmi.spec) {
        let reported = reported_link(vmi, &links, network);
        let attached = reported.is_some();
        let link = reported.map_or_else(|| networks::link(network), |noted| noted.link.clone());
        let known = told.iter().position(|entry| entry.name.as_ref() == Some(&network.name));
        match known.and_then(|at| Some((at, told.get_mut(at)?))) {
            None if attached => told.push(NetworkInterfaceStatus {
                name: Some(network.name.clone()),
                info_source: Some(SOURCE_MULTUS.to_owned()),
                pod_interface_name: Some(link),
                ..NetworkInterfaceStatus::default()
            }),
            None => {}
            Some((at, entry)) => {
                entry.info_source =
                    networks::with_source(entry.info_source.as_deref(), SOURCE_MULTUS, attached);
                if entry.info_source.is_none() {
                    told.remove(at);
                } else {
                    entry.pod_interface_name = Some(link);
                }
            }
        }
    }
}

/// The plan for a running instance and its pod.
pub(super) fn plan(observed: &Observed, pod: &Pod) -> Plan {
    let vmi = &observed.vmi;
    let mut status = vmi.status.clone().unwrap_or_default();
    let concerns = networks::secondary(&vmi.spec).next().is_some()
        || Condition::find(&status.conditions, CONDITION_MIGRATION_REQUIRED).is_some();
    if !concerns {
        return Plan::default();
    }
    let namespace = vmi.metadata.namespace.as_deref().unwrap_or_default();
    note(vmi, pod, &mut status.interfaces);
    let mut plan = Plan::default();
    let bindings = &observed.config.settings.bindings;
    // What is noted on the pod is attached to it, also before the status says so.
    let present = VirtualMachineInstance { status: Some(status.clone()), ..vmi.clone() };
    if changes(&present) && differs(pod, namespace, &present, bindings) {
        // The cluster's Multus may attach it to a running pod, or may not: then a migration brings the networks.
        plan.actions.push(Action::AnnotatePod {
            name: pod.name_any(),
            uid: pod.uid().unwrap_or_default(),
            annotation: ANNOTATION,
            value: Some(wanted(pod, namespace, &present, bindings).unwrap_or_else(|| "[]".to_owned())),
        });
        plan.notes.extend(observed.same_addresses.iter().map(|text| same_address(text)));
    }
    plan.again = required::migration(vmi, pod, observed.definitions.fault(), observed.now, &mut status);
    plan.act_if(status_patch(vmi, json!({}), &status))
}

/// Event: two cards on one network have the same MAC address.
pub(super) fn same_address(text: &str) -> Note {
    Note::warning(barevirt_api::names::REASON_SAME_MAC_ADDRESS, text)
}

/// Whether a card is to be added to this pod or removed from it. Otherwise the pod's annotation is left alone: it may be older
/// than the present names.
fn changes(vmi: &VirtualMachineInstance) -> bool {
    networks::secondary(&vmi.spec).any(|(network, card)| {
        networks::is_absent(card) || card.sriov.is_none() && !networks::is_in_status(vmi, &network.name)
    })
}

/// The annotation with the networks that the pod asks for.
pub(super) const ANNOTATION: &str = NETWORKS;

#[cfg(test)]
mod tests;
