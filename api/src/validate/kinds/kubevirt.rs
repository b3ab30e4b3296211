//! The `KubeVirt` object: settings of the installation.

mod bindings;
pub(crate) mod host_devices;
mod placement;
mod removal;
#[cfg(test)]
mod tests;
mod values;

pub use removal::{BLOCK_UNINSTALL, delete};

use super::migration_policy::{amounts, max_downtime};
use super::{rotation, workload_updates};
use crate::flags;
use crate::gates::{GATES, Gates, State};
use crate::settings::{IMPORT_ANNOTATIONS, NODE_DISK_ANNOTATIONS, import_problem, node_disk_size};
use crate::syntax::{is_label_key, quoted};
use crate::v1::{
    DeveloperConfiguration, KubeVirt, KubeVirtConfiguration, KubeVirtSpec, SeccompConfiguration,
    TlsConfiguration,
};
use crate::validate::{Cause, CauseKind, Path, networks, supported};

const PULL_POLICIES: [&str; 3] = ["Always", "IfNotPresent", "Never"];
const UNINSTALL_STRATEGIES: [&str; 2] = ["RemoveWorkloads", BLOCK_UNINSTALL];
/// The aggregation strategy by which the roles of Kubernetes do not take in ours.
pub const MANUAL: &str = "Manual";
const AGGREGATION_STRATEGIES: [&str; 2] = ["AggregateToDefault", MANUAL];
/// Suites of TLS 1.2 and older, by their IANA names.
const CIPHERS: [&str; 22] = [
    "TLS_RSA_WITH_RC4_128_SHA",
    "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA",
    "TLS_RSA_WITH_AES_256_CBC_SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
];

/// Everything wrong with a new object. `others` says whether there is one already, in any namespace, and
/// `namespace` is that of the components.
pub fn create(object: &KubeVirt, others: bool, namespace: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    if others {
        causes.push(Cause::invalid(&Path::new(""), "Kubevirt is already created"));
    }
    if object.metadata.namespace.as_deref().is_some_and(|own| own != namespace) {
        let message =
            format!("the KubeVirt object has its place in namespace {namespace}, with the components");
        causes.push(Cause::invalid(&Path::new("metadata.namespace"), message));
    }
    rules(None, &object.spec, &mut causes);
    annotations(object, &mut causes);
    causes
}

/// Everything wrong with the specification of an existing object, which was written while no webhook ran, or by an older version.
pub fn standing(object: &KubeVirt) -> Vec<Cause> {
    let mut causes = Vec::new();
    rules(None, &object.spec, &mut causes);
    annotations(object, &mut causes);
    causes
}

/// Everything wrong with a change. An unchanged specification passes, so that finalizers can be removed.
pub fn update(old: &KubeVirt, new: &KubeVirt) -> Vec<Cause> {
    let mut causes = Vec::new();
    if old.spec != new.spec {
        rules(Some(&old.spec), &new.spec, &mut causes);
    }
    if old.metadata.annotations != new.metadata.annotations {
        annotations(new, &mut causes);
    }
    causes
}

/// The file that KubeVirt's virt-handler writes on each node. An administrator may bring it to the nodes, too.
const KUBEVIRTS_PROFILE: &str = "kubevirt/kubevirt.json";

