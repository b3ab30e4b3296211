//! Bodies of subresource calls.

use super::ClockOffsetUtc;
use k8s_openapi::api::core::v1::TypedObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Base time of the guest's hardware clock (`-rtc base=`); set one member. UTC when not given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClockOffset {
    /// Local time of this zone, named as in TZ: `Europe/Berlin`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timezone: Option<String>,
    /// UTC, with or without a fixed offset. Without one the clock starts at UTC on each boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utc: Option<ClockOffsetUtc>,
}

/// Body of the `evacuate/cancel` subresource: drops a pending evacuation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EvacuateCancelOptions {
    /// `All` checks the request without storing a change; empty (default) carries it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dry_run: Vec<String>,
    /// Node the evacuation was meant to empty; has to equal the value in the VMI status.
    pub evacuation_node_name: String,
}

/// Body of the `freeze` subresource: freezes guest filesystems through the agent (`guest-fsfreeze-freeze`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FreezeUnfreezeTimeout {
    /// Time such as `5m0s` after which filesystems are thawed without being asked; 0 turns that off.
    pub unfreeze_timeout: String,
}

/// Body of the `migrate` subresource: moves a running VM to another node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct MigrateOptions {
    /// Further node labels the target must carry. Can only narrow the choice: on equal keys the VM's own
    /// selector wins.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub added_node_selector: BTreeMap<String, String>,
    /// `All` checks the request without storing a change; empty (default) carries it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dry_run: Vec<String>,
}

/// Object a VM depends on, with what that object depends on in turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectGraphNode {
    /// Objects this one refers to, in the same form.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<ObjectGraphNode>,
    /// For filtering: `kubevirt.io/dependency-type` with the value `storage`, `network`, `compute` or
    /// `config`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// API group, kind, namespace and name of the object.
    pub object_reference: TypedObjectReference,
    /// True when the VM can do without the object, for instance an instance type whose stored revision
    /// suffices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// Filter for the `objectgraph` subresource, which lists the objects a VM depends on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectGraphOptions {
    /// False leaves out objects the VM can do without; true by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub include_optional_nodes: Option<bool>,
    /// Keeps only nodes whose labels match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label_selector: Option<LabelSelector>,
}

/// Body of the `pause` subresource: stops the virtual CPUs (QMP `stop`) and keeps memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PauseOptions {
    /// `All` checks the request without storing a change; empty (default) carries it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dry_run: Vec<String>,
}

/// Body of the `restart` subresource: ends the running instance and starts a new one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartOptions {
    /// `All` checks the request without storing a change; empty (default) carries it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dry_run: Vec<String>,
    /// Only 0 is accepted: the guest is killed at once. When not given the VM's own grace period applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_period_seconds: Option<i64>,
}

/// Launch measurement of an SEV guest (QMP `query-sev-launch-measure`), to be checked before a secret is
/// released.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SevMeasurementInfo {
    /// Major version of the SEV firmware API on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_major: Option<i32>,
    /// Minor version of the SEV firmware API on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_minor: Option<i32>,
    /// Build number of the SEV firmware on the host.
    #[serde(rename = "buildID", default, skip_serializing_if = "Option::is_none")]
    pub build_id: Option<i32>,
    /// SHA-256 of the guest firmware image, in hexadecimal.
    #[serde(rename = "loaderSHA", default, skip_serializing_if = "Option::is_none")]
    pub loader_sha: Option<String>,
    /// Measurement made by the SEV firmware, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measurement: Option<String>,
    /// SEV guest policy as a bit mask, such as 1 for no debugging and 4 for encrypted state (SEV-ES).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<i32>,
}

/// SEV identity of the host (QMP `query-sev-capabilities`), from which a guest owner prepares a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SevPlatformInfo {
    /// Certificate chain of the SEV platform, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cert_chain: Option<String>,
    /// Public Diffie-Hellman key of the platform, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pdh: Option<String>,
}

/// Body of `sev/injectlaunchsecret`: passes a secret to a paused SEV guest (QMP `sev-inject-launch-secret`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SevSecretOptions {
    /// Packet header that the SEV firmware decrypts the secret with, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Secret encrypted by the guest owner, in base64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
}

/// Body of `sev/setupsession`: session made by the guest owner for launching an SEV guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SevSessionOptions {
    /// Public Diffie-Hellman key of the guest owner, in base64. Becomes `sev-guest,dh-cert-file=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dh_cert: Option<String>,
    /// Session parameters, in base64. Becomes `sev-guest,session-file=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// Body of the `start` subresource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartOptions {
    /// `All` checks the request without storing a change; empty (default) carries it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dry_run: Vec<String>,
    /// Start with the virtual CPUs halted (`-S`) until unpaused; false by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paused: Option<bool>,
}

/// Body of the `stop` subresource.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StopOptions {
    /// `All` checks the request without storing a change; empty (default) carries it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dry_run: Vec<String>,
    /// Seconds the guest has to shut down before it is killed, in place of the VM's own value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_period: Option<i64>,
}

/// Body of the `unpause` subresource: lets the virtual CPUs run again (QMP `cont`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UnpauseOptions {
    /// `All` checks the request without storing a change; empty (default) carries it out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub dry_run: Vec<String>,
}
