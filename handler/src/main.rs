//! `virt-handler`: parses flags, opens files and sockets once, and connects the modules.
//!
//! The modules are listed from the outside in. Each module uses only modules that come after it.
//!
//! Modules that other components use:
//!
//! | module | what it does | who calls it |
//! |---|---|---|
//! | [`migration`](virt_handler::migration) | receives guests from other nodes, and sends guests to them | handlers of other nodes |
//! | [`server`](virt_handler::server) | consoles, displays, USB, pause and other requests about a guest, over TLS | virt-api |
//! | [`metrics`](virt_handler::metrics) | metrics of each guest: from its launcher, its control groups and its network devices | Prometheus |
//! | [`certificate`](virt_handler::certificate) | obtains the server's certificate and renews it | the server |
//!
//! Modules that report about the node:
//!
//! | module | what it does |
//! |---|---|
//! | [`labels`](virt_handler::labels) | labels of the node: CPU models, features and machine types that guests can use |
//! | [`heartbeat`](virt_handler::heartbeat) | reports that the handler is alive and that guests may be scheduled |
//! | [`devices`](virt_handler::devices) | device plugins for the kubelet: `/dev/kvm`, permitted host devices |
//!
//! Modules that work for each guest. One task owns one guest; all others only read what it publishes.
//!
//! | module | what it does |
//! |---|---|
//! | [`supervisor`](virt_handler::supervisor) | watches instances and launcher pods, keeps one task for each instance |
//! | [`sync`](virt_handler::sync) | the task of a guest: observe, plan one step, apply it, report; `plan` is pure, `session` acts |
//! | [`status`](virt_handler::status) | the status and the events of an instance, from what was observed: pure |
//! | [`real_time`](virt_handler::real_time) | realtime scheduling of virtual CPUs |
//! | [`exclusive`](virt_handler::exclusive) | CPUs that the kubelet has given to a container alone |
//! | [`registry`](virt_handler::registry) | the guests of this node and their launchers; the supervisor writes it, server and metrics read it |
//! | [`network`](virt_handler::network) | the guest's network in the pod's namespace: observe, plan, apply; `guest` reads the spec |
//! | [`launchers`](virt_handler::launchers) | finds a launcher, verifies it by its control groups, talks to it, reads the kernel's counters for its container |
//! | [`pods`](virt_handler::pods) | the facts about a launcher pod that the handler needs |
//! | [`kernel`](virt_handler::kernel) | system calls that no library wraps; the only unsafe code |
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
use tracing::{info, warn};
use virt_handler::certificate::OwnCertificate;
use virt_handler::devices::{self, Resource};
use virt_handler::launchers::pods_dir::PodsDir;
use virt_handler::metrics::Guests;
use virt_handler::migration::address::Reached;
use virt_handler::migration::arrivals::Arrivals;
use virt_handler::migration::listen::ListenState;
use virt_handler::registry::Launchers;
use virt_handler::sync::panics::Panics;
use virt_handler::sync::{Context, Migration};
use virt_handler::{heartbeat, labels, server, supervisor};

/// The agent of a node: finds the launchers of its virtual machines, prepares their network, reports what
/// runs.
#[derive(Debug, Parser)]
#[command(version = barevirt_api::release::line())]
struct Flags {
    /// Name of this node.
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// The kubelet's directory of pods.
    #[arg(long, env = "PODS_DIR", default_value = "/var/lib/kubelet/pods")]
    pods_dir: PathBuf,
    /// The kubelet's folder, with the sockets of device plugins and the state of its CPU manager.
    #[arg(long, env = "KUBELET_DIR", default_value = "/var/lib/kubelet")]
    kubelet_dir: PathBuf,
    /// Folder with the output of virt-launcher's node-capabilities.
    #[arg(long, env = "CAPABILITIES_DIR", default_value = "/var/lib/kubevirt-node-labeller")]
    capabilities_dir: PathBuf,
    /// Address on which consoles are served.
    #[arg(long, env = "LISTEN", default_value = "[::]:8186")]
    listen: SocketAddr,
    /// Bundle of the authorities that sign virt-api's certificate and this handler's.
    #[arg(long, env = "CLIENT_CA", default_value = "/etc/virt-handler/ca/ca-bundle")]
    client_ca: PathBuf,
    /// Address on which other handlers and incoming guests connect for migrations.
    #[arg(long, env = "MIGRATION_LISTEN", default_value = "[::]:8187")]
    migration_listen: SocketAddr,
    /// Address of this pod, for other handlers, unless there is a network for migrations. By default the address from which the
    /// API server is reached.
    #[arg(long, env = "POD_IP")]
    pod_ip: Option<IpAddr>,
    /// Address on which /healthz and /metrics are served, over TLS.
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
    // The client that updates the rate limit is not subject to it.
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
    let state = ListenState {
        certificates: Server::follow(own.shown(), Clients::Servers(trusted.clone()), policy.clone(), &[]),
        trusted: trusted.clone(),
        arrivals: arrivals.clone(),
    };
    let migration_listener = listen(flags.migration_listen).await;
    let migration_listener =
        migration_listener.with_context(|| format!("listen on {}", flags.migration_listen))?;
    let reached = Reached { pod: flags.pod_ip.or_else(own_address) };
    match reached.now() {
        Some(address) => info!(%address, "guests migrate to this address"),
        None => warn!("no address for migrations is known, so no migration to this node succeeds"),
    }
    let migration = Migration {
        arrivals,
        own: certificates::Client::follow(own.shown(), trusted.clone(), policy.clone()),
        reached,
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
    labels::export_deprecated(&mut metrics, &flags.capabilities_dir, &flags.node_name);
    metrics.collect(Guests::new(launchers.clone(), Handle::current()));
    let (known, told_by) = (installation.clone(), installation.clone());
    let devices_allowed = installation.clone();
    let told = Arc::new(Probes { installation, leading: None, metrics });
    info!(node = flags.node_name, version = barevirt_api::release::VERSION, "virt-handler starts");

    tokio::spawn(virt_handler::migration::listen::run(migration_listener, state));
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
    // Nothing is torn down: guests and their networks keep running, and the next handler finds them.
    info!("virt-handler ends");
    Ok(())
}

/// The address from which the API server is reached. Nothing is sent to determine it.
fn own_address() -> Option<IpAddr> {
    let host: IpAddr = std::env::var("KUBERNETES_SERVICE_HOST").ok()?.parse().ok()?;
    let any: SocketAddr = if host.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = std::net::UdpSocket::bind(any).ok()?;
    socket.connect((host, 443)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::Flags;
    use clap::CommandFactory;

    #[test]
    fn the_settings_know_its_flags() {
        let command = Flags::command();
        let flags: Vec<&str> = command.get_arguments().filter_map(|flag| flag.get_long()).collect();
        assert_eq!(flags, barevirt_api::flags::VIRT_HANDLER);
    }
}