/// Warnings for values that are accepted: gates and fields without effect, and a profile that nodes may lack.
pub fn warnings(object: &KubeVirt) -> Vec<String> {
    let developer = object.spec.developer();
    let lists = [
        ("featureGates", &developer.feature_gates),
        ("disabledFeatureGates", &developer.disabled_feature_gates),
    ];
    let mut warnings = Vec::new();
    for (list, gates) in lists {
        for gate in gates {
            let state = GATES.iter().find(|(name, _)| name == gate).map(|(_, state)| *state);
            let why = match state {
                Some(State::Alpha | State::Beta) => continue,
                Some(State::General) => "is always on",
                Some(State::Gone) => "has no effect any more",
                None => "is not a known feature gate",
            };
            warnings
                .push(format!("spec.configuration.developerConfiguration.{list}: {} {why}", quoted(gate)));
        }
    }
    let configuration = object.spec.configuration.as_ref();
    if configuration.is_some_and(|given| !given.supported_guest_agent_versions.is_empty()) {
        let why = "has no effect: guest agents are judged by the commands they list";
        warnings.push(format!("spec.configuration.supportedGuestAgentVersions {why}"));
    }
    let network = configuration.and_then(|given| given.network.as_ref());
    if network.and_then(|network| network.permit_slirp_interface) == Some(true) {
        let why = "has no effect: there is no slirp binding any more, as in KubeVirt";
        warnings.push(format!("spec.configuration.network.permitSlirpInterface {why}"));
    }
    let migrations = configuration.and_then(|given| given.migrations.as_ref());
    if migrations.and_then(|migrations| migrations.unsafe_migration_override) == Some(true) {
        let why = "has no effect: no check of a migration can be overridden";
        warnings.push(format!("spec.configuration.migrations.unsafeMigrationOverride {why}"));
    }
    if migrations.and_then(|migrations| migrations.match_se_linux_level_on_migration) == Some(true) {
        let why = "has no effect: virt-handler does not tell the level of a launcher pod, and the container \
                   runtime chooses that of the target's pod";
        warnings.push(format!("spec.configuration.migrations.matchSELinuxLevelOnMigration {why}"));
    }
    let profile = configuration
        .and_then(|given| given.seccomp_configuration.as_ref())
        .and_then(|seccomp| seccomp.virtual_machine_instance_profile.as_ref())
        .and_then(|profile| profile.custom_profile.as_ref())
        .and_then(|custom| custom.localhost_profile.as_deref());
    if profile == Some(KUBEVIRTS_PROFILE) {
        warnings.push(format!(
            "spec.configuration.seccompConfiguration.virtualMachineInstanceProfile.customProfile.localhostProfile: \
             virt-handler does not write {KUBEVIRTS_PROFILE}: launcher pods start only on nodes that have it"
        ));
    }
    warnings
}

fn rules(old: Option<&KubeVirtSpec>, spec: &KubeVirtSpec, causes: &mut Vec<Cause>) {
    let path = Path::new("spec");
    let gates = gates(&spec.developer());
    for patch in spec.customize_components.iter().flat_map(|components| &components.patches) {
        if serde_json::from_str::<serde::de::IgnoredAny>(&patch.patch).is_err() {
            causes.push(Cause::new(
                CauseKind::NotSupported,
                &path.child("customizeComponents.patches"),
                format!("patch {:?} is not valid JSON", quoted(&patch.patch)),
            ));
        }
    }
    let given = spec.customize_components.as_ref().and_then(|components| components.flags.as_ref());
    for (component, program, flag) in given.into_iter().flat_map(flags::unknown) {
        let field = path.child("customizeComponents.flags").child(component).child(flag);
        let instead = if flag == "v" { "; logVerbosity sets the level of its log" } else { "" };
        causes.push(Cause::invalid(&field, format!("{program} has no flag {}{instead}", quoted(flag))));
    }
    if let Some(own) =
        spec.certificate_rotate_strategy.as_ref().and_then(|strategy| strategy.self_signed.as_ref())
    {
        rotation::rules(&path.child("certificateRotateStrategy.selfSigned"), own, causes);
    }
    let word = |field: &str, value: &Option<String>, known: &[&str], causes: &mut Vec<Cause>| {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty() && !known.contains(value)) {
            let field = path.child(field);
            let message = format!("{field} {} is not one of {}", quoted(value), known.join(", "));
            causes.push(Cause::invalid(&field, message));
        }
    };
    word("imagePullPolicy", &spec.image_pull_policy, &PULL_POLICIES, causes);
    word("uninstallStrategy", &spec.uninstall_strategy, &UNINSTALL_STRATEGIES, causes);
    if spec.infra.as_ref().and_then(|infra| infra.replicas) == Some(0) {
        causes.push(Cause::invalid(&path.child("infra.replicas"), "infra replica count can't be 0"));
    }
    for (component, given) in [("infra", &spec.infra), ("workloads", &spec.workloads)] {
        if let Some(placement) = given.as_ref().and_then(|given| given.node_placement.as_ref()) {
            placement::validate(&path.child(component).child("nodePlacement"), placement, causes);
        }
    }
    if let Some(strategy) = &spec.workload_update_strategy {
        workload_updates::rules(&path.child("workloadUpdateStrategy"), strategy, causes);
    }
    if let Some(configuration) = &spec.configuration {
        let before = old.and_then(|old| old.configuration.as_ref());
        configured(&path.child("configuration"), before, configuration, &gates, causes);
    }
    supported::kubevirt(&path, spec, &gates, causes);
}

