//! The state that the handler wants, and whether it is acceptable. Pure.

use std::collections::BTreeSet;

use barevirt_api::hotplug;
use barevirt_api::networks::is_absent;
use barevirt_api::passt;
use barevirt_api::v1::{self, VirtualMachineInstance};
use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::Cause;
use barevirt_protocol::names::{HotDisk, KVM, NetworkDescriptor, VHOST_VSOCK, tap_queues};
use barevirt_protocol::v1::{Facts, Interface, SyncRequest};

use crate::dhcp;

/// An accepted Sync.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// Its revision.
    pub revision: i64,
    /// Hash of the spec.
    pub spec_hash: String,
    /// The VMI.
    pub vmi: ValidVmi,
    /// The handler's facts.
    pub facts: Facts,
    /// The guest comes from another node, by the migration of this UID.
    pub incoming: Option<String>,
}

/// Why a Sync was refused.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A later one was already accepted.
    #[error("revision {given} is older than {accepted}, which was accepted already")]
    Outdated {
        /// Its revision.
        given: i64,
        /// The revision of the accepted one.
        accepted: i64,
    },
    /// The VMI cannot be decoded.
    #[error("the virtual machine instance does not parse: {0}")]
    Parse(serde_json::Error),
    /// The VMI is another one.
    #[error("this pod is for the virtual machine instance with uid {expected}, not {given}")]
    Other {
        /// UID of this pod's VMI.
        expected: String,
        /// UID of the given VMI.
        given: String,
    },
    /// A guest that starts here cannot come from elsewhere, and an incoming one comes by only one migration.
    #[error("whether the guest starts here or arrives from another node cannot change")]
    Elsewhere,
    /// The VMI is not valid.
    #[error("the virtual machine instance is not valid: {0}")]
    Invalid(String),
}

/// Validates a Sync. `accepted` is the one before it.
///
/// # Errors
/// Why it is refused.
pub fn judge(uid: &str, accepted: Option<&Wanted>, request: SyncRequest) -> Result<Wanted, Refusal> {
    let SyncRequest { revision, spec_hash, vmi, facts, incoming_migration } = request;
    let given = Some(incoming_migration).filter(|uid| !uid.is_empty());
    if let Some(accepted) = accepted.filter(|accepted| accepted.revision > revision) {
        return Err(Refusal::Outdated { given: revision, accepted: accepted.revision });
    }
    let incoming = match accepted {
        // After the guest has arrived, the handler no longer names the migration.
        Some(accepted) if given.is_none() || accepted.incoming == given => accepted.incoming.clone(),
        Some(_) => return Err(Refusal::Elsewhere),
        None => given,
    };
    let vmi: VirtualMachineInstance = serde_json::from_slice(&vmi).map_err(Refusal::Parse)?;
    let given = vmi.metadata.uid.clone().unwrap_or_default();
    if given != uid {
        return Err(Refusal::Other { expected: uid.to_owned(), given });
    }
    let vmi = ValidVmi::new(vmi).map_err(|causes| Refusal::Invalid(Cause::joined(&causes)))?;
    Ok(Wanted { revision, spec_hash, vmi, facts: facts.unwrap_or_default(), incoming })
}

impl Wanted {
    /// Whether probes by `guestAgentPing` succeed without asking the guest agent.
    #[must_use]
    pub fn are_agent_pings_paused(&self) -> bool {
        v1::are_agent_pings_paused(&self.vmi.vmi().metadata)
    }

    /// Whether emulation is allowed if there is no acceleration. Either side may allow it.
    #[must_use]
    pub fn may_emulate(&self, by_pod: bool) -> bool {
        by_pod || self.facts.allow_emulation
    }

