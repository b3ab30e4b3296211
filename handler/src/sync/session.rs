//! A launcher that is connected to, and what was done with it so far.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

use barevirt_api::names::LAUNCHER_UID;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::Cause;
use barevirt_api::vcpu_mask::VcpuMask;
use barevirt_component::error::chain;
use barevirt_protocol::names::{HotDisk, KVM, VHOST_VSOCK};
use barevirt_protocol::v1::{Facts, LauncherStatus, SyncRequest};
use futures::future::join_all;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tonic::Streaming;

use super::guest_network::{self, InterfaceError};
use super::plan;
use crate::kernel;
use crate::launchers::cgroup::Container;
use crate::launchers::peer::PeerError;
use crate::launchers::pods_dir::PodsDir;
use crate::launchers::{self, Launcher, LauncherError, attachment};
use crate::network::resolv::Resolver;
use crate::network::{self, NetworkError};
use crate::pods::LauncherPod;
use crate::real_time::{self, RealTimeError};
use crate::status::{compute, out_of_memory};

/// The device of hardware acceleration.
const KVM_DEVICE: &str = "/dev/kvm";
/// What may be locked beside the guest's memory: the devices' own, mapped for one another, and firmware. KubeVirt's number.
const MAPPED_BYTES: u64 = 1 << 30;
/// The device of vsock's traffic.
const VSOCK_DEVICE: &str = "/dev/vhost-vsock";

/// How long a launcher may take to say that it holds what it was given.
const HEARD: Duration = Duration::from_secs(1);