/// The annotations that are settings.
fn annotations(object: &KubeVirt, causes: &mut Vec<Cause>) {
    let given = |name: &str| object.metadata.annotations.as_ref().and_then(|all| all.get(name));
    let field = |name: &str| Path::new(&format!("metadata.annotations[{name}]"));
    for name in NODE_DISK_ANNOTATIONS {
        if let Some(text) = given(name).filter(|text| node_disk_size(text).is_none()) {
            let message = format!("{} is not a quantity between 1Mi and 64Ti", quoted(text));
            causes.push(Cause::invalid(&field(name), message));
        }
    }
    for name in IMPORT_ANNOTATIONS {
        if let Some(problem) = given(name).and_then(|text| import_problem(name, text)) {
            causes.push(Cause::invalid(&field(name), format!("the value {problem}")));
        }
    }
}

fn configured(
    path: &Path,
    before: Option<&KubeVirtConfiguration>,
    configuration: &KubeVirtConfiguration,
    gates: &Gates,
    causes: &mut Vec<Cause>,
) {
    if let Some(developer) = &configuration.developer_configuration {
        gate_lists(&path.child("developerConfiguration"), developer, causes);
    }
    values::validate(path, configuration, causes);
    if let Some(ratio) = &configuration.additional_guest_memory_overhead_ratio {
        let field = path.child("additionalGuestMemoryOverheadRatio");
        let text = quoted(ratio);
        let wrong = match ratio.parse::<f64>() {
            Err(error) => Some(format!("ratio provided, {text}, cannot be parsed into float: {error}")),
            Ok(ratio) => (ratio.is_nan() || ratio < 1.0)
                .then(|| format!("ratio provided, {text}, cannot be smaller than 1.0")),
        };
        causes.extend(wrong.map(|message| Cause::new(CauseKind::NotSupported, &field, message)));
    }
    if configuration.virt_template_deployment.as_ref().and_then(|deployment| deployment.enabled) == Some(true)
        && !gates.is_on("Template")
    {
        causes.push(Cause::invalid(
            &path.child("virtTemplateDeployment.enabled"),
            "VirtTemplateDeployment cannot be enabled without enabling the Template feature gate",
        ));
    }
    let aggregation = configuration.role_aggregation_strategy.as_deref().unwrap_or("AggregateToDefault");
    if !AGGREGATION_STRATEGIES.contains(&aggregation) {
        let field = path.child("roleAggregationStrategy");
        let known = AGGREGATION_STRATEGIES.join(", ");
        causes.push(Cause::invalid(&field, format!("{field} {} is not one of {known}", quoted(aggregation))));
    } else if aggregation == MANUAL && !gates.is_on("OptOutRoleAggregation") {
        causes.push(Cause::invalid(
            &path.child("roleAggregationStrategy"),
            "RoleAggregationStrategy cannot be set to Manual without enabling the OptOutRoleAggregation feature gate",
        ));
    }
    if let Some(migrations) = &configuration.migrations {
        let numbers = [
            ("completionTimeoutPerGiB", migrations.completion_timeout_per_gi_b),
            ("parallelMigrationsPerCluster", migrations.parallel_migrations_per_cluster),
            ("parallelOutboundMigrationsPerNode", migrations.parallel_outbound_migrations_per_node),
            ("progressTimeout", migrations.progress_timeout),
            ("utilityVolumesTimeout", migrations.utility_volumes_timeout),
        ];
        let bandwidth = migrations.bandwidth_per_migration.as_ref();
        let path = path.child("migrations");
        if migrations.disable_tls == Some(true) {
            let why = "every byte of a migration is encrypted, and this cannot be switched off";
            causes.push(Cause::not_supported(&path.child("disableTLS"), why));
        }
        amounts(&path, &numbers, migrations.max_downtime_ms, bandwidth, causes);
        // Without any allowed migration, every drain and every update would wait forever.
        for (name, number) in [&numbers[1], &numbers[2]] {
            if *number == Some(0) {
                causes.push(Cause::invalid(&path.child(name), "must be at least 1"));
            }
        }
        if let Some(key) = migrations.node_drain_taint_key.as_deref().filter(|key| !key.is_empty())
            && !is_label_key(key)
        {
            let message = format!("{} is not the key of a taint", quoted(key));
            causes.push(Cause::invalid(&path.child("nodeDrainTaintKey"), message));
        }
        let network = migrations.network.as_deref().filter(|given| !given.is_empty());
        causes.extend(network.and_then(|given| networks::misnamed(&path.child("network"), given)));
        let downtime = migrations.max_downtime_ms;
        if downtime.is_some()
            && downtime != before.and_then(|before| before.migrations.as_ref()?.max_downtime_ms)
        {
            max_downtime(&path.child("maxDowntimeMs"), gates, causes);
        }
    }
    if let Some(tls) = &configuration.tls_configuration {
        ciphers(&path.child("tlsConfiguration.ciphers"), tls, causes);
    }
    if let Some(seccomp) = &configuration.seccomp_configuration {
        profile(&path.child("seccompConfiguration.virtualMachineInstanceProfile"), seccomp, causes);
    }
}

