//! start, stop, restart.
//!
//! Switches work as in cobra: `--force`, `--force=true` and `--force=false` all work.

use anyhow::bail;
use barevirt_api::v1::{RestartOptions, StartOptions, StopOptions};
use clap::Args;
use http::Method;
use serde::Serialize;

use crate::session::{self, Session, dry_run};

/// Calls the subresource; every command of this file uses it.
async fn put(session: &Session, vm: &str, command: &str, body: &impl Serialize) -> anyhow::Result<()> {
    let path = session::path(&session.namespace, "virtualmachines", vm, command);
    session.call(Method::PUT, path, body).await.map_err(session::plain)?;
    println!("VM {vm} was scheduled to {command}");
    Ok(())
}

/// Arguments of `virtctl start`.
#[derive(Debug, Args)]
pub(crate) struct Start {
    /// Name of the virtual machine.
    vm: String,
    /// Start with the guest's CPUs stopped.
    #[arg(long)]
    paused: bool,
    /// Only check whether the change is possible.
    #[arg(long)]
    dry_run: bool,
}

impl Start {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let options = StartOptions { paused: self.paused.then_some(true), dry_run: dry_run(self.dry_run) };
        put(session, &self.vm, "start", &options)
            .await
            .map_err(|error| error.context(format!("error starting VirtualMachine {}", self.vm)))
    }
}

/// Arguments of `virtctl stop`.
#[derive(Debug, Args)]
pub(crate) struct Stop {
    /// Name of the virtual machine.
    vm: String,
    /// Use with --grace-period: give the guest that time instead of what its spec says.
    #[arg(long)]
    force: bool,
    /// Seconds the guest is given to shut down; needs --force.
    #[arg(long, allow_negative_numbers = true)]
    grace_period: Option<i64>,
    /// Only check whether the change is possible.
    #[arg(long)]
    dry_run: bool,
}

/// `--force` and `--grace-period` only go together.
fn forced(force: bool, grace_period: Option<i64>) -> anyhow::Result<Option<i64>> {
    if force != grace_period.is_some() {
        bail!("Must both use --force=true and set --grace-period.");
    }
    Ok(grace_period)
}

impl Stop {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let grace_period = forced(self.force, self.grace_period)?;
        let options = StopOptions { grace_period, dry_run: dry_run(self.dry_run) };
        put(session, &self.vm, "stop", &options)
            .await
            .map_err(|error| error.context(format!("error stopping VirtualMachine {}", self.vm)))
    }
}

/// Arguments of `virtctl restart`.
#[derive(Debug, Args)]
pub(crate) struct Restart {
    /// Name of the virtual machine.
    vm: String,
    /// Use with --grace-period=0: end the guest at once.
    #[arg(long)]
    force: bool,
    /// Seconds the guest is given to shut down; only 0, and needs --force.
    #[arg(long, allow_negative_numbers = true)]
    grace_period: Option<i64>,
    /// Only check whether the change is possible.
    #[arg(long)]
    dry_run: bool,
}

impl Restart {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let grace_period_seconds = forced(self.force, self.grace_period)?;
        let options = RestartOptions { grace_period_seconds, dry_run: dry_run(self.dry_run) };
        let error_text = if self.force {
            "error force restarting VirtualMachine"
        } else {
            "error restarting VirtualMachine"
        };
        put(session, &self.vm, "restart", &options).await.map_err(|error| error.context(error_text))
    }
}
