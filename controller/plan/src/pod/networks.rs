//! What a launcher pod asks of Multus, and what Multus reports on it. Pure.
//!
//! ```text
//!   instance --annotations--> k8s.v1.cni.cncf.io/networks, v1.multus-cni.io/default-network --> Multus
//!   instance <---reported---- k8s.v1.cni.cncf.io/network-status <----------------------------- Multus
//! ```

use barevirt_api::names::COMPUTE_CONTAINER;
use barevirt_api::network_resource::{NetworkResource, RESOURCE_ARGUMENT};
pub use barevirt_api::network_status::{NETWORK_STATUS, Noted, noted};
use barevirt_api::networks::{self, Attachment};
use barevirt_api::settings::Bindings;
use barevirt_api::v1::{Interface, Network, VirtualMachineInstance};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;

/// Annotation: networks to attach to the pod beside its first one.
pub const NETWORKS: &str = barevirt_api::networks::NETWORKS_ANNOTATION;
/// Annotation: the network to attach to the pod instead of the cluster's own.
pub const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";
/// Its former name.
const FORMER_NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/networks-status";

/// A network to attach, as Multus reads it and KubeVirt writes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Selection {
    name: String,
    namespace: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    interface: String,
    #[serde(rename = "cni-args", default)]
    arguments: Option<BTreeMap<String, Value>>,
}

/// Removes user annotations that only Multus may write on a pod, and adds the networks to attach.
pub(super) fn annotate(
    annotations: &mut BTreeMap<String, String>,
    namespace: &str,
    vmi: &VirtualMachineInstance,
    bindings: &Bindings,
) {
    annotations.remove(NETWORK_STATUS);
    annotations.remove(FORMER_NETWORK_STATUS);
    // A migrating guest keeps the MAC addresses of its cards: a network that drops spoofed addresses has to know them. The
    // first pod's network chose them, where the instance names none.
    let of_guest = |_: &Network, one: Selection| {
        let mac = one.mac.clone().or_else(|| guest_mac(vmi, &one.interface));
        Selection { mac, ..one }
    };
    let attached = networks::attached_next(vmi);
    if let Some(wanted) = written(&selections(namespace, vmi, attached, bindings, of_guest)) {
        annotations.insert(NETWORKS.to_owned(), wanted);
    }
    let multus = vmi.spec.networks.iter().filter_map(|network| network.multus.as_ref());
    if let Some(default) = multus.into_iter().find(|multus| networks::is_default(multus)) {
        // Multus looks for a name without a namespace in its own one, and not in the pod's.
        let definition = Attachment::of(namespace, &default.network_name);
        annotations.insert(DEFAULT_NETWORK.to_owned(), definition.to_string());
    }
}

/// The networks that Multus is to attach to a running pod beside its first one; `None` where there are none. A network stays
/// until the guest's card has left, since the pod would otherwise lose the link beneath it. Networks that stay are asked for
/// as before. That of an SR-IOV card which comes is left to the next pod, and so is another definition of a network whose card
/// the guest has.
pub fn wanted(
    pod: &Pod,
    namespace: &str,
    vmi: &VirtualMachineInstance,
    bindings: &Bindings,
) -> Option<String> {
    written(&selections_of(&asked(pod).unwrap_or_default(), namespace, vmi, bindings))
}

/// What a running pod that has `asked` is to ask for.
fn selections_of(
    asked: &[Selection],
    namespace: &str,
    vmi: &VirtualMachineInstance,
    bindings: &Bindings,
) -> Vec<Selection> {
    let as_before = |network: &Network, mut one: Selection| {
        let link = guest_link(vmi, network);
        if let Some(before) = asked.iter().find(|before| Some(&before.interface) == link.as_ref()) {
            // Multus would attach another definition, or another link, beneath the guest's card.
            one.name.clone_from(&before.name);
            one.namespace.clone_from(&before.namespace);
            one.interface.clone_from(&before.interface);
        }
        let mac = one.mac.clone().or_else(|| asked_mac(asked, &one));
        Selection { mac, ..one }
    };
    selections(namespace, vmi, networks::attached(vmi), bindings, as_before)
}

fn written(selections: &[Selection]) -> Option<String> {
    // Strings and lists always have a JSON form.
    (!selections.is_empty()).then(|| serde_json::to_string(selections).unwrap_or_default())
}

