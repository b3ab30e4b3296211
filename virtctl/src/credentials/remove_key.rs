//! credentials remove-ssh-key.

use anyhow::{Context, bail};
use barevirt_api::v1::VirtualMachine;
use clap::Args;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::PostParams;

use super::secrets::{self, KeyFlags};
use crate::session::{self, Session};

/// Attempts when others write to the secret at the same time.
const TRIES: usize = 5;

/// Arguments of `virtctl credentials remove-ssh-key`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # Remove a key of the user jdoe from the running machine 'myvm':\n  \
    virtctl credentials remove-ssh-key --user jdoe --file ~/.ssh/id_ed25519.pub myvm\n\n  \
    # The same with the key itself:\n  \
    virtctl credentials remove-ssh-key --user jdoe --value 'ssh-ed25519 AAAA...' myvm\n\n  \
    # From a secret that is not the machine's alone:\n  \
    virtctl credentials remove-ssh-key --user jdoe --file ~/.ssh/id_ed25519.pub --force myvm")]
pub(super) struct RemoveKey {
    /// Name of the virtual machine.
    vm: String,
    #[command(flatten)]
    flags: KeyFlags,
    /// Change the secret even if it is not owned by the machine.
    #[arg(long)]
    force: bool,
}

impl RemoveKey {
    pub(super) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let key = self.flags.key()?;
        let vm = secrets::machine(session, &self.vm).await?;
        let user = &self.flags.user;
        let mut secrets = secrets::of_user(&vm, user);
        if secrets.is_empty() {
            println!("No secrets associated with user {user}");
            return Ok(());
        }
        if let Some(wanted) = &self.flags.secret {
            secrets.retain(|one| one == wanted);
            if secrets.is_empty() {
                bail!("secret {wanted} is not associated with user {user}");
            }
        }
        for name in secrets {
            self.remove(session, &vm, &name, &key)
                .await
                .with_context(|| format!("error updating secret \"{name}\""))?;
        }
        Ok(())
    }

    async fn remove(
        &self,
        session: &Session,
        vm: &VirtualMachine,
        name: &str,
        key: &str,
    ) -> anyhow::Result<()> {
        let api = secrets::api(session);
        for tries in 1.. {
            // Without the secret there is no key to remove.
            let Some(mut secret) = api.get_opt(name).await.map_err(session::plain)? else { return Ok(()) };
            if !self.force {
                secrets::owned(&secret, vm)?;
            }
            if !without(&mut secret, key) {
                println!("Secret \"{name}\" does not contain this SSH key.");
                return Ok(());
            }
            match api.replace(name, &PostParams::default(), &secret).await {
                Ok(_) => break,
                Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
                Err(kube::Error::Api(status)) if status.code == 409 && tries < TRIES => {}
                Err(error) => return Err(session::plain(error)),
            }
        }
        println!("Successfully removed the key from secret \"{name}\"");
        Ok(())
    }
}

/// Removes the lines of the key, and values that become empty. Returns whether there were any.
fn without(secret: &mut Secret, key: &str) -> bool {
    let mut found = false;
    let Some(data) = &mut secret.data else { return false };
    let keys: Vec<&str> = key.lines().filter(|key| !key.trim().is_empty()).collect();
    data.retain(|_, value| {
        let text = String::from_utf8_lossy(&value.0).into_owned();
        let is_wanted = |line: &&str| !keys.iter().any(|key| secrets::is_key(line, key));
        let left: Vec<&str> = text.lines().filter(is_wanted).collect();
        if left.len() == text.lines().count() {
            return true;
        }
        found = true;
        let left: Vec<&str> = left.into_iter().filter(|line| !line.trim().is_empty()).collect();
        *value = ByteString(left.join("\n").into_bytes());
        !left.is_empty()
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn lines_of_the_key_go_and_so_do_values_that_are_empty_then() {
        let text = |text: &str| ByteString(text.as_bytes().to_vec());
        let mut secret = Secret {
            data: Some(BTreeMap::from([
                ("alone".to_owned(), text("ssh-rsa A\n")),
                ("both".to_owned(), text("ssh-rsa A me\n\nssh-rsa B\n")),
                ("other".to_owned(), text("ssh-rsa AB\n")),
            ])),
            ..Secret::default()
        };
        assert!(without(&mut secret, "ssh-rsa A"));
        let left = BTreeMap::from([
            ("both".to_owned(), text("ssh-rsa B")),
            // No line is the key, so the value is unchanged.
            ("other".to_owned(), text("ssh-rsa AB\n")),
        ]);
        assert_eq!(secret.data, Some(left));
        assert!(!without(&mut secret, "ssh-rsa A"));
    }
}
