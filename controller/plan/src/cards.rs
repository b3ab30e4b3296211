//! Network cards of a machine that come and go while its instance runs, and the state of their links. Pure.
//!
//! ```text
//!   machine                          instance                     then
//!   a card that is not there         its MAC address is written into the machine first
//!                                --> added                        the pod's networks follow, the guest follows
//!   another link state           --> the same link state
//!   absent                       --> absent                       the guest releases it, the pod's networks follow
//!                                    removed, once the status does not list it any more
//!   removed, once the instance does not have it any more
//! ```
//!
//! What is plugged and unplugged, and what needs a restart, follows KubeVirt's rules: only bridges and SR-IOV cards on networks
//! that Multus attaches are plugged, and the definition behind such a network changes for an instance that can migrate. Two
//! differences: an interface is compared with the one that the machine was started with, not with the instance's, to which
//! instance type, preference and defaults have added fields; and SR-IOV cards are unplugged, too.
//!
//! An SR-IOV card is a function of a node, which a pod gets when it is made: the card comes with a migration. A guest that
//! cannot move gets it with a restart.

use barevirt_api::gates::Gates;
use barevirt_api::identity;
use barevirt_api::migratable;
use barevirt_api::names::CONDITION_LIVE_MIGRATABLE;
use barevirt_api::networks::{self, ABSENT, is_in_status};
use barevirt_api::v1::{Condition, Interface, Network, VirtualMachineInstance, VirtualMachineInstanceSpec};
use barevirt_api::validate::{self, Requester};
use serde_json::Value;
use std::fmt::Display;

/// The cards that an instance is to have next.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Cards {
    /// All its interfaces.
    pub interfaces: Vec<Interface>,
    /// All its networks.
    pub networks: Vec<Network>,
    /// Whether a card waits until a former card of the same name has left the guest.
    pub waits: bool,
    /// Why a card needs a restart.
    pub refused: Option<String>,
}

fn card<'a>(spec: &'a VirtualMachineInstanceSpec, name: &str) -> Option<&'a Interface> {
    spec.domain.devices.interfaces.iter().find(|interface| interface.name == name)
}

fn network<'a>(spec: &'a VirtualMachineInstanceSpec, name: &str) -> Option<&'a Network> {
    spec.networks.iter().find(|network| network.name == name)
}

fn migratable_condition(vmi: &VirtualMachineInstance) -> Option<&Condition> {
    Condition::find(&vmi.status.as_ref()?.conditions, CONDITION_LIVE_MIGRATABLE)
}

fn is_migratable(vmi: &VirtualMachineInstance) -> bool {
    migratable_condition(vmi).is_some_and(Condition::is_true)
}

/// Whether an SR-IOV card can be plugged into a running guest, or unplugged.
enum PlugDecision {
    Possible,
    /// That is not known yet.
    Unknown,
    Impossible(String),
}

/// Whether an SR-IOV card can be plugged in: the guest has to move for it.
fn plug_decision(card: &Interface, vmi: &VirtualMachineInstance) -> PlugDecision {
    let impossible =
        |why: &str| PlugDecision::Impossible(format!("An SR-IOV card comes with a migration, and {why}"));
    if card.pci_address.as_ref().is_some_and(|address| !address.is_empty()) {
        return impossible("takes the first free port: pciAddress is not possible");
    }
    if let Some(field) = migratable::fixes(vmi, &card.name) {
        return impossible(&format!("{field} keeps cards from being plugged"));
    }
    match migratable_condition(vmi) {
        None => PlugDecision::Unknown,
        Some(found) if found.is_true() => PlugDecision::Possible,
        Some(found) => {
            impossible(&format!("the guest cannot migrate: {}", found.message.as_deref().unwrap_or_default()))
        }
    }
}

/// Whether an SR-IOV card can be unplugged: that happens in place.
fn unplug_decision(card: &Interface, vmi: &VirtualMachineInstance) -> PlugDecision {
    match migratable::fixes(vmi, &card.name) {
        Some(field) => PlugDecision::Impossible(format!("{field} keeps an SR-IOV card from being unplugged")),
        None => PlugDecision::Possible,
    }
}

