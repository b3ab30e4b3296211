//! KubeVirt's commands that are not supported yet: each says what is missing, and fails.

use anyhow::bail;
use clap::Args;

/// Any arguments.
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Missing {
    /// The arguments as KubeVirt's virtctl takes them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

impl Missing {
    /// Fails with the name of the command and what it needs.
    pub(crate) fn run(&self, command: &str, needs: &str) -> anyhow::Result<()> {
        bail!("virtctl {command} is not supported yet: {needs}")
    }
}
