//! Keys and passwords that are set in a running guest.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Login credential for the guest from a Secret: either SSH public keys or user passwords. Set exactly one.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccessCredential {
    /// Public keys for SSH logins, and the way they get into the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ssh_public_key: Option<SshPublicKeyAccessCredential>,
    /// Passwords for guest users, and the way they get into the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_password: Option<UserPasswordAccessCredential>,
}

/// Points to the Secret that holds a credential.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct AccessCredentialSecretSource {
    /// Secret to read, in the namespace of the VMI.
    pub secret_name: String,
}

/// Hands SSH keys over in the metadata of the cloud-init ConfigDrive disk; needs a `cloudInitConfigDrive`
/// volume. No settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigDriveSshPublicKeyAccessCredentialPropagation {}

/// Hands SSH keys over in the metadata of the cloud-init NoCloud disk; needs a `cloudInitNoCloud` volume. No
/// settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NoCloudSshPublicKeyAccessCredentialPropagation {}

/// Writes SSH keys into the running guest through the QEMU guest agent, and again whenever the Secret
/// changes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QemuGuestAgentSshPublicKeyAccessCredentialPropagation {
    /// Guest accounts that get the keys; at least one. Sent as `guest-ssh-add-authorized-keys`.
    pub users: Vec<String>,
}

/// Sets passwords in the running guest with the agent command `guest-set-user-password`. No settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct QemuGuestAgentUserPasswordAccessCredentialPropagation {}

/// Source and delivery of SSH public keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SshPublicKeyAccessCredential {
    /// How the keys reach the guest: `configDrive`, `noCloud` or `qemuGuestAgent`.
    pub propagation_method: SshPublicKeyAccessCredentialPropagationMethod,
    /// Where the keys are read from.
    pub source: SshPublicKeyAccessCredentialSource,
}

/// Delivery of SSH keys; set exactly one member.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SshPublicKeyAccessCredentialPropagationMethod {
    /// Deliver at boot through the cloud-init ConfigDrive disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_drive: Option<ConfigDriveSshPublicKeyAccessCredentialPropagation>,
    /// Deliver at boot through the cloud-init NoCloud disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_cloud: Option<NoCloudSshPublicKeyAccessCredentialPropagation>,
    /// Deliver at run time through the QEMU guest agent, for the accounts listed here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu_guest_agent: Option<QemuGuestAgentSshPublicKeyAccessCredentialPropagation>,
}

/// Origin of SSH public keys.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SshPublicKeyAccessCredentialSource {
    /// Secret whose values are public keys; the key names do not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<AccessCredentialSecretSource>,
}

/// Source and delivery of guest user passwords.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserPasswordAccessCredential {
    /// How the passwords reach the guest; only `qemuGuestAgent` exists.
    pub propagation_method: UserPasswordAccessCredentialPropagationMethod,
    /// Where user names and passwords are read from.
    pub source: UserPasswordAccessCredentialSource,
}

/// Delivery of passwords.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserPasswordAccessCredentialPropagationMethod {
    /// Set them at run time through the QEMU guest agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qemu_guest_agent: Option<QemuGuestAgentUserPasswordAccessCredentialPropagation>,
}

/// Origin of user names and passwords.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct UserPasswordAccessCredentialSource {
    /// Secret in which every key is a guest user name and its value the password.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<AccessCredentialSecretSource>,
}
