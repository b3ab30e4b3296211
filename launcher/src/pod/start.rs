//! Waits for everything that the start needs, and assembles it. All of it has one deadline; what is missing
//! then is named.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use barevirt_api::firmware;
use barevirt_api::names::PCI_LAYOUT_ANNOTATION;
use barevirt_api::valid::ValidVmi;
use barevirt_machine::{
    Accelerator, Bytes, FdSet, FdSetMember, HostCpu, HostSource, InterfaceFacts, Layout, NetBackend, TapFd,
};
use barevirt_protocol::names::{HotDisk, NetworkDescriptor, VHOST_VSOCK};
use barevirt_protocol::seqpacket::PacketSocket;
use barevirt_protocol::v1::Interface;
use tokio::sync::watch;
use tokio::task::{spawn_blocking, spawn_local};
use tokio::time::{Instant, timeout_at};

use super::accelerator::{accelerator, host_cpu};
use super::cards::Cards;
use super::confine;
use super::descriptor_store::DescriptorStore;
use super::images::images;
use super::incoming::{as_started, incoming};
use super::plug::{self, Plugs};
use super::refresh;
use super::report::Circumstances;
use super::resize;
use super::shared::Pod;
use super::side_containers::SideContainers;
use super::wanted::Wanted;
use super::written;
use crate::assembly::{Assembly, FromNode, Installation, Parts, assemble};
use crate::descriptors::Descriptors;
use crate::dhcp;
use crate::disk::{ContainerDisk, late_lock};
use crate::firmware::Kernel;
use crate::growing::GrowingDisks;
use crate::guest_end::GuestEnd;
use crate::host_devices;
use crate::real_time::{self, RealTime};
use crate::sriov;
use crate::state;
use crate::volumes::{self, Base, Made, Places};

/// The result of the preparation.
#[derive(Debug)]
pub struct Prepared {
    /// The assembled machine.
    pub assembly: Assembly,
    /// Closed when QEMU has ended: the containers of the images end then.
    pub connections: Vec<PacketSocket>,
    /// Disks that grow with their claims.
    pub growing: GrowingDisks,
}

/// Waits and prepares.
///
/// # Errors
/// The end of a VM that cannot be started.
pub async fn prepare(pod: &Pod) -> Result<Prepared, GuestEnd> {
    let begun = Instant::now();
    let within = Duration::from_secs(pod.args.start_deadline_seconds);
    let deadline = begun + within;
    let mut wanted_watch = pod.wanted.subscribe();
    let say = |what: String| {
        pod.circumstances.send_if_modified(|circumstances| {
            let new = circumstances.waiting_for != what;
            circumstances.waiting_for = what;
            new
        });
    };

    say("waiting for virt-handler".to_owned());
    let first = timeout_at(deadline, wanted_watch.wait_for(Option::is_some)).await;
    let wanted = match first.map(|wanted| wanted.map(|wanted| wanted.clone())) {
        Ok(Ok(Some(wanted))) => wanted,
        _ => {
            let message = format!("virt-handler did not say what to run within {} s", within.as_secs());
            return Err(GuestEnd::failed("NotSynced", message));
        }
    };

    // This comes first: the containers end when these connections are closed, even if the guest is never
    // started.
    let side_containers = SideContainers::connect(pod, &wanted, deadline, &say).await?;
    let disks = container_disks(pod, &wanted, deadline, &say).await?;
    let wanted = complete(pod, wanted_watch, deadline, within, &say).await?;
    let wanted = as_started(&wanted)?;
    let side_containers = side_containers.begin(&wanted, deadline, &say).await?;
    let host_cpu = host_cpu(pod, &wanted).await?;
    put_together(pod, &wanted, disks, side_containers, host_cpu)
}

async fn container_disks(
    pod: &Pod,
    wanted: &Wanted,
    deadline: Instant,
    say: &impl Fn(String),
) -> Result<BTreeMap<String, ContainerDisk>, GuestEnd> {
    let images = images(&wanted.vmi);
    if images.is_empty() {
        return Ok(BTreeMap::new());
    }
    let collected = match &pod.container_disks {
        Some(containers) => {
            let volumes: BTreeSet<String> = images.into_iter().map(|image| image.volume).collect();
            let names: Vec<_> = volumes.iter().map(String::as_str).collect();
            say(format!("waiting for the container disks of {}", names.join(", ")));
            let within = deadline.saturating_duration_since(Instant::now());
            containers.collect(&volumes, pod.uid, within).await
        }
        // Reading from the image may wait for the node's disk, so it runs on another thread.
        None => {
            spawn_blocking(move || images.iter().map(|image| (image.volume.clone(), image.open())).collect())
                .await
                .unwrap_or_default()
        }
    };
    let mut disks = BTreeMap::new();
    let mut failures = Vec::new();
    for (volume, outcome) in collected {
        match outcome.and_then(|disk| disk.of_at_most(pod.args.largest_image)) {
            Ok(disk) => {
                tracing::info!(volume, path = disk.path, image = ?disk.image, "container disk");
                disks.insert(volume, disk);
            }
            Err(error) => failures.push(error.to_string()),
        }
    }
    if failures.is_empty() {
        Ok(disks)
    } else {
        Err(GuestEnd::failed("ContainerDiskFailed", failures.join("; ")))
    }
}

