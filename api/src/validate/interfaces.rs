//! Rules for network interfaces.

use super::supported::given;
use super::{Cause, Path, port_ranges, sriov};
use crate::addresses;
use crate::gates::Gates;
use crate::networks::{self, BRIDGE_SERVED, LINK_STATE_SERVED, SEVERAL_CARDS_SERVED};
use crate::pci;
use crate::syntax::{is_port_name, is_printable, quoted};
use crate::v1::{DhcpOptions, Interface, Network, Port, VirtualMachineInstanceSpec};
use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;

/// Device models of the API.
pub const MODELS: [&str; 7] = ["e1000", "e1000e", "igb", "ne2k_pci", "pcnet", "rtl8139", "virtio"];
/// Hardware address of the bridge in the pod.
pub const BRIDGE_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0];
/// Numbers by which guests name interfaces: QEMU's `ONBOARD_INDEX_MAX`.
const ACPI_INDEXES: RangeInclusive<i32> = 1..=16383;
/// Longest name of an interface, and so of a network. KubeVirt has no limit.
const NAME_LIMIT: usize = 63;
/// Longest value of a DHCP option, in bytes.
const DHCP_VALUE_LIMIT: usize = 255;

/// The bindings of an interface; each interface has exactly one.
const BINDINGS: [&str; 5] = ["binding", "bridge", "masquerade", "passtBinding", "sriov"];
/// Bindings that were removed, with KubeVirt's messages.
const GONE: [(&str, &str); 3] = [
    ("slirp", "Slirp interface support has been discontinued since v1.3"),
    ("passt", "Passt network binding has been discontinued since v1.3"),
    ("macvtap", "Macvtap network binding has been discontinued since v1.3"),
];

pub(super) fn validate(
    path: &Path,
    spec: &VirtualMachineInstanceSpec,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    let field = path.child("domain.devices.interfaces");
    let networks: HashMap<&str, &Network> =
        spec.networks.iter().map(|network| (network.name.as_str(), network)).collect();
    let first_network = spec.networks.iter().find(|network| networks::is_first(network));
    let mut seen = HashSet::new();
    let mut numbers = HashSet::new();
    let mut macs = HashSet::new();
    for (index, interface) in spec.domain.devices.interfaces.iter().enumerate() {
        let field = field.index(index);
        let field_name = field.child("name");
        if !seen.insert(interface.name.as_str()) {
            causes.push(Cause::duplicate(
                &field_name,
                "Only one interface can be connected to one specific network",
            ));
        }
        // As in KubeVirt, zero means none.
        if let Some(number) = interface.acpi_index.filter(|number| *number != 0) {
            let field = field.child("acpiIndex");
            if !ACPI_INDEXES.contains(&number) {
                let (first, last) = (ACPI_INDEXES.start(), ACPI_INDEXES.end());
                causes.push(Cause::invalid(&field, format!("{field} must be between {first} and {last}")));
            } else if !numbers.insert(number) {
                causes
                    .push(Cause::duplicate(&field, format!("another interface has the acpiIndex {number}")));
            }
        }
        let mac = interface.mac_address.as_deref().and_then(parse_mac);
        if mac.is_some_and(|mac| !macs.insert(mac)) {
            let text = quoted(interface.mac_address.as_deref().unwrap_or_default());
            let message = format!("another interface has the MAC address {text}");
            causes.push(Cause::duplicate(&field.child("macAddress"), message));
        }
        let network = networks.get(interface.name.as_str()).copied();
        let on_pod_network = network.map(|network| network.pod.is_some());
        if network.is_none() {
            causes.push(Cause::invalid(
                &field_name,
                format!("{field_name} '{}' not found.", quoted(&interface.name)),
            ));
        }
        let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
        if interface.name.is_empty() || !interface.name.bytes().all(known) {
            causes.push(Cause::invalid(
                &field_name,
                "Network interface name can only contain alphabetical characters, numbers, dashes (-) or underscores (_)",
            ));
        } else if interface.name.len() > NAME_LIMIT {
            let message = format!("{field_name} is longer than {NAME_LIMIT} characters");
            causes.push(Cause::invalid(&field_name, message));
        }
        binding(&field, interface, on_pod_network, gates, causes);
        let is_first = first_network.is_some_and(|network| network.name == interface.name);
        state(&field.child("state"), interface, is_first, causes);
        not_served(&field, interface, network, causes);
        if interface.passt_binding.is_some() {
            not_of_passt(path, &field, interface, spec, causes);
        }
        if interface.sriov.is_some() {
            sriov::validate(path, &field, interface, spec, causes);
        }
        hardware(&field, interface, causes);
        ports(&field.child("ports"), &interface.ports, causes);
        if network.is_some() && gates.is_on(port_ranges::GATE) {
            port_ranges::validate(&field, interface, causes);
        }
        if let Some(options) = &interface.dhcp_options {
            dhcp(&field.child("dhcpOptions"), options, causes);
        }
    }
}

