//! Keys and passwords for the guest: each has one kind, one source and one propagation method.

use super::{Cause, Path};
use crate::syntax::{is_dns_subdomain, quoted};
use crate::v1::{SshPublicKeyAccessCredential, UserPasswordAccessCredential, VirtualMachineInstanceSpec};

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    let volumes = Volumes {
        no_cloud: spec.volumes.iter().any(|volume| volume.cloud_init_no_cloud.is_some()),
        config_drive: spec.volumes.iter().any(|volume| volume.cloud_init_config_drive.is_some()),
    };
    for (index, credential) in spec.access_credentials.iter().enumerate() {
        let field = path.child("accessCredentials").index(index);
        if let Some(key) = &credential.ssh_public_key {
            ssh(&field, key, &volumes, causes);
        }
        if let Some(password) = &credential.user_password {
            user_password(&field, password, causes);
        }
        let sources = [
            credential.ssh_public_key.as_ref().map(|key| ("sshPublicKey", key.source.secret.as_ref())),
            credential.user_password.as_ref().map(|one| ("userPassword", one.source.secret.as_ref())),
        ];
        for (kind, secret) in sources.into_iter().flatten() {
            let name = secret.map(|secret| secret.secret_name.as_str());
            if let Some(name) = name.filter(|name| !is_dns_subdomain(name)) {
                let field = field.child(kind).child("source.secret.secretName");
                let text = format!("{field} '{}' is not the name of a secret", quoted(name));
                causes.push(Cause::invalid(&field, text));
            }
        }
        if credential.ssh_public_key.is_some() == credential.user_password.is_some() {
            causes.push(Cause::invalid(
                &field,
                format!("{field} must have exactly one access credential type set"),
            ));
        }
    }
}

/// Cloud-init volumes that can carry keys.
struct Volumes {
    no_cloud: bool,
    config_drive: bool,
}

fn ssh(field: &Path, key: &SshPublicKeyAccessCredential, volumes: &Volumes, causes: &mut Vec<Cause>) {
    let method = &key.propagation_method;
    let field_key = field.child("sshPublicKey");
    let field_method = field_key.child("propagationMethod");
    for (given, there, name) in [
        (method.no_cloud.is_some(), volumes.no_cloud, "noCloud"),
        (method.config_drive.is_some(), volumes.config_drive, "configDrive"),
    ] {
        if given && !there {
            causes.push(Cause::invalid(
                &field_method,
                format!(
                    "{field} requires a {name} volume to exist when the {name} propagationMethod is in use."
                ),
            ));
        }
    }
    if method.qemu_guest_agent.as_ref().is_some_and(|agent| agent.users.is_empty()) {
        causes.push(Cause::invalid(
            &field_method.child("qemuGuestAgent.users"),
            format!("{field} requires at least one user to be present in the users list"),
        ));
    }
    let methods =
        [method.no_cloud.is_some(), method.config_drive.is_some(), method.qemu_guest_agent.is_some()];
    one_each(field, &field_key, key.source.secret.is_some(), &methods, causes);
}

fn user_password(field: &Path, password: &UserPasswordAccessCredential, causes: &mut Vec<Cause>) {
    let methods = [password.propagation_method.qemu_guest_agent.is_some()];
    one_each(field, &field.child("userPassword"), password.source.secret.is_some(), &methods, causes);
}

fn one_each(field: &Path, kind: &Path, has_source: bool, methods: &[bool], causes: &mut Vec<Cause>) {
    if !has_source {
        causes
            .push(Cause::invalid(&kind.child("source"), format!("{field} must have exactly one source set")));
    }
    if methods.iter().filter(|given| **given).count() != 1 {
        causes.push(Cause::invalid(
            &kind.child("propagationMethod"),
            format!("{field} must have exactly one propagationMethod set"),
        ));
    }
}