/// MAC address of the guest's card on a link, where the guest has that card already.
fn guest_mac(vmi: &VirtualMachineInstance, link: &str) -> Option<String> {
    let name = &networks::secondary(&vmi.spec).find(|(network, _)| networks::link(network) == link)?.0.name;
    let mut told = vmi.status.iter().flat_map(|status| &status.interfaces);
    let card = told.find(|told| told.name.as_ref() == Some(name))?;
    networks::is_in_guest(vmi, name).then(|| card.mac.clone())?.filter(|mac| !mac.is_empty())
}

/// The pod's link of a network whose card the guest has. It has a name of its own in older pods.
fn guest_link(vmi: &VirtualMachineInstance, network: &Network) -> Option<String> {
    let card = networks::in_guest(vmi, &network.name)?;
    Some(card.pod_interface_name.clone().unwrap_or_else(|| networks::link(network)))
}

/// MAC address that a pod asks for on the same network and link.
fn asked_mac(asked: &[Selection], wanted: &Selection) -> Option<String> {
    let mut same = asked.iter().filter(|one| {
        (&one.name, &one.namespace, &one.interface) == (&wanted.name, &wanted.namespace, &wanted.interface)
    });
    same.find_map(|one| one.mac.clone())
}

/// The networks of an instance, of which `attached` are attached beside the first. `complete` adds to a network's selection what
/// the instance's specification does not say.
fn selections<'a>(
    namespace: &str,
    vmi: &'a VirtualMachineInstance,
    attached: impl Iterator<Item = (&'a Network, &'a Interface)>,
    bindings: &Bindings,
    complete: impl Fn(&Network, Selection) -> Selection,
) -> Vec<Selection> {
    let select = |(network, interface): (&Network, &Interface)| {
        let multus = network.multus.as_ref()?;
        let Attachment { namespace, name } = Attachment::of(namespace, &multus.network_name);
        let mac = interface.mac_address.clone().filter(|mac| !mac.is_empty());
        let one = Selection { name, namespace, mac, interface: networks::link(network), arguments: None };
        Some(complete(network, one))
    };
    // A plugin's own network gets the name of the instance's network that it serves; KubeVirt's order and key.
    let of_plugin = |network: &Network| {
        let mut cards = vmi.spec.domain.devices.interfaces.iter();
        let plugin = bindings.of(cards.find(|card| card.name == network.name)?)?;
        let Attachment { namespace, name } = Attachment::of(namespace, plugin.definition.as_deref()?);
        let arguments = Some([("logicNetworkName".to_owned(), Value::from(network.name.clone()))].into());
        Some(Selection { name, namespace, mac: None, interface: String::new(), arguments })
    };
    let attached: BTreeMap<&str, _> = attached.map(|pair| (pair.0.name.as_str(), pair)).collect();
    let of_network = |network: &Network| {
        let secondary = attached.get(network.name.as_str()).and_then(|pair| select(*pair));
        secondary.into_iter().chain(of_plugin(network)).collect::<Vec<_>>()
    };
    vmi.spec.networks.iter().flat_map(of_network).collect()
}

/// What networks take of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// Resources that the pod asks for, one for each entry.
    pub asked: Vec<String>,
    /// Resources of the networks whose cards are PCI functions of the node.
    pub of_cards: Vec<NetworkResource>,
}

/// Adds requests for node resources that come with networks to the launcher's container, and tells the launcher which of them
/// is whose.
pub fn ask(pod: &mut Pod, resources: &Resources) {
    let compute = pod.spec.iter_mut().flat_map(|spec| &mut spec.containers);
    let Some(compute) = compute.into_iter().find(|container| container.name == COMPUTE_CONTAINER) else {
        return;
    };
    for resource in &resources.asked {
        let given = compute.resources.get_or_insert_default();
        for list in [&mut given.requests, &mut given.limits] {
            let count = list.get_or_insert_default().entry(resource.clone()).or_default();
            *count = Quantity((count.0.parse::<u32>().unwrap_or(0) + 1).to_string());
        }
    }
    let told = resources.of_cards.iter().map(|card| format!("{RESOURCE_ARGUMENT}={card}"));
    if !resources.of_cards.is_empty() {
        compute.args.get_or_insert_default().extend(told);
    }
}

/// Whether the pod asks for other networks than its instance does.
pub fn differs(pod: &Pod, namespace: &str, vmi: &VirtualMachineInstance, bindings: &Bindings) -> bool {
    asked(pod).is_none_or(|asked| asked != selections_of(&asked, namespace, vmi, bindings))
}

