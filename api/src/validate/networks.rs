//! Rules for networks, each alone and together with interfaces.

use super::supported::given;
use super::{Cause, CauseKind, Path};
use crate::gates::Gates;
use crate::masquerade;
use crate::networks::{Attachment, SEVERAL_CARDS_SERVED};
use crate::syntax::{is_dns_label, is_dns_subdomain, quoted};
use crate::v1::{Network, PodNetwork, VirtualMachineInstanceSpec};
use std::collections::{HashMap, HashSet};

pub(super) fn validate(
    path: &Path,
    spec: &VirtualMachineInstanceSpec,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    let field = path.child("networks");
    let interfaces: HashSet<&str> =
        spec.domain.devices.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    let mut seen = HashSet::new();
    for (index, network) in spec.networks.iter().enumerate() {
        let field = field.index(index);
        let field_name = field.child("name");
        let name = quoted(&network.name);
        if !seen.insert(network.name.as_str()) {
            causes.push(Cause::duplicate(
                &field_name,
                format!("Network with name \"{name}\" already exists, every network must have a unique name"),
            ));
        }
        if !interfaces.contains(network.name.as_str()) {
            causes.push(Cause::required(&field_name, format!("{field_name} '{name}' not found.")));
        }
        match given(network).iter().filter(|name| *name != "name").count() {
            0 => causes.push(Cause::required(&field, "should have a network type")),
            1 => {}
            _ => causes.push(Cause::required(&field, "should have only one network type")),
        }
        if let Some(multus) = &network.multus {
            definition(&field.child("multus"), &multus.network_name, causes);
        }
        if let Some(pod) = &network.pod {
            ranges(&field.child("pod"), pod, causes);
        }
    }
    defaults(path, &spec.networks, causes);
    // While the gate is off, the cause about the gate is enough.
    if gates.is_on("NetworkDevicesWithDRA") {
        claims(path, spec, causes);
    }
}

/// The NetworkAttachmentDefinition that a network names.
fn definition(field: &Path, network_name: &str, causes: &mut Vec<Cause>) {
    let field_name = field.child("networkName");
    if network_name.is_empty() {
        causes.push(Cause::required(&field_name, "CNI delegating plugin must have a networkName"));
    } else if let Some(cause) = misnamed(&field_name, network_name) {
        causes.push(cause);
    } else if !SEVERAL_CARDS_SERVED {
        causes.push(Cause::not_supported_yet(field, ""));
    }
}

/// The cause if a field cannot be the name of a NetworkAttachmentDefinition.
pub(super) fn misnamed(field: &Path, given: &str) -> Option<Cause> {
    let Attachment { namespace, name } = Attachment::of("default", given);
    let message = format!("{field} must be a name, or a namespace and a name separated by a slash");
    let is_name = is_dns_label(&namespace) && is_dns_subdomain(&name);
    (!is_name).then(|| Cause::invalid(field, message))
}

/// The ranges behind a masquerade binding.
fn ranges(field: &Path, pod: &PodNetwork, causes: &mut Vec<Cause>) {
    let ranges =
        [("vmNetworkCIDR", masquerade::ipv4(pod).err()), ("vmIPv6NetworkCIDR", masquerade::ipv6(pod).err())];
    for (name, error) in ranges {
        if let Some(error) = error {
            causes.push(Cause::invalid(&field.child(name), error.to_string()));
        }
    }
}

/// The pod has exactly one first network.
fn defaults(path: &Path, networks: &[Network], causes: &mut Vec<Cause>) {
    let field = path.child("networks");
    let pods = networks.iter().filter(|network| network.pod.is_some()).count();
    let defaults = networks
        .iter()
        .filter_map(|network| network.multus.as_ref())
        .filter(|multus| multus.default == Some(true))
        .count();
    if pods > 1 {
        let field = path.child("interfaces");
        causes.push(Cause::duplicate(
            &field,
            format!("more than one interface is connected to a pod network in {field}"),
        ));
    }
    if defaults > 1 {
        causes.push(Cause::invalid(&field, "Multus CNI should only have one default network"));
    }
    if pods > 0 && defaults > 0 {
        causes.push(Cause::invalid(
            &field,
            "Pod network cannot be defined when Multus default network is defined",
        ));
    }
}

/// Networks whose device comes from a claim of dynamic resource allocation.
fn claims(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let field = path.child("networks");
    let claimed: Vec<_> = spec
        .networks
        .iter()
        .enumerate()
        .filter_map(|(index, network)| Some((index, network, network.resource_claim.as_ref()?)))
        .collect();
    if claimed.is_empty() {
        return;
    }
    if spec.networks.iter().any(|network| network.multus.is_some()) {
        causes.push(Cause::invalid(
            &field,
            "mixing Multus and DRA resourceClaim networks in the same VMI is not supported",
        ));
    }
    let interfaces: HashMap<&str, _> =
        spec.domain.devices.interfaces.iter().map(|interface| (interface.name.as_str(), interface)).collect();
    let mut seen = HashSet::new();
    for (index, network, source) in claimed {
        if interfaces
            .get(network.name.as_str())
            .is_some_and(|interface| interface.sriov.is_none() && interface.binding.is_none())
        {
            causes.push(Cause::invalid(
                &path.child("domain.devices.interfaces"),
                format!(
                    "DRA network \"{}\" requires an SR-IOV or binding plugin interface",
                    quoted(&network.name)
                ),
            ));
        }
        let field = field.index(index);
        let claim = source.claim_name.as_deref().unwrap_or_default();
        let request = source.request_name.as_deref().unwrap_or_default();
        for (name, value) in [("claimName", claim), ("requestName", request)] {
            if value.is_empty() {
                causes.push(Cause::required(
                    &field.child("resourceClaim").child(name),
                    format!("{name} is required for DRA network"),
                ));
            }
        }
        if claim.is_empty() || request.is_empty() {
            continue;
        }
        if spec.resource_claims.iter().all(|known| known.name != claim) {
            causes.push(Cause::new(
                CauseKind::NotFound,
                &field.child("resourceClaim.claimName"),
                format!(
                    "network references resourceClaim \"{}\" which is not defined in spec.resourceClaims",
                    quoted(claim)
                ),
            ));
        }
        if !seen.insert((claim, request)) {
            causes.push(Cause::duplicate(
                &field,
                format!(
                    "duplicate claimName/requestName combination \"{}/{}\"",
                    quoted(claim),
                    quoted(request)
                ),
            ));
        }
    }
}
