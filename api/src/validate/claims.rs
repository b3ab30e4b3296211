//! Devices of the host: by the name of a device plugin's resource, or by a claim of dynamic resource allocation (DRA).

use super::{Cause, CauseKind, Path};
use crate::gates::Gates;
use crate::syntax::{DNS_LABEL, is_dns_label, is_dns_subdomain, quoted};
use crate::v1::VirtualMachineInstanceSpec;
use std::collections::{HashMap, HashSet};

pub(super) fn validate(
    path: &Path,
    spec: &VirtualMachineInstanceSpec,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    claims(&path.child("resourceClaims"), spec, causes);
    let devices = &spec.domain.devices;
    let field = path.child("domain.devices");
    let gpus = Devices {
        field: field.child("gpus"),
        list: "gpus",
        kind: "GPU",
        kinds: "GPUs",
        gate: "GPUsWithDRA",
        // All devices of a list must be requested in the same way.
        may_mix: false,
        devices: devices
            .gpus
            .iter()
            .map(|d| Device::of(&d.device_name, &d.claim_name, &d.request_name))
            .collect(),
    };
    let host_devices = Devices {
        field: field.child("hostDevices"),
        list: "hostDevices",
        kind: "HostDevice",
        kinds: "HostDevices",
        gate: "HostDevicesWithDRA",
        may_mix: true,
        devices: devices
            .host_devices
            .iter()
            .map(|d| Device::of(&d.device_name, &d.claim_name, &d.request_name))
            .collect(),
    };
    let mut seen = HashMap::new();
    let mut used = HashSet::new();
    gpus.validate(gates, &mut seen, &mut used, causes);
    host_devices.validate(gates, &mut seen, &mut used, causes);
    let named: HashSet<&str> = spec.resource_claims.iter().map(|claim| claim.name.as_str()).collect();
    if !used.is_subset(&named) {
        causes.push(Cause::invalid(
            &path.child("resourceClaims"),
            "vmi.spec.resourceClaims must specify all claims used in vmi.spec.domain.devices.gpus and vmi.spec.domain.devices.hostDevices",
        ));
    }
}

fn claims(field: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let mut seen = HashSet::new();
    for (index, claim) in spec.resource_claims.iter().enumerate() {
        let field = field.index(index);
        let field_name = field.child("name");
        if claim.name.is_empty() {
            causes.push(Cause::required(&field_name, format!("{field_name} is a required field")));
        } else if !seen.insert(claim.name.as_str()) {
            causes.push(Cause::duplicate(
                &field_name,
                format!("duplicate resourceClaims name \"{}\"", quoted(&claim.name)),
            ));
        } else if !is_dns_label(&claim.name) {
            causes.push(Cause::invalid(
                &field_name,
                format!(
                    "{field_name} does not conform to the kubernetes DNS_LABEL rules: '{}' is not {DNS_LABEL}",
                    quoted(&claim.name)
                ),
            ));
        }
        let sources = [
            ("resourceClaimName", claim.resource_claim_name.as_deref()),
            ("resourceClaimTemplateName", claim.resource_claim_template_name.as_deref()),
        ];
        match sources.iter().filter(|(_, name)| name.is_some()).count() {
            0 => causes.push(Cause::invalid(
                &field,
                "must specify one of: resourceClaimName, resourceClaimTemplateName",
            )),
            1 => {}
            _ => causes.push(Cause::invalid(
                &field,
                "at most one of resourceClaimName or resourceClaimTemplateName may be specified",
            )),
        }
        for (name, value) in sources {
            if let Some(value) = value.filter(|value| !is_dns_subdomain(value)) {
                causes.push(Cause::invalid(
                    &field.child(name),
                    format!("'{}' is not DNS labels joined by '.'", quoted(value)),
                ));
            }
        }
    }
}

/// How a device is requested.
struct Device<'a> {
    name: &'a str,
    /// Names of claim and request; either may be empty.
    claim: Option<(&'a str, &'a str)>,
}

impl<'a> Device<'a> {
    fn of(name: &'a Option<String>, claim: &'a Option<String>, request: &'a Option<String>) -> Self {
        let claimed = claim.is_some() || request.is_some();
        Device {
            name: name.as_deref().unwrap_or_default(),
            claim: claimed
                .then(|| (claim.as_deref().unwrap_or_default(), request.as_deref().unwrap_or_default())),
        }
    }

    /// The claim and request, if the device has no resource name.
    fn claim(&self) -> Option<(&'a str, &'a str)> {
        self.claim.filter(|_| self.name.is_empty())
    }
}

/// A list of devices, and texts for messages.
struct Devices<'a> {
    field: Path,
    list: &'static str,
    kind: &'static str,
    kinds: &'static str,
    gate: &'static str,
    may_mix: bool,
    devices: Vec<Device<'a>>,
}

impl<'a> Devices<'a> {
    /// `seen` holds the devices that were already requested, `used` the claims that must exist.
    fn validate(
        &self,
        gates: &Gates,
        seen: &mut HashMap<(&'a str, &'a str), String>,
        used: &mut HashSet<&'a str>,
        causes: &mut Vec<Cause>,
    ) {
        let Devices { field, list, kind, kinds, .. } = self;
        let (claimed, named): (Vec<_>, Vec<_>) =
            self.devices.iter().enumerate().partition(|(_, device)| device.claim().is_some());
        if !self.may_mix && !claimed.is_empty() && !named.is_empty() {
            causes.push(Cause::invalid(
                field,
                format!("vmi.spec.domain.devices.{list} contains both DRA and non-DRA {kinds}; each {kind} must be either DRA or non-DRA"),
            ));
            return;
        }
        if named.iter().any(|(_, device)| device.name.is_empty()) {
            causes.push(Cause::required(
                field,
                format!("vmi.spec.domain.devices.{list} contains {kinds} without deviceName or claimRequest; each {kind} must specify either a deviceName or a claimRequest"),
            ));
        }
        if named.iter().any(|(_, device)| !device.name.is_empty() && device.claim.is_some()) {
            causes.push(Cause::invalid(
                field,
                format!(
                    "vmi.spec.domain.devices.{list} contains {kinds} with both deviceName and claimRequest"
                ),
            ));
        }
        if !claimed.is_empty() && !gates.is_on(self.gate) {
            causes.push(Cause::invalid(
                field,
                format!(
                    "vmi.spec.domain.devices.{list} contains DRA enabled {kinds} but feature gate is not enabled: {}",
                    self.gate
                ),
            ));
            return;
        }
        for (index, device) in claimed {
            let Some((claim, request)) = device.claim() else { continue };
            let field = field.index(index);
            for (name, value) in [("claimName", claim), ("requestName", request)] {
                if value.is_empty() {
                    causes.push(Cause::required(
                        &field.child(name),
                        format!("{name} is required for DRA {kind}"),
                    ));
                }
            }
            if claim.is_empty() || request.is_empty() {
                continue;
            }
            used.insert(claim);
            if let Some(other) = seen.insert((claim, request), format!("{kinds}[{index}]")) {
                causes.push(Cause::new(
                    CauseKind::Duplicate,
                    &field,
                    format!(
                        "duplicate claimName/requestName pair \"{}/{}\" between {other} and {kinds}[{index}]",
                        quoted(claim),
                        quoted(request)
                    ),
                ));
            }
        }
    }
}
