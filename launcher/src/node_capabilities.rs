//! `virt-launcher node-capabilities`: asks QEMU which features guests of this node can have.
//!
//! It runs before virt-handler, in its pod, with this image, because the handler's image has no QEMU. It asks
//! a QEMU without a machine over QMP, with KVM if that works and else without. The answers become a file of
//! [`Capabilities`].
//!
//! ```text
//!   QEMU (-machine none) --QMP--> Answers --Answers::capabilities (pure)--> capabilities.json --> virt-handler's labels
//! ```
//!
//! If QEMU does not answer, the node must keep its handler, because running guests need it. So this program
//! logs the error, leaves no file, and succeeds.

mod answers;
mod ask;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use barevirt_protocol::capabilities::{Capabilities, FILE};

pub use answers::Answers;
pub use ask::{Accelerator, AskError, ask};

/// Command line of `virt-launcher node-capabilities`.
#[derive(Debug, clap::Args)]
#[command(about = "Write the capabilities of this node to a file")]
pub struct Args {
    /// Directory of the file.
    #[arg(long)]
    folder: PathBuf,
    /// QEMU.
    #[arg(long, default_value = "qemu-system-x86_64")]
    qemu: PathBuf,
}

/// Queries QEMU and writes the file; removes an earlier file if there is nothing to write.
///
/// # Errors
/// If the directory cannot be written.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let file = args.folder.join(FILE);
    let Some(capabilities) = found(&args.qemu).await else {
        return match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| format!("cannot remove {}", file.display()))
            }
            _ => Ok(()),
        };
    };
    let text = serde_json::to_vec_pretty(&capabilities).context("cannot write capabilities")?;
    // The file is written atomically.
    let new = file.with_extension("new");
    fs::write(&new, text).with_context(|| format!("cannot write {}", new.display()))?;
    fs::rename(&new, &file).with_context(|| format!("cannot write {}", file.display()))?;
    tracing::info!(
        accelerator = capabilities.accelerator,
        models = capabilities.usable_models.len(),
        features = capabilities.features.len(),
        host_model = capabilities.host_model,
        "capabilities written"
    );
    Ok(())
}

async fn found(qemu: &Path) -> Option<Capabilities> {
    for accelerator in Accelerator::candidates() {
        match ask(qemu, accelerator).await {
            Ok(answers) => {
                let mut capabilities = answers.capabilities();
                encryption(&mut capabilities);
                return Some(capabilities);
            }
            Err(error) => {
                let error = anyhow::Error::from(error);
                tracing::warn!(
                    accelerator = accelerator.name(),
                    error = format!("{error:#}"),
                    "QEMU does not report its capabilities"
                );
            }
        }
    }
    None
}

/// Features that QEMU does not report: the generations of memory encryption that the kernel was started with.
fn encryption(capabilities: &mut Capabilities) {
    let on = |module: &str, name: &str| {
        fs::read_to_string(format!("/sys/module/{module}/parameters/{name}"))
            .is_ok_and(|value| matches!(value.trim(), "Y" | "1"))
    };
    capabilities.sev_es = capabilities.sev && on("kvm_amd", "sev_es");
    capabilities.sev_snp = capabilities.sev_es && on("kvm_amd", "sev_snp");
    capabilities.tdx = capabilities.accelerator == "kvm" && on("kvm_intel", "tdx");
}
