//! `virt-launcher pod`: the first process of a VM pod.
//!
//! ```text
//!              launcher-sock (gRPC)  Sync, Watch, Control, .. ─► service ───┐
//!  virt-handler                                                            ├─► start ─► supervisor ─► QEMU
//!              launcher-fds          give ─► descriptor store ─────────────┘      │
//!                                    take ─► console, users' monitor, VNC, USB    ├─► dhcp
//!  container-disk ─ launcher.sock ─► disk::container ─────────────────────────────┘
//!  kubelet ─ SIGTERM ─► stop, step by step
//! ```
//!
//! It listens on unix sockets in the pod's directories and on no network address. If a handler goes away,
//! nothing changes. The pod is kept until QEMU has ended; then its end is reported to the handler, to the
//! termination log and into the exit code.

mod accelerator;
pub mod args;
mod card_changes;
pub mod cards;
pub mod confine;
pub mod debug;
pub mod descriptor_store;
mod discs;
mod filesystems;
pub mod grow;
pub mod host_cards;
mod images;
pub mod incoming;
pub mod migrate;
mod monitored;
mod passt;
pub mod plug;
mod plugged_disks;
pub mod probes;
pub mod reboot;
pub mod refresh;
pub mod report;
pub mod resize;
pub mod rest;
pub mod service;
pub mod settle;
pub mod shared;
mod side_containers;
pub mod start;
pub mod stream_router;
pub mod termination;
pub mod usb;
pub mod wanted;
mod written;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use barevirt_protocol::names::{DESCRIPTOR_SOCKET, GRPC_SOCKET};
use barevirt_protocol::seqpacket::{PacketListener, PacketSocket};
use barevirt_protocol::v1::LauncherStatus;
use barevirt_protocol::{descriptors, grpc};
use barevirt_qmp::{Agent, Deadline, Options, Qmp};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::spawn_local;

use self::args::Args;
use self::probes::serve_probes;
use self::report::{Circumstances, report};
use self::service::Service;
use self::shared::Pod;
use self::stream_router::StreamRouter;
use self::usb::UsbSlots;
use self::wanted::Wanted;
use crate::assembly::{Assembly, Ends};
use crate::credentials::serve::Outcome;
use crate::credentials::{self, Kinds};
use crate::disk::ContainerDisks;
use crate::guest_end::GuestEnd;
use crate::migration::Connections;
use crate::process::reap_strangers;
use crate::serial_log::{self, DEFAULT_LIMIT, SerialLog};
use crate::signals::Stops;
use crate::stats::Meter;
use crate::status::{Stage, Status};
use crate::supervisor::{Launch, Request, supervise};
use crate::{console, downward_metrics, guest_agent, people};

/// How long the launcher waits until a watching handler has received how the guest ended.
const END_SEEN: Duration = Duration::from_secs(2);
/// How long QEMU may take to open the monitor for users.
const PEOPLE: Duration = Duration::from_secs(300);