/// Waits until the latest Sync describes every interface and all needed descriptors have arrived.
async fn complete(
    pod: &Pod,
    mut wanted_watch: watch::Receiver<Option<Arc<Wanted>>>,
    deadline: Instant,
    within: Duration,
    say: &impl Fn(String),
) -> Result<Arc<Wanted>, GuestEnd> {
    let mut held = pod.circumstances.subscribe();
    loop {
        let wanted = wanted_watch.borrow_and_update().clone();
        let names = held.borrow_and_update().descriptors.clone();
        let missing = wanted.as_deref().map_or_else(Vec::new, |wanted| missing(pod, wanted, &names));
        if let (Some(wanted), true) = (wanted, missing.is_empty()) {
            return Ok(wanted);
        }
        say(format!("waiting for {} of virt-handler", missing.join(", ")));
        let change = async {
            tokio::select! {
                changed = wanted_watch.changed() => changed.is_ok(),
                changed = held.changed() => changed.is_ok(),
            }
        };
        if !timeout_at(deadline, change).await.unwrap_or(false) {
            let (missing, seconds) = (missing.join(", "), within.as_secs());
            let message = format!("virt-handler did not hand over {missing} within {seconds} s");
            return Err(GuestEnd::failed("DescriptorsMissing", message));
        }
    }
}

fn missing(pod: &Pod, wanted: &Wanted, held: &BTreeSet<String>) -> Vec<String> {
    let needed = wanted.needed(wanted.may_emulate(pod.args.allow_emulation));
    let facts = wanted.interfaces_without_facts();
    let facts = facts.into_iter().map(|name| format!("facts of interface {name}"));
    facts.chain(needed.difference(held).cloned()).collect()
}

