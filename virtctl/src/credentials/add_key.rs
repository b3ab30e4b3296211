//! credentials add-ssh-key.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use barevirt_api::v1::{
    AccessCredential, AccessCredentialSecretSource, QemuGuestAgentSshPublicKeyAccessCredentialPropagation,
    SshPublicKeyAccessCredential, SshPublicKeyAccessCredentialPropagationMethod,
    SshPublicKeyAccessCredentialSource, VirtualMachine, VirtualMachineInstance,
};
use clap::Args;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::secrets::{self, KeyFlags};
use crate::random;
use crate::session::{self, Session};

/// Arguments of `virtctl credentials add-ssh-key`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # Add a key of the user jdoe to the running machine 'myvm':\n  \
    virtctl credentials add-ssh-key --user jdoe --file ~/.ssh/id_ed25519.pub myvm\n\n  \
    # The same with the key itself:\n  \
    virtctl credentials add-ssh-key --user jdoe --value 'ssh-ed25519 AAAA...' myvm\n\n  \
    # Into a secret that is not the machine's alone:\n  \
    virtctl credentials add-ssh-key --user jdoe --file ~/.ssh/id_ed25519.pub --force myvm\n\n  \
    # Into a new secret, in effect after the machine's next start:\n  \
    virtctl credentials add-ssh-key --create-secret --user jdoe --file ~/.ssh/id_ed25519.pub myvm")]
pub(super) struct AddKey {
    /// Name of the virtual machine.
    vm: String,
    #[command(flatten)]
    flags: KeyFlags,
    /// Create a new secret for the key. Refused while the machine runs; with --force the key takes effect at the
    /// next start.
    #[arg(long, conflicts_with = "update_secret")]
    create_secret: bool,
    /// Add the key to a secret that the machine already names. Needs --force if the machine does not own the
    /// secret.
    #[arg(long)]
    update_secret: bool,
    /// Change the secret even if it is not owned by the machine.
    #[arg(long)]
    force: bool,
}

impl AddKey {
    pub(super) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let key = self.flags.key()?;
        let vm = secrets::machine(session, &self.vm).await?;
        let secrets = secrets::of_user(&vm, &self.flags.user);
        if self.create_secret || (!self.update_secret && secrets.is_empty()) {
            self.create(session, &vm, &key).await
        } else {
            self.update(session, &vm, &secrets, &key).await
        }
    }

    async fn create(&self, session: &Session, vm: &VirtualMachine, key: &str) -> anyhow::Result<()> {
        if !self.force {
            let vmis: Api<VirtualMachineInstance> =
                Api::namespaced(session.client.clone(), &session.namespace);
            let running = vmis.get_opt(&self.vm).await.map_err(session::plain);
            if running.context("error when getting virtual machine instance")?.is_some() {
                bail!(
                    "virtual machine {} is running. Use --force flag to update a running VM, \
                     it will take effect after restart",
                    self.vm
                );
            }
        }
        let secret = secrets::api(session).create(&PostParams::default(), &new_secret(vm, key)).await;
        let secret = secret.map_err(session::plain).context("error creating secret")?.name_any();
        let vms: Api<VirtualMachine> = Api::namespaced(session.client.clone(), &session.namespace);
        let patch = serde_json::from_value(assignment(vm, &secret, &self.flags.user)?)?;
        vms.patch(&self.vm, &PatchParams::default(), &Patch::<()>::Json(patch))
            .await
            .map_err(session::plain)
            .with_context(|| format!("error patching virtual machine: the key is in secret \"{secret}\""))?;
        println!("Successfully added the key to new secret \"{secret}\" of VM {}", self.vm);
        Ok(())
    }

    async fn update(
        &self,
        session: &Session,
        vm: &VirtualMachine,
        secrets: &[String],
        key: &str,
    ) -> anyhow::Result<()> {
        if secrets.is_empty() {
            bail!("no secrets specified for user: {}", self.flags.user);
        }
        let name = secrets::choose(self.flags.secret.as_deref(), secrets)?;
        let secret = secrets::secret(session, &name).await?;
        if contains(&secret, key) {
            println!("Secret \"{name}\" already contains this SSH key.");
            return Ok(());
        }
        if !self.force {
            secrets::owned(&secret, vm)?;
        }
        let data = BTreeMap::from([(entry(), ByteString(key.into()))]);
        let patch = Patch::Merge(json!({ "data": data }));
        secrets::api(session)
            .patch(&name, &PatchParams::default(), &patch)
            .await
            .map_err(session::plain)
            .with_context(|| format!("error patching secret \"{name}\""))?;
        println!("Successfully added the key to secret \"{name}\"");
        Ok(())
    }
}