/// Runs the VM of this pod to its end. Must run within a `LocalSet`.
///
/// # Errors
/// If the pod is not set up as expected: a directory is missing.
pub async fn run(args: Args) -> anyhow::Result<GuestEnd> {
    tracing::info!(
        name = args.name,
        namespace = args.namespace,
        uid = args.uid,
        version = barevirt_api::release::VERSION,
        "virt-launcher"
    );
    // This comes first, because the first process of a pod loses signals without a handler.
    let stops = Stops::new().context("cannot wait for signals")?;
    // Orphans of this pod become children of this process, even if it is not the first process of the pod.
    nix::sys::prctl::set_child_subreaper(true).context("cannot become the reaper of orphans")?;
    let uid = nix::unistd::getuid().as_raw();
    let allowed = vec![0, uid];
    let grpc_listener = grpc::listen_at(&args.sockets.join(GRPC_SOCKET))?;
    let fds_listener = PacketListener::bind(&args.sockets.join(DESCRIPTOR_SOCKET))
        .with_context(|| format!("cannot listen in {}", args.sockets.display()))?;
    let container_disks = if args.image_volumes {
        None
    } else {
        let listening = ContainerDisks::listen(&args.container_disks);
        Some(listening.with_context(|| format!("cannot listen on {}", args.container_disks.display()))?)
    };
    let people_socket = args.private.join("qmp.sock");
    let people_listener = people::listen(&people_socket)
        .with_context(|| format!("cannot listen on {}", people_socket.display()))?;

    let pod = Pod {
        args,
        uid,
        wanted: watch::Sender::new(None),
        circumstances: watch::Sender::new(Circumstances::default()),
        store: Rc::default(),
        container_disks,
        people: watch::Sender::new(None),
        journal: people::journal::Journal::default(),
        guest: watch::Sender::new(None),
        real_time: watch::Sender::default(),
        connections: Connections::default(),
    };
    let (agent, agent_asked) = mpsc::channel(8);
    spawn_local(card_changes::tell(pod.circumstances.subscribe(), agent.clone()));
    let (requests, asked) = mpsc::channel(8);
    let status = watch::Sender::new(Status::default());
    let told = watch::Sender::new(LauncherStatus::default());

    let meter = Meter::new(pod.people.subscribe(), status.subscribe(), pod.guest.subscribe())
        .with_reports(pod.args.memory_report_seconds);
    let service = Service {
        pod_uid: pod.args.pod_uid.clone(),
        uid: pod.args.uid.clone(),
        wanted: pod.wanted.clone(),
        status: told.subscribe(),
        requests: requests.clone(),
        people: pod.people.subscribe(),
        agent,
        meter: meter.clone(),
        process: status.subscribe(),
        journal: pod.journal.clone(),
        real_time: pod.real_time.clone(),
        connections: pod.connections.clone(),
    };
    let (over, is_over) = oneshot::channel::<()>();
    let served = spawn_local(grpc::serve(grpc_listener, allowed.clone(), service, async {
        let _ = is_over.await;
    }));
    let (calls, called) = mpsc::channel(8);
    spawn_local(descriptors::serve(fds_listener, allowed, calls));
    let (console, seats) = mpsc::channel(4);
    let (clients, sent) = mpsc::channel(4);
    let router = StreamRouter {
        console,
        people: clients,
        vnc: pod.vnc_socket(),
        usb: UsbSlots::new(pod.usb_sockets()),
        store: pod.store.clone(),
        connections: pod.connections.clone(),
        circumstances: pod.circumstances.clone(),
    };
    spawn_local(router.serve(called));
    spawn_local(reap_strangers());
    let settled = watch::Sender::new(Status::default());
    let (agent_status, told_status) = (settled.subscribe(), settled.subscribe());
    spawn_local(settle::settle(status.subscribe(), settled));
    spawn_local(tell(
        told_status,
        pod.circumstances.subscribe(),
        pod.wanted.subscribe(),
        pod.guest.subscribe(),
        told.clone(),
    ));
    spawn_local(stop_on_signals(stops, requests, Duration::from_secs(pod.args.grace_period_seconds)));

    let mut connections = Vec::new();
    let agent = AgentChannels { asks: agent_asked, status: agent_status, meter };
    let prepare = launch(&pod, seats, people_listener, sent, agent, &mut connections);
    let end = supervise(prepare, asked, &status).await;
    // From here on the containers of the images may end.
    drop(connections);
    tracing::info!(phase = end.phase(), reason = end.reason, message = end.message, "guest ended");
    termination::write(&pod.args.termination_log, &end);
    report_end(&status, &pod, &told, over, served).await;
    Ok(end)
}

/// What the tasks that talk to the guest need from other tasks.
struct AgentChannels {
    asks: mpsc::Receiver<guest_agent::Ask>,
    status: watch::Receiver<Status>,
    meter: Meter,
}

/// Waits for what the start needs, and serves all channels of QEMU before its first instruction runs.
async fn launch(
    pod: &Pod,
    seats: mpsc::Receiver<UnixStream>,
    listener: UnixListener,
    sent: mpsc::Receiver<UnixStream>,
    channels: AgentChannels,
    kept: &mut Vec<PacketSocket>,
) -> Result<Launch, GuestEnd> {
    let start::Prepared { assembly, connections, growing } = start::prepare(pod).await?;
    *kept = connections;
    let room = pod.args.claims.room.clone();
    let (circumstances, status) = (pod.circumstances.clone(), channels.status.clone());
    let disks = grow::Disks { growing, room, circumstances, status };
    spawn_local(grow::serve(disks, pod.people.subscribe(), pod.wanted.subscribe()));
    let Assembly { launch, ends: Ends { people, serial, agent, downward_metrics }, .. } = assembly;
    serve_metrics(pod, downward_metrics, &channels.meter);
    let own =
        pod.wanted.borrow().as_ref().and_then(|wanted| wanted.vmi.spec().domain.devices.log_serial_console);
    let log = own.unwrap_or(!pod.args.without_serial_log).then(|| {
        SerialLog::create(&pod.args.private.join(serial_log::FILE), DEFAULT_LIMIT)
            .inspect_err(|error| tracing::warn!(%error, "the serial output is not logged"))
    });
    let log = log.and_then(Result::ok);
    spawn_local(console::serve(serial, log, seats));
    let monitor = Monitor {
        stream: people,
        status: channels.status.clone(),
        journal: pod.journal.clone(),
        incoming: launch.incoming.is_some(),
    };
    spawn_local(serve_people(monitor, listener, sent, pod.people.clone()));
    // It is always read, so that a guest that writes to it is not delayed.
    let options = Options { max_line: guest_agent::MAX_LINE, ..Options::default() };
    let agent = Agent::new(agent, options);
    let credentials = pod.wanted.borrow().as_ref().map(|wanted| wanted.vmi.spec().access_credentials.clone());
    let credentials = credentials.unwrap_or_default();
    let circumstances = pod.circumstances.clone();
    let tell = move |outcome: Outcome| {
        circumstances.send_if_modified(|circumstances| {
            let outcome = Some(outcome);
            let new = circumstances.credentials != outcome;
            circumstances.credentials = outcome;
            new
        });
    };
    serve_probes(pod, &agent, &channels.status);
    let (kinds, secrets) = (Kinds::of(&credentials), pod.args.secrets.clone());
    let guest = pod.guest.subscribe();
    spawn_local(credentials::serve::serve(
        agent.clone(),
        credentials,
        secrets,
        channels.status.clone(),
        guest,
        tell,
    ));
    spawn_local(guest_agent::serve(agent, channels.status, channels.asks, pod.guest.clone(), kinds));
    Ok(launch)
}

