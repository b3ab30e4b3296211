//! The sidecar of Istio's mesh in the pod of a guest: a proxy for the guest's connections. It listens at ports of the pod,
//! which therefore are not the guest's, and connects to the guest from a loopback address of its own.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Annotation of an instance by which its pod gets the sidecar, and the label of the pod that says the same: newer versions
/// of Istio look at the label first.
pub const INJECT: &str = "sidecar.istio.io/inject";

/// Annotations of a pod that name links by which a guest's connections come, so that the sidecar takes them over. Istio 1.25
/// has renamed the first one to the second.
pub const REROUTED: [&str; 2] =
    ["traffic.sidecar.istio.io/kubevirtInterfaces", "istio.io/reroute-virtual-interfaces"];

/// The bridge of a guest behind masquerade.
pub const BRIDGE: &str = "k6t-eth0";

/// TCP ports of the sidecar, as in KubeVirt: Envoy's, its agent's, and its name server's.
pub const PORTS: [u16; 10] = [15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090];

/// Addresses from which the sidecar connects to the program behind it.
pub const SIDECAR: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(127, 0, 0, 6), Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6));

/// Whether the pod of an instance with these annotations has the sidecar.
pub fn has_sidecar(annotations: Option<&BTreeMap<String, String>>) -> bool {
    annotations.and_then(|all| all.get(INJECT)).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}

/// The value of the pod's label for an instance with these annotations. A word that no label can have means nothing to Istio
/// either.
pub fn label(annotations: Option<&BTreeMap<String, String>>) -> Option<&str> {
    let word = annotations?.get(INJECT)?.as_str();
    let is_word = (1..=63).contains(&word.len()) && word.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_word.then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pods_label_says_what_its_instance_says() {
        let label_of = |word: &str| {
            let annotations = BTreeMap::from([(INJECT.to_owned(), word.to_owned())]);
            label(Some(&annotations)).map(str::to_owned)
        };
        assert_eq!(["true", "False"].map(label_of), ["true", "False"].map(|word| Some(word.to_owned())));
        assert_eq!(["", " true", &"t".repeat(64)].map(label_of), [None, None, None]);
        assert_eq!((label(None), label(Some(&BTreeMap::new()))), (None, None));
    }
}