fn binding(
    field: &Path,
    interface: &Interface,
    on_pod_network: Option<bool>,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    let given = given(interface);
    let is_given = |name: &str| given.iter().any(|given| given == name);
    for (name, message) in GONE {
        if is_given(name) {
            causes.push(Cause::invalid(&field.child(name), message));
        }
    }
    if BINDINGS.iter().filter(|name| is_given(name)).count() != 1 {
        causes.push(Cause::invalid(
            field,
            format!(
                "logical {} interface must have exactly one binding method or binding plugin",
                quoted(&interface.name)
            ),
        ));
        return;
    }
    if interface.binding.as_ref().is_some_and(|binding| binding.name.is_empty()) {
        let field = field.child("binding.name");
        causes.push(Cause::required(&field, format!("{field} must name a network binding plugin")));
    }
    let field_name = field.child("name");
    // An interface without a network has its own cause.
    let message = match on_pod_network {
        Some(false) if interface.masquerade.is_some() => {
            "Masquerade interface only implemented with pod network"
        }
        Some(false) if interface.passt_binding.is_some() => {
            "PasstBinding interface only implemented with pod network"
        }
        Some(true) if interface.bridge.is_some() && !gates.permits_bridge_on_pod_network() => {
            "Bridge on pod network configuration is not enabled under kubevirt-config"
        }
        _ => return,
    };
    causes.push(Cause::invalid(&field_name, message));
}

/// Refuses fields that no component acts on. If another rule refuses the field, that is enough.
fn not_served(field: &Path, interface: &Interface, network: Option<&Network>, causes: &mut Vec<Cause>) {
    let bridged = network.is_none_or(networks::is_first);
    let served = if bridged { BRIDGE_SERVED } else { SEVERAL_CARDS_SERVED };
    let states = interface.state.as_deref().is_some_and(|state| !state.is_empty());
    for (name, given, served) in
        [("bridge", interface.bridge.is_some(), served), ("state", states, LINK_STATE_SERVED)]
    {
        let field = field.child(name);
        if given && !served && !causes.iter().any(|cause| field.holds(&cause.field)) {
            causes.push(Cause::not_supported_yet(&field, ""));
        }
    }
}

/// Refuses fields that only apply where the launcher hands out the guest's addresses. KubeVirt accepts these
/// fields together with passt, and ignores them.
fn not_of_passt(
    path: &Path,
    field: &Path,
    interface: &Interface,
    spec: &VirtualMachineInstanceSpec,
    causes: &mut Vec<Cause>,
) {
    const WITH: &str = "with passtBinding";
    if interface.dhcp_options.is_some() {
        causes.push(Cause::not_supported_yet(&field.child("dhcpOptions"), WITH));
    }
    for (index, network) in spec.networks.iter().enumerate() {
        let Some(pod) = network.pod.as_ref().filter(|_| network.name == interface.name) else { continue };
        let ranges =
            [("vmNetworkCIDR", &pod.vm_network_cidr), ("vmIPv6NetworkCIDR", &pod.vm_ipv6_network_cidr)];
        for (name, given) in ranges {
            if given.as_deref().is_some_and(|range| !range.is_empty()) {
                let field = path.child("networks").index(index).child("pod").child(name);
                causes.push(Cause::not_supported_yet(&field, WITH));
            }
        }
    }
}

