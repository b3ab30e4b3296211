//! A connection to a launcher, and what was done over it so far.

mod moves;
mod prepare;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::time::Duration;

use barevirt_api::v1::VirtualMachineInstance;
use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::Cause;
use barevirt_api::vcpu_mask::VcpuMask;
use barevirt_component::error::chain;
use barevirt_protocol::names::HotDisk;
use barevirt_protocol::v1::{Facts, SyncRequest};
use futures::future::join_all;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};

use super::backoff::Backoff;
use super::launcher_report::{LauncherReport, listen};
use super::{kvm, plan};
use crate::exclusive;
use crate::launchers::cgroup::Container;
use crate::launchers::peer::PeerError;
use crate::launchers::pods_dir::PodsDir;
use crate::launchers::{self, Launcher, LauncherError, attachment};
use crate::migration::arrivals::Entry;
use crate::migration::call::CallError;
use crate::network::NetworkError;
use crate::network::guest::{self, Due, InterfaceError};
use crate::network::sriov::NotAttached;
use crate::real_time::{self, RealTimeError};
use crate::status::interfaces::Interface;

/// Memory that may be locked in addition to the guest's: devices' memory that is mapped for other devices,
/// and firmware. The number is KubeVirt's.
const MAPPED_BYTES: u64 = 1 << 30;
/// The device for vsock traffic.
const VSOCK_DEVICE: &str = "/dev/vhost-vsock";

/// Longest wait for the launcher to report that it holds what it got.
const REPORT_TIMEOUT: Duration = Duration::from_secs(1);

