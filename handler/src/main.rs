//! `virt-handler`: reads flags, opens what is opened once, and connects the parts.
//!
//! The modules, from the outside in. Each uses only modules that come after it.
//!
//! What others see of the handler:
//!
//! | module | what it does | who calls it |
//! |---|---|---|
//! | [`migration`](virt_handler::migration) | lets guests in that come from other nodes, sends those that leave | handlers of other nodes |
//! | [`server`](virt_handler::server) | consoles, displays, USB, pause and other requests about a guest, over TLS | virt-api |
//! | [`metrics`](virt_handler::metrics) | numbers of each guest: from its launcher, its control groups and its network devices | Prometheus |
//! | [`certificate`](virt_handler::certificate) | asks for the certificate that the server shows, and renews it | the server |
//!
//! What the handler tells of its node:
//!
//! | module | what it does |
//! |---|---|
//! | [`labels`](virt_handler::labels) | labels of the node: CPU models, features, machine types that guests can have there |
//! | [`heartbeat`](virt_handler::heartbeat) | says that the handler is alive and guests may be scheduled there |
//! | [`devices`](virt_handler::devices) | device plugins for the kubelet: `/dev/kvm`, permitted host devices |
//!
//! What it does for each guest. One task owns one guest; all others only read what it publishes.
//!
//! | module | what it does |
//! |---|---|
//! | [`supervisor`](virt_handler::supervisor) | watches instances and launcher pods, keeps one task for each instance |
//! | [`sync`](virt_handler::sync) | that task: observe, plan one step, apply it, report; `plan` is pure, `session` acts |
//! | [`status`](virt_handler::status) | the status and the events of an instance, from what was observed: pure |
//! | [`real_time`](virt_handler::real_time) | realtime scheduling of virtual CPUs |
//! | [`exclusive`](virt_handler::exclusive) | CPUs that the kubelet has given to a container alone |
//! | [`registry`](virt_handler::registry) | the guests of this node and their launchers; the supervisor writes it, server and metrics read it |
//! | [`network`](virt_handler::network) | the guest's network in the pod's namespace: observe, plan, apply; `guest` reads the spec |
//! | [`launchers`](virt_handler::launchers) | finds a launcher, proves who it is by its control groups, talks to it, reads what the kernel counts for its container |
//! | [`pods`](virt_handler::pods) | the few facts of a launcher pod that matter here |
//! | [`pace`](virt_handler::pace) | how often something may happen: a bucket of tokens |
//! | [`kernel`](virt_handler::kernel) | system calls that no library has; the only unsafe code |
//!
//! ```text
//!  API server ──watch──► supervisor ──► sync ──► launchers ══ gRPC, descriptors ══► virt-launcher (in the pod)
//!      ▲                     │           ├─────► network ═══ netlink ═════════════► the pod's network namespace
//!      └──── patch, events ──┼───────────┴─────► status
//!                            ▼
//!  virt-api ──► server ──► registry ◄── metrics ◄── Prometheus
//! ```

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use barevirt_api::settings::{Component, Rate};
use barevirt_component::certificates::{self, Clients, Server};
use barevirt_component::client::{Connection, Limit, Requests};
use barevirt_component::installation::Installation;
use barevirt_component::metrics::Metrics;
use barevirt_component::metrics::names::{INFO, VIRT_HANDLER_READY};
use barevirt_component::probes::{self, Probes, listen};
use barevirt_component::{log, tls};
use clap::Parser;
use kube::runtime::events::{Recorder, Reporter};
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use virt_handler::certificate::OwnCertificate;
use virt_handler::devices::{self, Resource};
use virt_handler::launchers::pods_dir::PodsDir;
use virt_handler::metrics::Guests;
use virt_handler::migration::arrivals::Arrivals;
use virt_handler::migration::listen::Door;
use virt_handler::registry::Launchers;
use virt_handler::sync::panics::Panics;
use virt_handler::sync::{Context, Migration};
use virt_handler::{heartbeat, labels, server, supervisor};

/// The agent of a node: finds the launchers of its virtual machines, prepares their network, reports what runs.
#[derive(Debug, Parser)]
#[command(version = barevirt_api::release::line())]
struct Flags {
    /// Name of this node.
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// The kubelet's directory of pods.
    #[arg(long, env = "PODS_DIR", default_value = "/var/lib/kubelet/pods")]
    pods_dir: PathBuf,
    /// The kubelet's folder: sockets of its device plugins, state of its CPU manager.
    #[arg(long, env = "KUBELET_DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Folder with what virt-launcher's node-capabilities wrote.
    #[arg(long, env = "CAPABILITIES_DIR", default_value = "/var/lib/kubevirt-node-labeller")]
    capabilities_dir: PathBuf,
    /// Where consoles are served.
    #[arg(long, env = "LISTEN", default_value = "[::]:8186")]
    listen: SocketAddr,
    /// Bundle of the authorities that sign virt-api's certificate, and ours.
    #[arg(long, env = "CLIENT_CA", default_value = "/etc/virt-handler/ca/ca-bundle")]
    client_ca: PathBuf,
    /// Where other handlers, and the connections of guests that come, are taken in.
    #[arg(long, env = "MIGRATION_LISTEN", default_value = "[::]:8187")]
    migration_listen: SocketAddr,
    /// Address of this pod, told to other handlers. Where it is not given, that by which the API server is reached.
    #[arg(long, env = "POD_IP")]
    pod_ip: Option<IpAddr>,
    /// Where /healthz and /metrics are served, over TLS.
    #[arg(long, env = "PROBES_LISTEN", default_value = "[::]:8443")]
    probes_listen: SocketAddr,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let level = log::start();
    certificates::install_provider();

