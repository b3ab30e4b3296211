//! One task for each VMI on this node; only this task acts on the VM. It observes ([`Task::observe`] and the
//! launcher's statuses), plans ([`plan`]), carries out one step ([`session`]), reports ([`crate::status`]),
//! and starts again.
//!
//! Other tasks only read: the server takes the launcher of a VM from [`Vm::launcher`].

pub mod backoff;
mod kvm;
pub mod launcher_report;
pub mod live;
mod moving;
pub mod panics;
pub mod plan;
mod rate_limits;
mod reporting;
pub mod session;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use barevirt_api::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus};
use barevirt_component::error::chain;
use barevirt_component::installation::Installation;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::runtime::events::Recorder;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tracing::{Instrument, info, info_span, warn};

use self::backoff::Backoff;
pub use self::moving::Migration;
use self::panics::Panics;
use self::plan::{Observed, Step};
use self::rate_limits::RateLimits;
use self::session::Session;
use crate::launchers::Launcher;
use crate::launchers::pods_dir::PodsDir;
use crate::pods::LauncherPod;
use crate::status::{compute, events};

/// Longest time that the API server may take.
const API_DEADLINE: Duration = Duration::from_secs(30);

/// State that all tasks share.
#[derive(Clone)]
pub struct Context {
    /// The API server.
    pub client: Client,
    /// Publishes events.
    pub recorder: Recorder,
    /// The kubelet's pods.
    pub pods: Arc<PodsDir>,
    /// The kubelet's folder, with the state of its CPU manager.
    pub kubelet: PathBuf,
    /// Name of this node.
    pub node: String,
    /// Counts kernels that panic.
    pub panics: Panics,
    /// State for guests that migrate.
    pub migration: Migration,
    /// Settings in force.
    pub installation: Installation,
}

/// What the API server reports about a VM.
#[derive(Debug, Clone)]
pub struct Input {
    /// The VMI.
    pub vmi: Arc<VirtualMachineInstance>,
    /// The launcher pod that it names for this node.
    pub pod: Option<Arc<LauncherPod>>,
}

/// The handle of a VM's task. Dropping it ends the task, but does not affect the guest.
#[derive(Debug)]
pub struct Vm {
    /// What the API server reports.
    pub input: watch::Sender<Input>,
    /// The launcher, while the handler is connected to it.
    pub launcher: watch::Receiver<Option<Launcher>>,
}

/// Starts the task for a VM.
pub fn start(context: Context, input: Input) -> Vm {
    let metadata = &input.vmi.metadata;
    let span = info_span!(
        "vmi",
        namespace = metadata.namespace.as_deref().unwrap_or_default(),
        vmi = metadata.name.as_deref().unwrap_or_default(),
        uid = metadata.uid.as_deref().unwrap_or_default(),
    );
    let (input, inputs) = watch::channel(input);
    let (published, launcher) = watch::channel(None);
    let task = Task {
        context,
        inputs,
        published,
        session: None,
        patched: None,
        steps: Backoff::default(),
        reports: Backoff::default(),
        limits: RateLimits::default(),
    };
    tokio::spawn(task.run().instrument(span));
    Vm { input, launcher }
}

struct Task {
    context: Context,
    inputs: watch::Receiver<Input>,
    published: watch::Sender<Option<Launcher>>,
    session: Option<Session>,
    /// The resource version that was patched, and the VMI in the API server's answer, which for a moment is
    /// newer than the watch.
    patched: Option<(Option<String>, Arc<VirtualMachineInstance>)>,
    /// Backoff of steps on the node.
    steps: Backoff,
    /// Backoff of writes to the API server.
    reports: Backoff,
    /// Rate limits for what the launcher can cause.
    limits: RateLimits,
}

/// The result of one observation.
struct Look {
    vmi: Arc<VirtualMachineInstance>,
    pod: Option<Arc<LauncherPod>>,
    spec_hash: String,
    wanted: VirtualMachineInstanceStatus,
    report: bool,
    step: Step,
}