fn put_together(
    pod: &Pod,
    wanted: &Wanted,
    mut disks: BTreeMap<String, ContainerDisk>,
    side_containers: SideContainers,
    host_cpu: Option<HostCpu>,
) -> Result<Prepared, GuestEnd> {
    let SideContainers { directories: filesystems, mut passt } = side_containers;
    let mut descriptors = Descriptors::default();
    let mut connections = Vec::new();
    let mut bases = BTreeMap::new();
    let mut kernel_file = |name: &str| {
        let ContainerDisk { file, connection, .. } = disks.remove(name)?;
        connections.extend(connection);
        Some(file)
    };
    let kernel =
        Kernel { image: kernel_file(firmware::KERNEL_FILE), initrd: kernel_file(firmware::INITRD_FILE) };
    for (volume, ContainerDisk { file, image, connection, .. }) in disks {
        bases.insert(volume, Base { file, image });
        connections.extend(connection);
    }
    let claims = pod.args.claims.clone();
    let secrets = pod.args.secrets.clone();
    let objects = pod.args.private.clone();
    let (directory, comes) = (pod.args.ephemeral_disks.clone(), wanted.incoming.is_some());
    let shares_kernel = late_lock::is_this_kernel(pod.args.source_kernel.as_deref());
    // A handler of an older version does not have them sent.
    let images_come = comes && wanted.facts.tells_images;
    let places = Places { directory, secrets, objects, claims, comes, images_come, shares_kernel };
    let mut volumes = volumes::prepare(&wanted.vmi, bases, &places, &mut descriptors)
        .map_err(|error| GuestEnd::failed("VolumeFailed", error.to_string()))?;

    let disks = confine::disks(&volumes.volumes);
    let made = volumes.made.clone();
    for device in std::mem::take(&mut volumes.late_locks) {
        spawn_local(late_lock::hold(device));
    }
    let growing = GrowingDisks::default();
    std::mem::take(&mut volumes.growing).into_iter().for_each(|disk| growing.add(disk));

    let mut store = pod.store.borrow_mut();
    let plugged = plugged(wanted, &mut store, &mut descriptors, &mut volumes, &growing)?;
    let (claim_disks, smaller) = (volumes.on_claims.clone(), volumes.smaller.clone());
    let may_emulate = wanted.may_emulate(pod.args.allow_emulation);
    let (accelerator, fd_sets) = accelerator(&mut store, may_emulate, &mut descriptors);
    let vhost_vsock = store.take(VHOST_VSOCK).map(|vsock| descriptors.add(vsock));
    let mut interfaces = Vec::new();
    let mut dhcp = Vec::new();
    for facts in wanted.facts.interfaces.iter().filter(|facts| !wanted.is_passed_through(facts)) {
        let passt = passt.take_if(|_| wanted.is_joined_by_passt(facts));
        let (interface, served) = interface(wanted, facts, passt, &mut store, &mut descriptors)?;
        interfaces.push(interface);
        dhcp.push(served);
    }
    drop(store);
    let word = match accelerator {
        Accelerator::Kvm { .. } => "kvm",
        Accelerator::Tcg { .. } => "tcg",
    };
    pod.circumstances.send_modify(|circumstances: &mut Circumstances| {
        word.clone_into(&mut circumstances.accelerator);
        circumstances.waiting_for.clear();
    });
    let installation = Installation {
        qemu: pod.args.qemu.clone(),
        vnc_socket: pod.vnc_socket(),
        disk_socket: pod.qemu_directory().join("disks.sock"),
        usb_sockets: pod.usb_sockets(),
        smbios: pod.args.smbios.clone(),
        free_page_reporting: !pod.args.without_free_page_reporting,
    };
    let layout = saved_layout(&wanted.vmi);
    let layout = layout.map(if wanted.incoming.is_some() { Layout::for_arrival } else { Layout::for_start });
    let places = state::Places { private: pod.args.private.clone(), claim: pod.args.state.clone() };
    let ovmf = pod.args.ovmf.clone();
    let machine = crate::firmware::Installation { ovmf, swtpm: pod.args.swtpm.clone(), places, comes };
    let firmware = crate::firmware::prepare(&wanted.vmi, kernel, &machine, &mut descriptors)
        .map_err(|error| GuestEnd::failed("FirmwareFailed", error.to_string()))?;
    let host_devices = host_devices(pod, wanted)?;
    let node = FromNode { vhost_vsock, host_devices };
    let parts = Parts {
        firmware,
        accelerator,
        fd_sets,
        volumes,
        interfaces,
        descriptors,
        layout,
        host_cpu,
        filesystems,
        node,
        incoming: incoming(wanted),
        keys: pod.keys(),
    };
    let mut assembly = assemble(&wanted.vmi, parts, &installation)
        .map_err(|error| GuestEnd::failed("MachineRefused", error.to_string()))?;
    confine::children(&pod.args, pod.qemu_directory(), &disks, &mut assembly.launch).map_err(|error| {
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        GuestEnd::failed("StartFailed", format!("{error}{}", source.unwrap_or_default()))
    })?;
    let real_time = wanted.vmi.spec().domain.cpu.as_ref().and_then(|cpu| cpu.realtime.as_ref());
    assembly.launch.real_time =
        real_time.map(|_| RealTime { report: pod.real_time.subscribe(), within: real_time::WITHIN });
    pod.circumstances.send_modify(|circumstances: &mut Circumstances| {
        circumstances.pci_layout = assembly.layout.to_saved();
        let disks = assembly.launch.disks.local.iter();
        circumstances.local_disks = disks.map(|disk| disk.name.clone()).collect();
        (circumstances.claim_disks, circumstances.smaller) = (claim_disks, smaller);
        // All of them are made now, also those that needed the places of devices.
        circumstances.made_disks = made.iter().filter_map(Made::report).collect();
    });
    let boot = Bytes(wanted.vmi.guest_memory());
    let people = pod.people.subscribe();
    let pins = assembly.launch.pins.clone();
    spawn_local(resize::serve(people.clone(), pod.wanted.subscribe(), boot, pins, pod.circumstances.clone()));
    let facts = &wanted.facts.interfaces;
    let mut cards = Cards::new(&assembly.launch.cards, facts, installation.has_network_boot())
        .with(assembly.launch.host_cards.clone());
    for (network, guest, sockets) in dhcp {
        cards.serve(&network, guest, sockets);
    }
    let room = assembly.hot_disks.clone();
    let due = refresh::due(wanted, &assembly.launch.cards);
    spawn_local(refresh::serve(people.clone(), pod.wanted.subscribe(), due));
    let shared = plug::Shared { store: pod.store.clone(), circumstances: pod.circumstances.clone(), growing };
    let growing = shared.growing.clone();
    let plugs = Plugs::new(room, cards, shared).with(plugged, &assembly.came);
    spawn_local(plugs.serve(people, pod.wanted.subscribe()));
    Ok(Prepared { assembly, connections, growing })
}

