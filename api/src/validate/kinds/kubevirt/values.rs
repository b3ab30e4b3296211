//! Values that the components cannot use. Each is refused with its field; none is ignored.

use super::super::selector;
use crate::architecture::{fits, is_machine_type_of_amd64, may_be_machine_type_of_amd64};
use crate::quantity;
use crate::settings::{
    Binding, Factor, HELPER_RESOURCES, HELPERS, MACHINE_TYPE, SMBIOS_LIMIT, TLS12_SUITES, VERBOSITY_LIMIT,
};
use crate::syntax::{is_cpu_model, is_dns_subdomain, is_label_key, is_label_value, is_printable, quoted};
use crate::v1::{
    DeveloperConfiguration, KubeVirtConfiguration, LogVerbosity, NetworkConfiguration,
    ReloadableComponentConfiguration, SmBiosConfiguration, SupportContainerResources, TlsConfiguration,
};
use crate::validate::{Cause, Path};
use std::collections::BTreeSet;

const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const EVICTION_STRATEGIES: [&str; 4] = ["None", "LiveMigrate", "LiveMigrateIfPossible", "External"];

/// Everything wrong with single values.
pub(super) fn validate(path: &Path, configuration: &KubeVirtConfiguration, causes: &mut Vec<Cause>) {
    words(path, configuration, causes);
    machine_types(path, configuration, causes);
    if let Some(developer) = &configuration.developer_configuration {
        self::developer(&path.child("developerConfiguration"), developer, causes);
    }
    if let Some(request) = &configuration.cpu_request
        && !quantity::millis(request).is_ok_and(|millis| millis > 0)
    {
        let field = path.child("cpuRequest");
        causes.push(Cause::invalid(
            &field,
            format!("{field} {} is not an amount above zero", quoted(&request.0)),
        ));
    }
    if configuration.mem_balloon_stats_period.is_some_and(|seconds| u32::try_from(seconds).is_err()) {
        let field = path.child("memBalloonStatsPeriod");
        causes.push(Cause::invalid(&field, format!("{field} must be from 0 to {} seconds", u32::MAX)));
    }
    if let Some(network) = &configuration.network {
        binding(&path.child("network"), network, causes);
        super::bindings::validate(&path.child("network.binding"), &network.binding, causes);
    }
    if let Some(smbios) = &configuration.smbios {
        self::smbios(&path.child("smbios"), smbios, causes);
    }
    if let Some(permitted) = &configuration.permitted_host_devices {
        super::host_devices::validate(&path.child("permittedHostDevices"), permitted, causes);
    }
    helpers(&path.child("supportContainerResources"), &configuration.support_container_resources, causes);
    if let Some(selector) = &configuration.auto_cpu_limit_namespace_label_selector
        && let Err(why) = selector::matches(selector, None)
    {
        causes.push(Cause::invalid(&path.child("autoCPULimitNamespaceLabelSelector"), why));
    }
    for (field, component) in [
        ("apiConfiguration", &configuration.api_configuration),
        ("controllerConfiguration", &configuration.controller_configuration),
        ("handlerConfiguration", &configuration.handler_configuration),
        ("webhookConfiguration", &configuration.webhook_configuration),
    ] {
        rate(&path.child(field), component.as_ref(), causes);
    }
    if let Some(tls) = &configuration.tls_configuration {
        versions(&path.child("tlsConfiguration"), tls, causes);
    }
}