/// Whether a machine's cards may differ from its instance's.
pub fn concern(template: &VirtualMachineInstanceSpec, vmi: &VirtualMachineInstance) -> bool {
    let wanted = &template.domain.devices.interfaces;
    let same = wanted == &vmi.spec.domain.devices.interfaces && template.networks == vmi.spec.networks;
    !wanted.is_empty() && !same || leave(vmi)
}

/// Whether a card of the instance is to leave, or has left: then there is work that no change of the machine announces.
pub fn leave(vmi: &VirtualMachineInstance) -> bool {
    vmi.spec.domain.devices.interfaces.iter().any(networks::is_absent)
}

/// Whether a machine's networks have changed in a way that its running instance cannot take over. `then` is the template
/// that the machine was started with, `now` the present one.
pub(crate) fn take_a_restart(
    then: &VirtualMachineInstanceSpec,
    now: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
) -> bool {
    let has = &vmi.spec;
    let moves = is_migratable(vmi);
    // Only one of the two may name the MAC address: the card is the same.
    let same_card = |one: &Interface, other: &Interface| {
        validate::same_card(&with_address(one, vmi), &with_address(other, vmi))
    };
    let same_network = |one: &Network, other: &Network| {
        if moves { validate::same_network(one, other) } else { one == other }
    };
    // Only a machine that lists neither gets the default card at its next start.
    let is_default_next = |network: &Network| {
        networks::is_first(network) && now.domain.devices.interfaces.is_empty() && now.networks.is_empty()
    };
    let card_stays = |is: &Interface| match (card(then, &is.name), card(now, &is.name)) {
        // Added by default, or removed from the machine without being unplugged.
        (None, None) => network(has, &is.name).is_some_and(is_default_next),
        (Some(_), None) => false,
        (Some(was), Some(wanted)) => same_card(was, wanted) || same_card(is, wanted),
        // A preference may have chosen the model.
        (None, Some(wanted)) => {
            let model = wanted.model.clone().or_else(|| is.model.clone());
            same_card(is, &Interface { model, ..wanted.clone() })
        }
    };
    let network_stays = |is: &Network| match (network(then, &is.name), network(now, &is.name)) {
        (None, None) => is_default_next(is),
        (Some(_), None) => false,
        (Some(was), Some(wanted)) => same_network(was, wanted) || same_network(is, wanted),
        (None, Some(wanted)) => same_network(is, wanted),
    };
    let comes = |wanted: &Interface| {
        card(has, &wanted.name).is_some()
            || networks::is_absent(wanted)
            || validate::can_be_plugged(wanted, network(now, &wanted.name))
    };
    let devices = &has.domain.devices;
    !(devices.interfaces.iter().all(card_stays)
        && has.networks.iter().all(network_stays)
        && now.domain.devices.interfaces.iter().all(comes))
}

/// Plans the cards. `wanted` is the machine's template with its instance type, preference and defaults.
pub(crate) fn plan(
    wanted: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
    gates: &Gates,
) -> Cards {
    let mut next = vmi.clone();
    let (mut waits, mut refused) = (false, None);
    for card in &wanted.domain.devices.interfaces {
        let network = network(wanted, &card.name);
        let mut changed = next.clone();
        let interfaces = &mut changed.spec.domain.devices.interfaces;
        let decision = match interfaces.iter_mut().find(|is| is.name == card.name) {
            // The old card leaves first; the new one is added afterwards.
            Some(is) if networks::is_absent(is) => {
                waits |= !networks::is_absent(card);
                continue;
            }
            Some(is) if networks::state(is) == networks::state(card) => continue,
            Some(is) => {
                is.state.clone_from(&card.state);
                if card.sriov.is_some() { unplug_decision(card, vmi) } else { PlugDecision::Possible }
            }
            None if !validate::can_be_plugged(card, network) => continue,
            None if is_in_status(vmi, &card.name) => PlugDecision::Unknown,
            None => {
                interfaces.push(card.clone());
                changed.spec.networks.extend(network.cloned());
                if card.sriov.is_some() { plug_decision(card, vmi) } else { PlugDecision::Possible }
            }
        };
        match decision {
            PlugDecision::Possible => take(vmi, &mut next, changed, &card.name, gates, &mut refused),
            PlugDecision::Unknown => waits = true,
            PlugDecision::Impossible(why) => refuse(&mut refused, &card.name, why),
        }
    }
    if is_migratable(vmi) {
        for is in next.spec.networks.clone() {
            let Some(named) = network(wanted, &is.name).filter(|named| **named != is) else { continue };
            if validate::same_network(&is, named) {
                let mut changed = next.clone();
                let mut all = changed.spec.networks.iter_mut();
                if let Some(network) = all.find(|network| network.name == is.name) {
                    network.clone_from(named);
                }
                take(vmi, &mut next, changed, &is.name, gates, &mut refused);
            }
        }
    }
    let spec = &mut next.spec;
    let gone = |interface: &Interface| {
        // A card that has just become absent is still in the guest, whether the status lists it or not.
        networks::is_absent(interface)
            && card(&vmi.spec, &interface.name).is_some_and(networks::is_absent)
            && !is_in_status(vmi, &interface.name)
    };
    let (left, stay): (Vec<Interface>, Vec<Interface>) =
        std::mem::take(&mut spec.domain.devices.interfaces).into_iter().partition(gone);
    spec.networks.retain(|network| left.iter().all(|left| left.name != network.name));
    Cards { interfaces: stay, networks: std::mem::take(&mut spec.networks), waits, refused }
}

