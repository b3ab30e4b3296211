//! Interfaces in a VMI's status: those that the handler made, and what the guest agent says of them and of others.

use barevirt_api::v1::NetworkInterfaceStatus;
use barevirt_protocol::v1::GuestInterface;

/// Who told about an interface: the definition of the machine, as KubeVirt calls it.
const DOMAIN: &str = "domain";
/// The guest agent alone, about an interface that we know nothing of.
const GUEST_AGENT: &str = "guest-agent";
/// Both.
const DOMAIN_AND_AGENT: &str = "domain, guest-agent";
/// Most interfaces that only the guest knows of, as in KubeVirt.
pub(super) const MOST_GUEST_ONLY: usize = 10;

/// What is reported of an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name in the spec.
    pub name: String,
    /// The guest's MAC address.
    pub mac: String,
    /// The pod's interface.
    pub pod_interface: String,
    /// Where the guest is reached: the pod's addresses, the primary one first.
    pub addresses: Vec<String>,
    /// How many queues it has.
    pub queues: u32,
}

/// What is reported of the interfaces `made`, and of those that the guest agent has `told` of.
pub(super) fn report(made: &[Interface], told: &[GuestInterface]) -> Vec<NetworkInterfaceStatus> {
    let mut interfaces = made.iter().map(interface).collect();
    for told in told {
        by_agent(&mut interfaces, told);
    }
    interfaces
}

fn interface(seen: &Interface) -> NetworkInterfaceStatus {
    NetworkInterfaceStatus {
        ip_address: seen.addresses.first().cloned(),
        ip_addresses: seen.addresses.clone(),
        mac: Some(seen.mac.clone()),
        name: Some(seen.name.clone()),
        pod_interface_name: Some(seen.pod_interface.clone()),
        info_source: Some(DOMAIN.to_owned()),
        link_state: Some("up".to_owned()),
        queue_count: i32::try_from(seen.queues).ok(),
        ..NetworkInterfaceStatus::default()
    }
}

/// What the guest says of an interface. Of one of ours only its name in the guest: where it is reached is the pod's affair,
/// and no word of the guest adds an address to it or takes one away. Interfaces that only the guest knows are listed as such.
fn by_agent(interfaces: &mut Vec<NetworkInterfaceStatus>, told: &GuestInterface) {
    let GuestInterface { name, mac, addresses } = told;
    let ours = |one: &&mut NetworkInterfaceStatus| {
        let known = one.mac.as_deref().is_some_and(|known| known.eq_ignore_ascii_case(mac));
        known && one.info_source.as_deref() == Some(DOMAIN)
    };
    if let Some(one) = interfaces.iter_mut().find(ours) {
        one.interface_name = Some(name.clone());
        one.info_source = Some(DOMAIN_AND_AGENT.to_owned());
        return;
    }
    let guest_only = |one: &&NetworkInterfaceStatus| one.info_source.as_deref() == Some(GUEST_AGENT);
    if interfaces.iter().filter(guest_only).count() >= MOST_GUEST_ONLY {
        return;
    }
    // As in KubeVirt: the first of IPv4, else the first.
    let first = addresses.iter().find(|address| !address.contains(':')).or_else(|| addresses.first());
    interfaces.push(NetworkInterfaceStatus {
        ip_address: first.cloned(),
        ip_addresses: addresses.clone(),
        mac: (!mac.is_empty()).then(|| mac.clone()),
        interface_name: Some(name.clone()),
        info_source: Some(GUEST_AGENT.to_owned()),
        ..NetworkInterfaceStatus::default()
    });
}
