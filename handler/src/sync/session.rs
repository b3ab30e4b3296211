//! A connection to a launcher, and what was done over it so far.

mod moves;

use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use barevirt_api::names::LAUNCHER_UID;
use barevirt_api::networks::FIRST_LINK;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::Cause;
use barevirt_api::vcpu_mask::VcpuMask;
use barevirt_component::error::chain;
use barevirt_protocol::names::{HotDisk, KVM, VHOST_VSOCK};
use barevirt_protocol::v1::{Facts, SyncRequest};
use futures::future::join_all;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::{Instant, timeout};

use super::heard::{Heard, listen};
use super::{kvm, plan};
use crate::launchers::cgroup::Container;
use crate::launchers::peer::PeerError;
use crate::launchers::pods_dir::PodsDir;
use crate::launchers::{self, Launcher, LauncherError, attachment};
use crate::migration::arrivals::Entry;
use crate::migration::call::CallError;
use crate::network::guest::{Due, InterfaceError};
use crate::network::resolv::Resolver;
use crate::network::state::Wanted;
use crate::network::{self, NetworkError, Prepared, guest};
use crate::pods::LauncherPod;
use crate::real_time::{self, RealTimeError};
use crate::status::interfaces::Interface;
use crate::{exclusive, kernel};

/// What may be locked beside the guest's memory: the devices' own, mapped for one another, and firmware. KubeVirt's number.
const MAPPED_BYTES: u64 = 1 << 30;
/// The device of vsock's traffic.
const VSOCK_DEVICE: &str = "/dev/vhost-vsock";

/// How long a launcher may take to say that it holds what it was given.
const HEARD: Duration = Duration::from_secs(1);

