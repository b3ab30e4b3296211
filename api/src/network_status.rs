//! What Multus reports on a pod: the links that it attached, and the PCI functions behind them. Pure.
//!
//! The cluster's implementation writes the annotation, and so can every user who may change the pod. So anything
//! but a list of named links is ignored, as are addresses in another form.

use crate::pci_address::PciAddress;
use crate::validate::parse_mac;
use k8s_openapi::api::core::v1::Pod;
use serde_json::Value;

/// Annotation: the links that are attached to the pod.
pub const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// Longest report that is read, in bytes: the limit of a pod's annotations together.
const LONGEST: usize = 256 << 10;
/// Most links that are read: more than an instance may have.
const MOST: usize = 512;

/// An attached link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Noted {
    /// Its name in the pod.
    pub link: String,
    /// Its NetworkAttachmentDefinition, usually with the namespace.
    pub definition: String,
    /// Its MAC address, in lower case.
    pub mac: Option<String>,
    /// The PCI function that it is, or that a guest gets in its place.
    pub pci: Option<PciAddress>,
}

/// The links that are reported on a pod. `None` without a report: then nothing has attached even its first network.
pub fn noted(pod: &Pod) -> Option<Vec<Noted>> {
    let text = pod.metadata.annotations.as_ref()?.get(NETWORK_STATUS)?;
    let text = Some(text).filter(|text| text.len() <= LONGEST)?;
    let Ok(Value::Array(entries)) = serde_json::from_str(text) else { return None };
    Some(entries.iter().take(MOST).filter_map(one).collect())
}

fn one(entry: &Value) -> Option<Noted> {
    let text = |field: &str| entry[field].as_str();
    let mac = text("mac").and_then(parse_mac);
    Some(Noted {
        link: text("interface").filter(|link| !link.is_empty())?.to_owned(),
        definition: text("name").unwrap_or_default().to_owned(),
        mac: mac.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":")),
        pci: entry["device-info"]["pci"]["pci-address"].as_str().and_then(|address| address.parse().ok()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn of(text: &str) -> Option<Vec<Noted>> {
        let pod = json!({"metadata": {"annotations": {NETWORK_STATUS: text}}});
        noted(&serde_json::from_value(pod).unwrap())
    }

    #[test]
    fn a_link_has_the_address_of_its_function() {
        let info = json!({"type": "pci", "version": "1.1.0",
            "pci": {"pci-address": "0000:65:0A.2", "pf-pci-address": "0000:65:00.0"}});
        let report = json!([
            {"name": "cbr0", "interface": "eth0", "mac": "0A:58:0a:f4:00:05", "default": true},
            {"name": "shop/blue", "interface": "net1", "mac": "", "device-info": info},
        ]);
        let links = of(&report.to_string()).unwrap();
        let told: Vec<_> =
            links.iter().map(|one| (one.mac.as_deref(), one.pci.map(|pci| pci.to_string()))).collect();
        assert_eq!(told, [(Some("0a:58:0a:f4:00:05"), None), (None, Some("0000:65:0a.2".to_owned()))]);
        assert_eq!((links[1].link.as_str(), links[1].definition.as_str()), ("net1", "shop/blue"));
    }

    #[test]
    fn a_report_in_another_form_names_no_function() {
        for info in [
            json!(null),
            json!("0000:65:00.0"),
            json!({"pci": "0000:65:00.0"}),
            json!({"pci": {"pci-address": 65}}),
            json!({"pci": {"pci-address": ["0000:65:00.0"]}}),
            json!({"pci": {"pci-address": "0000:65:00.0,x-no-mmap=on"}}),
            json!({"pci": {"pci-address": "/sys/bus/pci/devices/0000:65:00.0"}}),
            json!({"vdpa": {"pci-address": "0000:65:00.0"}}),
        ] {
            let report = json!([{"name": "a", "interface": "net1", "mac": "02:11\nx", "device-info": info}]);
            let links = of(&report.to_string()).unwrap();
            assert_eq!((links[0].pci, links[0].mac.as_deref()), (None, None), "{info}");
        }
        for whole in ["", "{}", "null", "[", "0000:65:00.0", "[[[[", "\u{0}"] {
            assert_eq!(of(whole), None, "{whole:?}");
        }
        assert_eq!(of("[]"), Some(Vec::new()));
        assert_eq!(noted(&Pod::default()), None);
        assert_eq!(of(r#"[1, null, "a", {}, {"interface": 1}, {"interface": ""}]"#), Some(Vec::new()));
    }

    #[test]
    fn a_report_of_any_length_takes_little() {
        let entry = json!({"interface": "net1"});
        let many = Value::from(vec![entry.clone(); MOST + 1]).to_string();
        assert_eq!(of(&many).unwrap().len(), MOST);
        let long = json!([{"interface": "a".repeat(LONGEST)}]).to_string();
        assert_eq!(of(&long), None);
        assert_eq!(of(&"[".repeat(LONGEST)), None);
    }
}
