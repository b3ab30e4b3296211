//! Asks a QEMU without a machine which CPU features a guest can have here, if the manifest needs to know.
//!
//! This takes some forty milliseconds. Only machines with KVM and the model `host-model`, with a named model,
//! or with their own CPU features need it.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use barevirt_machine::{Accelerator, CpuQuestion, HostCpu};
use barevirt_qmp::newer::QueryCpuModelExpansion;
use barevirt_qmp::qapi::{Dictionary, qmp};
use barevirt_qmp::{Deadline, Error, Options, Qmp};
use tokio::net::UnixStream;

use crate::bare_qemu::{self, BareQemu, StartError};

/// Time limit for all queries.
const WITHIN: Duration = Duration::from_secs(30);

/// Why QEMU gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum HostCpuError {
    /// It does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It ended, or refused a query.
    #[error("QEMU did not report what its CPUs support: {source}{said}")]
    Qmp {
        /// Its last output.
        said: String,
        /// The error of the query.
        source: Error,
    },
}

/// Queries QEMU. `kvm` is /dev/kvm as this process got it; with KVM, QEMU opens the device itself if there is
/// none.
///
/// # Errors
/// If QEMU does not start or does not answer.
pub async fn ask(
    qemu: &Path,
    accelerator: &Accelerator,
    kvm: Option<OwnedFd>,
    question: &CpuQuestion,
) -> Result<HostCpu, HostCpuError> {
    let accelerator = match accelerator {
        Accelerator::Tcg { .. } => bare_qemu::Accelerator::Tcg,
        Accelerator::Kvm { .. } => bare_qemu::Accelerator::Kvm(kvm),
    };
    let (qemu, monitor) = BareQemu::start(qemu, accelerator)?;
    let answers = questions(monitor, question).await;
    let last = qemu.end().await;
    answers.map_err(|source| {
        let said = if last.is_empty() { String::new() } else { format!(": {last}") };
        HostCpuError::Qmp { said, source }
    })
}

async fn questions(stream: UnixStream, question: &CpuQuestion) -> Result<HostCpu, Error> {
    let by = Deadline::after(WITHIN);
    let (monitor, _events) = Qmp::open(stream, Options::default(), by).await?;
    let expand = async |props: Option<Dictionary>| {
        let model = qmp::CpuModelInfo { name: question.all.to_owned(), props };
        let expansion = QueryCpuModelExpansion { kind: qmp::CpuModelExpansionType::static_, model };
        monitor.execute(expansion, by).await.map(|expanded| expanded.model.props.unwrap_or_default())
    };
    let model = expand(None).await?;
    // Including features that would prevent a migration.
    let offer = expand(Some([("migratable".to_owned(), false.into())].into_iter().collect())).await?;
    let lacking = match &question.named {
        Some(name) => {
            let models = monitor.execute_list(qmp::query_cpu_definitions {}, by).await?;
            let found = models.into_iter().find(|model| model.name == *name);
            found.map(|model| model.unavailable_features.unwrap_or_default())
        }
        None => None,
    };
    Ok(HostCpu::new(model, offer, lacking))
}