/// A key of the secret's data that is not used yet.
fn entry() -> String {
    format!("ssh-key-{}", random::suffix(6))
}

/// Whether the value has each line of the SSH key.
fn contains(secret: &Secret, key: &str) -> bool {
    let values = secret.data.iter().flatten();
    let lines: Vec<String> = values
        .flat_map(|(_, value)| {
            String::from_utf8_lossy(&value.0).lines().map(str::to_owned).collect::<Vec<_>>()
        })
        .collect();
    key.lines()
        .filter(|key| !key.trim().is_empty())
        .all(|key| lines.iter().any(|line| secrets::is_key(line, key)))
}

/// A secret that is deleted with its machine.
fn new_secret(vm: &VirtualMachine, key: &str) -> Secret {
    Secret {
        metadata: ObjectMeta {
            generate_name: Some(format!("{}-ssh-key-", vm.name_any())),
            owner_references: Some(vec![OwnerReference {
                api_version: "kubevirt.io/v1".to_owned(),
                kind: "VirtualMachine".to_owned(),
                name: vm.name_any(),
                uid: vm.metadata.uid.clone().unwrap_or_default(),
                controller: Some(true),
                ..OwnerReference::default()
            }]),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(entry(), ByteString(key.into()))])),
        ..Secret::default()
    }
}

/// A JSON patch that adds the secret's name to the machine.
fn assignment(vm: &VirtualMachine, secret: &str, user: &str) -> anyhow::Result<Value> {
    const PATH: &str = "/spec/template/spec/accessCredentials";
    let credential = serde_json::to_value(AccessCredential {
        ssh_public_key: Some(SshPublicKeyAccessCredential {
            source: SshPublicKeyAccessCredentialSource {
                secret: Some(AccessCredentialSecretSource { secret_name: secret.to_owned() }),
            },
            propagation_method: SshPublicKeyAccessCredentialPropagationMethod {
                qemu_guest_agent: Some(QemuGuestAgentSshPublicKeyAccessCredentialPropagation {
                    users: vec![user.to_owned()],
                }),
                ..Default::default()
            },
        }),
        ..AccessCredential::default()
    })?;
    Ok(if vm.spec.template.spec.access_credentials.is_empty() {
        json!([{ "op": "add", "path": PATH, "value": [credential] }])
    } else {
        json!([{ "op": "add", "path": format!("{PATH}/-"), "value": credential }])
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm(credentials: Value) -> VirtualMachine {
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "vm", "uid": "1"},
            "spec": {"template": {"spec": {"domain": {"devices": {}}, "accessCredentials": credentials}}},
        }))
        .unwrap()
    }

    #[test]
    fn a_new_secret_goes_with_its_machine_and_is_named_by_it() {
        let secret = new_secret(&vm(json!([])), "ssh-rsa A");
        assert_eq!(secret.metadata.generate_name.as_deref(), Some("vm-ssh-key-"));
        assert!(secrets::owned(&secret, &vm(json!([]))).is_ok());
        let credential = json!({"sshPublicKey": {
            "source": {"secret": {"secretName": "s"}},
            "propagationMethod": {"qemuGuestAgent": {"users": ["jdoe"]}}}});
        let path = "/spec/template/spec/accessCredentials";
        assert_eq!(
            assignment(&vm(json!([])), "s", "jdoe").unwrap(),
            json!([{"op": "add", "path": path, "value": [credential]}])
        );
        assert_eq!(
            assignment(&vm(json!([credential])), "s", "jdoe").unwrap()[0]["path"],
            format!("{path}/-")
        );
    }

    #[test]
    fn a_key_is_not_added_twice() {
        let secret: Secret = Secret {
            data: Some(BTreeMap::from([("a".to_owned(), ByteString(b"ssh-rsa A me\nssh-rsa B".to_vec()))])),
            ..Secret::default()
        };
        assert!(contains(&secret, "ssh-rsa A"));
        assert!(contains(&secret, "ssh-rsa B\n\nssh-rsa A"));
        assert!(!contains(&secret, "ssh-rsa B\nssh-rsa C"));
        assert!(!contains(&Secret::default(), "ssh-rsa A"));
    }
}
