//! Queries a QEMU without a machine, and ends it.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use barevirt_qmp::newer::QueryCpuModelExpansion;
use barevirt_qmp::qapi::qmp::{self, CpuModelExpansionType, CpuModelInfo};
use barevirt_qmp::{Deadline, Error, Options, Qmp};
use tokio::net::UnixStream;

use super::answers::Answers;
use crate::accelerator::processor_virtualises;
use crate::bare_qemu::{self, BareQemu, StartError};

/// Time limit for all queries. They take a tenth of a second.
const WITHIN: Duration = Duration::from_secs(30);

/// The accelerator that runs a guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// KVM.
    Kvm,
    /// Emulation.
    Tcg,
}

impl Accelerator {
    /// QEMU's name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Accelerator::Kvm => "kvm",
            Accelerator::Tcg => "tcg",
        }
    }

    /// Accelerators that may work here, the best first.
    #[must_use]
    pub fn candidates() -> Vec<Self> {
        let kvm = File::options().read(true).write(true).open("/dev/kvm").is_ok() && processor_virtualises();
        if kvm { vec![Accelerator::Kvm, Accelerator::Tcg] } else { vec![Accelerator::Tcg] }
    }

    /// The model with all features of the accelerator.
    fn host(self) -> &'static str {
        match self {
            Accelerator::Kvm => "host",
            Accelerator::Tcg => "max",
        }
    }
}

/// Why QEMU gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It has ended, refused a query, or its answer has another form.
    #[error("cannot ask QEMU{said}")]
    Qmp {
        /// Its last output, after a colon.
        said: String,
        /// The error of the monitor.
        source: Error,
    },
}

/// Queries QEMU's features with this accelerator.
///
/// # Errors
/// If it does not start, or does not answer in time.
pub async fn ask(qemu: &Path, accelerator: Accelerator) -> Result<Answers, AskError> {
    let kind = match accelerator {
        Accelerator::Kvm => bare_qemu::Accelerator::Kvm(None),
        Accelerator::Tcg => bare_qemu::Accelerator::Tcg,
    };
    let (qemu, monitor) = BareQemu::start(qemu, kind)?;
    let by = Deadline::after(WITHIN);
    let answers = questions(monitor, accelerator, by).await;
    let last = qemu.end().await;
    answers.map_err(|source| {
        let said = if last.is_empty() { String::new() } else { format!(", which said: {last}") };
        AskError::Qmp { said, source }
    })
}

async fn questions(monitor: UnixStream, accelerator: Accelerator, by: Deadline) -> Result<Answers, Error> {
    let (qmp, _events) = Qmp::open(monitor, Options::default(), by).await?;
    let expand = async |name: &str| {
        let model = CpuModelInfo { name: name.to_owned(), props: None };
        let question = QueryCpuModelExpansion { kind: CpuModelExpansionType::full, model };
        qmp.execute(question, by).await.map(|expansion| expansion.model)
    };
    let mut answers = Answers {
        accelerator: accelerator.name().to_owned(),
        definitions: qmp.execute_list(qmp::query_cpu_definitions {}, by).await?,
        machines: qmp.execute_list(qmp::query_machines { compat_props: None }, by).await?,
        host: expand(accelerator.host()).await?,
        models: BTreeMap::new(),
        // QEMU refuses this command if there is none.
        sev: qmp.execute(qmp::query_sev_capabilities {}, by).await.is_ok(),
    };
    for name in answers.candidates() {
        answers.models.insert(name.clone(), expand(&name).await?);
    }
    Ok(answers)
}
