//! Network interfaces.

use super::supported::given;
use super::text::{is_port_name, is_printable, quoted};
use super::{Cause, CauseKind, Path};
use crate::v1::{DhcpOptions, Interface, Port, VirtualMachineInstanceSpec};
use std::collections::{HashMap, HashSet};
use std::net::Ipv4Addr;

/// Device models of the API.
pub const MODELS: [&str; 7] = ["e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", "virtio"];
/// Hardware address of the bridge in the pod.
pub const BRIDGE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0];
/// A DHCP option holds at most that many bytes.
const DHCP_VALUE_LIMIT: usize = 255;

/// The ways an interface can be connected; each has exactly one.
const BINDINGS: [&str; 8] =
    ["binding", "bridge", "macvtap", "masquerade", "passt", "passtBinding", "slirp", "sriov"];

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let field = path.child("domain.devices.interfaces");
    let networks: HashMap<&str, bool> =
        spec.networks.iter().map(|network| (network.name.as_str(), network.pod.is_some())).collect();
    let mut seen = HashSet::new();
    for (index, interface) in spec.domain.devices.interfaces.iter().enumerate() {
        let field = field.index(index);
        let field_name = field.child("name");
        if !seen.insert(interface.name.as_str()) {
            causes.push(Cause::duplicate(
                &field_name,
                "Only one interface can be connected to one specific network",
            ));
        }
        let on_pod_network = networks.get(interface.name.as_str());
        if on_pod_network.is_none() {
            causes.push(Cause::invalid(
                &field_name,
                format!("{field_name} '{}' not found.", quoted(&interface.name)),
            ));
        }
        let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        if interface.name.is_empty() || interface.name.len() > 63 || !interface.name.bytes().all(known) {
            causes.push(Cause::invalid(
                &field_name,
                "Network interface name can only contain alphabetical characters, numbers, dashes (-) or underscores (_)",
            ));
        }
        binding(&field, interface, on_pod_network.copied(), causes);
        hardware(&field, interface, causes);
        ports(&field.child("ports"), &interface.ports, causes);
        if let Some(options) = &interface.dhcp_options {
            dhcp(&field.child("dhcpOptions"), options, causes);
        }
    }
}

fn binding(field: &Path, interface: &Interface, on_pod_network: Option<bool>, causes: &mut Vec<Cause>) {
    let bindings = given(interface).into_iter().filter(|name| BINDINGS.contains(&name.as_str())).count();
    if bindings != 1 {
        causes.push(Cause::invalid(
            field,
            format!(
                "logical {} interface must have exactly one binding method or binding plugin",
                quoted(&interface.name)
            ),
        ));
    } else if interface.masquerade.is_some() && on_pod_network == Some(false) {
        causes.push(Cause::invalid(
            &field.child("name"),
            "Masquerade interface only implemented with pod network",
        ));
    }
}

fn hardware(field: &Path, interface: &Interface, causes: &mut Vec<Cause>) {
    let field_name = field.child("name");
    if let Some(model) =
        interface.model.as_deref().filter(|model| !model.is_empty() && !MODELS.contains(model))
    {
        causes.push(Cause::new(
            CauseKind::NotSupported,
            &field.child("model"),
            format!("interface {field_name} uses model {} that is not supported.", quoted(model)),
        ));
    }
    let Some(text) = interface.mac_address.as_deref().filter(|text| !text.is_empty()) else { return };
    let field_mac = field.child("macAddress");
    match parse_mac(text) {
        None => causes.push(Cause::invalid(
            &field_mac,
            format!("interface {field_name} has malformed MAC address ({}).", quoted(text)),
        )),
        Some(mac) if mac == BRIDGE_MAC => causes.push(Cause::invalid(
            &field_mac,
            "The requested MAC address is reserved for the in-pod bridge. Please choose another one.",
        )),
        // A station's address has the group bit clear, and is not zero.
        Some(mac) if mac[0] & 1 == 1 || mac == [0; 6] => causes.push(Cause::invalid(
            &field_mac,
            format!("interface {field_name} has a MAC address that is not unicast ({}).", quoted(text)),
        )),
        Some(_) => {}
    }
}

/// Six pairs of hexadecimal digits, separated by `:` or `-`.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    let separator = if text.contains(':') { ':' } else { '-' };
    let mut mac = [0; 6];
    let mut parts = text.split(separator);
    for byte in &mut mac {
        let part =
            parts.next().filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(mac)
}

fn ports(field: &Path, ports: &[Port], causes: &mut Vec<Cause>) {
    let mut names = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let field = field.index(index);
        match port.port {
            0 => causes.push(Cause::required(&field.child("port"), "Port field is mandatory.")),
            1..=65535 => {}
            _ => causes
                .push(Cause::invalid(&field.child("port"), "Port field must be in range 0 < x < 65536.")),
        }
        if let Some(protocol) = port.protocol.as_deref()
            && !matches!(protocol, "" | "TCP" | "UDP")
        {
            causes
                .push(Cause::invalid(&field.child("protocol"), "Unknown protocol, only TCP or UDP allowed"));
        }
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            if !names.insert(name) {
                causes.push(Cause::duplicate(
                    &field.child("name"),
                    format!("Duplicate name of the port: {}", quoted(name)),
                ));
            }
            if !is_port_name(name) {
                causes.push(Cause::invalid(
                    &field.child("name"),
                    format!("Invalid name of the port: {}", quoted(name)),
                ));
            }
        }
    }
}

fn dhcp(field: &Path, options: &DhcpOptions, causes: &mut Vec<Cause>) {
    for (name, text) in
        [("bootFileName", &options.boot_file_name), ("tftpServerName", &options.tftp_server_name)]
    {
        if text.as_deref().is_some_and(|text| !is_printable(text, DHCP_VALUE_LIMIT)) {
            let field = field.child(name);
            causes.push(Cause::invalid(
                &field,
                format!("{field} must be made up of printable ASCII characters, at most {DHCP_VALUE_LIMIT}"),
            ));
        }
    }
    for (index, server) in options.ntp_servers.iter().enumerate() {
        if server.parse::<Ipv4Addr>().is_err() {
            causes.push(Cause::invalid(
                &field.child("ntpServers").index(index),
                "NTP servers must be a list of valid IPv4 addresses.",
            ));
        }
    }
    if options.ntp_servers.len() > DHCP_VALUE_LIMIT / 4 {
        let field = field.child("ntpServers");
        causes.push(Cause::invalid(
            &field,
            format!("{field} has more than {} addresses", DHCP_VALUE_LIMIT / 4),
        ));
    }
    let field = field.child("privateOptions");
    let mut numbers = HashSet::new();
    for (index, option) in options.private_options.iter().enumerate() {
        let field = field.index(index);
        if !(224..=254).contains(&option.option) {
            causes.push(Cause::invalid(
                &field.child("option"),
                "provided DHCPPrivateOptions are out of range, must be in range 224 to 254",
            ));
        } else if !numbers.insert(option.option) {
            causes.push(Cause::invalid(
                &field.child("option"),
                "Found Duplicates: you have provided duplicate DHCPPrivateOptions",
            ));
        }
        if option.value.len() > DHCP_VALUE_LIMIT {
            let field = field.child("value");
            causes.push(Cause::invalid(&field, format!("{field} is longer than {DHCP_VALUE_LIMIT} bytes")));
        }
    }
}
