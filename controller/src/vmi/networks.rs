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

pub(super) mod definitions;
mod required;

use super::action::{Action, Plan};
use super::observed::Observed;
use super::status::{age, status_patch};
use barevirt_api::names::CONDITION_MIGRATION_REQUIRED;
use barevirt_api::networks::{self, SOURCE_MULTUS};
use barevirt_api::settings::Bindings;
use barevirt_api::v1::{Condition, Network, NetworkInterfaceStatus, VirtualMachineInstance};
use barevirt_component::notes::Note;
use barevirt_plan::pod::networks::{NETWORK_STATUS, NETWORKS, Noted, differs, is_of, noted, wanted};
use definitions::ATTACHES;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;
use std::time::Duration;

pub(super) use definitions::{observe, same_addresses};
pub(super) use required::is_overdue;

/// How often a missing object is looked at.
pub(super) const INTERVAL: Duration = Duration::from_secs(10);

/// Plugins that an instance names and that the installation does not have, in KubeVirt's words.
pub(super) fn unknown_binding(vmi: &VirtualMachineInstance, bindings: &Bindings) -> Option<String> {
    let name = bindings.missing(&vmi.spec).into_iter().next()?;
    Some(format!(
        "failed to render launch manifest: unable to find the network binding plugin '{name}' in Kubevirt configuration"
    ))
}

/// The report on a network's link. In older pods it has an ordinal name, which may also be that of a plugin's own network:
/// so there its definition counts, too. Once a card has left, the numbers of the others are only in the status.
fn reported_link<'a>(
    vmi: &VirtualMachineInstance,
    links: &'a [Noted],
    network: &Network,
) -> Option<&'a Noted> {
    let named = |name: &str| links.iter().find(|noted| noted.link == name);
    let told = || named(networks::in_status(vmi, &network.name)?.pod_interface_name.as_deref()?);
    named(&networks::link(network)).or_else(told).or_else(|| {
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
        let link = reported.map(|noted| noted.link.clone());
        let known = told.iter().position(|entry| entry.name.as_ref() == Some(&network.name));
        match known.and_then(|at| Some((at, told.get_mut(at)?))) {
            None if attached => told.push(NetworkInterfaceStatus {
                name: Some(network.name.clone()),
                info_source: Some(SOURCE_MULTUS.to_owned()),
                pod_interface_name: link,
                ..NetworkInterfaceStatus::default()
            }),
            None => {}
            Some((at, entry)) => {
                entry.info_source =
                    networks::with_source(entry.info_source.as_deref(), SOURCE_MULTUS, attached);
                if entry.info_source.is_none() {
                    told.remove(at);
                } else {
                    let link = link.or_else(|| entry.pod_interface_name.take());
                    entry.pod_interface_name = Some(link.unwrap_or_else(|| networks::link(network)));
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
pub(super) fn changes(vmi: &VirtualMachineInstance) -> bool {
    networks::secondary(&vmi.spec).any(|(network, card)| {
        networks::is_absent(card) || card.sriov.is_none() && !networks::is_in_status(vmi, &network.name)
    })
}

/// The annotation with the networks that the pod asks for.
pub(super) const ANNOTATION: &str = NETWORKS;

#[cfg(test)]
mod tests;