/// Takes a change over if admission accepts it.
fn take(
    vmi: &VirtualMachineInstance,
    next: &mut VirtualMachineInstance,
    changed: VirtualMachineInstance,
    name: &str,
    gates: &Gates,
    refused: &mut Option<String>,
) {
    match validate::vmi_update(vmi, &changed, Requester::Component, gates).first() {
        None => *next = changed,
        Some(cause) => refuse(refused, name, cause),
    }
}

/// The first reason counts.
fn refuse(refused: &mut Option<String>, name: &str, why: impl Display) {
    refused.get_or_insert_with(|| format!("interface {name} updated in template spec. {why}"));
}

/// A card with the MAC address that it has in the guest.
fn with_address(card: &Interface, vmi: &VirtualMachineInstance) -> Interface {
    let given = card.mac_address.clone().filter(|given| !given.is_empty());
    let (namespace, name) = (vmi.metadata.namespace.as_deref(), vmi.metadata.name.as_deref());
    let own = || identity::mac(namespace.unwrap_or_default(), name.unwrap_or_default(), &card.name);
    Interface { mac_address: Some(given.unwrap_or_else(own)), ..card.clone() }
}

/// A machine's cards, where `patch` adds some of them to its instance's specification: each added card has its MAC address.
/// `None` where there is nothing to write. On clusters with KubeVirt, KubeMacPool writes an address there.
pub fn addressed(
    template: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
    patch: &Value,
) -> Option<Vec<Interface>> {
    let next = patch["domain"]["devices"]["interfaces"].as_array()?;
    let comes = |name: &str| {
        card(&vmi.spec, name).is_none() && next.iter().any(|card| card["name"].as_str() == Some(name))
    };
    let cards = &template.domain.devices.interfaces;
    let written = |card: &Interface| if comes(&card.name) { with_address(card, vmi) } else { card.clone() };
    let written: Vec<Interface> = cards.iter().map(written).collect();
    (written != *cards).then_some(written)
}

/// A machine's cards without those that were unplugged and have left its instance; `None` where all stay.
pub fn trimmed(
    template: &VirtualMachineInstanceSpec,
    vmi: Option<&VirtualMachineInstance>,
) -> Option<(Vec<Interface>, Vec<Network>)> {
    let gone = |interface: &Interface| {
        interface.state.as_deref() == Some(ABSENT)
            && vmi.is_none_or(|vmi| {
                card(&vmi.spec, &interface.name).is_none() && !is_in_status(vmi, &interface.name)
            })
    };
    let interfaces = template.domain.devices.interfaces.iter();
    let (left, stay): (Vec<Interface>, Vec<Interface>) = interfaces.cloned().partition(gone);
    let networks = template.networks.iter();
    let networks = networks.filter(|network| left.iter().all(|left| left.name != network.name));
    (!left.is_empty()).then(|| (stay, networks.cloned().collect()))
}

#[cfg(test)]
mod tests;
