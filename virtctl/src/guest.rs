//! pause, unpause, soft-reboot, reset, guestosinfo, userlist, fslist: controls of a running guest, and
//! reports from it.

use std::fmt::Write as _;

use anyhow::{Context, bail};
use barevirt_api::names::RUN_STRATEGY_HALTED;
use barevirt_api::v1::{PauseOptions, UnpauseOptions, VirtualMachine};
use clap::Args;
use http::Method;
use kube::Api;
use serde::Serialize;
use serde_json::Value;

use crate::session::{self, Kind, Session, dry_run};

const INSTANCES: &str = "virtualmachineinstances";

fn kind(word: &str) -> anyhow::Result<Kind> {
    Kind::parse(word).with_context(|| format!("unsupported resource type: {}", word.to_lowercase()))
}

/// The server's status code of a failed call, if it gave one.
fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

async fn put(session: &Session, vmi: &str, what: &str, body: &impl Serialize) -> Result<(), kube::Error> {
    let path = session::path(&session.namespace, INSTANCES, vmi, what);
    session.call(Method::PUT, path, body).await.map(drop)
}

async fn machine(session: &Session, name: &str) -> anyhow::Result<VirtualMachine> {
    let vms: Api<VirtualMachine> = Api::namespaced(session.client.clone(), &session.namespace);
    let found = vms.get(name).await.map_err(session::plain);
    found.with_context(|| format!("Error getting VirtualMachine {name}"))
}

/// Arguments of `virtctl pause` and `virtctl unpause`.
#[derive(Debug, Args)]
pub(crate) struct Pause {
    /// virtualmachineinstance (vmi) or virtualmachine (vm).
    kind: String,
    /// Name of the object.
    name: String,
    /// Only check whether it could be done.
    #[arg(long)]
    dry_run: bool,
}

impl Pause {
    /// Pauses the guest's CPUs.
    pub(crate) async fn pause(&self, session: &Session) -> anyhow::Result<()> {
        let (kind, name) = (kind(&self.kind)?, &self.name);
        let body = PauseOptions { dry_run: dry_run(self.dry_run) };
        let vm = match kind {
            Kind::Machine => Some(machine(session, name).await?),
            Kind::Instance => None,
        };
        match (put(session, name, "pause", &body).await, vm) {
            (Ok(()), _) => println!("VMI {name} was scheduled to pause"),
            (Err(error), Some(vm)) if code(&error) == Some(404) => {
                if vm.spec.effective_run_strategy() == Some(RUN_STRATEGY_HALTED) {
                    bail!(
                        "Error pausing VirtualMachineInstance {name}. VirtualMachine {name} is not set to run"
                    );
                }
                bail!("Error pausing VirtualMachineInstance {name}, it was not found");
            }
            (Err(error), _) => {
                let context = format!("Error pausing VirtualMachineInstance {name}");
                return Err(session::plain(error).context(context));
            }
        }
        Ok(())
    }

    /// Lets the guest's CPUs run again.
    pub(crate) async fn unpause(&self, session: &Session) -> anyhow::Result<()> {
        let (kind, name) = (kind(&self.kind)?, &self.name);
        let body = UnpauseOptions { dry_run: dry_run(self.dry_run) };
        if kind == Kind::Machine {
            machine(session, name).await?;
        }
        put(session, name, "unpause", &body)
            .await
            .map_err(session::plain)
            .with_context(|| format!("Error unpausing VirtualMachineInstance {name}"))?;
        println!("VMI {name} was scheduled to unpause");
        Ok(())
    }
}

/// Arguments of commands on one instance.
#[derive(Debug, Args)]
pub(crate) struct Instance {
    /// Name of the virtual machine instance.
    vmi: String,
}

impl Instance {
    /// Asks the guest to reboot.
    pub(crate) async fn soft_reboot(&self, session: &Session) -> anyhow::Result<()> {
        let vmi = &self.vmi;
        put(session, vmi, "softreboot", &())
            .await
            .map_err(session::plain)
            .with_context(|| format!("Error soft rebooting VirtualMachineInstance {vmi}"))?;
        println!("VMI {vmi} was scheduled to soft-reboot");
        Ok(())
    }

    /// Presses the reset button.
    pub(crate) async fn reset(&self, session: &Session) -> anyhow::Result<()> {
        let vmi = &self.vmi;
        put(session, vmi, "reset", &())
            .await
            .map_err(session::plain)
            .with_context(|| format!("Error reseting VirtualMachineInstance {vmi}"))?;
        println!("VMI {vmi} was scheduled to reset");
        Ok(())
    }

    /// Prints the guest agent's report about the guest.
    pub(crate) async fn guest_os_info(&self, session: &Session) -> anyhow::Result<()> {
        let context = || format!("Error getting guestosinfo of VirtualMachineInstance {}", self.vmi);
        println!("{}", self.get(session, "guestosinfo").await.with_context(context)?);
        Ok(())
    }

    /// Prints the users who are logged in.
    pub(crate) async fn user_list(&self, session: &Session) -> anyhow::Result<()> {
        let context = || format!("Error listing users of VirtualMachineInstance {}", self.vmi);
        println!("{}", self.get(session, "userlist").await.with_context(context)?);
        Ok(())
    }

    /// Prints the mounted file systems.
    pub(crate) async fn fs_list(&self, session: &Session) -> anyhow::Result<()> {
        let context = || format!("Error listing filesystems of VirtualMachineInstance {}", self.vmi);
        println!("{}", self.get(session, "filesystemlist").await.with_context(context)?);
        Ok(())
    }

    async fn get(&self, session: &Session, what: &str) -> anyhow::Result<String> {
        let path = session::path(&session.namespace, INSTANCES, &self.vmi, what);
        let told: Value = session.call_json(Method::GET, path, &()).await?;
        Ok(plain_text(&serde_json::to_string_pretty(&told)?))
    }
}

/// Text from a guest, without control characters that would act on the terminal. JSON's own escapes cover
/// most of them.
fn plain_text(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    for c in json.chars() {
        if c.is_control() && c != '\n' {
            // Writing into a string cannot fail.
            let _ = write!(plain, "\\u{:04x}", u32::from(c));
        } else {
            plain.push(c);
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_as_kubectl_has_them() {
        for word in ["vm", "VM", "virtualmachines"] {
            assert_eq!(kind(word).unwrap(), Kind::Machine);
        }
        for word in ["vmi", "VirtualMachineInstance", "vmis"] {
            assert_eq!(kind(word).unwrap(), Kind::Instance);
        }
        assert_eq!(kind("pod").unwrap_err().to_string(), "unsupported resource type: pod");
    }

    #[test]
    fn a_guest_s_words_do_not_act_on_a_terminal() {
        assert_eq!(plain_text("{\n  \"a\": \"\u{9b}31mü\"\n}"), "{\n  \"a\": \"\\u009b31mü\"\n}");
    }
}