/// Texts that must have a certain form.
fn words(path: &Path, configuration: &KubeVirtConfiguration, causes: &mut Vec<Cause>) {
    let amd64 = configuration.architecture_configuration.as_ref().and_then(|all| all.amd64.as_ref());
    let machine = "a machine type that guests can have";
    let mut word = |field: &str, value: Option<&String>, good: &dyn Fn(&str) -> bool, what: &str| {
        if let Some(value) = value.filter(|value| !value.is_empty() && !good(value)) {
            let field = path.child(field);
            causes.push(Cause::invalid(&field, format!("{field} {} is not {what}", quoted(value))));
        }
    };
    word("machineType", configuration.machine_type.as_ref(), &is_machine_type_of_amd64, machine);
    word(
        "architectureConfiguration.amd64.machineType",
        amd64.and_then(|amd64| amd64.machine_type.as_ref()),
        &is_machine_type_of_amd64,
        machine,
    );
    word("cpuModel", configuration.cpu_model.as_ref(), &is_cpu_model, "a CPU model");
    word(
        "imagePullPolicy",
        configuration.image_pull_policy.as_ref(),
        &|policy| PULL_POLICIES.contains(&policy),
        "one of Always, IfNotPresent, Never",
    );
    word(
        "evictionStrategy",
        configuration.eviction_strategy.as_ref(),
        &|strategy| EVICTION_STRATEGIES.contains(&strategy),
        "one of None, LiveMigrate, LiveMigrateIfPossible, External",
    );
    word(
        "vmRolloutStrategy",
        configuration.vm_rollout_strategy.as_ref(),
        &|strategy| ["LiveUpdate", "Stage"].contains(&strategy),
        "one of LiveUpdate, Stage",
    );
    word(
        "defaultRuntimeClass",
        configuration.default_runtime_class.as_ref(),
        &is_dns_subdomain,
        "the name of a runtime class",
    );
    let ratio = |text: &str| {
        // A value that is not a number, or is below one, gets KubeVirt's cause.
        text.parse::<f64>().map_or(true, |ratio| ratio.is_nan() || ratio < 1.0)
            || Factor::parse(text).is_some()
    };
    word(
        "additionalGuestMemoryOverheadRatio",
        configuration.additional_guest_memory_overhead_ratio.as_ref(),
        &ratio,
        "a decimal number from 1 to 1000",
    );
    let local = configuration
        .seccomp_configuration
        .as_ref()
        .and_then(|seccomp| seccomp.virtual_machine_instance_profile.as_ref())
        .and_then(|profile| profile.custom_profile.as_ref())
        .and_then(|custom| custom.localhost_profile.as_ref());
    let beneath = |path: &str| {
        !path.contains(char::is_control)
            && path.split('/').all(|part| !part.is_empty() && part != "." && part != "..")
    };
    word(
        "seccompConfiguration.virtualMachineInstanceProfile.customProfile.localhostProfile",
        local,
        &beneath,
        "a path beneath the kubelet's directory of profiles",
    );
}

/// Machine types must be valid patterns that include the default.
fn machine_types(path: &Path, configuration: &KubeVirtConfiguration, causes: &mut Vec<Cause>) {
    let amd64 = configuration.architecture_configuration.as_ref().and_then(|all| all.amd64.as_ref());
    let of_amd64 = amd64.map(|amd64| amd64.emulated_machines.as_slice()).unwrap_or_default();
    let lists = [
        ("emulatedMachines", configuration.emulated_machines.as_slice()),
        ("architectureConfiguration.amd64.emulatedMachines", of_amd64),
    ];
    for (list, patterns) in lists {
        for (index, pattern) in patterns.iter().enumerate() {
            if !may_be_machine_type_of_amd64(pattern) {
                let field = path.child(list).index(index);
                let message =
                    format!("{field} {} fits no machine type that guests can have", quoted(pattern));
                causes.push(Cause::invalid(&field, message));
            }
        }
    }
    let Some((list, patterns)) = lists.into_iter().find(|(_, patterns)| !patterns.is_empty()) else { return };
    let default = [configuration.machine_type.as_ref(), amd64.and_then(|amd64| amd64.machine_type.as_ref())]
        .into_iter()
        .flatten()
        .find(|text| !text.is_empty())
        .map_or(MACHINE_TYPE, String::as_str);
    if !patterns.iter().any(|pattern| fits(pattern, default)) {
        let field = path.child(list);
        let message = format!("{field} does not allow {}, which guests have that name none", quoted(default));
        causes.push(Cause::invalid(&field, message));
    }
}

