//! Differences for a guest that comes from another node instead of starting here.

use std::sync::Arc;

use barevirt_api::names::PCI_LAYOUT_ANNOTATION;
use barevirt_api::networks::is_absent;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::Cause;
use barevirt_machine::Layout;

use super::wanted::Wanted;
use crate::assembly::Incoming;
use crate::guest_end::GuestEnd;

/// The specification with which an incoming guest was started, if it has grown since: the rest of its memory
/// comes with it, and its devices keep their queues. It has the cards that the handler has described,
/// including one that the guest has not released yet.
///
/// # Errors
/// If this specification is invalid.
pub fn as_started(wanted: &Arc<Wanted>) -> Result<Arc<Wanted>, GuestEnd> {
    if wanted.incoming.is_none() {
        return Ok(Arc::clone(wanted));
    }
    let mut started = wanted.vmi.vmi().clone();
    let memory = started.status.as_ref().and_then(|status| status.memory.as_ref());
    if let Some(at_boot) = memory.and_then(|memory| memory.guest_at_boot.clone()) {
        started.spec.domain.memory.get_or_insert_default().guest = Some(at_boot);
    }
    if let (Some(_), Some(sockets)) =
        (sockets(&started), layout(&started).and_then(|layout| layout.sockets()))
    {
        started.spec.domain.cpu.get_or_insert_default().sockets = Some(sockets);
    }
    // Cards that were not plugged in yet when the guest left.
    let known = |name: &str| wanted.facts.interfaces.iter().any(|facts| facts.name == name);
    let interfaces = &mut started.spec.domain.devices.interfaces;
    let later: Vec<String> =
        interfaces.iter().map(|one| one.name.clone()).filter(|name| !known(name)).collect();
    interfaces.retain(|interface| !later.contains(&interface.name));
    for leaving in interfaces.iter_mut().filter(|interface| is_absent(interface)) {
        leaving.state = None;
    }
    if interfaces.is_empty() {
        // Without this, the guest would get the default interface.
        started.spec.domain.devices.autoattach_pod_interface = Some(false);
    }
    started.spec.networks.retain(|network| !later.contains(&network.name));
    let vmi = ValidVmi::new(started).map_err(|causes| {
        GuestEnd::failed("MachineRefused", format!("as it was started: {}", Cause::joined(&causes)))
    })?;
    Ok(Arc::new(Wanted { vmi, ..Wanted::clone(wanted) }))
}

/// Sockets with processors on the source.
fn sockets(vmi: &VirtualMachineInstance) -> Option<u32> {
    vmi.status.as_ref()?.current_cpu_topology.as_ref()?.sockets
}

/// PCI addresses of its devices, from the annotation.
fn layout(vmi: &VirtualMachineInstance) -> Option<Layout> {
    Layout::saved(vmi.metadata.annotations.as_ref()?.get(PCI_LAYOUT_ANNOTATION)?).ok()
}