fn gates(developer: &DeveloperConfiguration) -> Gates {
    Gates::new(developer.feature_gates.clone(), developer.disabled_feature_gates.clone())
}

fn gate_lists(path: &Path, developer: &DeveloperConfiguration, causes: &mut Vec<Cause>) {
    for gate in &developer.feature_gates {
        if developer.disabled_feature_gates.contains(gate) {
            causes.push(Cause::new(
                CauseKind::Forbidden,
                &path.child("featureGates"),
                format!(
                    "feature gate \"{}\" exists on both \"FeatureGates\" and \"DisabledFeatureGates\"",
                    quoted(gate)
                ),
            ));
        }
    }
}

fn ciphers(field: &Path, tls: &TlsConfiguration, causes: &mut Vec<Cause>) {
    let fixed = matches!(tls.min_tls_version.as_deref(), None | Some("" | "VersionTLS13"));
    if fixed && !tls.ciphers.is_empty() {
        causes.push(Cause::new(
            CauseKind::NotSupported,
            field,
            "You cannot specify ciphers when spec.configuration.tlsConfiguration.minTLSVersion is empty or VersionTLS13",
        ));
        return;
    }
    for (index, cipher) in tls.ciphers.iter().enumerate() {
        if !CIPHERS.contains(&cipher.as_str()) {
            causes.push(Cause::new(
                CauseKind::NotSupported,
                &field.index(index),
                format!("{} is not a valid cipher", quoted(cipher)),
            ));
        }
    }
}

fn profile(path: &Path, seccomp: &SeccompConfiguration, causes: &mut Vec<Cause>) {
    let Some(profile) = &seccomp.virtual_machine_instance_profile else { return };
    let path = path.child("customProfile");
    let Some(custom) = &profile.custom_profile else {
        causes.push(Cause::invalid(&path, format!("{path} needs to be set")));
        return;
    };
    if custom.localhost_profile.is_some() && custom.runtime_default_profile == Some(true) {
        let (local, default) = (path.child("localhostProfile"), path.child("runtimeDefaultProfile"));
        for (one, other) in [(&local, &default), (&default, &local)] {
            causes.push(Cause::invalid(one, format!("{one} cannot be set when {other} is set")));
        }
    }
}
