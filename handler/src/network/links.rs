//! Names of links in a pod: those of networks, as KubeVirt and Multus choose them, and those that the handler
//! creates for them.

use std::collections::BTreeMap;

use barevirt_api::networks::{DIGITS, FIRST_LINK, PREFIX, digits};

use super::state::Link;

/// Longest name of a link in Linux, in bytes.
const LONGEST: usize = 15;

/// Whether Linux accepts this name, and it contains only printable ASCII characters.
pub fn is_sound(name: &str) -> bool {
    (1..=LONGEST).contains(&name.len())
        && name != "."
        && name != ".."
        && name.bytes().all(|byte| byte.is_ascii_graphic() && !matches!(byte, b'/' | b':'))
}

/// Names of the links of one card.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Names {
    /// The pod's link. With a bridge binding, this becomes the name of the stand-in that has the pod's
    /// addresses.
    pub pod: String,
    /// The pod's link after it has become a port of the bridge.
    pub port: String,
    /// The bridge.
    pub bridge: String,
    /// The tap.
    pub tap: String,
    /// The stand-in, before it gets the name `pod`.
    pub kept: String,
    /// The link at which IPv6 routes are saved: the bridge has no IPv6, and the stand-in is down at that time.
    pub note: String,
}

impl Names {
    /// The names that belong to the pod's link `pod`. Some of them become part of a path beneath `/proc/sys`.
    /// So a name from outside is hashed, unless it consists of letters and digits only.
    pub fn of(pod: &str) -> Self {
        let rest = pod.strip_prefix(PREFIX).unwrap_or(pod);
        let plain =
            (1..=DIGITS).contains(&rest.len()) && rest.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let short = if plain { rest.to_owned() } else { digits(pod) };
        Self {
            pod: pod.to_owned(),
            port: format!("{short}-nic"),
            bridge: format!("k6t-{short}"),
            tap: if pod == FIRST_LINK { "tap0".to_owned() } else { format!("tap{short}") },
            kept: format!("keep{short}"),
            note: format!("note{short}"),
        }
    }

    /// The names of the first of `candidates` whose links are in the pod, at least in part; otherwise those
    /// of the first candidate.
    pub fn find(candidates: &[String], links: &BTreeMap<String, Link>) -> Self {
        let mut all = candidates.iter().map(|name| Self::of(name));
        let is_there = |names: &Self| {
            [&names.pod, &names.port, &names.kept].into_iter().any(|name| links.contains_key(name))
        };
        let first = candidates.first().map_or(FIRST_LINK, String::as_str);
        all.find(is_there).unwrap_or_else(|| Self::of(first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::networks::secondary_link;

    #[test]
    fn names_are_those_that_multus_attachments_have() {
        // sha256("red") begins with b1f51a511f1.
        assert_eq!(secondary_link("red"), "podb1f51a511f1");
        let names = Names::of(&secondary_link("red"));
        assert_eq!((names.bridge.as_str(), names.port.as_str()), ("k6t-b1f51a511f1", "b1f51a511f1-nic"));
        assert_eq!((names.tap.as_str(), names.kept.as_str()), ("tapb1f51a511f1", "keepb1f51a511f1"));
        assert_eq!(Names::of("eth0").tap, "tap0");
        assert_eq!(Names::of("net1").bridge, "k6t-net1");
        for name in ["a.b", "an-interface-15", "pod", "..x"] {
            let Names { port, bridge, tap, kept, note, .. } = Names::of(name);
            for made in [port, bridge, tap, kept, note] {
                assert!(is_sound(&made) && !made.contains('.'), "{made}");
            }
        }
    }

    #[test]
    fn names_of_links_are_checked() {
        for name in ["eth0", "pod1", "a.b", "x@y"] {
            assert!(is_sound(name), "{name}");
        }
        for name in ["", ".", "..", "a/b", "../x", "a b", "sixteen-letters-", "a:1", "ä", "a\n"] {
            assert!(!is_sound(name), "{name}");
        }
    }

    #[test]
    fn the_first_that_is_there_counts() {
        let links = |names: &[&str]| names.iter().map(|name| ((*name).to_owned(), Link::default())).collect();
        let candidates = [secondary_link("red"), "net1".to_owned()];
        let find = |names: &[&str]| Names::find(&candidates, &links(names)).pod;
        assert_eq!(find(&["net1"]), "net1");
        assert_eq!(find(&["net1", "podb1f51a511f1"]), "podb1f51a511f1");
        assert_eq!(find(&["net1-nic"]), "net1");
        assert_eq!(find(&[]), "podb1f51a511f1");
    }
}
