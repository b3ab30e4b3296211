//! The command line of `virtctl explain`, and what it says about the installation.

use std::path::PathBuf;

use anyhow::bail;
use barevirt_api::settings::Settings;
use barevirt_plan::config::Config;
use clap::{ArgGroup, Args, ValueEnum};
use k8s_openapi::jiff::Timestamp;

use super::explained::ExplainContext;
use super::manifests::Manifests;
use crate::yaml::Format;

/// Arguments of `virtctl explain`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("what").required(true).args(["files", "words"]),
    after_help = "Examples:\n  \
        # What a manifest results in, without a cluster:\n  virtctl explain -f vm.yaml\n  \
        # The same with the instance type that it names and the installation's settings:\n  \
        virtctl explain -f vm.yaml -f instancetype.yaml -f kubevirt.yaml\n  \
        # Only QEMU's command line of a VM that runs, and what of its VM it does not have yet:\n  \
        virtctl explain myvm --show qemu,changes\n  \
        # How a migration goes, and what limits it:\n  virtctl explain vmim mymigration"
)]
pub(crate) struct Explain {
    /// [vm|vmi|vmim] NAME: a virtual machine instance of the cluster, or a migration.
    #[arg(value_name = "NAME", num_args = 1..=2)]
    pub(super) words: Vec<String>,
    /// Manifest to explain, `-` for standard input; instance types, preferences and the KubeVirt object in it are used.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    pub(super) files: Vec<PathBuf>,
    /// Output format; readable text by default.
    #[arg(short, long, value_enum)]
    pub(super) output: Option<Format>,
    /// Parts to print.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub(super) show: Vec<Section>,
    /// Plan for emulation, whatever the KubeVirt object says.
    #[arg(long)]
    pub(super) emulation: bool,
    /// Image of the launcher.
    #[arg(long, value_name = "IMAGE", default_value = "virt-launcher")]
    pub(super) launcher_image: String,
}

/// Spellings of the kind of migrations, in small letters.
const MIGRATIONS: [&str; 4] =
    ["vmim", "vmims", "virtualmachineinstancemigration", "virtualmachineinstancemigrations"];

/// An object of the cluster.
#[derive(Debug)]
pub(super) enum Subject<'a> {
    /// An instance, by name.
    Instance(&'a str),
    /// A migration, by name.
    Migration(&'a str),
}

/// The configuration of a virt-controller with these settings and this image of the launcher. The image of passt, which
/// only the installation knows, is shown as its name.
pub(super) fn config(launcher_image: String, mut settings: Settings) -> Config {
    settings.pods.passt_image = Some("virt-passt".to_owned());
    Config { launcher_image, image_pull_policy: None, settings }
}

/// A part of what is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Section {
    /// The specification with defaults.
    Spec,
    /// The launcher pod.
    Pod,
    /// QEMU's command line.
    Qemu,
    /// Memory and CPUs.
    Resources,
    /// Differences from the running instance.
    Changes,
}

impl Explain {
    pub(super) fn context(&self, manifests: &Manifests, namespace: Option<&str>) -> ExplainContext {
        let mut settings = Settings::from_kubevirt(manifests.kubevirt.as_ref().map(|object| &object.spec));
        settings.use_emulation |= self.emulation;
        let config = config(self.launcher_image.clone(), settings);
        // The labels and quotas of the namespace are not known.
        let config = config.in_namespace(None, &[]);
        ExplainContext { config, namespace: namespace.map(str::to_owned), now: Timestamp::now() }
    }

    /// The object of the cluster that is explained.
    pub(super) fn subject(&self) -> anyhow::Result<Subject<'_>> {
        let (kind, name) = match self.words.as_slice() {
            [kind, name] => (Some(kind.as_str()), name.as_str()),
            [word] => word.split_once('/').map_or((None, word.as_str()), |(kind, name)| (Some(kind), name)),
            _ => bail!("expected [vm|vmi|vmim] NAME"),
        };
        match kind {
            Some(kind) if MIGRATIONS.contains(&kind.to_lowercase().as_str()) => Ok(Subject::Migration(name)),
            // A machine and its instance have the same name.
            Some(kind) if crate::session::Kind::parse(kind).is_none() => {
                bail!("unsupported resource type: {kind}")
            }
            _ => Ok(Subject::Instance(name)),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        explain: Explain,
    }

    #[test]
    fn the_subject_is_named_with_or_without_its_kind() {
        let subject = |words: &[&str]| {
            let command = Command::parse_from([&["explain"], words].concat());
            command.explain.subject().map(|subject| format!("{subject:?}")).map_err(|error| error.to_string())
        };
        assert_eq!(subject(&["web"]).unwrap(), r#"Instance("web")"#);
        assert_eq!(subject(&["vm/web"]).unwrap(), r#"Instance("web")"#);
        assert_eq!(subject(&["vmim", "move"]).unwrap(), r#"Migration("move")"#);
        assert_eq!(subject(&["VirtualMachineInstanceMigration/move"]).unwrap(), r#"Migration("move")"#);
        assert_eq!(subject(&["pod", "web"]).unwrap_err(), "unsupported resource type: pod");
    }
}