/// The state of a guest that already runs elsewhere: its machine type is the one resolved there.
#[must_use]
pub fn incoming(wanted: &Wanted) -> Option<Incoming> {
    let uid = wanted.incoming.clone()?;
    let machine = wanted.vmi.vmi().status.as_ref().and_then(|status| status.machine.as_ref());
    let machine_type = machine.and_then(|machine| machine.type_.clone()).filter(|name| !name.is_empty());
    Some(Incoming { uid, machine_type, sockets: sockets(wanted.vmi.vmi()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::wanted::judge;
    use barevirt_protocol::v1::{Facts, Interface, SyncRequest};
    use serde_json::json;

    #[test]
    fn a_guest_that_has_got_processors_comes_with_the_queues_of_its_start() {
        let layout = r#"{"version":"v1","ports":16,"devices":{},"sockets":1}"#;
        let of = |status: serde_json::Value, layout: &str| {
            let vmi = json!({
                "metadata": {"name": "a", "namespace": "b", "uid": "u",
                    "annotations": {PCI_LAYOUT_ANNOTATION: layout}},
                "spec": {"domain": {"memory": {"guest": "128Mi"}, "cpu": {"sockets": 3, "maxSockets": 4},
                    "devices": {"autoattachPodInterface": false}}},
                "status": status,
            });
            let request = SyncRequest {
                vmi: vmi.to_string().into_bytes(),
                incoming_migration: "m".to_owned(),
                ..SyncRequest::default()
            };
            let started = as_started(&Arc::new(judge("u", None, request).unwrap())).unwrap();
            (started.vmi.topology().sockets, incoming(&started).unwrap().sockets)
        };
        let status = json!({"currentCPUTopology": {"sockets": 3}});
        assert_eq!(of(status.clone(), layout), (1, Some(3)));
        // The size at the start, or the current size, is unknown.
        assert_eq!(of(status, "{}"), (3, Some(3)));
        assert_eq!(of(json!({}), layout), (3, None));
    }

    #[test]
    fn a_guest_comes_with_the_queues_that_its_cards_have() {
        let queues = |boot: u32, sockets: u32, has: [u32; 2], handed_over: [u32; 2]| {
            let layout = json!({"version": "v1", "ports": 16, "devices": {}, "sockets": boot}).to_string();
            let vmi = json!({
                "metadata": {"name": "a", "namespace": "b", "uid": "u",
                    "annotations": {PCI_LAYOUT_ANNOTATION: layout}},
                "spec": {
                    "domain": {"memory": {"guest": "128Mi"}, "cpu": {"sockets": sockets, "maxSockets": 4},
                        "devices": {"networkInterfaceMultiqueue": true, "interfaces": [
                            {"name": "default", "masquerade": {}}, {"name": "red", "bridge": {}},
                        ]}},
                    "networks": [
                        {"name": "default", "pod": {}}, {"name": "red", "multus": {"networkName": "red"}},
                    ],
                },
                "status": {"currentCPUTopology": {"sockets": sockets}, "interfaces": [
                    {"name": "default", "infoSource": "domain", "queueCount": has[0]},
                    {"name": "red", "infoSource": "domain, multus-status", "queueCount": has[1]},
                ]},
            });
            let card = |name: &str, queues: u32| Interface {
                name: name.to_owned(),
                network: name.to_owned(),
                queues,
                ..Interface::default()
            };
            let interfaces = vec![card("default", handed_over[0]), card("red", handed_over[1])];
            let request = SyncRequest {
                vmi: vmi.to_string().into_bytes(),
                facts: Some(Facts { interfaces, ..Facts::default() }),
                incoming_migration: "m".to_owned(),
                ..SyncRequest::default()
            };
            let wanted = Arc::new(judge("u", None, request).unwrap());
            let started = as_started(&wanted).unwrap();
            assert_eq!(started.vmi.topology().sockets, boot);
            let taps = |wanted: &Wanted| {
                let cards = wanted.facts.interfaces.iter();
                cards.map(|facts| wanted.taps(facts).len()).collect::<Vec<usize>>()
            };
            assert_eq!(taps(&wanted), taps(&started), "what it waits for is what QEMU gets");
            taps(&started)
        };
        // A handler of an older version does not say how many it has handed over.
        for is_told in [1, 0] {
            assert_eq!(queues(1, 4, [1, 1], [is_told; 2]), [1, 1], "it has grown");
            assert_eq!(
                queues(1, 4, [1, 4], [is_told, 4 * is_told]),
                [1, 4],
                "a card came after it had grown"
            );
            assert_eq!(queues(4, 2, [4, 4], [4 * is_told; 2]), [4, 4], "it has shrunk");
        }
    }

    #[test]
    fn a_guest_comes_with_the_cards_that_it_has() {
        let vmi = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": {"name": "a", "namespace": "b", "uid": "u"},
            "spec": {
                "domain": {"memory": {"guest": "128Mi"}, "devices": {"interfaces": [
                    {"name": "default", "masquerade": {}}, {"name": "leaves", "bridge": {}, "state": "absent"},
                    {"name": "has-left", "bridge": {}, "state": "absent"}, {"name": "comes", "bridge": {}},
                ]}},
                "networks": [
                    {"name": "default", "pod": {}}, {"name": "leaves", "multus": {"networkName": "a"}},
                    {"name": "has-left", "multus": {"networkName": "b"}},
                    {"name": "comes", "multus": {"networkName": "c"}},
                ],
            },
        });
        let card = |name: &str| Interface { name: name.to_owned(), ..Interface::default() };
        let facts = Facts { interfaces: vec![card("default"), card("leaves")], ..Facts::default() };
        let request = |incoming: &str| SyncRequest {
            vmi: vmi.to_string().into_bytes(),
            facts: Some(facts.clone()),
            incoming_migration: incoming.to_owned(),
            ..SyncRequest::default()
        };
        let cards = |incoming: &str| {
            let started = as_started(&Arc::new(judge("u", None, request(incoming)).unwrap())).unwrap();
            let there = started.vmi.interfaces().iter().filter(|valid| !is_absent(&valid.interface));
            there.map(|valid| valid.interface.name.clone()).collect::<Vec<_>>()
        };
        assert_eq!(cards("m"), ["default", "leaves"]);
        assert_eq!(cards(""), ["default", "comes"]);
    }
}
