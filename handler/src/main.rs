//! `virt-handler`: reads flags, opens what is opened once, and connects the parts.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use clap::Parser;
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tracing::info;
use tracing_subscriber::EnvFilter;
use virt_handler::launchers::pods_dir::PodsDir;
use virt_handler::server::tls::Certificates;
use virt_handler::supervisor::Launchers;
use virt_handler::sync::Context;
use virt_handler::{heartbeat, server, supervisor};

/// The agent of a node: finds the launchers of its virtual machines, prepares their network, reports what runs.
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    /// Name of this node.
    #[arg(long, env = "NODE_NAME")]
    node_name: String,
    /// The kubelet's directory of pods.
    #[arg(long, env = "PODS_DIR", default_value = "/var/lib/kubelet/pods")]
    pods_dir: PathBuf,
    /// Where consoles are served.
    #[arg(long, env = "LISTEN", default_value = "[::]:8186")]
    listen: SocketAddr,
    /// Directory with tls.crt and tls.key of the console server.
    #[arg(long, env = "SERVER_CERTS", default_value = "/etc/virt-handler/servercertificates")]
    server_certs: PathBuf,
    /// Bundle of the authorities that sign virt-api's certificate.
    #[arg(long, env = "CLIENT_CA", default_value = "/etc/virt-handler/ca/ca-bundle")]
    client_ca: PathBuf,
    /// What is logged, e.g. info or virt_handler=debug.
    #[arg(long, env = "RUST_LOG", default_value = "info")]
    log_level: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let flags = Flags::parse();
    let filter = EnvFilter::try_new(&flags.log_level).context("read --log-level")?;
    tracing_subscriber::fmt().json().flatten_event(true).with_span_list(false).with_env_filter(filter).init();
    // Another provider in the dependency tree would make the choice ambiguous: an error here means that it was made.
    let _ = rustls::crypto::ring::default_provider().install_default();

    let pods = Arc::new(PodsDir::open(&flags.pods_dir)?);
    let client = Client::try_default().await.context("find the API server")?;
    let listener = listen(flags.listen).await.with_context(|| format!("listen on {}", flags.listen))?;
    let reporter =
        Reporter { controller: "virt-handler".to_owned(), instance: Some(flags.node_name.clone()) };
    let context = Context {
        recorder: Recorder::new(client.clone(), reporter),
        client: client.clone(),
        pods,
        node: flags.node_name.clone(),
    };
    let launchers = Launchers::default();
    let certificates = Certificates::new(&flags.server_certs, flags.client_ca.clone());
    info!(node = flags.node_name, version = env!("CARGO_PKG_VERSION"), "virt-handler starts");

    tokio::spawn(Arc::clone(&certificates).follow());
    tokio::spawn(server::run(listener, certificates, launchers.clone()));
    tokio::spawn(heartbeat::run(client, flags.node_name));
    let supervisor = tokio::spawn(supervisor::run(context, launchers));

    let mut terminate = signal(SignalKind::terminate()).context("listen to SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen to SIGINT")?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        ended = supervisor => anyhow::bail!("the watch of instances ended: {ended:?}"),
    }
    // Nothing is torn down: guests and their networks go on, and the next handler finds them.
    info!("virt-handler ends");
    Ok(())
}

/// Listens; on a node without IPv6 the unspecified address is the one of IPv4.
async fn listen(address: SocketAddr) -> std::io::Result<TcpListener> {
    match TcpListener::bind(address).await {
        Err(error) if address.is_ipv6() && address.ip().is_unspecified() => {
            info!(%error, "no IPv6 on this node");
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        result => result,
    }
}
