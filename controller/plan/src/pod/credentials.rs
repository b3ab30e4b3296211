//! Secrets with access credentials: mounted, so that only the kubelet and the launcher read them; the launcher sees changes.

use super::disks::{Disks, SECRETS};
use super::parts::mount;
use crate::generated;
use barevirt_api::names::ACCESS_CREDENTIAL_SUFFIX;
use barevirt_api::valid::ValidVmi;
use k8s_openapi::api::core::v1::{SecretVolumeSource, Volume, VolumeMount};
use std::collections::BTreeSet;

/// Longest name of a volume.
const NAME_MAX: usize = 63;

/// Adds a volume for each secret, with KubeVirt's name and path.
pub(super) fn add(vmi: &ValidVmi, disks: &mut Disks) {
    let secrets = vmi.spec().access_credentials.iter().filter_map(|credential| {
        let key = credential.ssh_public_key.as_ref().and_then(|key| key.source.secret.as_ref());
        let password = credential.user_password.as_ref().and_then(|one| one.source.secret.as_ref());
        key.or(password).map(|secret| secret.secret_name.as_str())
    });
    // Several credentials may come from one secret.
    for secret in secrets.collect::<BTreeSet<_>>() {
        let name = volume_name(secret);
        disks.compute_mounts.push(VolumeMount {
            read_only: Some(true),
            ..mount(&name, &format!("{SECRETS}/{secret}{ACCESS_CREDENTIAL_SUFFIX}"))
        });
        disks.volumes.push(Volume {
            name,
            secret: Some(SecretVolumeSource {
                secret_name: Some(secret.to_owned()),
                ..SecretVolumeSource::default()
            }),
            ..Volume::default()
        });
    }
}

/// A volume's name is shorter than a secret's may be, and has no dots: where the secret's name does not fit, a derived name.
fn volume_name(secret: &str) -> String {
    if secret.len() + ACCESS_CREDENTIAL_SUFFIX.len() <= NAME_MAX && !secret.contains('.') {
        format!("{secret}{ACCESS_CREDENTIAL_SUFFIX}")
    } else {
        format!("{}{ACCESS_CREDENTIAL_SUFFIX}", generated::name("secret-", secret))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_secret_has_a_volume_name() {
        assert_eq!(volume_name("my-pub-key"), "my-pub-key-access-cred");
        let long = "x".repeat(253);
        for odd in ["a.b", long.as_str()] {
            let name = volume_name(odd);
            assert!(
                name.len() <= NAME_MAX && !name.contains('.') && name.ends_with("-access-cred"),
                "{name}"
            );
        }
        assert_ne!(volume_name("a.b"), volume_name("a.c"));
    }
}