/// What a pod asks for; `None` where the annotation is not in our form.
fn asked(pod: &Pod) -> Option<Vec<Selection>> {
    let asked = annotation(pod, NETWORKS).unwrap_or_default();
    if asked.is_empty() { Some(Vec::new()) } else { serde_json::from_str(asked).ok() }
}

/// Whether a link is reported to be of the definition that a network names.
pub fn is_of(noted: &Noted, namespace: &str, network_name: &str) -> bool {
    noted.definition == network_name
        || noted.definition == Attachment::of(namespace, network_name).to_string()
}

fn annotation<'a>(pod: &'a Pod, name: &str) -> Option<&'a str> {
    pod.metadata.annotations.as_ref()?.get(name).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vmi(more: Value, multus: Value) -> VirtualMachineInstance {
        let mut red = json!({"name": "red", "bridge": {}});
        red.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        serde_json::from_value(json!({"metadata": {}, "spec": {
            "domain": {"devices": {"interfaces": [{"name": "default", "masquerade": {}}, red]}},
            "networks": [{"name": "default", "pod": {}}, {"name": "red", "multus": multus}],
        }}))
        .unwrap()
    }

    fn pod(annotations: Value) -> Pod {
        serde_json::from_value(json!({"metadata": {"annotations": annotations}})).unwrap()
    }

    #[test]
    fn the_annotation_for_multus_is_kubevirts() {
        let wanted = |more: Value, name: &str| {
            wanted(&Pod::default(), "shop", &vmi(more, json!({"networkName": name})), &Bindings::default())
        };
        assert_eq!(
            wanted(json!({}), "blue").as_deref(),
            Some(r#"[{"name":"blue","namespace":"shop","interface":"podb1f51a511f1","cni-args":null}]"#)
        );
        assert_eq!(
            wanted(json!({"macAddress": "02:00:00:00:00:05"}), "net/blue").as_deref(),
            Some(
                r#"[{"name":"blue","namespace":"net","mac":"02:00:00:00:00:05","interface":"podb1f51a511f1","cni-args":null}]"#
            )
        );
        assert_eq!(wanted(json!({"state": "absent"}), "blue"), None);
        assert!(wanted(json!({"state": "down"}), "blue").is_some());
        // A network that the guest still uses stays attached.
        let mut leaving = vmi(json!({"state": "absent"}), json!({"networkName": "blue"}));
        for (source, stays) in [("domain, multus-status", true), ("multus-status", false)] {
            let told = json!({"interfaces": [{"name": "red", "infoSource": source}]});
            leaving.status = Some(serde_json::from_value(told).unwrap());
            assert_eq!(
                super::wanted(&Pod::default(), "shop", &leaving, &Bindings::default()).is_some(),
                stays,
                "{source}"
            );
        }
    }

    #[test]
    fn the_pod_that_a_guest_moves_to_asks_for_the_address_that_its_card_has() {
        let mut moves = vmi(json!({}), json!({"networkName": "blue"}));
        let asks = |vmi: &VirtualMachineInstance| {
            let mut annotations = BTreeMap::new();
            annotate(&mut annotations, "shop", vmi, &Bindings::default());
            serde_json::from_str::<Value>(&annotations[NETWORKS]).unwrap()[0].get("mac").cloned()
        };
        assert_eq!(asks(&moves), None);
        let told = |source: &str| json!({"interfaces": [{"name": "red", "infoSource": source, "mac": "02:00:00:00:00:07"}]});
        for (source, address) in
            [("multus-status", None), ("domain, multus-status", Some(json!("02:00:00:00:00:07")))]
        {
            moves.status = Some(serde_json::from_value(told(source)).unwrap());
            assert_eq!(asks(&moves), address, "{source}");
        }
        let mut named = vmi(json!({"macAddress": "02:00:00:00:00:05"}), json!({"networkName": "blue"}));
        named.status = moves.status.clone();
        assert_eq!(asks(&named), Some(json!("02:00:00:00:00:05")));
        // A running pod keeps asking for what it asked for: nothing is attached again.
        for mac in [None, Some("02:00:00:00:00:07")] {
            let one = json!({"name": "blue", "namespace": "shop", "interface": "podb1f51a511f1", "mac": mac});
            let pod = pod(json!({NETWORKS: json!([one]).to_string()}));
            assert!(!differs(&pod, "shop", &moves, &Bindings::default()), "{mac:?}");
            let wanted: Value =
                serde_json::from_str(&wanted(&pod, "shop", &moves, &Bindings::default()).unwrap()).unwrap();
            assert_eq!(wanted[0]["mac"], json!(mac));
        }
    }

    #[test]
    fn another_definition_of_a_card_that_the_guest_has_is_left_to_its_next_pod() {
        let mut both = vmi(json!({}), json!({"networkName": "green"}));
        let (card, network) = (
            json!({"name": "new", "bridge": {}}),
            json!({"name": "new", "multus": {"networkName": "net/new"}}),
        );
        both.spec.domain.devices.interfaces.push(serde_json::from_value(card).unwrap());
        both.spec.networks.push(serde_json::from_value(network).unwrap());
        let blue = json!({"name": "blue", "namespace": "shop", "interface": "podb1f51a511f1", "mac": "02:00:00:00:00:07"});
        let pod = pod(json!({NETWORKS: json!([blue]).to_string()}));
        let shown = |asked: &str| {
            let asked: Vec<Selection> = serde_json::from_str(asked).unwrap();
            let text = |one: &Selection| format!("{}/{} {:?}", one.namespace, one.name, one.mac.as_deref());
            asked.iter().map(text).collect::<Vec<_>>()
        };
        for (source, first) in
            [("multus-status", "shop/green None"), ("domain", r#"shop/blue Some("02:00:00:00:00:07")"#)]
        {
            let told = json!({"interfaces": [{"name": "red", "infoSource": source}]});
            both.status = Some(serde_json::from_value(told).unwrap());
            let asked = wanted(&pod, "shop", &both, &Bindings::default()).unwrap();
            assert_eq!(shown(&asked), [first, "net/new None"], "{source}");
        }
        let mut annotations = BTreeMap::new();
        annotate(&mut annotations, "shop", &both, &Bindings::default());
        assert_eq!(shown(&annotations[NETWORKS]), ["shop/green None", "net/new None"]);
    }

    #[test]
    fn an_older_pod_keeps_asking_for_the_links_that_its_guest_has() {
        let told = json!({"name": "red", "infoSource": "domain, multus-status", "podInterfaceName": "net2"});
        let mut left = vmi(json!({}), json!({"networkName": "blue"}));
        left.status = Some(serde_json::from_value(json!({"interfaces": [told]})).unwrap());
        let asks = |name: &str, link: &str| json!({"name": name, "namespace": "shop", "interface": link});
        let pod = pod(json!({NETWORKS: json!([asks("a", "net1"), asks("blue", "net2")]).to_string()}));
        let asked = wanted(&pod, "shop", &left, &Bindings::default());
        let red = r#"[{"name":"blue","namespace":"shop","interface":"net2","cni-args":null}]"#;
        assert_eq!(asked.as_deref(), Some(red));
    }

    #[test]
    fn only_a_new_pod_asks_for_a_card_of_the_node_and_only_while_it_stays() {
        let mut fast = vmi(json!({}), json!({"networkName": "blue"}));
        let card = &mut fast.spec.domain.devices.interfaces[1];
        (card.bridge, card.sriov) = (None, Some(Default::default()));
        let asks = |source: Option<&str>, state: Option<&str>| {
            let mut vmi = fast.clone();
            vmi.spec.domain.devices.interfaces[1].state = state.map(str::to_owned);
            let told = source.map(|source| json!({"name": "red", "infoSource": source}));
            vmi.status = Some(
                serde_json::from_value(json!({"phase": "Running", "interfaces": told.as_slice()})).unwrap(),
            );
            let mut annotations = BTreeMap::new();
            annotate(&mut annotations, "shop", &vmi, &Bindings::default());
            let running = wanted(&Pod::default(), "shop", &vmi, &Bindings::default());
            [running.is_some(), annotations.contains_key(NETWORKS)]
        };
        assert_eq!(asks(None, None), [false, true]);
        for source in ["multus-status", "domain, multus-status"] {
            assert_eq!(asks(Some(source), None), [true, true]);
        }
        // The guest gives it back before it moves, or has given it back.
        assert_eq!(asks(Some("domain, multus-status"), Some("absent")), [true, false]);
        assert_eq!(asks(Some("multus-status"), Some("absent")), [false, false]);
    }

    #[test]
    fn only_multus_says_what_is_attached() {
        // The definition of the first network is in the instance's namespace, too, unless its name says another one.
        for (name, definition) in [("blue", "shop/blue"), ("net/blue", "net/blue")] {
            let mut annotations: BTreeMap<String, String> =
                [(NETWORK_STATUS, "[]"), (FORMER_NETWORK_STATUS, "[]"), ("a", "b")]
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .into();
            let alone = vmi(json!({}), json!({"networkName": name, "default": true}));
            annotate(&mut annotations, "shop", &alone, &Bindings::default());
            let default = (DEFAULT_NETWORK.to_owned(), definition.to_owned());
            assert_eq!(annotations, [("a".to_owned(), "b".to_owned()), default].into());
        }
    }

    #[test]
    fn the_pod_requests_the_resources_of_its_networks() {
        let mut pod: Pod = serde_json::from_value(json!({"spec": {"containers": [
            {"name": "volumeroot"}, {"name": "compute", "resources": {"requests": {"cpu": "1"}}}]}}))
        .unwrap();
        let asked: Vec<_> = ["a.b/c", "a.b/c", "x/y"].map(str::to_owned).into();
        ask(&mut pod, &Resources { asked: asked.clone(), of_cards: Vec::new() });
        let seen = serde_json::to_value(&pod).unwrap();
        assert_eq!(seen["spec"]["containers"][0].get("resources"), None);
        let compute = &seen["spec"]["containers"][1];
        assert_eq!(compute["resources"]["requests"], json!({"cpu": "1", "a.b/c": "2", "x/y": "1"}));
        assert_eq!(compute["resources"]["limits"], json!({"a.b/c": "2", "x/y": "1"}));
        assert_eq!(compute.get("args"), None);
        let of_cards = ["red", "blue"].map(|network| NetworkResource::new(network, "a.b/c").unwrap()).into();
        ask(&mut pod, &Resources { asked: Vec::new(), of_cards });
        let seen = serde_json::to_value(&pod).unwrap();
        let told = ["--network-resource=red=a.b/c", "--network-resource=blue=a.b/c"];
        assert_eq!(seen["spec"]["containers"][1]["args"], json!(told));
    }

    #[test]
    fn a_pod_is_compared_by_meaning() {
        let vmi = vmi(json!({}), json!({"networkName": "blue"}));
        let differs = |text: &str| differs(&pod(json!({NETWORKS: text})), "shop", &vmi, &Bindings::default());
        assert!(!differs(r#"[{"interface": "podb1f51a511f1", "namespace": "shop", "name": "blue"}]"#));
        for other in ["", "blue", "[]", r#"[{"interface": "net1", "namespace": "shop", "name": "blue"}]"#] {
            assert!(differs(other), "{other}");
        }
        let alone: VirtualMachineInstance =
            serde_json::from_value(json!({"metadata": {}, "spec": {"domain": {"devices": {}}}})).unwrap();
        assert!(!super::differs(&pod(json!({})), "shop", &alone, &Bindings::default()));
    }

    #[test]
    fn a_link_is_of_the_definition_that_its_network_names() {
        let red = r#"[{"name":"shop/blue","interface":"podb1f51a511f1","dns":{}}]"#;
        let found = noted(&pod(json!({NETWORK_STATUS: red}))).unwrap();
        assert!(is_of(&found[0], "shop", "blue") && is_of(&found[0], "x", "shop/blue"));
        assert!(!is_of(&found[0], "x", "blue"));
    }

    #[test]
    fn a_plugins_own_network_gets_the_name_of_the_network_that_it_serves() {
        let spec = json!({"configuration": {"network": {"binding": {
            "mine": {"domainAttachmentType": "tap", "networkAttachmentDefinition": "net/mine"},
            "plain": {"domainAttachmentType": "tap"},
        }}}});
        let spec = serde_json::from_value(spec).unwrap();
        let bindings = barevirt_api::settings::Settings::from_kubevirt(Some(&spec)).bindings;
        let asks = |first: &str, second: &str| {
            let card = |name: &str, plugin: &str| json!({"name": name, "binding": {"name": plugin}});
            let mut both = vmi(json!({}), json!({"networkName": "blue"}));
            both.spec.domain.devices.interfaces =
                serde_json::from_value(json!([card("default", first), card("red", second)])).unwrap();
            let asked = wanted(&Pod::default(), "shop", &both, &bindings).unwrap();
            let pod = pod(json!({NETWORKS: asked}));
            assert!(!differs(&pod, "shop", &both, &bindings));
            asked
        };
        let blue = r#"{"name":"blue","namespace":"shop","interface":"podb1f51a511f1","cni-args":null}"#;
        let mine = |network: &str| {
            format!(r#"{{"name":"mine","namespace":"net","cni-args":{{"logicNetworkName":"{network}"}}}}"#)
        };
        assert_eq!(asks("mine", "mine"), format!("[{},{blue},{}]", mine("default"), mine("red")));
        assert_eq!(asks("plain", "plain"), format!("[{blue}]"));
    }
}