/// Why a step failed.
#[derive(Debug, Error)]
pub enum StepError {
    /// The launcher was not reached, its process is not the launcher, or it refused.
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    /// A file of the launcher's process could not be opened.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The pod's network could not be prepared.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The interfaces of the spec cannot be set up.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The pod does not have the device of a card yet.
    #[error(transparent)]
    NotAttached(#[from] NotAttached),
    /// The VMI is not valid: it was stored without admission.
    #[error("{0}")]
    Invalid(String),
    /// Emulation is not permitted, and the node has no hardware acceleration.
    #[error("open {}: the node has no hardware acceleration, and emulation is not allowed", kvm::DEVICE)]
    Kvm(#[source] io::Error),
    /// The guest needs vsock, and the node does not support it.
    #[error("open {VSOCK_DEVICE}: the node has no vsock for guests")]
    Vsock(#[source] io::Error),
    /// The VMI cannot be written as JSON.
    #[error("write the instance as json")]
    Json(#[from] serde_json::Error),
    /// A disk could not be handed over.
    #[error("volume {volume} cannot be plugged in")]
    Disk {
        /// The volume.
        volume: String,
        /// Why.
        source: Box<LauncherError>,
    },
    /// Virtual CPUs could not get realtime scheduling.
    #[error(transparent)]
    RealTime(#[from] RealTimeError),
    /// A call to the target of a migration failed.
    #[error(transparent)]
    Target(#[from] CallError),
    /// A volume should move to another claim, but the launcher cannot copy it.
    #[error("volume {0} cannot be copied to its new claim: the launcher does not offer it")]
    NotCopied(String),
    /// There is no connection.
    #[error("there is no connection to the launcher")]
    NotConnected,
}

/// What was prepared for the guest.
#[derive(Debug)]
struct Made {
    facts: Facts,
    /// What had to be done for cards.
    due: Vec<(String, Due)>,
    interfaces: Vec<Interface>,
}

/// A connection to a launcher.
#[derive(Debug)]
pub struct Session {
    launcher: Launcher,
    report: watch::Receiver<LauncherReport>,
    listener: JoinHandle<()>,
    made: Option<Made>,
    /// Backoff of cards that failed while the guest runs.
    cards: Backoff,
    /// Hash of the specification that the launcher has, and its revision number.
    synced: Option<(String, i64)>,
    shutdown: Option<u32>,
    real_time: Option<u32>,
    failed_pings: u64,
    /// The expected guest: UID of its migration, and its entry.
    awaits: Option<(String, Entry)>,
    gone: Option<String>,
    /// Since when the guest of that migration waits for its source.
    waits: Option<(String, Instant)>,
    /// How often a migration could not be started, and why.
    refused: Option<(String, u32, String)>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl Session {
    /// Finds the launcher in `container` and starts to listen to it.
    pub async fn open(pods: &PodsDir, container: &Container) -> Result<Self, StepError> {
        let launcher = launchers::find(pods, container).await?;
        let (first, statuses) = launcher.watch().await?;
        let (sender, report) = watch::channel(LauncherReport::default());
        let listener = tokio::spawn(listen(first, statuses, launcher.clone(), sender));
        Ok(Self {
            launcher,
            report,
            listener,
            made: None,
            cards: Backoff::default(),
            synced: None,
            shutdown: None,
            real_time: None,
            failed_pings: 0,
            awaits: None,
            gone: None,
            waits: None,
            refused: None,
        })
    }

    /// The launcher itself, for consoles and monitors.
    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// The last status and the state of the connection.
    pub fn report(&self) -> LauncherReport {
        self.report.borrow().clone()
    }

    /// Waits until the launcher sends something new. Cancel-safe.
    pub async fn wait_for_report(&mut self) {
        if self.report.changed().await.is_err() {
            // The listener has ended and marked the connection as lost, which the caller sees in `report`.
            std::future::pending::<()>().await;
        }
    }

    /// Gives the requested virtual CPUs of this QEMU realtime scheduling and tells the launcher, which starts
    /// the guest only after that. Returns their number.
    pub async fn make_real_time(
        &mut self,
        vmi: &VirtualMachineInstance,
        qemu: u32,
        kubelet: &Path,
    ) -> Result<usize, StepError> {
        let wanted = vmi.spec.domain.cpu.as_ref().and_then(|cpu| cpu.realtime.as_ref());
        let mask = wanted.and_then(|realtime| realtime.mask.as_deref()).unwrap_or_default();
        let mask = VcpuMask::parse(mask)
            .ok_or_else(|| StepError::Invalid(format!("spec.domain.cpu.realtime.mask: {mask}")))?;
        let (launcher, container) = (self.launcher.peer(), self.launcher.container());
        let own = exclusive::cpus(kubelet, &container.pod_uid);
        let scheduled = real_time::schedule(launcher, container, qemu, &mask, &own);
        let refusal = scheduled.as_ref().err().map(|error| chain(error)).unwrap_or_default();
        let told = self.launcher.real_time(qemu, refusal).await;
        let count = scheduled?;
        told?;
        self.real_time = Some(qemu);
        Ok(count)
    }

    /// The session in the form that the plan uses.
    pub fn view<'a>(
        &'a self,
        report: &'a LauncherReport,
        vmi: &VirtualMachineInstance,
        here: bool,
        now: Instant,
    ) -> plan::Session<'a> {
        let again = self.cards.failures() > 0 && self.cards_until(now).is_none();
        let is_due = |made: &Made| again || made.due != guest::due(vmi, &held(report), here);
        plan::Session {
            status: report.status.as_ref(),
            lost: report.lost,
            prepared: self.made.as_ref().is_some_and(|made| !is_due(made)),
            synced: self.synced.as_ref().map(|(hash, _)| hash.as_str()),
            shutdown: self.shutdown,
            real_time: self.real_time,
            failed_pings: self.failed_pings.max(report.failed_pings_before.unwrap_or_default()),
            awaits: self.awaits.as_ref().map(|(uid, _)| uid.as_str()),
            gone: self.gone.as_deref(),
        }
    }

    /// When failed cards are tried again; `None` if that is not later than `now`.
    pub fn cards_until(&self, now: Instant) -> Option<Instant> {
        self.cards.until(now)
    }

    /// The failed cards and the reason, if the failure has lasted.
    pub fn cards_failure(&self, now: Instant) -> Option<&str> {
        self.cards.failure(now)
    }

    /// Whether the launcher has that specification, and its last status is newer than that.
    pub fn is_current(&self, spec_hash: &str, report: &LauncherReport) -> bool {
        let report = report.status.as_ref().map_or(0, |status| status.observed_revision);
        self.synced.as_ref().is_some_and(|(hash, revision)| hash == spec_hash && report >= *revision)
    }

    /// Records up to which count failed pings were reported.
    pub fn set_reported_failed_pings(&mut self, count: u64) {
        self.failed_pings = count;
    }

    /// The interfaces, once they are prepared.
    pub fn interfaces(&self) -> Option<&[Interface]> {
        self.made.as_ref().map(|made| made.interfaces.as_slice())
    }

    /// Tells the launcher what to run.
    pub async fn sync(&mut self, vmi: &VirtualMachineInstance, spec_hash: &str) -> Result<(), StepError> {
        self.send_sync(vmi, spec_hash, String::new()).await
    }

    async fn send_sync(
        &mut self,
        vmi: &VirtualMachineInstance,
        spec_hash: &str,
        incoming_migration: String,
    ) -> Result<(), StepError> {
        let made = self.made.as_ref().ok_or(StepError::NotConnected)?;
        let request = SyncRequest {
            revision: revision(vmi),
            spec_hash: spec_hash.to_owned(),
            vmi: serde_json::to_vec(vmi)?,
            facts: Some(made.facts.clone()),
            incoming_migration,
        };
        self.launcher.sync(request).await?;
        self.synced = Some((spec_hash.to_owned(), revision(vmi)));
        Ok(())
    }

    /// Hands over disks that their pods offer. A disk that fails does not delay the others.
    pub async fn plug(
        &mut self,
        pods: &PodsDir,
        vmi: &VirtualMachineInstance,
        disks: &[(HotDisk, String)],
    ) -> Result<(), StepError> {
        let hand_over = async |disk: &HotDisk, uid: &str| {
            let opened = attachment::disk(pods, uid).await?;
            let given = [(disk.descriptor(), opened)];
            let outcome = self.launcher.give(revision(vmi), &given).await;
            // Closing a file may block on its storage.
            spawn_blocking(move || drop(given));
            outcome
        };
        let all = disks.iter().map(async |(disk, uid)| {
            let failed = |source| StepError::Disk { volume: disk.volume.clone(), source: Box::new(source) };
            hand_over(disk, uid).await.map_err(failed)
        });
        let outcome: Result<(), StepError> = join_all(all).await.into_iter().collect();
        if outcome.is_ok() {
            // Until the launcher reports that it has them, the plan would repeat the step.
            let has = |report: &LauncherReport| {
                let held =
                    report.status.as_ref().map(|status| status.descriptors.as_slice()).unwrap_or_default();
                report.lost || disks.iter().all(|(disk, _)| held.contains(&disk.descriptor()))
            };
            let _ = timeout(REPORT_TIMEOUT, self.report.clone().wait_for(has)).await;
        }
        outcome
    }

    /// Tells the launcher to shut the guest down within `grace` seconds. Returns whether this was the first time.
    pub async fn shutdown(&mut self, grace: u32) -> Result<bool, StepError> {
        self.launcher.shutdown(grace, "the VirtualMachineInstance is being deleted").await?;
        Ok(self.shutdown.replace(grace).is_none())
    }
}

fn held(report: &LauncherReport) -> BTreeSet<String> {
    report.status.as_ref().map(|status| status.descriptors.iter().cloned().collect()).unwrap_or_default()
}

fn valid(vmi: &VirtualMachineInstance) -> Result<ValidVmi, StepError> {
    ValidVmi::new(vmi.clone()).map_err(|causes| StepError::Invalid(Cause::joined(&causes)))
}

fn revision(vmi: &VirtualMachineInstance) -> i64 {
    vmi.metadata.generation.unwrap_or_default()
}

#[cfg(test)]
mod tests;
