//! Streams to ports of a guest: virt-api connects to the guest's address itself and copies the bytes.
//!
//! The address is that of the interface on the pod's first network: there the handler determines it. On other
//! networks the guest's agent reports the address, and a guest could name that of the API server. The pod's
//! network policies apply to virt-api as to any client.
//!
//! A guest that moves to another node has another address there, and no packet reports the connection's end: the former pod's
//! network drops what arrives, or does not exist any more. So this server looks at the instance and ends the stream, and the
//! client can open another one.

mod datagrams;

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use barevirt_api::v1::{
    Condition, Network, NetworkInterfaceStatus, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceStatus,
};
use barevirt_api::{names, networks};
use barevirt_component::websocket::{self, CloseReason, Upgrade};
use http::Request;
use hyper::body::Incoming;
use kube::api::GetParams;
use kube::{Api, Client};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::{sleep, timeout};

use self::datagrams::Datagrams;
use crate::answer::{Answer, Refusal};
use crate::endpoints::On;
use crate::front_proxy::User;
use crate::instance;
use crate::route::Called;
use crate::state::State;
use crate::streams::Kind;

/// How long the guest may take to accept a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// How often the instance of an open stream is looked at, and how long the API server may take for that.
const LOOK_EVERY: Duration = Duration::from_secs(10);
const LOOK_TIMEOUT: Duration = Duration::from_secs(10);

/// The answer for a guest whose addresses nobody but the guest knows.
const NO_POD_NETWORK: &str = "the guest has no interface on the pod network, and no other network is connected to virt-api: \
                              start from a pod or a host on the guest's network";

/// Target of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Target {
    port: u16,
    protocol: Protocol,
}

/// Where the guest was when its stream was opened.
#[derive(Debug)]
struct GuestLocation {
    uid: Option<String>,
    node: Option<String>,
    address: IpAddr,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tcp,
    Udp,
}

/// Opens a stream to a port of an instance, or of a machine's instance.
///
/// # Errors
/// 404; 409 if the guest does not run or is paused; 400 for an invalid port and for a guest without a
/// network; 500 if the guest does not accept the connection. No websocket is opened in these cases.
pub async fn open(
    state: &State,
    user: &User,
    called: &Called,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let Called { endpoint, namespace, name, parameters, .. } = called;
    let client = &state.client.0;
    let seat = state.streams.open(Kind::Port, &user.name, namespace, name)?;
    let target = target(parameters)?;
    let upgrade = Upgrade::read(&request).map_err(Refusal::bad_request)?;
    let vmi = match endpoint.on {
        On::Machine => instance_of_machine(client, namespace, name).await?,
        _ => instance::get(client, namespace, name).await?,
    };
    let address = address(&vmi, name)?;
    let refused = |error: io::Error| Refusal::internal(format!("dialing VM: {error}"));
    let late = |_| Refusal::internal(format!("dialing VM: no answer from {address} port {}", target.port));
    let location = GuestLocation {
        uid: vmi.metadata.uid.clone(),
        node: vmi.status.as_ref().and_then(|status| status.node_name.clone()),
        address,
    };
    let left = left(Api::namespaced(client.clone(), namespace), name.clone(), location);
    let carried = match target.protocol {
        Protocol::Tcp => {
            let tcp = timeout(CONNECT_TIMEOUT, TcpStream::connect((address, target.port))).await;
            let tcp = tcp.map_err(late)?.map_err(refused)?;
            // A failure only increases latency.
            let _ = tcp.set_nodelay(true);
            tokio::spawn(websocket::run_until(request, tcp, websocket::CLOSED, left))
        }
        Protocol::Udp => {
            let any: IpAddr = if address.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
            let udp = UdpSocket::bind((any, 0)).await.map_err(refused)?;
            udp.connect((address, target.port)).await.map_err(refused)?;
            tokio::spawn(websocket::run_until(request, Datagrams::new(udp), websocket::CLOSED, left))
        }
    };
    let (user, namespace, name) = (user.name.clone(), namespace.clone(), name.clone());
    tokio::spawn(async move {
        tracing::info!(user, namespace, name, port = target.port, protocol = ?target.protocol, "port forwarded");
        match carried.await {
            Ok(ended) => tracing::info!(namespace, name, port = target.port, ended, "forwarding ended"),
            Err(error) => tracing::warn!(namespace, name, port = target.port, %error, "forwarding failed"),
        }
        drop(seat);
    });
    Ok(upgrade.answer())
}

