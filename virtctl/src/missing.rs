//! KubeVirt's commands that are not supported yet: hidden from the list; each says what is missing, and fails.

use anyhow::bail;
use clap::Args;

/// Any arguments.
#[derive(Debug, Args)]
pub(crate) struct Missing {
    /// The arguments as KubeVirt's virtctl takes them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<String>,
}

impl Missing {
    /// Fails with the name of the command and what it needs. A request for help after other arguments prints
    /// the same, and is not a failure.
    pub(crate) fn run(&self, command: &str, needs: &str) -> anyhow::Result<()> {
        let says = format!("virtctl {command} is not supported yet: {needs}");
        if self.arguments.iter().any(|word| word == "--help" || word == "-h") {
            println!("{says}");
            return Ok(());
        }
        bail!("{says}")
    }
}