/// Why a step failed.
#[derive(Debug, Error)]
pub enum StepError {
    /// The launcher was not reached, its process is not the launcher, or it refused.
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    /// Something of the launcher's process could not be opened.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The pod's network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The interfaces of the spec.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The VMI is not valid: it was stored without admission.
    #[error("{0}")]
    Invalid(String),
    /// Emulation is not allowed, and the node has no hardware acceleration.
    #[error("open {}: the node has no hardware acceleration, and emulation is not allowed", kvm::DEVICE)]
    Kvm(#[source] io::Error),
    /// The guest is to be reached over vsock, and the node cannot.
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
    /// Virtual CPUs are not realtime.
    #[error(transparent)]
    RealTime(#[from] RealTimeError),
    /// The target of a migration.
    #[error(transparent)]
    Target(#[from] CallError),
    /// There is no connection.
    #[error("the launcher is not connected to")]
    NotConnected,
}

/// What was prepared for the guest.
#[derive(Debug)]
struct Made {
    facts: Facts,
    /// What was due about cards.
    due: Vec<(String, Due)>,
    interfaces: Vec<Interface>,
}

/// A connection to a launcher.
#[derive(Debug)]
pub struct Session {
    launcher: Launcher,
    heard: watch::Receiver<Heard>,
    listener: JoinHandle<()>,
    made: Option<Made>,
    /// Hash of the specification that the launcher was told, and the revision that it goes by.
    synced: Option<(String, i64)>,
    shutdown: Option<u32>,
    real_time: Option<u32>,
    failed_pings: u64,
    /// The guest that is awaited: UID of its migration, and its entry.
    awaits: Option<(String, Entry)>,
    gone: Option<String>,
    /// Since when a guest is here whole, by that migration, and may not run.
    whole: Option<(String, Instant)>,
    /// How often a migration could not be begun, and why.
    refused: Option<(String, u32, String)>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl Session {
    /// Finds the launcher in `container` and begins to listen to it.
    pub async fn open(pods: &PodsDir, container: &Container) -> Result<Self, StepError> {
        let launcher = launchers::find(pods, container).await?;
        let (first, statuses) = launcher.watch().await?;
        let (sender, heard) = watch::channel(Heard::default());
        let listener = tokio::spawn(listen(first, statuses, launcher.clone(), sender));
        Ok(Self {
            launcher,
            heard,
            listener,
            made: None,
            synced: None,
            shutdown: None,
            real_time: None,
            failed_pings: 0,
            awaits: None,
            gone: None,
            whole: None,
            refused: None,
        })
    }

    /// The launcher itself, for consoles and monitors.
    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// The last status and the state of the connection.
    pub fn heard(&self) -> Heard {
        self.heard.borrow().clone()
    }

    /// Waits until the launcher sends something new. Cancel-safe.
    pub async fn hear(&mut self) {
        if self.heard.changed().await.is_err() {
            // The listener has ended and marked the connection as lost, which the caller sees in `heard`.
            std::future::pending::<()>().await;
        }
    }

    /// Makes the requested virtual CPUs of this QEMU realtime and tells the launcher, which starts the guest only then. Returns
    /// their number.
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

    /// The session as the plan sees it.
    pub fn view<'a>(
        &'a self,
        heard: &'a Heard,
        vmi: &VirtualMachineInstance,
        here: bool,
    ) -> plan::Session<'a> {
        let is_due = |made: &Made| made.due != guest::due(vmi, &held(heard), here);
        plan::Session {
            status: heard.status.as_ref(),
            lost: heard.lost,
            prepared: self.made.as_ref().is_some_and(|made| !is_due(made)),
            synced: self.synced.as_ref().map(|(hash, _)| hash.as_str()),
            shutdown: self.shutdown,
            real_time: self.real_time,
            failed_pings: self.failed_pings.max(heard.failed_pings_before.unwrap_or_default()),
            awaits: self.awaits.as_ref().map(|(uid, _)| uid.as_str()),
            gone: self.gone.as_deref(),
        }
    }

    /// Whether the launcher was told of that specification, and what was heard of it is said after that.
    pub fn is_told(&self, spec_hash: &str, heard: &Heard) -> bool {
        let heard = heard.status.as_ref().map_or(0, |status| status.observed_revision);
        self.synced.as_ref().is_some_and(|(hash, revision)| hash == spec_hash && heard >= *revision)
    }

    /// Remembers up to which count failed pings were reported.
    pub fn set_reported_failed_pings(&mut self, count: u64) {
        self.failed_pings = count;
    }

    /// The interfaces, once they are prepared.
    pub fn interfaces(&self) -> Option<&[Interface]> {
        self.made.as_ref().map(|made| made.interfaces.as_slice())
    }

    /// Makes what the guest needs of the node, and hands over the descriptors that the launcher does not hold.
    /// `here` says whether the guest is this node's already. Returns the number of steps that were needed.
    pub async fn prepare(
        &mut self,
        vmi: &VirtualMachineInstance,
        pod: &LauncherPod,
        here: bool,
    ) -> Result<usize, StepError> {
        let valid = valid(vmi)?;
        let held = held(&self.heard());
        let due = guest::due(vmi, &held, here);
        let mut facts = Facts { interfaces: Vec::new(), allow_emulation: pod.allow_emulation };
        let mut descriptors: Vec<(String, OwnedFd)> = Vec::new();
        let mut interfaces = Vec::new();
        let mut done = 0;
        if !held.contains(KVM) {
            match kvm::open() {
                Ok(kvm) => {
                    descriptors.push((KVM.to_owned(), kvm));
                    done += 1;
                }
                Err(_) if pod.allow_emulation => {}
                Err(error) => return Err(StepError::Kvm(error)),
            }
        }
        if vmi.spec.domain.devices.autoattach_vsock == Some(true) && !held.contains(VHOST_VSOCK) {
            let vsock = File::options().read(true).write(true).open(VSOCK_DEVICE);
            descriptors.push((VHOST_VSOCK.to_owned(), vsock.map_err(StepError::Vsock)?.into()));
            done += 1;
        }
        if valid.host_devices().next().is_some() {
            done += self.prepare_host_devices(&valid)?;
        }
        let cards = guest::wanted(&valid, &held, here)?;
        if !cards.is_empty() {
            let peer = self.launcher.peer();
            let subdomain = vmi.spec.subdomain.as_deref().unwrap_or_default();
            let resolver = Resolver::parse(&peer.resolv_conf()?).below(subdomain);
            let outcome = network::prepare(peer.network_namespace()?, cards, held.clone()).await?;
            done += outcome.steps;
            descriptors.extend(outcome.opened);
            for (wanted, prepared) in outcome.cards {
                let names = held.iter().chain(descriptors.iter().map(|(name, _)| name));
                let queues = guest::queues(&wanted, names);
                interfaces.push(interface(&wanted, &prepared, queues, &pod.addresses));
                facts.interfaces.push(guest::facts(&wanted, &prepared, &resolver));
            }
        }
        self.launcher.give(revision(vmi), &descriptors).await?;
        if self.made.as_ref().is_some_and(|made| made.facts != facts) {
            // It is told of them with the specification.
            self.synced = None;
        }
        self.made = Some(Made { facts, due, interfaces });
        Ok(done)
    }

    /// Lets QEMU open host devices by their paths, and lock all of the guest's memory for their direct access.
    fn prepare_host_devices(&self, vmi: &ValidVmi) -> Result<usize, StepError> {
        let peer = self.launcher.peer();
        let owner = u32::try_from(LAUNCHER_UID).unwrap_or(u32::MAX);
        let mut done = 0;
        for directory in ["dev/vfio", "dev/bus/usb"] {
            done += peer.own_devices(directory, owner)?;
        }
        let memory = vmi.max_guest_memory().unwrap_or(vmi.guest_memory());
        let bytes = memory.saturating_add(MAPPED_BYTES);
        peer.act("lift the limit of locked memory", |pid| kernel::allow_locked(pid, bytes))?;
        Ok(done)
    }

    /// Tells the launcher what should run.
    pub async fn sync(&mut self, vmi: &VirtualMachineInstance, spec_hash: &str) -> Result<(), StepError> {
        self.tell(vmi, spec_hash, String::new()).await
    }

    async fn tell(
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

    /// Hands over disks that their pods offer. A disk that fails does not hold up the others.
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
            // To close a file may wait for its storage.
            spawn_blocking(move || drop(given));
            outcome
        };
        let all = disks.iter().map(async |(disk, uid)| {
            let failed = |source| StepError::Disk { volume: disk.volume.clone(), source: Box::new(source) };
            hand_over(disk, uid).await.map_err(failed)
        });
        let outcome: Result<(), StepError> = join_all(all).await.into_iter().collect();
        if outcome.is_ok() {
            // Until it says that it has them, the same step would follow.
            let has = |heard: &Heard| {
                let held =
                    heard.status.as_ref().map(|status| status.descriptors.as_slice()).unwrap_or_default();
                heard.lost || disks.iter().all(|(disk, _)| held.contains(&disk.descriptor()))
            };
            let _ = timeout(HEARD, self.heard.clone().wait_for(has)).await;
        }
        outcome
    }

    /// Tells the launcher to shut the guest down within `grace` seconds. Returns whether this was the first time.
    pub async fn shutdown(&mut self, grace: u32) -> Result<bool, StepError> {
        self.launcher.shutdown(grace, "the VirtualMachineInstance is being deleted").await?;
        Ok(self.shutdown.replace(grace).is_none())
    }
}

fn held(heard: &Heard) -> BTreeSet<String> {
    heard.status.as_ref().map(|status| status.descriptors.iter().cloned().collect()).unwrap_or_default()
}

/// What the status says of a card. Where the guest is reached on the pod network, the pod says.
fn interface(wanted: &Wanted, prepared: &Prepared, queues: u32, pod: &[String]) -> Interface {
    let is_primary = prepared.pod_interface == FIRST_LINK;
    let addresses = match is_primary {
        true if !pod.is_empty() => pod.to_vec(),
        _ => prepared.pod_addresses.iter().map(ToString::to_string).collect(),
    };
    Interface {
        queues,
        name: wanted.interface.clone(),
        mac: prepared.mac.to_string(),
        pod_interface: prepared.pod_interface.clone(),
        addresses,
        is_primary,
    }
}

fn valid(vmi: &VirtualMachineInstance) -> Result<ValidVmi, StepError> {
    ValidVmi::new(vmi.clone()).map_err(|causes| StepError::Invalid(Cause::joined(&causes)))
}

fn revision(vmi: &VirtualMachineInstance) -> i64 {
    vmi.metadata.generation.unwrap_or_default()
}

#[cfg(test)]
mod tests;