fn state(field: &Path, interface: &Interface, is_first: bool, causes: &mut Vec<Cause>) {
    let name = quoted(&interface.name);
    let mut refuse = |message: String| causes.push(Cause::invalid(field, message));
    match interface.state.as_deref() {
        None | Some("") => {}
        Some(state @ ("up" | "down")) => {
            if interface.sriov.is_some() {
                refuse(format!("\"{name}\" interface's state \"{state}\" is not supported for SR-IOV NICs"));
            }
        }
        Some(state @ "absent") => {
            // KubeVirt removes no SR-IOV card from a running guest.
            if interface.bridge.is_none() && interface.sriov.is_none() {
                refuse(format!(
                    "\"{name}\" interface's state \"{state}\" is supported only for bridge binding"
                ));
            }
            if is_first {
                refuse(format!(
                    "\"{name}\" interface's state \"{state}\" is not supported on default networks"
                ));
            }
        }
        Some(other) => {
            refuse(format!("logical {name} interface state value is unsupported: {}", quoted(other)));
        }
    }
}

fn hardware(field: &Path, interface: &Interface, causes: &mut Vec<Cause>) {
    let field_name = field.child("name");
    if let Some(model) =
        interface.model.as_deref().filter(|model| !model.is_empty() && !MODELS.contains(model))
    {
        causes.push(Cause::not_supported(
            &field.child("model"),
            format!("interface {field_name} uses model {} that is not supported.", quoted(model)),
        ));
    }
    if let Some(address) = interface
        .pci_address
        .as_deref()
        .filter(|address| !address.is_empty() && pci::parse(address).is_none())
    {
        causes.push(Cause::invalid(
            &field.child("pciAddress"),
            format!("interface {field_name} has malformed PCI address ({}).", quoted(address)),
        ));
    }
    let Some(text) = interface.mac_address.as_deref().filter(|text| !text.is_empty()) else { return };
    let field_mac = field.child("macAddress");
    match parse_mac(text) {
        None => {
            let why = if is_long_mac(text) { "too long" } else { "malformed" };
            causes.push(Cause::invalid(
                &field_mac,
                format!("interface {field_name} has {why} MAC address ({}).", quoted(text)),
            ));
        }
        Some(mac) if mac == BRIDGE_MAC && interface.masquerade.is_some() => causes.push(Cause::invalid(
            &field_mac,
            "The requested MAC address is reserved for the in-pod bridge. Please choose another one.",
        )),
        // The hardware address of a station has the group bit clear and is not zero.
        Some(mac) if mac[0] & 1 == 1 || mac == [0; 6] => causes.push(Cause::invalid(
            &field_mac,
            format!("interface {field_name} has a MAC address that is not unicast ({}).", quoted(text)),
        )),
        Some(_) => {}
    }
}

/// Six pairs of hexadecimal digits, separated by `:` or `-`.
pub fn parse_mac(text: &str) -> Option<[u8; 6]> {
    hardware_address(text)
}

/// Whether the text is an address of another kind of network: EUI-64, or InfiniBand's.
fn is_long_mac(text: &str) -> bool {
    hardware_address::<8>(text).is_some() || hardware_address::<20>(text).is_some()
}

fn hardware_address<const LENGTH: usize>(text: &str) -> Option<[u8; LENGTH]> {
    let separator = if text.contains(':') { ':' } else { '-' };
    let mut address = [0; LENGTH];
    let mut parts = text.split(separator);
    for byte in &mut address {
        let part =
            parts.next().filter(|part| part.len() == 2 && part.bytes().all(|b| b.is_ascii_hexdigit()))?;
        *byte = u8::from_str_radix(part, 16).ok()?;
    }
    parts.next().is_none().then_some(address)
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
        if addresses::ipv4(server).is_none() {
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
