//! Memory encryption: SEV, SEV-SNP and TDX.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Confidential computing: memory of the guest encrypted against the host. Give one of the members.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LaunchSecurity {
    /// AMD SEV or SEV-ES; `-object sev-guest`, named by `-machine confidential-guest-support=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sev: Option<Sev>,
    /// AMD SEV-SNP; `-object sev-snp-guest`, named by `-machine confidential-guest-support=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snp: Option<SevSnp>,
    /// Intel TDX; `-object tdx-guest`, named by `-machine confidential-guest-support=`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tdx: Option<Tdx>,
}

/// AMD memory encryption of the first generations. Guest debugging by the host is always forbidden.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Sev {
    /// Keeps the machine paused at start until its launch measurement was checked and it is released.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attestation: Option<SevAttestation>,
    /// Diffie-Hellman certificate of the guest's owner, in base64 (`dh-cert-file` of `sev-guest`). Goes with
    /// `session`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dh_cert: Option<String>,
    /// Further policy bits the guest's owner demands (`policy` of `sev-guest`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<SevPolicy>,
    /// Launch session parameters made by the guest's owner for this platform, in base64 (`session-file` of
    /// `sev-guest`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
}

/// Presence asks for attestation; there are no settings. Served by `query-sev-launch-measure` and
/// `sev-inject-launch-secret`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SevAttestation {}

/// Optional bits of the SEV guest policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SevPolicy {
    /// Requires SEV-ES, which encrypts the vCPU registers too (policy bit 2); false when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encrypted_state: Option<bool>,
}

/// Presence turns SEV-SNP on; there are no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SevSnp {}

/// Presence turns TDX on; there are no settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Tdx {}