/// The target in the path elements after `portforward`.
fn target(words: &[String]) -> Result<Target, Refusal> {
    let (port, protocol) = match words {
        [port] => (port, "tcp"),
        [port, protocol] => (port, protocol.as_str()),
        _ => return Err(Refusal::bad_request("port must not be empty")),
    };
    let number = port.parse().ok().filter(|port| *port != 0);
    let port = number
        .ok_or_else(|| Refusal::bad_request(format!("port: \"{port}\" is not a port from 1 to 65535")))?;
    let protocol = match protocol {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        other => return Err(Refusal::bad_request(format!("protocol: \"{other}\" is neither tcp nor udp"))),
    };
    Ok(Target { port, protocol })
}

async fn instance_of_machine(
    client: &Client,
    namespace: &str,
    name: &str,
) -> Result<VirtualMachineInstance, Refusal> {
    let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), namespace);
    let vm = vms.get(name).await.map_err(|error| Refusal::from_kube("get VirtualMachine", error))?;
    if vm.status.as_ref().is_none_or(|status| status.created != Some(true)) {
        return Err(Refusal::conflict("virtualmachines", name, "VMI is not started"));
    }
    let vmi = instance::get(client, namespace, name).await?;
    let mut owners = vmi.metadata.owner_references.iter().flatten();
    if !owners.any(|owner| Some(&owner.uid) == vm.metadata.uid.as_ref()) {
        return Err(Refusal::conflict("virtualmachines", name, "VMI belongs to another object"));
    }
    Ok(vmi)
}

/// Address of a running guest on its pod's first network.
fn address(vmi: &VirtualMachineInstance, name: &str) -> Result<IpAddr, Refusal> {
    let conflict = |why: &str| Err(Refusal::conflict("virtualmachineinstances", name, why));
    let Some(status) = vmi.status.as_ref().filter(|_| instance::is_running(vmi)) else {
        return conflict("VMI is not running");
    };
    if Condition::find(&status.conditions, names::CONDITION_PAUSED).is_some() {
        return conflict("VMI is paused");
    }
    let Some(first) = first_network(vmi) else {
        return Err(Refusal::bad_request(NO_POD_NETWORK));
    };
    let interface = interface(status, first);
    let Some(text) = interface.and_then(|interface| interface.ip_address.as_deref()) else {
        return Err(Refusal::bad_request(format!("interface \"{}\" has no address yet", first.name)));
    };
    let bad = |_| Refusal::internal(format!("\"{text}\" of interface \"{}\" is not an address", first.name));
    text.parse().map_err(bad)
}

/// The network that is the pod's first one.
fn first_network(vmi: &VirtualMachineInstance) -> Option<&Network> {
    vmi.spec.networks.iter().find(|network| !networks::is_secondary(network))
}

/// The interface on a network, whose name it has.
fn interface<'a>(
    status: &'a VirtualMachineInstanceStatus,
    network: &Network,
) -> Option<&'a NetworkInterfaceStatus> {
    status.interfaces.iter().find(|interface| interface.name.as_ref() == Some(&network.name))
}

/// Waits until the guest is no longer at its address.
async fn left(vmis: Api<VirtualMachineInstance>, name: String, location: GuestLocation) -> CloseReason {
    loop {
        sleep(LOOK_EVERY).await;
        // The API server answers this from its memory, which is cheap, but may be old.
        if let Some(vmi) = look(&vmis, &name, &GetParams::any()).await
            && reason_to_end(vmi.as_ref(), &location).is_some()
            && let Some(vmi) = look(&vmis, &name, &GetParams::default()).await
            && let Some(reason) = reason_to_end(vmi.as_ref(), &location)
        {
            return reason;
        }
    }
}

/// The instance, if there is one; nothing if that is not known.
async fn look(
    vmis: &Api<VirtualMachineInstance>,
    name: &str,
    params: &GetParams,
) -> Option<Option<VirtualMachineInstance>> {
    match timeout(LOOK_TIMEOUT, vmis.get_with(name, params)).await {
        Ok(Ok(vmi)) => Some(Some(vmi)),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Some(None),
        Ok(Err(_)) | Err(_) => None,
    }
}

