//! Cards that passt joins to the pod network. passt runs without privileges in a container of the pod, and
//! forwards between the guest and sockets of the pod.
//!
//! ```text
//!  network ─ eth0 ─ sockets of the pod ─ passt, in container passt ─► SOCKETS/passt.sock ─ launcher ─► QEMU ─► guest
//! ```

use crate::mesh;
use crate::v1::{Interface, Port, VirtualMachineInstanceSpec};

/// The name of the container.
pub const CONTAINER: &str = "passt";
/// Directory of the socket, in this container and in the launcher's container.
pub const SOCKETS: &str = "/var/run/kubevirt/passt";
/// The name of the socket.
pub const SOCKET: &str = "passt.sock";
/// Argument of the container: all ports of the pod are forwarded to the guest.
pub const ALL_PORTS: &str = "all";
/// Before a number in the argument: all ports are forwarded except those that are named so.
const EXCEPT: char = '~';
/// Argument of the container: no port is forwarded.
pub const NO_PORTS: &str = "none";

/// The card that passt joins to the pod network. There is at most one, because there is at most one pod network.
pub fn of(spec: &VirtualMachineInstanceSpec) -> Option<&Interface> {
    spec.domain.devices.interfaces.iter().find(|interface| interface.passt_binding.is_some())
}

fn ports(interface: &Interface, protocol: &str) -> impl Iterator<Item = i32> {
    let of = move |port: &&Port| {
        let given = port.protocol.as_deref().filter(|given| !given.is_empty()).unwrap_or("TCP");
        given == protocol
    };
    interface.ports.iter().filter(of).map(|port| port.port)
}

/// The TCP and the UDP ports of the pod that are forwarded to the guest, as arguments of the container. If the
/// interface lists no port at all, all ports of both protocols are forwarded, as in KubeVirt, except those at which the sidecar
/// of a mesh listens in the pod.
pub fn forwarded(interface: &Interface, has_sidecar: bool) -> [String; 2] {
    if interface.ports.is_empty() {
        let of_the_sidecar = || mesh::PORTS.map(|port| format!("{EXCEPT}{port}")).join(",");
        let tcp = if has_sidecar { of_the_sidecar() } else { ALL_PORTS.to_owned() };
        return [tcp, ALL_PORTS.to_owned()];
    }
    ["TCP", "UDP"].map(|protocol| {
        let mut numbers: Vec<i32> = ports(interface, protocol).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        if numbers.is_empty() { NO_PORTS.to_owned() } else { numbers.join(",") }
    })
}

/// Whether such an argument forwards all ports of its protocol, or nearly all.
pub fn are_all(ports: &str) -> bool {
    ports == ALL_PORTS || ports.starts_with(EXCEPT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_card_and_its_ports_are_found() {
        let spec = |interface: serde_json::Value| {
            let spec = json!({"domain": {"devices": {"interfaces": [interface]}}});
            serde_json::from_value::<VirtualMachineInstanceSpec>(spec).unwrap()
        };
        assert_eq!(of(&spec(json!({"name": "default", "masquerade": {}}))), None);
        let all = spec(json!({"name": "default", "passtBinding": {}}));
        assert_eq!(forwarded(of(&all).unwrap(), false), ["all", "all"]);
        let beside = "~15000,~15001,~15004,~15006,~15008,~15009,~15020,~15021,~15053,~15090";
        assert_eq!(forwarded(of(&all).unwrap(), true), [beside, "all"]);
        assert_eq!(["all", beside, "none", "80"].map(are_all), [true, true, false, false]);
        let ports = json!([{"port": 80}, {"port": 53, "protocol": "UDP"}, {"port": 22, "protocol": "TCP"}, {"port": 80}]);
        let some = spec(json!({"name": "default", "passtBinding": {}, "ports": ports}));
        for has_sidecar in [false, true] {
            assert_eq!(forwarded(of(&some).unwrap(), has_sidecar), ["22,80", "53"]);
        }
        let one = spec(json!({"name": "default", "passtBinding": {}, "ports": [{"port": 80}]}));
        assert_eq!(forwarded(of(&one).unwrap(), false), ["80", "none"]);
    }
}