    /// Names of the descriptors that the start needs. Each address family has its own if the handler gave
    /// such an address.
    #[must_use]
    pub fn needed(&self, may_emulate: bool) -> BTreeSet<String> {
        let interfaces = self.facts.interfaces.iter();
        let mut needed: BTreeSet<String> = interfaces.flat_map(|facts| self.descriptors(facts)).collect();
        if !may_emulate {
            needed.insert(KVM.to_owned());
        }
        if self.vmi.spec().domain.devices.autoattach_vsock == Some(true) {
            needed.insert(VHOST_VSOCK.to_owned());
        }
        needed.extend(self.plugged().iter().map(HotDisk::descriptor));
        needed
    }

    /// Disks that an incoming guest got while it ran on the source.
    #[must_use]
    pub fn plugged(&self) -> Vec<HotDisk> {
        let vmi = self.vmi.vmi();
        let plugged = hotplug::plugged(vmi).into_iter().filter(|_| self.incoming.is_some());
        let plugged = plugged.filter_map(|one| hotplug::at_target(vmi, one));
        plugged.map(|one| HotDisk { volume: one.volume.to_owned(), claim: one.claim.to_owned() }).collect()
    }

    /// Names of all descriptors of an interface.
    #[must_use]
    pub fn descriptors(&self, interface: &Interface) -> BTreeSet<String> {
        let v6 = !interface.ipv6.is_empty();
        // On the pod's own network, one descriptor serves all of IPv6.
        let on_network = interface.ipv6_link_local.is_empty();
        let of = |kind: NetworkDescriptor| match kind {
            NetworkDescriptor::Tap => self.taps(interface),
            NetworkDescriptor::Dhcp6 | NetworkDescriptor::RouterAdvertisement if !v6 => Vec::new(),
            NetworkDescriptor::Dhcp6 if on_network => Vec::new(),
            NetworkDescriptor::Dhcp4 if interface.ipv4.is_empty() => Vec::new(),
            NetworkDescriptor::Dhcp4 | NetworkDescriptor::Dhcp6 | NetworkDescriptor::RouterAdvertisement => {
                vec![kind.of(&interface.network)]
            }
        };
        NetworkDescriptor::ALL.into_iter().flat_map(of).collect()
    }

    /// The network settings of the guest on an interface.
    ///
    /// # Errors
    /// If the handler's facts or the manifest's options are invalid.
    pub fn served(&self, facts: &Interface) -> Result<dhcp::Guest, dhcp::GuestError> {
        let valid = self.vmi.interfaces().iter().find(|valid| valid.interface.name == facts.name);
        let options = valid.and_then(|valid| valid.interface.dhcp_options.as_ref());
        dhcp::Guest::new(facts, Some(&self.vmi.hostname()), options)
    }

    /// Whether passt joins an interface to the pod network.
    #[must_use]
    pub fn is_joined_by_passt(&self, facts: &Interface) -> bool {
        passt::of(self.vmi.spec()).is_some_and(|interface| interface.name == facts.name)
    }

    /// Whether the card of an interface is a device of the node.
    #[must_use]
    pub fn is_passed_through(&self, facts: &Interface) -> bool {
        let mut interfaces = self.vmi.interfaces().iter().map(|valid| &valid.interface);
        interfaces.any(|interface| interface.name == facts.name && interface.sriov.is_some())
    }

    /// The interface that passt joins to the pod network, once the handler has prepared it.
    #[must_use]
    pub fn joined_by_passt(&self) -> Option<&Interface> {
        self.facts.interfaces.iter().find(|facts| self.is_joined_by_passt(facts))
    }

    /// Names of the descriptors of an interface's queues; a card of passt has none, and a device of the node
    /// has none.
    #[must_use]
    pub fn taps(&self, facts: &Interface) -> Vec<String> {
        if self.is_joined_by_passt(facts) || self.is_passed_through(facts) {
            return Vec::new();
        }
        let interface = self.vmi.interfaces().iter().find(|valid| valid.interface.name == facts.name);
        let queues = match facts.queues {
            // A handler of an older version does not say how many it has handed over.
            0 => interface.map_or(1, |valid| self.vmi.queues(&valid.interface)),
            handed_over => handed_over,
        };
        tap_queues(&facts.network, queues).collect()
    }