fn developer(path: &Path, developer: &DeveloperConfiguration, causes: &mut Vec<Cause>) {
    for (field, value, least) in [
        ("memoryOvercommit", developer.memory_overcommit, 10),
        ("cpuAllocationRatio", developer.cpu_allocation_ratio, 1),
    ] {
        if value.is_some_and(|value| value < least) {
            let field = path.child(field);
            causes.push(Cause::invalid(&field, format!("{field} must be greater than or equal to {least}")));
        }
    }
    let selectors = path.child("nodeSelectors");
    for (key, value) in &developer.node_selectors {
        if !is_label_key(key) || !is_label_value(value) {
            let message = format!("{selectors}: {}={} is not a label", quoted(key), quoted(value));
            causes.push(Cause::invalid(&selectors, message));
        }
    }
    room(path, developer, causes);
    let Some(verbosity) = &developer.log_verbosity else { return };
    let LogVerbosity {
        node_verbosity,
        virt_api,
        virt_controller,
        virt_handler,
        virt_launcher,
        virt_operator,
        virt_synchronization_controller: _,
    } = verbosity;
    let path = path.child("logVerbosity");
    let components = [
        ("virtAPI", virt_api),
        ("virtController", virt_controller),
        ("virtHandler", virt_handler),
        ("virtLauncher", virt_launcher),
        ("virtOperator", virt_operator),
    ];
    let components = components.into_iter().filter_map(|(name, level)| Some((path.child(name), (*level)?)));
    let nodes =
        node_verbosity.iter().map(|(node, level)| (path.child(&format!("nodeVerbosity.{node}")), *level));
    for (field, level) in components.chain(nodes) {
        if u32::try_from(level).map_or(true, |level| level > VERBOSITY_LIMIT) {
            causes.push(Cause::invalid(&field, format!("{field} must be from 0 to {VERBOSITY_LIMIT}")));
        }
    }
}

/// Free space for new disks on claims.
fn room(path: &Path, developer: &DeveloperConfiguration, causes: &mut Vec<Cause>) {
    if developer.minimum_reserve_pvc_bytes.is_some_and(|bytes| bytes < 0) {
        let field = path.child("minimumReservePVCBytes");
        causes.push(Cause::invalid(&field, format!("{field} must not be below 0")));
    }
    let percent = developer.pvc_tolerate_less_space_up_to_percent;
    if percent.is_some_and(|percent| !(0..=100).contains(&percent)) {
        let field = path.child("pvcTolerateLessSpaceUpToPercent");
        causes.push(Cause::invalid(&field, format!("{field} must be from 0 to 100")));
    }
}

fn binding(path: &Path, network: &NetworkConfiguration, causes: &mut Vec<Cause>) {
    let Some(name) = network.default_network_interface.as_deref().filter(|name| !name.is_empty()) else {
        return;
    };
    let field = path.child("defaultNetworkInterface");
    match Binding::named(name) {
        Some(Binding::Bridge) if network.permit_bridge_interface_on_pod_network == Some(false) => {
            causes.push(Cause::invalid(
                &field,
                format!("{field} is bridge and {path}.permitBridgeInterfaceOnPodNetwork is false"),
            ));
        }
        Some(Binding::Bridge | Binding::Masquerade) => {}
        None => {
            let message = format!("{field} {} is not one of bridge, masquerade", quoted(name));
            causes.push(Cause::invalid(&field, message));
        }
    }
}

fn smbios(path: &Path, smbios: &SmBiosConfiguration, causes: &mut Vec<Cause>) {
    let SmBiosConfiguration { family, manufacturer, product, sku, version } = smbios;
    for (name, text) in [
        ("family", family),
        ("manufacturer", manufacturer),
        ("product", product),
        ("sku", sku),
        ("version", version),
    ] {
        if text.as_deref().is_some_and(|text| !is_printable(text, SMBIOS_LIMIT)) {
            let field = path.child(name);
            let message =
                format!("{field} must be made up of printable ASCII characters, at most {SMBIOS_LIMIT}");
            causes.push(Cause::invalid(&field, message));
        }
    }
}