/// Serves metrics of the node to the guest.
fn serve_metrics(pod: &Pod, port: Option<UnixStream>, meter: &Meter) {
    let Some(wanted) = pod.wanted.borrow().clone() else { return };
    let people = pod.people.subscribe();
    let memory = wanted.vmi.guest_memory();
    let source = downward_metrics::Source::new(&pod.args.node_name, meter.clone(), people, memory);
    if let Some(port) = port {
        spawn_local(downward_metrics::serve(port, source.clone()));
    }
    let Some(volume) = wanted.vmi.volumes().iter().find(|volume| volume.downward_metrics.is_some()) else {
        return;
    };
    let path = downward_metrics::disk::path(&pod.args.ephemeral_disks, &volume.name);
    match downward_metrics::disk::open(&path) {
        Ok(file) => drop(spawn_local(downward_metrics::refresh(file, source))),
        Err(error) => tracing::error!(%error, "the guest's disk of metrics stays empty"),
    }
}

/// The monitor for users, before it is open.
struct Monitor {
    stream: UnixStream,
    status: watch::Receiver<Status>,
    journal: people::journal::Journal,
    /// Whether the guest comes from another node.
    incoming: bool,
}

/// Waits until an incoming guest is here. Returns whether it has arrived.
async fn has_arrived(mut status: watch::Receiver<Status>) -> bool {
    status.wait_for(|status| !matches!(status.stage, Stage::Waiting | Stage::Starting)).await.is_ok()
}

async fn serve_people(
    monitor: Monitor,
    listener: UnixListener,
    sent: mpsc::Receiver<UnixStream>,
    known: watch::Sender<Option<Qmp>>,
) {
    let Monitor { stream, status, journal, incoming } = monitor;
    match Qmp::open(stream, Options::default(), Deadline::after(PEOPLE)).await {
        Ok((qmp, events)) => {
            // A request during the arrival of a guest has to be repeated after it.
            if incoming && !has_arrived(status.clone()).await {
                return;
            }
            spawn_local(journal.keep(events));
            known.send_replace(Some(qmp.clone()));
            let guest = people::Guest { qmp, status: Some(status), command_timeout: people::COMMAND };
            people::serve_guest(guest, Some(listener), sent).await;
            known.send_replace(None);
        }
        Err(error) => tracing::debug!(%error, "no monitor for users"),
    }
}

/// Keeps the status for the handler complete and current.
async fn tell(
    mut status: watch::Receiver<Status>,
    mut circumstances: watch::Receiver<Circumstances>,
    mut wanted: watch::Receiver<Option<Arc<Wanted>>>,
    mut guest: watch::Receiver<Option<guest_agent::Facts>>,
    told: watch::Sender<LauncherStatus>,
) {
    loop {
        let mut present = circumstances.borrow_and_update().clone();
        present.revision = wanted.borrow_and_update().as_ref().map_or(0, |wanted| wanted.revision);
        let whole = report(&status.borrow_and_update(), &present, guest.borrow_and_update().as_ref());
        told.send_if_modified(|told| {
            let new = *told != whole;
            *told = whole;
            new
        });
        let changed = tokio::select! {
            changed = status.changed() => changed,
            changed = circumstances.changed() => changed,
            changed = wanted.changed() => changed,
            changed = guest.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}

/// SIGTERM from the kubelet starts the steps of a stop; the pod is kept until QEMU has ended.
async fn stop_on_signals(mut stops: Stops, requests: mpsc::Sender<Request>, grace: Duration) {
    loop {
        let why = stops.next().await;
        if requests.send(Request::Stop { grace, why: why.to_owned() }).await.is_err() {
            return;
        }
    }
}

/// Reports the end to a watching handler before the sockets close.
async fn report_end(
    status: &watch::Sender<Status>,
    pod: &Pod,
    told: &watch::Sender<LauncherStatus>,
    over: oneshot::Sender<()>,
    served: tokio::task::JoinHandle<Result<(), grpc::GrpcError>>,
) {
    let mut present = pod.circumstances.borrow().clone();
    present.revision = pod.wanted.borrow().as_ref().map_or(0, |wanted| wanted.revision);
    told.send_replace(report(&status.borrow(), &present, None));
    // The service itself is one receiver; each further receiver is a watch.
    let watched = async {
        while told.receiver_count() > 1 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let _ = tokio::time::timeout(END_SEEN, watched).await;
    drop(over);
    let _ = tokio::time::timeout(Duration::from_millis(200), served).await;
}
