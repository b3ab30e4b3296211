//! What the commands share: how they choose a secret, who owns it, and SSH keys as lines of its values.

use std::path::{Path, PathBuf};

use anyhow::{Context, bail, ensure};
use barevirt_api::v1::{AccessCredential, VirtualMachine};
use clap::Args;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, ResourceExt};

use crate::session::{self, Session};

/// Flags of the commands about keys.
#[derive(Debug, Args)]
pub(super) struct KeyFlags {
    /// Name of the user.
    #[arg(short, long)]
    pub(super) user: String,
    /// Name of the secret with SSH keys.
    #[arg(long)]
    pub(super) secret: Option<String>,
    /// Path to the SSH public key file.
    #[arg(short, long, conflicts_with = "value")]
    file: Option<PathBuf>,
    /// Literal value of the SSH public key.
    #[arg(long)]
    value: Option<String>,
}

impl KeyFlags {
    /// The given SSH key, without surrounding white space.
    pub(super) fn key(&self) -> anyhow::Result<String> {
        let read =
            |path: &Path| std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()));
        let text = match (&self.value, &self.file) {
            (Some(value), _) => Ok(value.clone()),
            (None, Some(path)) => read(path),
            (None, None) => bail!("error getting ssh key: one of --file, or --value must be specified"),
        };
        let text = text.context("error getting ssh key")?;
        ensure!(!text.trim().is_empty(), "error getting ssh key: it is empty");
        Ok(text.trim().to_owned())
    }
}

/// The machine of that name.
pub(super) async fn machine(session: &Session, name: &str) -> anyhow::Result<VirtualMachine> {
    let vms: Api<VirtualMachine> = Api::namespaced(session.client.clone(), &session.namespace);
    vms.get(name).await.map_err(session::plain).context("error getting virtual machine")
}

/// Secrets of the session's namespace.
pub(super) fn api(session: &Session) -> Api<Secret> {
    Api::namespaced(session.client.clone(), &session.namespace)
}

/// A secret that the machine names.
pub(super) async fn secret(session: &Session, name: &str) -> anyhow::Result<Secret> {
    let secret = api(session).get(name).await.map_err(session::plain);
    secret.with_context(|| format!("error getting secret \"{name}\""))
}

/// Secrets from which the guest agent takes keys of that user.
pub(super) fn of_user(vm: &VirtualMachine, user: &str) -> Vec<String> {
    let name = |credential: &AccessCredential| {
        let key = credential.ssh_public_key.as_ref()?;
        let agent = key.propagation_method.qemu_guest_agent.as_ref()?;
        let secret = key.source.secret.as_ref()?;
        agent.users.iter().any(|one| one == user).then(|| secret.secret_name.clone())
    };
    named(vm, name)
}

/// Secrets from which the guest agent takes passwords.
pub(super) fn of_passwords(vm: &VirtualMachine) -> Vec<String> {
    named(vm, |credential| {
        let password = credential.user_password.as_ref()?;
        password.propagation_method.qemu_guest_agent.as_ref()?;
        Some(password.source.secret.as_ref()?.secret_name.clone())
    })
}

fn named(vm: &VirtualMachine, name: impl Fn(&AccessCredential) -> Option<String>) -> Vec<String> {
    let credentials = &vm.spec.template.spec.access_credentials;
    credentials.iter().filter_map(name).filter(|name| !name.is_empty()).collect()
}

/// The secret that the arguments choose among several.
pub(super) fn choose(wanted: Option<&str>, secrets: &[String]) -> anyhow::Result<String> {
    match (wanted, secrets) {
        (Some(wanted), _) => {
            ensure!(secrets.iter().any(|one| one == wanted), "secret {wanted} was not assigned");
            Ok(wanted.to_owned())
        }
        (None, [one]) => Ok(one.clone()),
        (None, _) => {
            bail!("multiple secrets specified, use option --secret to specify which secret to modify")
        }
    }
}

/// Refuses a secret that others may use too.
pub(super) fn owned(secret: &Secret, vm: &VirtualMachine) -> anyhow::Result<()> {
    let is_owner = secret.owner_references().iter().any(|owner| {
        owner.kind == "VirtualMachine"
            && owner.name == vm.name_any()
            && Some(&owner.uid) == vm.metadata.uid.as_ref()
    });
    ensure!(
        is_owner,
        "secret {} does not have an owner reference pointing to VM {}; --force changes it anyway",
        secret.name_any(),
        vm.name_any()
    );
    Ok(())
}

/// Whether a line is that key, with or without a comment behind it.
pub(super) fn is_key(line: &str, key: &str) -> bool {
    let rest = line.trim().strip_prefix(key.trim());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn vm() -> VirtualMachine {
        let key = |secret: &str, method: serde_json::Value| {
            json!({"sshPublicKey": {
                "source": {"secret": {"secretName": secret}}, "propagationMethod": method}})
        };
        serde_json::from_value(json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
            "metadata": {"name": "vm", "uid": "1"},
            "spec": {"template": {"spec": {"domain": {"devices": {}}, "accessCredentials": [
                key("agent", json!({"qemuGuestAgent": {"users": ["root", "jdoe"]}})),
                key("other", json!({"qemuGuestAgent": {"users": ["root"]}})),
                key("cloud", json!({"noCloud": {}})),
                {"userPassword": {"source": {"secret": {"secretName": "passwords"}},
                    "propagationMethod": {"qemuGuestAgent": {}}}},
            ]}}},
        }))
        .unwrap()
    }

    #[test]
    fn secrets_are_those_that_the_agent_reads() {
        assert_eq!(of_user(&vm(), "jdoe"), ["agent"]);
        assert_eq!(of_user(&vm(), "root"), ["agent", "other"]);
        assert!(of_user(&vm(), "nobody").is_empty());
        assert_eq!(of_passwords(&vm()), ["passwords"]);
    }

    #[test]
    fn one_secret_is_meant() {
        let both = ["a".to_owned(), "b".to_owned()];
        assert_eq!(choose(None, &both[..1]).unwrap(), "a");
        assert_eq!(choose(Some("b"), &both).unwrap(), "b");
        assert!(choose(None, &both).unwrap_err().to_string().starts_with("multiple secrets specified"));
        assert_eq!(choose(Some("c"), &both).unwrap_err().to_string(), "secret c was not assigned");
    }

    #[test]
    fn a_secret_is_of_the_machine_that_owns_it() {
        let of = |uid: &str| -> Secret {
            serde_json::from_value(json!({"metadata": {"name": "s", "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": uid}]}}))
            .unwrap()
        };
        assert!(owned(&of("1"), &vm()).is_ok());
        let error = owned(&of("2"), &vm()).unwrap_err().to_string();
        assert!(error.starts_with("secret s does not have an owner reference pointing to VM vm"), "{error}");
    }

    #[test]
    fn a_key_is_whole_words_of_a_line() {
        for (line, found) in
            [("ssh-rsa AAA me@here", true), ("  ssh-rsa AAA ", true), ("ssh-rsa AAAB", false), ("", false)]
        {
            assert_eq!(is_key(line, "ssh-rsa AAA\n"), found, "{line}");
        }
    }
}
