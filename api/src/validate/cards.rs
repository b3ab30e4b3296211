//! Network cards that are plugged and unplugged while the guest runs, and their links: the changes that
//! components may make to an instance.
//!
//! ```text
//!   not there --> up, down      a network that Multus attaches, by a bridge; by SR-IOV without a state
//!   up <--> down                any card
//!   up, down --> absent         to be unplugged
//!   absent --> not there        after it was unplugged
//! ```

use super::{Cause, Path};
use crate::gates::Gates;
use crate::networks::{self, PLUGGED_CARDS_SERVED};
use crate::syntax::quoted;
use crate::v1::{Interface, Network, VirtualMachineInstance};

pub(super) fn validate(
    old: &VirtualMachineInstance,
    new: &VirtualMachineInstance,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    validate_when(PLUGGED_CARDS_SERVED, old, new, gates, causes);
}

/// The same for a version that supports plugging cards, or one that does not.
pub(super) fn validate_when(
    served: bool,
    old: &VirtualMachineInstance,
    new: &VirtualMachineInstance,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    let (before, after) = (&old.spec.domain.devices.interfaces, &new.spec.domain.devices.interfaces);
    if before == after && old.spec.networks == new.spec.networks {
        return;
    }
    let broken = causes.len();
    let field = Path::new("spec.domain.devices.interfaces");
    for interface in before {
        if named(after, &interface.name).is_none() && !networks::is_absent(interface) {
            let name = quoted(&interface.name);
            causes.push(Cause::invalid(&field, format!("interface {name} was removed, and was not absent")));
        }
    }
    for (index, interface) in after.iter().enumerate() {
        let at = field.index(index);
        let network = new.spec.networks.iter().find(|network| network.name == interface.name);
        match named(before, &interface.name) {
            None => causes.extend(comes(served, &at, interface, network)),
            Some(former) if !same_card(former, interface) => {
                let name = quoted(&interface.name);
                causes.push(Cause::invalid(&at, format!("interface {name} changed in more than its state")));
            }
            Some(former) if networks::is_absent(former) && !networks::is_absent(interface) => {
                let message = format!("interface {} is on its way out", quoted(&interface.name));
                causes.push(Cause::invalid(&at.child("state"), message));
            }
            Some(former) if !served && networks::is_absent(interface) && former != interface => {
                causes.push(Cause::not_supported_yet(&at.child("state"), networks::ABSENT));
            }
            Some(_) => {}
        }
    }
    let field = Path::new("spec.networks");
    for (index, network) in new.spec.networks.iter().enumerate() {
        let former = old.spec.networks.iter().find(|former| former.name == network.name);
        if former.is_some_and(|former| !same_network(former, network)) {
            let name = quoted(&network.name);
            let message = format!("network {name} changed in more than its networkName");
            causes.push(Cause::invalid(&field.index(index), message));
        }
    }
    if causes.len() > broken {
        return;
    }
    // Faults that the instance had before, because the rules are newer than the instance, are no obstacle.
    let path = Path::new("spec");
    let known = super::spec(&path, &old.spec, gates);
    let found = super::spec(&path, &new.spec, gates);
    causes.extend(found.into_iter().filter(|cause| !known.contains(cause)));
}

/// Why a card cannot be plugged into a running guest.
fn comes(served: bool, field: &Path, interface: &Interface, network: Option<&Network>) -> Option<Cause> {
    let name = quoted(&interface.name);
    if !can_be_plugged(interface, network) {
        let message = format!(
            "interface {name} cannot be plugged into a running guest: that takes the bridge or SR-IOV binding and a \
             Multus network beside the first"
        );
        return Some(Cause::invalid(field, message));
    }
    (!served).then(|| Cause::not_supported_yet(field, "(a card that is plugged into a running guest)"))
}

/// Whether such a card can be plugged while the guest runs: in place, or on the node that the guest moves to.
pub fn can_be_plugged(interface: &Interface, network: Option<&Network>) -> bool {
    (interface.bridge.is_some() || interface.sriov.is_some())
        && !networks::is_absent(interface)
        && network.is_some_and(networks::is_secondary)
}

/// Whether two cards differ only in their state.
pub fn same_card(one: &Interface, other: &Interface) -> bool {
    let stateless = |card: &Interface| Interface { state: None, ..card.clone() };
    stateless(one) == stateless(other)
}

/// Whether two networks differ only in the definition that Multus attaches.
pub fn same_network(one: &Network, other: &Network) -> bool {
    let mut one = one.clone();
    if let (Some(multus), Some(other)) = (&mut one.multus, &other.multus)
        && networks::is_default(multus) == networks::is_default(other)
        && !networks::is_default(multus)
    {
        multus.network_name.clone_from(&other.network_name);
    }
    one == *other
}

fn named<'a>(interfaces: &'a [Interface], name: &str) -> Option<&'a Interface> {
    interfaces.iter().find(|interface| interface.name == name)
}