    /// Interfaces of the spec that the handler has not described. An incoming guest has the cards that it
    /// had; those that were not plugged in yet come later.
    #[must_use]
    pub fn interfaces_without_facts(&self) -> Vec<String> {
        let said = |name: &str| self.facts.interfaces.iter().any(|facts| facts.name == name);
        let cards = self.vmi.interfaces().iter().filter(|valid| !is_absent(&valid.interface));
        let cards = cards.filter(|_| self.incoming.is_none());
        let names = cards.map(|valid| valid.interface.name.clone());
        names.filter(|name| !said(name)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_queue_of_a_tap_is_needed() {
        let mut vmi = judge("u", None, request(1, "u")).unwrap().vmi.vmi().clone();
        let domain = &mut vmi.spec.domain;
        domain.devices.network_interface_multiqueue = Some(true);
        domain.cpu.get_or_insert_default().cores = Some(3);
        let interface = default();
        let facts = Facts { interfaces: vec![interface], ..Facts::default() };
        let vmi = ValidVmi::new(vmi).unwrap();
        let mut wanted = Wanted { revision: 1, spec_hash: String::new(), vmi, facts, incoming: None };
        let needed = Vec::from_iter(wanted.needed(true));
        assert_eq!(needed, ["net/pod/dhcp4", "net/pod/tap", "net/pod/tap.1", "net/pod/tap.2"]);
        // More or fewer CPUs were granted when the handler opened it.
        for (queues, last) in [(2, "net/pod/tap.1"), (4, "net/pod/tap.3"), (1, "net/pod/tap")] {
            wanted.facts.interfaces[0].queues = queues;
            let taps = wanted.taps(&wanted.facts.interfaces[0]);
            assert_eq!(taps.last().map(String::as_str), Some(last));
        }
    }

    #[test]
    fn passt_takes_no_descriptor() {
        let mut vmi = judge("u", None, request(1, "u")).unwrap().vmi.vmi().clone();
        let interface = json!([{"name": "default", "passtBinding": {}}]);
        vmi.spec.domain.devices.interfaces = serde_json::from_value(interface).unwrap();
        vmi.spec.networks = serde_json::from_value(json!([{"name": "default", "pod": {}}])).unwrap();
        let facts = Interface { name: "default".into(), network: "default".into(), ..Interface::default() };
        let facts = Facts { interfaces: vec![facts], ..Facts::default() };
        let vmi = ValidVmi::new(vmi).unwrap();
        let wanted = Wanted { revision: 1, spec_hash: String::new(), vmi, facts, incoming: None };
        assert_eq!(wanted.needed(true), BTreeSet::new());
        assert_eq!(wanted.joined_by_passt().unwrap().name, "default");
    }

    #[test]
    fn a_device_of_the_node_takes_no_descriptor() {
        let mut vmi = judge("u", None, request(1, "u")).unwrap().vmi.vmi().clone();
        let interface = json!([{"name": "red", "sriov": {}}]);
        vmi.spec.domain.devices.interfaces = serde_json::from_value(interface).unwrap();
        let network = json!([{"name": "red", "multus": {"networkName": "red"}}]);
        vmi.spec.networks = serde_json::from_value(network).unwrap();
        let vmi = ValidVmi::new(vmi).unwrap();
        let facts = Interface { name: "red".into(), network: "red".into(), ..Interface::default() };
        let mut wanted =
            Wanted { revision: 1, spec_hash: String::new(), vmi, facts: Facts::default(), incoming: None };
        assert_eq!(wanted.interfaces_without_facts(), ["red"]);
        assert!(wanted.is_passed_through(&facts));
        wanted.facts.interfaces.push(facts);
        assert_eq!(wanted.needed(true), BTreeSet::new());
        assert!(wanted.interfaces_without_facts().is_empty());
    }

    fn default() -> Interface {
        let ipv4 = "10.0.2.2".into();
        Interface { name: "default".into(), network: "pod".into(), ipv4, ..Interface::default() }
    }

    fn request(revision: i64, uid: &str) -> SyncRequest {
        let vmi = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "a", "namespace": "b", "uid": uid},
            "spec": {"domain": {"memory": {"guest": "128Mi"}, "devices": {}}},
        });
        SyncRequest { revision, vmi: vmi.to_string().into_bytes(), ..SyncRequest::default() }
    }

    #[test]
    fn revisions_only_go_up() {
        let first = judge("u", None, request(3, "u")).unwrap();
        assert!(judge("u", Some(&first), request(3, "u")).is_ok());
        assert!(judge("u", Some(&first), request(4, "u")).is_ok());
        assert!(matches!(judge("u", Some(&first), request(2, "u")), Err(Refusal::Outdated { .. })));
    }

    #[test]
    fn where_the_guest_comes_from_is_said_once() {
        let from = |uid: &str| SyncRequest { incoming_migration: uid.to_owned(), ..request(1, "u") };
        let coming = judge("u", None, from("m")).unwrap();
        assert_eq!(coming.incoming.as_deref(), Some("m"));
        for again in ["m", ""] {
            assert_eq!(judge("u", Some(&coming), from(again)).unwrap().incoming.as_deref(), Some("m"));
        }
        assert!(matches!(judge("u", Some(&coming), from("n")), Err(Refusal::Elsewhere)));
        let starts = judge("u", None, from("")).unwrap();
        assert!(matches!(judge("u", Some(&starts), from("m")), Err(Refusal::Elsewhere)));
    }

    #[test]
    fn another_vmi_and_nonsense_are_refused() {
        assert!(matches!(judge("u", None, request(1, "x")), Err(Refusal::Other { .. })));
        let nonsense = SyncRequest { vmi: b"{".to_vec(), ..request(1, "u") };
        assert!(matches!(judge("u", None, nonsense), Err(Refusal::Parse(_))));
        let mut invalid = request(1, "u");
        invalid.vmi = String::from_utf8(invalid.vmi).unwrap().replace("128Mi", "-1").into_bytes();
        assert!(matches!(judge("u", None, invalid), Err(Refusal::Invalid(text)) if text.contains("memory")));
    }

    #[test]
    fn needed_descriptors_follow_the_facts() {
        let mut wanted = judge("u", None, request(1, "u")).unwrap();
        assert_eq!(wanted.interfaces_without_facts(), ["default"]);
        wanted.facts.interfaces.push(default());
        assert_eq!(Vec::from_iter(wanted.needed(true)), ["net/pod/dhcp4", "net/pod/tap"]);
        // Bridged to a network that gives no addresses.
        let bridged = Interface { name: "red".into(), network: "red".into(), ..Interface::default() };
        wanted.facts.interfaces.push(bridged);
        assert_eq!(Vec::from_iter(wanted.needed(true)), ["net/pod/dhcp4", "net/pod/tap", "net/red/tap"]);
        wanted.facts.interfaces.truncate(1);
        wanted.facts.interfaces[0].ipv6 = "fd10:0:2::2".into();
        let needed = Vec::from_iter(wanted.needed(true));
        assert_eq!(needed, ["net/pod/dhcp4", "net/pod/ra", "net/pod/tap"], "on the pod's own network");
        wanted.facts.interfaces[0].ipv6_link_local = "fe80::1".into();
        let needed = Vec::from_iter(wanted.needed(false));
        assert_eq!(needed, ["kvm", "net/pod/dhcp4", "net/pod/dhcp6", "net/pod/ra", "net/pod/tap"]);
        assert!(wanted.interfaces_without_facts().is_empty());
        assert_eq!(wanted.taps(&wanted.facts.interfaces[0]), ["net/pod/tap"]);
        assert!(!wanted.may_emulate(false));
        wanted.facts.allow_emulation = true;
        assert!(wanted.may_emulate(false));
    }
}
