//! Rules for settings of the launcher pod: names, DNS, strategies.

use super::{Cause, Path};
use crate::addresses;
use crate::syntax::{DNS_LABEL, is_dns_label, is_dns_subdomain, quoted};
use crate::v1::VirtualMachineInstanceSpec;
use k8s_openapi::api::core::v1::PodDNSConfig;

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    if let Some(hostname) = spec.hostname.as_deref().filter(|text| !text.is_empty() && !is_dns_label(text)) {
        let field = path.child("hostname");
        causes.push(Cause::invalid(
            &field,
            format!(
                "{field} does not conform to the kubernetes DNS_LABEL rules : '{}' is not {DNS_LABEL}",
                quoted(hostname)
            ),
        ));
    }
    if let Some(subdomain) =
        spec.subdomain.as_deref().filter(|text| !text.is_empty() && !is_dns_subdomain(text))
    {
        let field = path.child("subdomain");
        causes.push(Cause::invalid(
            &field,
            format!(
                "{field} does not conform to the kubernetes DNS_SUBDOMAIN rules : '{}' is not DNS labels joined by '.'",
                quoted(subdomain)
            ),
        ));
    }
    if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        let field = path.child("terminationGracePeriodSeconds");
        causes.push(Cause::invalid(&field, format!("{field} must be greater than or equal to 0.")));
    }
    service_account(path, spec, causes);
    eviction(path, spec, causes);
    dns_policy(&path.child("dnsPolicy"), spec.dns_policy.as_deref(), causes);
    dns(&path.child("dnsConfig"), spec.dns_config.as_ref(), spec.dns_policy.as_deref(), causes);
}

/// The pod has one service account: the account that it runs under must be the one whose token a volume
/// shows.
fn service_account(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let Some(name) = spec.service_account_name.as_deref().filter(|name| !name.is_empty()) else { return };
    let field = path.child("serviceAccountName");
    if !is_dns_subdomain(name) {
        causes.push(Cause::invalid(
            &field,
            format!(
                "{field} is not a valid service account name: '{}' is not DNS labels joined by '.'",
                quoted(name)
            ),
        ));
    }
    let of_volume = spec
        .volumes
        .iter()
        .filter_map(|volume| volume.service_account.as_ref())
        .map(|source| source.service_account_name.as_deref().unwrap_or_default())
        .find(|other| *other != name);
    if let Some(other) = of_volume {
        causes.push(Cause::invalid(
            &field,
            format!(
                "spec.serviceAccountName \"{}\" and serviceAccount volume \"{}\" must reference the same service account",
                quoted(name),
                quoted(other)
            ),
        ));
    }
}

fn eviction(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let field = path.child("evictionStrategy");
    match spec.eviction_strategy.as_deref() {
        None | Some("" | "None" | "LiveMigrate" | "LiveMigrateIfPossible" | "External") => {}
        Some(other) => causes.push(Cause::invalid(
            &field,
            format!("{field} is set with an unrecognized option: {}", quoted(other)),
        )),
    }
}

fn dns_policy(field: &Path, policy: Option<&str>, causes: &mut Vec<Cause>) {
    const KNOWN: [&str; 4] = ["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"];
    if let Some(policy) = policy.filter(|policy| !policy.is_empty() && !KNOWN.contains(policy)) {
        causes.push(Cause::invalid(
            field,
            format!("DNSPolicy: {} is not supported, valid values: [{}]", quoted(policy), KNOWN.join(" ")),
        ));
    }
}

/// Kubernetes' limits on resolver settings.
fn dns(field: &Path, config: Option<&PodDNSConfig>, policy: Option<&str>, causes: &mut Vec<Cause>) {
    const NAMESERVERS: usize = 3;
    const SEARCHES: usize = 6;
    const SEARCH_CHARACTERS: usize = 256;
    let empty = Vec::new();
    let servers = config.and_then(|config| config.nameservers.as_ref()).unwrap_or(&empty);
    let searches = config.and_then(|config| config.searches.as_ref()).unwrap_or(&empty);
    if policy == Some("None") {
        if config.is_none() {
            causes.push(Cause::required(field, "must provide `dnsConfig` when `dnsPolicy` is None"));
            return;
        }
        if servers.is_empty() {
            causes.push(Cause::required(
                &field.child("nameservers"),
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            ));
        }
    }
    if servers.len() > NAMESERVERS {
        causes.push(Cause::invalid(
            &field.child("nameservers"),
            format!("must not have more than {NAMESERVERS} nameservers: {}", quoted(&servers.join(" "))),
        ));
    }
    for (index, server) in servers.iter().enumerate() {
        if addresses::ip(server).is_none() {
            causes.push(Cause::invalid(
                &field.child("nameservers").index(index),
                format!("must be valid IP address: {}", quoted(server)),
            ));
        }
    }
    let field_searches = field.child("searches");
    if searches.len() > SEARCHES {
        causes.push(Cause::invalid(
            &field_searches,
            format!("must not have more than {SEARCHES} search paths"),
        ));
    }
    let characters: usize =
        searches.iter().map(String::len).sum::<usize>() + searches.len().saturating_sub(1);
    if characters > SEARCH_CHARACTERS {
        causes.push(Cause::invalid(
            &field_searches,
            format!(
                "must not have more than {SEARCH_CHARACTERS} characters (including spaces) in the search list"
            ),
        ));
    }
    for (index, search) in searches.iter().enumerate() {
        // A dot at the end marks a full name, and "." alone is the root.
        let name = search.strip_suffix('.').unwrap_or(search);
        if search != "." && !is_dns_subdomain(name) {
            causes.push(Cause::invalid(
                &field_searches.index(index),
                format!("'{}' is not DNS labels joined by '.'", quoted(search)),
            ));
        }
    }
    let options = config.and_then(|config| config.options.as_ref());
    for (index, option) in options.into_iter().flatten().enumerate() {
        if option.name.as_deref().is_none_or(str::is_empty) {
            causes
                .push(Cause::invalid(&field.child("options").index(index), "Option.Name must not be empty"));
        }
    }
}
