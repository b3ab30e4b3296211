//! explain: what a manifest leads to, without a cluster; and what a VM that runs was made of.
//!
//! Defaults, validation, the launcher pod and QEMU's command line are planned by the very code that virt-api, virt-controller
//! and virt-launcher plan with.

mod explained;
mod manifests;
mod marked;
mod print;
mod running;
mod started;

use std::path::PathBuf;

use anyhow::bail;
use barevirt_api::settings::Settings;
use barevirt_plan::config::Config;
use clap::{ArgGroup, Args, ValueEnum};
use k8s_openapi::jiff::Timestamp;

use crate::session::Connection;
use crate::yaml::Format;
use explained::{Explained, Surroundings};
pub(crate) use manifests::Manifests;

/// Arguments of `virtctl explain`.
#[derive(Debug, Args)]
#[command(
    group = ArgGroup::new("what").required(true).args(["files", "words"]),
    after_help = "Examples:\n  \
        # What a manifest leads to, without a cluster:\n  virtctl explain -f vm.yaml\n  \
        # The same with the instance type that it names and the installation's settings:\n  \
        virtctl explain -f vm.yaml -f instancetype.yaml -f kubevirt.yaml\n  \
        # Only QEMU's command line of a VM that runs, and what of its VM it does not have yet:\n  \
        virtctl explain myvm --show qemu,changes"
)]
pub(crate) struct Explain {
    /// [vm|vmi] NAME: a virtual machine instance of the cluster.
    #[arg(value_name = "VMI", num_args = 1..=2)]
    words: Vec<String>,
    /// Manifest to explain, `-` for standard input; instance types, preferences and the KubeVirt object in it are used.
    #[arg(short = 'f', long = "filename", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Output format; for people where it is left out.
    #[arg(short, long, value_enum)]
    output: Option<Format>,
    /// Parts to print.
    #[arg(long, value_enum, value_delimiter = ',')]
    show: Vec<Section>,
    /// Plan for emulation, whatever the KubeVirt object says.
    #[arg(long)]
    emulation: bool,
    /// Image of the launcher.
    #[arg(long, value_name = "IMAGE", default_value = "virt-launcher")]
    launcher_image: String,
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
    /// What differs from what runs.
    Changes,
}

impl Explain {
    /// Explains; fails where something would be refused.
    pub(crate) async fn run(&self, connection: &Connection) -> anyhow::Result<()> {
        if self.files.is_empty() {
            return running::explain(self, &connection.open().await?).await;
        }
        let manifests = Manifests::load(&self.files)?;
        let around = self.surroundings(&manifests, connection.asked_namespace());
        let all: Vec<Explained> = manifests
            .subjects
            .iter()
            .map(|subject| explained::explain(subject, &around, |vm| manifests.lookups(vm)))
            .collect();
        match self.output {
            // One object for one, a list for several.
            Some(format) => match all.as_slice() {
                [one] => print!("{}", format.text(one)?),
                several => print!("{}", format.text(&several)?),
            },
            None => {
                print!(
                    "{}",
                    all.iter().map(|one| print::text(one, &self.show)).collect::<Vec<_>>().join("\n")
                );
            }
        }
        if !manifests.others.is_empty() {
            eprintln!("Nothing is said about {}.", manifests.others.join(", "));
        }
        let refused: Vec<&str> =
            all.iter().filter(|one| !one.causes.is_empty()).map(|one| one.name.as_str()).collect();
        if !refused.is_empty() {
            bail!("would be refused, see the causes: {}", refused.join(", "));
        }
        Ok(())
    }

    fn surroundings(&self, manifests: &Manifests, namespace: Option<&str>) -> Surroundings {
        let mut settings = Settings::from_kubevirt(manifests.kubevirt.as_ref().map(|object| &object.spec));
        settings.use_emulation |= self.emulation;
        let config =
            Config { launcher_image: self.launcher_image.clone(), image_pull_policy: None, settings };
        // Nothing is known of its namespace.
        let config = config.in_namespace(None, &[]);
        Surroundings { config, namespace: namespace.map(str::to_owned), now: Timestamp::now() }
    }

    /// The name of what is explained.
    fn name(&self) -> anyhow::Result<&str> {
        let (kind, name) = match self.words.as_slice() {
            [kind, name] => (Some(kind.as_str()), name.as_str()),
            [word] => word.split_once('/').map_or((None, word.as_str()), |(kind, name)| (Some(kind), name)),
            _ => bail!("expected [vm|vmi] NAME"),
        };
        match kind {
            // A machine and its instance have one name.
            Some(kind) if crate::session::Kind::parse(kind).is_none() => {
                bail!("unsupported resource type: {kind}")
            }
            _ => Ok(name),
        }
    }
}