impl Task {
    async fn run(mut self) {
        loop {
            let now = Instant::now();
            let look = self.observe(now);
            let pace = self.limits.of(&look.step);
            let (acts, paced) = (pace.is_some(), pace.and_then(|bucket| bucket.until(now)));
            if !acts && self.steps.failures() > 0 {
                // The step that failed is no longer needed.
                self.steps.succeeded();
                continue;
            }
            // A step that fails, or was done often, waits for its time; the status is reported meanwhile.
            let retry_step = self.steps.until(now).max(paced);
            let retry_report = self.reports.until(now).max(self.limits.patches.until(now));
            let step = match look.step {
                _ if acts && retry_step.is_some() && look.report => &Step::Report,
                _ if acts && retry_step.is_some() => &Step::Wait,
                ref step => step,
            };
            let step =
                if *step == Step::Report && retry_report.is_some() { Step::Wait } else { step.clone() };
            if step == Step::Wait {
                let retry_cards = self.session.as_ref().and_then(|session| session.cards_until(now));
                let until = [retry_step, retry_report, retry_cards].into_iter().flatten().min();
                if !self.wait(until).await {
                    return;
                }
                continue;
            }
            self.carry_out(look, step).await;
        }
    }

    async fn carry_out(&mut self, look: Look, step: Step) {
        let reports = step == Step::Report;
        // A failing connection has its backoff; successful ones are counted here.
        if !matches!(step, Step::Connect(_))
            && let Some(bucket) = self.limits.of(&step)
        {
            bucket.take(Instant::now());
        }
        let name = format!("{step:?}");
        let result = self.apply(look, step).await;
        let backoff = if reports { &mut self.reports } else { &mut self.steps };
        let Err(error) = result else { return backoff.succeeded() };
        let message = chain(&error);
        if let Some(failures) = backoff.failed(message.clone(), Instant::now()) {
            warn!(step = name, failures, error = message, "step fails");
        }
    }

    /// Observes, computes the status and plans the next step.
    fn observe(&mut self, now: Instant) -> Look {
        let Input { vmi, pod } = self.inputs.borrow_and_update().clone();
        let vmi = match &self.patched {
            Some((before, after)) if *before == vmi.metadata.resource_version => Arc::clone(after),
            _ => vmi,
        };
        let spec_hash = live::hash(&vmi);
        let report = self.session.as_ref().map(Session::report);
        let status = report.as_ref().and_then(|report| report.status.as_ref());
        let seen = compute::LauncherView {
            bindings: &self.context.bindings(),
            launcher: status,
            interfaces: self.session.as_ref().and_then(Session::interfaces),
            failure: self.steps.failure(now).or_else(|| self.session.as_ref()?.cards_failure(now)),
            is_current: match (&self.session, &report) {
                (Some(session), Some(report)) => session.is_current(&spec_hash, report),
                _ => false,
            },
            readiness: pod.as_deref().and_then(|pod| pod.readiness.as_ref()),
        };
        let wanted = self.wanted(&vmi, pod.as_deref(), seen, &Time(Timestamp::now()));
        let session = match (&self.session, &report) {
            (Some(session), Some(report)) => Some(session.view(report, &vmi, self.is_here(&vmi), now)),
            _ => None,
        };
        let report = vmi.status.as_ref() != Some(&wanted);
        let step = plan::plan(Observed {
            vmi: &vmi,
            spec_hash: &spec_hash,
            pod: pod.as_deref(),
            node: &self.context.node,
            session,
            report,
        });
        Look { vmi, pod, spec_hash, wanted, report, step }
    }

    /// Whether the guest is on this node already, and not yet to arrive.
    fn is_here(&self, vmi: &VirtualMachineInstance) -> bool {
        let node = vmi.status.as_ref().and_then(|status| status.node_name.as_deref());
        node == Some(self.context.node.as_str())
    }