/// Kinds of helpers that KubeVirt has.
const KINDS: [&str; 6] =
    ["hotplug-disk", "container-disk", "virtiofs", "sidecar", "vmexport", "guest-console-log"];

fn helpers(path: &Path, helpers: &[SupportContainerResources], causes: &mut Vec<Cause>) {
    let mut seen = BTreeSet::new();
    for (index, helper) in helpers.iter().enumerate() {
        let path = path.index(index);
        let field = path.child("type");
        let kind = helper.type_.as_str();
        if !KINDS.contains(&kind) {
            let message = format!("{field} {} is not one of {}", quoted(kind), KINDS.join(", "));
            causes.push(Cause::invalid(&field, message));
        } else if !HELPERS.contains(&kind) {
            causes.push(Cause::not_supported_yet(&field, kind));
        } else if !seen.insert(kind) {
            causes.push(Cause::invalid(&field, format!("{field} {kind} is given before")));
        }
        let resources = &helper.resources;
        for (list, amounts) in [("limits", &resources.limits), ("requests", &resources.requests)] {
            for (name, amount) in amounts {
                let field = path.child(&format!("resources.{list}.{name}"));
                if !HELPER_RESOURCES.contains(&name.as_str()) {
                    causes.push(Cause::not_supported_yet(&field, ""));
                } else if quantity::millis(amount).is_err() {
                    let message = format!("{field} {} is not an amount", quoted(&amount.0));
                    causes.push(Cause::invalid(&field, message));
                }
            }
        }
        for (name, limit) in &resources.limits {
            let millis = |amount| quantity::millis(amount).ok().filter(|millis| *millis > 0);
            let request = resources.requests.get(name).and_then(millis);
            if request.zip(millis(limit)).is_some_and(|(request, limit)| request > limit) {
                let field = path.child(&format!("resources.requests.{name}"));
                causes.push(Cause::invalid(&field, format!("{field} is more than the limit")));
            }
        }
    }
}

fn rate(path: &Path, component: Option<&ReloadableComponentConfiguration>, causes: &mut Vec<Cause>) {
    let bucket = component
        .and_then(|component| component.rest_client.as_ref())
        .and_then(|client| client.rate_limiter.as_ref())
        .and_then(|limiter| limiter.token_bucket_rate_limiter.as_ref());
    let Some(bucket) = bucket else { return };
    let path = path.child("restClient.rateLimiter.tokenBucketRateLimiter");
    let mut least = |field: &str, good: bool| {
        if !good {
            let field = path.child(field);
            causes.push(Cause::invalid(&field, format!("{field} must not be below 0; 0 is the default")));
        }
    };
    least("qps", bucket.qps.is_finite() && bucket.qps >= 0.0);
    least("burst", bucket.burst >= 0);
}

/// The servers speak TLS 1.2 and 1.3, and only the suites of 1.2 with forward secrecy.
fn versions(path: &Path, tls: &TlsConfiguration, causes: &mut Vec<Cause>) {
    let field = path.child("minTLSVersion");
    match tls.min_tls_version.as_deref() {
        None | Some("" | "VersionTLS12" | "VersionTLS13") => {}
        Some(old @ ("VersionTLS10" | "VersionTLS11")) => causes.push(Cause::not_supported(
            &field,
            format!("{field} {old}: the components speak TLS 1.2 and 1.3 only"),
        )),
        Some(other) => {
            let message = format!("{field} {} is not one of VersionTLS12, VersionTLS13", quoted(other));
            causes.push(Cause::invalid(&field, message));
        }
    }
    // With any other lowest version no suites may be given, which another rule checks.
    let suites = tls.ciphers.iter().filter(|_| tls.min_tls_version.as_deref() == Some("VersionTLS12"));
    for (index, cipher) in suites.enumerate() {
        if super::CIPHERS.contains(&cipher.as_str()) && !TLS12_SUITES.contains(&cipher.as_str()) {
            let field = path.child("ciphers").index(index);
            causes.push(Cause::not_supported(
                &field,
                format!("{field} {cipher}: the components speak {} only", TLS12_SUITES.join(", ")),
            ));
        }
    }
}
