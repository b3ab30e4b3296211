//! expand: a machine with its instance type and preference applied.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use http::Method;
use serde_json::Value;

use crate::session::{self, Session};
use crate::yaml::Format;

/// Arguments of `virtctl expand`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # The machine 'myvm':\n  virtctl expand --vm myvm\n\n  \
    # The machine of a file, or of standard input:\n  virtctl expand --file myvm.yaml\n  virtctl expand --file -\n\n  \
    # As JSON:\n  virtctl expand --vm myvm --output json")]
pub(crate) struct Expand {
    /// Name of the virtual machine.
    #[arg(long, required_unless_present = "file", conflicts_with = "file")]
    vm: Option<String>,
    /// File with a virtual machine; '-' for standard input.
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// Format of the output.
    #[arg(short, long, default_value = "yaml")]
    output: Format,
}

impl Expand {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let namespace = &session.namespace;
        let (name, expanded) = match (&self.vm, &self.file) {
            (Some(name), _) => {
                let path = session::path(namespace, "virtualmachines", name, "expand-spec");
                (name.clone(), session.call_json(Method::GET, path, &()).await)
            }
            (None, file) => {
                let vm = read(file.as_deref().unwrap_or(Path::new("-")))?;
                let name = vm["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let path = format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/expand-vm-spec");
                (name, session.call_json(Method::PUT, path, &vm).await)
            }
        };
        let context = || format!("error expanding VirtualMachine - {name} in namespace - {namespace}");
        print!("{}", self.output.text(&expanded.with_context(context)?)?);
        Ok(())
    }
}

fn read(path: &Path) -> anyhow::Result<Value> {
    let text = if path.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).context("error reading from stdin")?;
        text
    } else {
        std::fs::read_to_string(path).with_context(|| format!("error reading file {}", path.display()))?
    };
    let options = serde_saphyr::options! { legacy_octal_numbers: true };
    serde_saphyr::from_str_with_options(&text, options).context("error decoding VirtualMachine")
}
