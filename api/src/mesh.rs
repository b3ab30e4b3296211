//! The sidecar of Istio's mesh in the pod of a guest: a proxy for the guest's connections. It listens at ports of the pod,
//! which therefore are not the guest's, and connects to the guest from a loopback address of its own.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr};

/// Annotation of an instance by which its pod gets the sidecar.
const INJECT: &str = "sidecar.istio.io/inject";

/// TCP ports of the sidecar, as in KubeVirt: Envoy's, its agent's, and its name server's.
pub const PORTS: [u16; 10] = [15000, 15001, 15004, 15006, 15008, 15009, 15020, 15021, 15053, 15090];

/// Addresses from which the sidecar connects to the program behind it.
pub const SIDECAR: (Ipv4Addr, Ipv6Addr) =
    (Ipv4Addr::new(127, 0, 0, 6), Ipv6Addr::new(0, 0, 0, 0, 0, 0, 0, 6));

/// Whether the pod of an instance with these annotations has the sidecar.
pub fn has_sidecar(annotations: Option<&BTreeMap<String, String>>) -> bool {
    annotations.and_then(|all| all.get(INJECT)).is_some_and(|value| value.eq_ignore_ascii_case("true"))
}