/// Why a step failed.
#[derive(Debug, Error)]
pub enum StepError {
    /// The launcher was not reached, is not one, or refused.
    #[error(transparent)]
    Launcher(#[from] LauncherError),
    /// Something of the launcher's process.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The pod's network.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The interfaces of the spec.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The VMI is not valid: it went around admission.
    #[error("{0}")]
    Invalid(String),
    /// Emulation is not allowed, and the node has no hardware acceleration.
    #[error("open {KVM_DEVICE}: the node has no hardware acceleration, and emulation is not allowed")]
    Kvm(#[source] io::Error),
    /// The guest is to be reached over vsock, and the node cannot.
    #[error("open {VSOCK_DEVICE}: the node has no vsock for guests")]
    Vsock(#[source] io::Error),
    /// The guest's memory may not be locked, which its devices take.
    #[error("let the launcher lock the guest's memory")]
    Locked(#[source] io::Error),
    /// The VMI cannot be written as JSON.
    #[error("write the instance as json")]
    Json(#[from] serde_json::Error),
    /// A disk is not handed over.
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
    /// The connection is gone.
    #[error("the launcher is not connected to")]
    NotConnected,
}

/// What was heard from the launcher.
#[derive(Debug, Clone, Default)]
pub struct Heard {
    /// Its last status.
    pub status: Option<LauncherStatus>,
    /// The stream of statuses has ended.
    pub lost: bool,
    /// How often pings had begun to fail by the first status: whoever listened before has told of them.
    pub failed_pings_before: Option<u64>,
}

/// What was made for the guest.
#[derive(Debug)]
struct Made {
    facts: Facts,
    interfaces: Vec<compute::Interface>,
}

/// A launcher that is connected to.
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
        let statuses = launcher.watch().await?;
        let (sender, heard) = watch::channel(Heard::default());
        let listener = tokio::spawn(listen(statuses, launcher.clone(), sender));
        Ok(Self {
            launcher,
            heard,
            listener,
            made: None,
            synced: None,
            shutdown: None,
            real_time: None,
            failed_pings: 0,
        })
    }

    /// The launcher itself, for consoles and monitors.
    pub fn launcher(&self) -> &Launcher {
        &self.launcher
    }

    /// What was heard last.
    pub fn heard(&self) -> Heard {
        self.heard.borrow().clone()
    }

    /// Waits until something new is heard. Cancelling loses nothing.
    pub async fn hear(&mut self) {
        if self.heard.changed().await.is_err() {
            // The listener has ended, and said so: what follows is a reaction to that, not to this.
            std::future::pending::<()>().await;
        }
    }

    /// Makes the virtual CPUs of this QEMU realtime that are to be, and tells the launcher, which lets the guest go only then;
    /// gives how many.
    pub async fn make_real_time(
        &mut self,
        vmi: &VirtualMachineInstance,
        qemu: u32,
    ) -> Result<usize, StepError> {
        let wanted = vmi.spec.domain.cpu.as_ref().and_then(|cpu| cpu.realtime.as_ref());
        let mask = wanted.and_then(|realtime| realtime.mask.as_deref()).unwrap_or_default();
        let mask = VcpuMask::parse(mask)
            .ok_or_else(|| StepError::Invalid(format!("spec.domain.cpu.realtime.mask: {mask}")))?;
        let (launcher, container) = (self.launcher.peer().pid(), self.launcher.container());
        let scheduled = real_time::schedule(launcher, container, qemu, &mask);
        let refusal = scheduled.as_ref().err().map(|error| chain(error)).unwrap_or_default();
        let told = self.launcher.real_time(qemu, refusal).await;
        let count = scheduled?;
        told?;
        self.real_time = Some(qemu);
        Ok(count)
    }

    /// The session as the plan sees it.
    pub fn view<'a>(&'a self, heard: &'a Heard) -> plan::Session<'a> {
        plan::Session {
            status: heard.status.as_ref(),
            lost: heard.lost,
            prepared: self.made.is_some(),
            synced: self.synced.as_ref().map(|(hash, _)| hash.as_str()),
            shutdown: self.shutdown,
            real_time: self.real_time,
            failed_pings: self.failed_pings.max(heard.failed_pings_before.unwrap_or_default()),
        }
    }

    /// Whether the launcher was told of that specification, and what was heard of it is said after that.
    pub fn is_told(&self, spec_hash: &str, heard: &Heard) -> bool {
        let heard = heard.status.as_ref().map_or(0, |status| status.observed_revision);
        self.synced.as_ref().is_some_and(|(hash, revision)| hash == spec_hash && heard >= *revision)
    }

    /// An event has told of pings that fail.
    pub fn told_of_failed_pings(&mut self, count: u64) {
        self.failed_pings = count;
    }

    /// The interfaces, once they were looked at.
    pub fn interfaces(&self) -> Option<&[compute::Interface]> {
        self.made.as_ref().map(|made| made.interfaces.as_slice())
    }

    /// Makes what the guest needs of the node, and hands over the descriptors that the launcher does not hold.
    /// Gives the number of things that had to be done.
    pub async fn prepare(
        &mut self,
        vmi: &VirtualMachineInstance,
        pod: &LauncherPod,
    ) -> Result<usize, StepError> {
        let valid = valid(vmi)?;
        let held: BTreeSet<String> =
            self.heard().status.map(|status| status.descriptors).unwrap_or_default().into_iter().collect();
        let mut facts = Facts { interfaces: Vec::new(), allow_emulation: pod.allow_emulation };
        let mut descriptors: Vec<(String, OwnedFd)> = Vec::new();
        let mut interfaces = Vec::new();
        let mut done = 0;
        if !held.contains(KVM) {
            match open_kvm() {
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
        if let Some(wanted) = guest_network::wanted(&valid)? {
            let peer = self.launcher.peer();
            let resolver = Resolver::parse(&peer.resolv_conf()?);
            let (prepared, opened) =
                network::prepare(peer.network_namespace()?, wanted.clone(), held.clone()).await?;
            done += prepared.steps;
            descriptors.extend(opened);
            let addresses = if pod.addresses.is_empty() {
                prepared.pod_addresses.iter().map(ToString::to_string).collect()
            } else {
                pod.addresses.clone()
            };
            interfaces.push(compute::Interface {
                queues: guest_network::queues(
                    &wanted,
                    held.iter().chain(descriptors.iter().map(|(name, _)| name)),
                ),
                name: wanted.interface.clone(),
                mac: wanted.mac.to_string(),
                pod_interface: wanted.pod_interface.clone(),
                addresses,
            });
            facts.interfaces.push(guest_network::facts(&wanted, &prepared, &resolver));
        }
        self.launcher.give(revision(vmi), &descriptors).await?;
        self.made = Some(Made { facts, interfaces });
        Ok(done)
    }

    /// QEMU opens devices of the node by their paths, and all of the guest's memory stays where they can write to it.
    fn prepare_host_devices(&self, vmi: &ValidVmi) -> Result<usize, StepError> {
        let peer = self.launcher.peer();
        let owner = u32::try_from(LAUNCHER_UID).unwrap_or(u32::MAX);
        let mut done = 0;
        for directory in ["dev/vfio", "dev/bus/usb"] {
            done += peer.own_devices(directory, owner)?;
        }
        let memory = vmi.max_guest_memory().unwrap_or(vmi.guest_memory());
        kernel::allow_locked(peer.pid(), memory.saturating_add(MAPPED_BYTES)).map_err(StepError::Locked)?;
        Ok(done)
    }

    /// Tells the launcher what should run.
    pub async fn sync(&mut self, vmi: &VirtualMachineInstance, spec_hash: &str) -> Result<(), StepError> {
        let made = self.made.as_ref().ok_or(StepError::NotConnected)?;
        let request = SyncRequest {
            revision: revision(vmi),
            spec_hash: spec_hash.to_owned(),
            vmi: serde_json::to_vec(vmi)?,
            facts: Some(made.facts.clone()),
        };
        self.launcher.sync(request).await?;
        self.synced = Some((spec_hash.to_owned(), revision(vmi)));
        Ok(())
    }

    /// Hands over disks that their pods offer. One that cannot be had keeps no other from it.
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

    /// Tells the launcher to shut the guest down within `grace` seconds. Gives whether it was told for the first time.
    pub async fn shutdown(&mut self, grace: u32) -> Result<bool, StepError> {
        self.launcher.shutdown(grace, "the VirtualMachineInstance is being deleted").await?;
        Ok(self.shutdown.replace(grace).is_none())
    }
}

fn valid(vmi: &VirtualMachineInstance) -> Result<ValidVmi, StepError> {
    ValidVmi::new(vmi.clone()).map_err(|causes| StepError::Invalid(Cause::joined(&causes)))
}

/// Opens the device of hardware acceleration. It may exist where the processor cannot do it (nested under a hypervisor
/// that does not pass it on): guests would hang there, so the processor is asked, too.
fn open_kvm() -> io::Result<OwnedFd> {
    let processor = fs::read_to_string("/proc/cpuinfo")?;
    if !has_virtualization(&processor) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the processor has neither vmx nor svm"));
    }
    File::options().read(true).write(true).open(KVM_DEVICE).map(OwnedFd::from)
}

/// Whether a processor as `/proc/cpuinfo` describes it can run virtual machines.
fn has_virtualization(cpuinfo: &str) -> bool {
    let flags =
        cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|name| name.trim() == "flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm"))
}

fn revision(vmi: &VirtualMachineInstance) -> i64 {
    vmi.metadata.generation.unwrap_or_default()
}

/// Keeps what the launcher says until its stream ends.
async fn listen(mut statuses: Streaming<LauncherStatus>, launcher: Launcher, heard: watch::Sender<Heard>) {
    let oom_kills = || launcher.counters().memory().and_then(|memory| memory.oom_kills).unwrap_or_default();
    // Kills before the first status are of other processes, unless QEMU was gone by then.
    let mut kills_before = None;
    loop {
        match statuses.message().await {
            Ok(Some(status)) => {
                let killed = out_of_memory::is_killed(&status);
                let before = *kills_before.get_or_insert_with(|| if killed { 0 } else { oom_kills() });
                // The launcher is there still, and with it the control group. A moment later it may not be.
                let memory = if killed { launcher.counters().memory() } else { None };
                let status = out_of_memory::explain(status, before, &memory.unwrap_or_default());
                heard.send_modify(|heard| {
                    heard.failed_pings_before.get_or_insert(status.failed_pings);
                    heard.status = Some(status);
                });
            }
            Ok(None) => break,
            Err(status) => {
                tracing::debug!(code = ?status.code(), message = status.message(), "launcher's status stream broke off");
                break;
            }
        }
    }
    heard.send_modify(|heard| heard.lost = true);
}

#[cfg(test)]
mod tests;
