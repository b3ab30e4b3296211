//! The layer-2 segment to which a definition joins pods, as far as its configuration names it.

use barevirt_api::networks::Attachment;
use serde_json::Value;
use std::collections::BTreeMap;

/// The fields of a plugin's configuration that together say which bridge or link of the node it is, and which part of it.
const FIELDS: [&str; 7] = ["type", "bridge", "master", "vlan", "vlanId", "vlanTrunk", "trunk"];

/// Values of these fields, for a plugin that names a bridge or a link. What another field says makes no difference: addresses,
/// an MTU and filters leave guests on one segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment(Vec<(&'static str, Value)>);

/// The segments of definitions whose configuration names one.
pub type Segments = BTreeMap<Attachment, Segment>;

impl Segment {
    /// That of a definition's configuration: of its plugin, or of the first one of a list, which attaches. `None` where this
    /// names neither a bridge nor a link.
    pub fn of(config: &str) -> Option<Self> {
        let config: Value = serde_json::from_str(config).ok()?;
        let plugin = config.get("plugins").map_or(Some(&config), |all| all.get(0))?;
        let is_named =
            |field: &str| plugin.get(field).and_then(Value::as_str).is_some_and(|name| !name.is_empty());
        let names_one = is_named("type") && (is_named("bridge") || is_named("master"));
        if !names_one {
            return None;
        }
        // No VLAN is also written as VLAN 0.
        let says = |value: &&Value| !value.is_null() && value.as_u64() != Some(0);
        let value = |field: &'static str| Some((field, plugin.get(field).filter(says)?.clone()));
        Some(Self(FIELDS.into_iter().filter_map(value).collect()))
    }
}

/// Whether two networks are one: the pod network, one definition, or two that lead to the same segment.
pub(super) fn is_one(network: Option<&Attachment>, other: Option<&Attachment>, segments: &Segments) -> bool {
    let known = |definition: &Attachment| segments.get(definition);
    network == other || network.and_then(known).is_some_and(|segment| other.and_then(known) == Some(segment))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(config: &str) -> Option<Segment> {
        Segment::of(config)
    }

    #[test]
    fn definitions_of_one_bridge_or_link_have_one_segment_and_a_vlan_is_another() {
        let plain = of(r#"{"type": "bridge", "bridge": "br0", "mtu": 1400, "macspoofchk": true}"#);
        assert!(plain.is_some());
        for same in [
            r#"{"type": "bridge", "bridge": "br0", "name": "other", "ipam": {"type": "host-local"}}"#,
            r#"{"type": "bridge", "bridge": "br0", "vlan": 0}"#,
            r#"{"name": "l", "plugins": [{"type": "bridge", "bridge": "br0"}, {"type": "tuning"}]}"#,
        ] {
            assert_eq!(of(same), plain, "{same}");
        }
        for other in [
            r#"{"type": "bridge", "bridge": "br1"}"#,
            r#"{"type": "ovs", "bridge": "br0"}"#,
            r#"{"type": "bridge", "bridge": "br0", "vlan": 7}"#,
            r#"{"type": "bridge", "bridge": "br0", "vlanTrunk": [{"id": 7}]}"#,
            r#"{"type": "macvlan", "master": "br0"}"#,
            r#"{"name": "l", "plugins": [{"type": "tuning"}, {"type": "bridge", "bridge": "br0"}]}"#,
        ] {
            assert_ne!(of(other), plain, "{other}");
        }
    }

    #[test]
    fn a_configuration_that_names_no_bridge_and_no_link_has_no_segment() {
        for none in [
            "",
            "no JSON",
            "[]",
            r#"{"type": "bridge"}"#,
            r#"{"bridge": "br0"}"#,
            r#"{"type": "bridge", "bridge": ""}"#,
            r#"{"type": "macvlan", "master": 7}"#,
            r#"{"plugins": []}"#,
        ] {
            assert_eq!(of(none), None, "{none}");
        }
        // So two of them are not one network.
        let (a, b) = (Attachment::of("n", "a"), Attachment::of("n", "b"));
        assert!(!is_one(Some(&a), Some(&b), &Segments::new()));
        assert!(is_one(Some(&a), Some(&a), &Segments::new()) && is_one(None, None, &Segments::new()));
        assert!(!is_one(Some(&a), None, &Segments::new()));
    }
}
