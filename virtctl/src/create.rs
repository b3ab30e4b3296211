//! create: manifests for `kubectl create -f -`, made without a cluster.

mod clone;
mod instancetype;
mod params;
mod preference;
mod vm;

use clap::{Args, FromArgMatches, Subcommand};
use serde_json::Value;

/// Arguments of `virtctl create`.
#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Create a VirtualMachine manifest.
    Vm(Box<vm::Vm>),
    /// Create a VirtualMachineInstancetype or VirtualMachineClusterInstancetype manifest.
    Instancetype(instancetype::Instancetype),
    /// Create a VirtualMachinePreference or VirtualMachineClusterPreference manifest.
    Preference(preference::Preference),
    /// Create a VirtualMachineClone manifest.
    Clone(clone::Clone),
}

impl Create {
    /// Prints the manifest; `namespace` is the requested one, if any.
    pub(crate) fn run(&self, namespace: Option<&str>) -> anyhow::Result<()> {
        let manifest = match &self.command {
            Command::Vm(vm) => vm.manifest(namespace)?,
            Command::Instancetype(instancetype) => instancetype.manifest(namespace)?,
            Command::Preference(preference) => preference.manifest(namespace)?,
            Command::Clone(clone) => clone.manifest(namespace)?,
        };
        print!("{manifest}");
        Ok(())
    }
}

/// The manifest that `virtctl create vm` prints for these flags, and its warnings.
pub(crate) fn machine(flags: &[String], namespace: &str) -> anyhow::Result<(Value, Vec<String>)> {
    let command = vm::Vm::augment_args(clap::Command::new("form").no_binary_name(true));
    let (vm, warnings) =
        vm::Vm::from_arg_matches(&command.try_get_matches_from(flags)?)?.made(Some(namespace))?;
    Ok((serde_json::to_value(vm)?, warnings))
}
