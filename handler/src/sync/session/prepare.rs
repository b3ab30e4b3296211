//! Resources that the guest needs from the node: created where they are missing, and handed over to the
//! launcher.
//!
//! A card that fails while the guest runs does not delay anything else: it keeps its present state, and is
//! tried again after a while.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;

use barevirt_api::names::LAUNCHER_UID;
use barevirt_api::networks::FIRST_LINK;
use barevirt_api::resolver::Resolver;
use barevirt_api::settings::Bindings;
use barevirt_api::v1::VirtualMachineInstance;
use barevirt_api::valid::ValidVmi;
use barevirt_component::error::chain;
use barevirt_protocol::names::{KVM, VHOST_VSOCK};
use barevirt_protocol::v1::{self, Facts};
use tokio::time::Instant;
use tracing::warn;

use super::{MAPPED_BYTES, Made, Session, StepError, VSOCK_DEVICE, held, revision, valid};
use crate::kernel;
use crate::network::state::{Binding, Wanted};
use crate::network::{self, Prepared, guest, sriov};
use crate::pods::LauncherPod;
use crate::status::interfaces::Interface;
use crate::sync::kvm;

impl Session {
    /// Creates the resources that the guest needs from the node, and hands over the descriptors that the
    /// launcher does not hold. `here` says whether the guest is already on this node. Returns the number of
    /// steps that were needed.
    pub async fn prepare(
        &mut self,
        vmi: &VirtualMachineInstance,
        pod: &LauncherPod,
        here: bool,
        bindings: &Bindings,
    ) -> Result<usize, StepError> {
        let valid = valid(vmi)?;
        let held = held(&self.report());
        let due = guest::due(vmi, &held, here);
        let mut prepared: BTreeMap<_, _> = sriov::cards(&valid, &pod.links, here)?.into_iter().collect();
        let mut descriptors: Vec<(String, OwnedFd)> = Vec::new();
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
        // So far only cards of the node are prepared. One that the guest gets elsewhere needs nothing here.
        if valid.host_devices().next().is_some() || !prepared.is_empty() {
            done += self.prepare_host_devices(&valid)?;
        }
        let cards = guest::wanted(&valid, &held, here, bindings)?;
        let mut failed = Vec::new();
        if !cards.is_empty() {
            let peer = self.launcher.peer();
            let subdomain = vmi.spec.subdomain.as_deref().unwrap_or_default();
            let resolver = Resolver::parse(&peer.resolv_conf()?).below(subdomain);
            let outcome = network::prepare(peer.network_namespace()?, cards, held.clone()).await?;
            done += outcome.steps;
            descriptors.extend(outcome.opened);
            for (wanted, one) in outcome.cards {
                let names = held.iter().chain(descriptors.iter().map(|(name, _)| name));
                let queues = guest::queues(&wanted, names);
                let interface = interface(&wanted, &one, queues, &pod.addresses);
                let valid = valid.interfaces().get(wanted.index);
                let plugin = valid.and_then(|valid| bindings.of(&valid.interface));
                let mut facts = guest::facts(&wanted, &one, &resolver);
                // What is granted may change before the launcher uses them.
                facts.queues = queues;
                // passt of the new pod hands out another address, and has none of the guest's connections.
                facts.refreshes_link =
                    wanted.binding == Binding::Passt || plugin.is_some_and(|plugin| plugin.refreshes_link);
                prepared.insert(wanted.index, (interface, facts));
            }
            for (wanted, error) in outcome.failed {
                failed.push(format!("interface {}: {}", wanted.interface, chain(&error)));
                prepared.extend(self.former(&wanted).map(|former| (wanted.index, former)));
            }
        }
        self.launcher.give(revision(vmi), &descriptors).await?;
        let (interfaces, told) = prepared.into_values().unzip();
        let facts = Facts { interfaces: told, allow_emulation: pod.allow_emulation, tells_images: true };
        if self.made.as_ref().is_some_and(|made| made.facts != facts) {
            // The launcher gets the changed facts with the specification.
            self.synced = None;
        }
        self.made = Some(Made { facts, due, interfaces });
        if failed.is_empty() {
            self.cards.succeeded();
        } else {
            let message = failed.join("; ");
            if let Some(failures) = self.cards.failed(message.clone(), Instant::now()) {
                warn!(failures, error = message, "network cards could not be set up");
            }
        }
        Ok(done)
    }

    /// What was prepared for a card before. A card that is to be removed belongs to the guest until its
    /// network is removed.
    fn former(&self, wanted: &Wanted) -> Option<(Interface, v1::Interface)> {
        let made = self.made.as_ref()?;
        let interface = made.interfaces.iter().find(|one| one.name == wanted.interface)?.clone();
        let facts = made.facts.interfaces.iter().find(|one| one.name == wanted.interface)?.clone();
        Some((Interface { lingers: wanted.binding == Binding::Gone, ..interface }, facts))
    }

    /// Lets QEMU open host devices by their paths, and lock all of the guest's memory for direct memory
    /// access.
    fn prepare_host_devices(&self, vmi: &ValidVmi) -> Result<usize, StepError> {
        let peer = self.launcher.peer();
        let owner = u32::try_from(LAUNCHER_UID).unwrap_or(u32::MAX);
        let mut done = 0;
        for directory in ["dev/vfio", "dev/bus/usb"] {
            done += peer.own_devices(directory, owner)?;
        }
        let memory = vmi.max_guest_memory().unwrap_or(vmi.guest_memory());
        let bytes = memory.saturating_add(MAPPED_BYTES);
        peer.act("raise the limit of locked memory", |pid| kernel::allow_locked(pid, bytes))?;
        Ok(done)
    }
}

/// What the status reports about a card. On the pod network, the pod determines the addresses. With a binding plugin they are
/// those of the pod's link, as in KubeVirt: nobody here gives them to the guest, but the plugin's network may.
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
        is_device: false,
        lingers: false,
    }
}
