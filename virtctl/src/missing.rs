//! Commands of KubeVirt's that have nothing behind them yet: each says what is missing, and fails.

use anyhow::bail;
use clap::Args;

/// Anything that the command would take.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Missing {
    /// As KubeVirt's virtctl has them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Missing {
    /// Fails, naming the command and what it would need.
    pub(crate) fn run(&self, command: &str, needs: &str) -> anyhow::Result<()> {
        bail!("virtctl {command} is not supported yet: {needs}")
    }
}