    let pods = Arc::new(PodsDir::open(&flags.pods_dir)?);
    let mut metrics = Metrics::default();
    let requests = Requests::exported(&mut metrics);
    metrics.info(&INFO, "kubeversion", barevirt_api::release::tag());
    let connection = Connection::infer(requests).await.context("find the API server")?;
    let limit = Limit::new(Rate::NODE);
    let client = connection.limited(&limit).context("make a client")?;
    let installation = Installation::default();
    // What sets the rate does not wait for it.
    tokio::spawn(installation.clone().watch(connection.client().context("make a client")?));
    tokio::spawn(level.follow(installation.clone(), Component::Handler, flags.node_name.clone()));
    tokio::spawn(limit.follow(installation.clone(), "virt-handler", |settings| settings.rates.handler));
    let listener = listen(flags.listen).await.with_context(|| format!("listen on {}", flags.listen))?;
    let reporter =
        Reporter { controller: "virt-handler".to_owned(), instance: Some(flags.node_name.clone()) };
    let policy = tls::policy(&installation);
    let trusted = certificates::files::authorities(&flags.client_ca);
    let own = OwnCertificate::new(
        flags.node_name.clone(),
        Some(tls::self_made("localhost").context("make a certificate")?),
    );
    let arrivals = Arrivals::default();
    let door = Door {
        certificates: Server::follow(own.shown(), Clients::Shown, policy.clone(), &[]),
        trusted: trusted.clone(),
        arrivals: arrivals.clone(),
    };
    let at_door = listen(flags.migration_listen).await;
    let at_door = at_door.with_context(|| format!("listen on {}", flags.migration_listen))?;
    let migration = Migration {
        arrivals,
        own: certificates::Client::follow(own.shown(), trusted.clone(), policy.clone()),
        address: flags.pod_ip.or_else(own_address),
    };
    let context = Context {
        migration,
        recorder: Recorder::new(client.clone(), reporter),
        client: client.clone(),
        pods,
        kubelet: flags.kubelet_dir.clone(),
        node: flags.node_name.clone(),
        installation: installation.clone(),
        panics: Panics::exported(&mut metrics),
    };
    let launchers = Launchers::new(context.recorder.clone());
    let clients = Clients::SignedBy(trusted.clone());
    let tls = Server::follow(own.shown(), clients, policy.clone(), server::tls::PROTOCOLS);
    let open = Server::follow(own.shown(), Clients::Everybody, policy, server::tls::PROTOCOLS);
    let not_ready = own.not_ready();
    metrics.look(&VIRT_HANDLER_READY, move || if not_ready.borrow().is_none() { 1.0 } else { 0.0 });
    metrics.collect(Guests::new(launchers.clone(), Handle::current()));
    let (known, told_by) = (installation.clone(), installation.clone());
    let devices_allowed = installation.clone();
    let told = Arc::new(Probes { installation, leading: None, metrics });
    info!(node = flags.node_name, version = barevirt_api::release::VERSION, "virt-handler starts");

    tokio::spawn(virt_handler::migration::listen::run(at_door, door));
    tokio::spawn(server::run(listener, tls, own.not_ready(), launchers.clone()));
    tokio::spawn(own.run(client.clone(), trusted));
    let probes = tokio::spawn(probes::serve(flags.probes_listen, told, move || open.current()));
    let (node, capabilities) = (flags.node_name.clone(), flags.capabilities_dir);
    let (labeller, recorder) = (client.clone(), context.recorder.clone());
    tokio::spawn(async move { labels::run(labeller, recorder, node, known, &capabilities).await });
    let [kvm, rest @ ..] = Resource::all();
    let plugins = flags.kubelet_dir.join("device-plugins");
    for resource in rest {
        drop(devices::offer(resource, &plugins));
    }
    drop(devices::offer_userfaultfd(&plugins));
    tokio::spawn(devices::permitted::run(devices_allowed, PathBuf::from("/sys"), plugins.clone()));
    let sources = heartbeat::Sources {
        installation: told_by,
        kvm: devices::offer(kvm, &plugins),
        kubelet: flags.kubelet_dir,
    };
    tokio::spawn(heartbeat::run(client, flags.node_name, sources));
    let supervisor = tokio::spawn(supervisor::run(context, launchers));

    let mut terminate = signal(SignalKind::terminate()).context("listen to SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen to SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        ended = supervisor => anyhow::bail!("the watch of instances ended: {ended:?}"),
        ended = probes => anyhow::bail!("the probes ended: {ended:?}"),
    }
    // Nothing is torn down: guests and their networks go on, and the next handler finds them.
    info!("virt-handler ends");
    Ok(())
}

/// The address from which the API server is reached: nothing is sent.
fn own_address() -> Option<IpAddr> {
    let host: IpAddr = std::env::var("KUBERNETES_SERVICE_HOST").ok()?.parse().ok()?;
    let any: SocketAddr = if host.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = std::net::UdpSocket::bind(any).ok()?;
    socket.connect((host, 443)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}