/// The devices of the node for the guest, by the paths of their entries.
fn host_devices(pod: &Pod, wanted: &Wanted) -> Result<Vec<(String, Vec<HostSource>)>, GuestEnd> {
    let failed = |error: &dyn std::error::Error| GuestEnd::failed("HostDeviceMissing", error.to_string());
    let environment = |name: &str| std::env::var(name).ok();
    let mut devices = host_devices::given(&wanted.vmi, environment).map_err(|error| failed(&error))?;
    let (resources, facts) = (&pod.args.network_resource, &wanted.facts.interfaces);
    let cards = sriov::given(&wanted.vmi, resources, facts, environment).map_err(|error| failed(&error))?;
    devices.extend(cards);
    Ok(devices)
}

/// Prepares the disks that an incoming guest brings along, because they were plugged in while it ran; returns
/// the set of descriptors of each.
fn plugged(
    wanted: &Wanted,
    store: &mut DescriptorStore,
    descriptors: &mut Descriptors,
    volumes: &mut volumes::Prepared,
    growing: &GrowingDisks,
) -> Result<Vec<(HotDisk, u32)>, GuestEnd> {
    let mut plugged = Vec::new();
    for (key, set) in wanted.plugged().into_iter().zip(plug::FIRST_SET..) {
        let volume = &key.volume;
        let given = store.take(&key.descriptor()).ok_or_else(|| {
            GuestEnd::failed("DescriptorsMissing", format!("volume {volume}: its disk is in use already"))
        })?;
        let facts = plug::facts(&key, &wanted.vmi, &given, set)
            .map_err(|why| GuestEnd::failed("VolumeFailed", format!("volume {volume}: {why}")))?;
        plug::grows(&key, &wanted.vmi, &given, &facts, growing);
        volumes.on_claims.extend(written::entry(&key, &wanted.vmi, &given, &facts));
        let member = FdSetMember { fd: descriptors.add(given), what: format!("volume {volume}") };
        volumes.fd_sets.push(FdSet { number: set, members: vec![member] });
        volumes.volumes.push(facts);
        plugged.push((key, set));
    }
    Ok(plugged)
}

/// The addresses of an earlier start. Users can change the annotation, so invalid addresses are not used.
fn saved_layout(vmi: &ValidVmi) -> Option<Layout> {
    let text = vmi.vmi().metadata.annotations.as_ref()?.get(PCI_LAYOUT_ANNOTATION)?;
    match Layout::saved(text) {
        Ok(layout) => Some(layout),
        Err(error) => {
            tracing::warn!(%error, "devices get new PCI addresses");
            None
        }
    }
}

type Served = (String, dhcp::Guest, dhcp::Sockets);

fn interface(
    wanted: &Wanted,
    facts: &Interface,
    passt: Option<OwnedFd>,
    store: &mut DescriptorStore,
    descriptors: &mut Descriptors,
) -> Result<(InterfaceFacts, Served), GuestEnd> {
    let mut take = |kind: NetworkDescriptor| -> Option<OwnedFd> { store.take(&kind.of(&facts.network)) };
    let sockets = dhcp::Sockets {
        dhcp4: take(NetworkDescriptor::Dhcp4),
        dhcp6: take(NetworkDescriptor::Dhcp6),
        router: take(NetworkDescriptor::RouterAdvertisement),
        bridge_index: facts.bridge_index,
    };
    let taps = wanted.taps(facts).into_iter().map(|name| {
        let tap = store.take(&name).ok_or_else(|| {
            let message = format!("interface {}: its tap is in use already", facts.name);
            GuestEnd::failed("DescriptorsMissing", message)
        })?;
        Ok(TapFd::Number(descriptors.add(tap)))
    });
    let taps = taps.collect::<Result<_, GuestEnd>>()?;
    let guest = wanted
        .served(facts)
        .map_err(|error| GuestEnd::failed("NetworkFailed", format!("interface {}: {error}", facts.name)))?;
    // passt accepts longer frames than the pod's link, and tells the guest its own MTU.
    let (mtu, backend) = match passt {
        Some(connection) => (None, NetBackend::Stream(descriptors.add(connection))),
        None => (u16::try_from(facts.mtu).ok(), NetBackend::Tap(taps)),
    };
    let (name, mac) = (facts.name.clone(), facts.mac.clone());
    let interface = InterfaceFacts { name, mac, mtu, backend };
    Ok((interface, (facts.network.clone(), guest, sockets)))
}
