//! KubeVirt's commands that are not supported yet: hidden from the list; each says what is missing, and since which version
//! KubeVirt has it, and fails.

use anyhow::bail;
use barevirt_api::release;
use clap::Args;

/// Versions of KubeVirt whose virtctl was the first with the command.
pub(crate) mod since {
    pub(crate) const MEMORY_DUMP: &str = "v0.54";
    pub(crate) const VM_EXPORT: &str = "v0.58";
    pub(crate) const GUESTFS: &str = "v0.44";
    pub(crate) const TEMPLATE: &str = "v1.8";
}

/// The end of the command's help.
pub(crate) fn help(since: &str) -> String {
    format!("KubeVirt has this command since {since}. Barevirt {} does not have it.", release::tag())
}

/// Any arguments.
#[derive(Debug, Args)]
pub(crate) struct Missing {
    /// The arguments as KubeVirt's virtctl takes them.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    arguments: Vec<String>,
}

impl Missing {
    /// Fails with the name of the command, what it needs, and since when KubeVirt has it. A request for help after other
    /// arguments prints the same, and is not a failure.
    pub(crate) fn run(&self, command: &str, needs: &str, since: &str) -> anyhow::Result<()> {
        let says = format!("virtctl {command} is not supported yet: {needs}. {}", help(since));
        if self.arguments.iter().any(|word| word == "--help" || word == "-h") {
            println!("{says}");
            return Ok(());
        }
        bail!("{says}")
    }
}