    /// Waits for a change at the API server or the launcher, or for the time of a retry. Returns whether to
    /// go on.
    async fn wait(&mut self, until: Option<Instant>) -> bool {
        let report = async {
            match &mut self.session {
                Some(session) => session.wait_for_report().await,
                None => std::future::pending().await,
            }
        };
        let retry = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = self.inputs.changed() => changed.is_ok(),
            () = report => true,
            () = retry => true,
        }
    }

    async fn apply(&mut self, look: Look, step: Step) -> Result<(), TaskError> {
        let Look { vmi, pod, spec_hash, wanted, .. } = look;
        match step {
            Step::Wait => {}
            Step::Disconnect => {
                self.session = None;
                self.published.send_replace(None);
                info!("launcher disconnected");
            }
            Step::Connect(container) => {
                let session = Session::open(&self.context.pods, &container).await?;
                self.limits.connections.take(Instant::now());
                info!(pod = container.pod_uid, pid = session.launcher().peer().pid(), "launcher found");
                self.published.send_replace(Some(session.launcher().clone()));
                self.session = Some(session);
            }
            Step::Prepare => {
                // The plan has this step only with a session, and a session only exists with its pod.
                let here = self.is_here(&vmi);
                let bindings = self.context.bindings_for(&vmi).await;
                let (Some(session), Some(pod)) = (&mut self.session, pod) else { return Ok(()) };
                // A card that is plugged while the guest gets CPUs has the queues of those that it has.
                let vmi = live::granted(&vmi);
                let done = session.prepare(&vmi, &pod, here, &bindings).await?;
                if done > 0 {
                    info!(done, "network prepared");
                }
            }
            Step::Sync => {
                let Some(session) = &mut self.session else { return Ok(()) };
                session.sync(&live::granted(&vmi), &spec_hash).await?;
                info!(revision = vmi.metadata.generation, "launcher got the specification");
            }
            Step::RealTime { qemu } => {
                let Some(session) = &mut self.session else { return Ok(()) };
                let count = session.make_real_time(&vmi, qemu, &self.context.kubelet).await?;
                info!(count, "virtual CPUs are realtime");
            }
            Step::Plug(disks) => {
                let Some(session) = &mut self.session else { return Ok(()) };
                session.plug(&self.context.pods, &vmi, &disks).await?;
                info!(count = disks.len(), "disks handed over");
            }
            Step::Shutdown { grace } => {
                let Some(session) = &mut self.session else { return Ok(()) };
                let first = session.shutdown(grace).await?;
                info!(grace, "launcher got the order to shut the guest down");
                if first {
                    self.publish(&vmi, vec![events::shutting_down()]).await;
                }
            }
            Step::Await { uid } => {
                let Some(session) = &mut self.session else { return Ok(()) };
                let arrivals = &self.context.migration.arrivals;
                session.await_guest(&live::granted(&vmi), &spec_hash, &uid, arrivals).await?;
                info!(migration = uid, "launcher got the order to receive the guest from another node");
            }
            Step::Claim { uid, source } => self.claim(&vmi, &uid, &source).await?,
            Step::Orphan { uid, source } => self.orphan(&vmi, &uid, &source).await?,
            Step::Abandon { uid, source } => self.abandon(&vmi, &uid, &source).await?,
            Step::Move(step) => {
                let Some(session) = &mut self.session else { return Ok(()) };
                let name = format!("{step:?}");
                let told = session.make_move(&vmi, step, &self.context.migration.own).await?;
                if !told.is_empty() {
                    self.publish(&vmi, told).await;
                }
                info!(step = name, "migration");
            }
            Step::ReportFailedPings(count) => {
                self.publish(&vmi, vec![events::ping_failed(&vmi)]).await;
                if let Some(session) = &mut self.session {
                    session.set_reported_failed_pings(count);
                }
            }
            Step::Report => self.report(&vmi, &wanted).await?,
        }
        Ok(())
    }
}

/// Why a step of the task failed.
#[derive(Debug, thiserror::Error)]
enum TaskError {
    /// A step with the launcher or on the node failed.
    #[error(transparent)]
    Step(#[from] session::StepError),
    /// The API server refused. A conflict only means that another client wrote first.
    #[error("patch status")]
    Api(#[source] Box<kube::Error>),
    /// The complete guest is on this node, but its source has neither let it run nor ended.
    #[error("the guest is here, but its source has not released it")]
    Source,
    /// The migration is cancelled, and its source has neither ended it nor ended itself.
    #[error("the migration is cancelled, but its source still runs")]
    NotCancelled,
    /// The API server did not answer.
    #[error("patch status: the API server did not answer in time")]
    ApiDeadline,
}
