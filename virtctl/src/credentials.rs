//! credentials: keys and passwords of a guest's users, in the secrets that a machine's access credentials name.

mod add_key;
mod password;
mod remove_key;
mod secrets;

use clap::{Args, Subcommand};

use crate::session::Session;

/// Arguments of `virtctl credentials`.
#[derive(Debug, Args)]
pub(crate) struct Credentials {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Add an SSH key of a user of a virtual machine.
    AddSshKey(add_key::AddKey),
    /// Remove an SSH key of a user of a virtual machine.
    RemoveSshKey(remove_key::RemoveKey),
    /// Set the password of a user of a virtual machine.
    SetPassword(password::Password),
}

impl Credentials {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        match &self.command {
            Command::AddSshKey(add) => add.run(session).await,
            Command::RemoveSshKey(remove) => remove.run(session).await,
            Command::SetPassword(password) => password.run(session).await,
        }
    }
}