/// Why a stream to a guest's address ends. Pure.
fn reason_to_end(vmi: Option<&VirtualMachineInstance>, location: &GuestLocation) -> Option<CloseReason> {
    let Some(vmi) = vmi.filter(|vmi| vmi.metadata.uid == location.uid) else { return Some(websocket::ENDED) };
    let status = vmi.status.as_ref()?;
    if names::is_final_phase(status.phase.as_deref().unwrap_or_default()) {
        return Some(websocket::ENDED);
    }
    if status.node_name == location.node {
        return None;
    }
    // A network that replaces the pod's own may bring the guest's address along. Until the new node has reported addresses, there are
    // the former ones or none.
    let interface = interface(status, first_network(vmi)?)?;
    let own = interface.ip_address.iter().chain(&interface.ip_addresses);
    let own: Vec<IpAddr> = own.filter_map(|text| text.parse().ok()).collect();
    (!own.is_empty() && !own.contains(&location.address)).then_some(websocket::MOVED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn words(words: &[&str]) -> Result<Target, Refusal> {
        target(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>())
    }

    #[test]
    fn a_path_names_a_port_and_perhaps_a_protocol() {
        assert_eq!(words(&["22"]).unwrap(), Target { port: 22, protocol: Protocol::Tcp });
        assert_eq!(words(&["53", "udp"]).unwrap(), Target { port: 53, protocol: Protocol::Udp });
        for wrong in [&["0"][..], &["65536"], &["ssh"], &["22", "sctp"], &["22", "TCP"], &[]] {
            assert_eq!(words(wrong).unwrap_err().code, 400, "{wrong:?}");
        }
    }

    #[test]
    fn only_a_running_guest_with_an_address_is_called() {
        let of = |status: Value| {
            let networks =
                json!([{"name": "red", "multus": {"networkName": "red"}}, {"name": "default", "pod": {}}]);
            let spec = json!({"domain": {"devices": {}}, "networks": networks});
            let vmi = json!({"metadata": {}, "spec": spec, "status": status});
            address(&serde_json::from_value(vmi).unwrap(), "vm")
        };
        let running = json!({"phase": "Running", "interfaces": [
            {"ipAddress": "10.9.9.9"}, {"name": "red", "ipAddress": "10.96.0.1"}, {"name": "default", "ipAddress": "10.1.2.3"},
        ]});
        assert_eq!(of(running.clone()).unwrap(), IpAddr::from([10, 1, 2, 3]));
        let mut paused = running;
        paused["conditions"] = json!([{"type": "Paused", "status": "True"}]);
        assert!(of(paused).unwrap_err().message.ends_with("VMI is paused"));
        assert_eq!(of(json!({"phase": "Scheduled"})).unwrap_err().code, 409);
        assert_eq!(of(json!({"phase": "Running"})).unwrap_err().code, 400);
    }

    #[test]
    fn an_address_that_the_guest_reports_is_never_called() {
        let network = json!([{"name": "red", "multus": {"networkName": "red"}}]);
        let status = json!({"phase": "Running", "interfaces": [{"name": "red", "ipAddress": "10.96.0.1"}]});
        let vmi = json!({"metadata": {}, "spec": {"domain": {"devices": {}}, "networks": network}, "status": status});
        let refusal = address(&serde_json::from_value(vmi).unwrap(), "vm").unwrap_err();
        assert_eq!(refusal.code, 400);
        assert_eq!(refusal.message, NO_POD_NETWORK);
        // Multus can also bring the pod's first network.
        let network = json!([{"name": "red", "multus": {"networkName": "red", "default": true}}]);
        let status = json!({"phase": "Running", "interfaces": [{"name": "red", "ipAddress": "10.1.2.3"}]});
        let vmi = json!({"metadata": {}, "spec": {"domain": {"devices": {}}, "networks": network}, "status": status});
        assert_eq!(
            address(&serde_json::from_value(vmi).unwrap(), "vm").unwrap(),
            IpAddr::from([10, 1, 2, 3])
        );
    }

    #[test]
    fn a_stream_ends_when_its_guest_has_left_the_address() {
        let location = GuestLocation {
            uid: Some("1".to_owned()),
            node: Some("a".to_owned()),
            address: IpAddr::from([10, 1, 2, 3]),
        };
        let of = |uid: &str, phase: &str, node: &str, address: &str| {
            let networks = json!([{"name": "default", "pod": {}}]);
            let interfaces = json!([{"name": "default", "ipAddress": address, "ipAddresses": [address]}]);
            let vmi = json!({
                "metadata": {"uid": uid}, "spec": {"domain": {"devices": {}}, "networks": networks},
                "status": {"phase": phase, "nodeName": node, "interfaces": interfaces},
            });
            reason_to_end(Some(&serde_json::from_value(vmi).unwrap()), &location)
        };
        assert_eq!(of("1", "Running", "a", "10.1.2.3"), None);
        assert_eq!(of("1", "Running", "b", "10.9.2.3"), Some(websocket::MOVED));
        // Its new node has not reported the address yet, or the address moves with it.
        assert_eq!(of("1", "Running", "b", ""), None);
        assert_eq!(of("1", "Running", "b", "10.1.2.3"), None);
        // On the same node only the order of its addresses has changed.
        assert_eq!(of("1", "Running", "a", "fd00::3"), None);
        assert_eq!(of("1", "Succeeded", "a", "10.1.2.3"), Some(websocket::ENDED));
        assert_eq!(of("2", "Running", "a", "10.1.2.3"), Some(websocket::ENDED));
        assert_eq!(reason_to_end(None, &location), Some(websocket::ENDED));
    }
}
