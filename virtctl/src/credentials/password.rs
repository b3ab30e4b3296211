//! credentials set-password.

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use clap::Args;
use k8s_openapi::ByteString;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::secrets;
use crate::session::{self, Session};

/// Arguments of `virtctl credentials set-password`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # Set the password of the user jdoe of the machine 'myvm':\n  \
    virtctl credentials set-password --user jdoe --password secret myvm\n\n  \
    # In a secret that is not the machine's alone:\n  \
    virtctl credentials set-password --user jdoe --password secret --force myvm")]
pub(super) struct Password {
    /// Name of the virtual machine.
    vm: String,
    /// Name of the user.
    #[arg(short, long)]
    user: String,
    /// Password for the user.
    #[arg(short, long)]
    password: String,
    /// Name of the secret with passwords.
    #[arg(long)]
    secret: Option<String>,
    /// Change the secret even if it is not owned by the machine.
    #[arg(long)]
    force: bool,
}

impl Password {
    pub(super) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let vm = secrets::machine(session, &self.vm).await?;
        let secrets = secrets::of_passwords(&vm);
        if secrets.is_empty() {
            bail!("no secrets assigned to UserPassword AccessCredentials");
        }
        let name = secrets::choose(self.secret.as_deref(), &secrets)?;
        if !self.force {
            secrets::owned(&secrets::secret(session, &name).await?, &vm)?;
        }
        let data = BTreeMap::from([(&self.user, ByteString(self.password.clone().into_bytes()))]);
        secrets::api(session)
            .patch(&name, &PatchParams::default(), &Patch::Merge(json!({ "data": data })))
            .await
            .map_err(session::plain)
            .with_context(|| format!("error patching secret \"{name}\""))?;
        println!("Successfully set password in secret \"{name}\"");
        Ok(())
    }
}
