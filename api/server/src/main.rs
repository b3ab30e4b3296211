//! virt-api: admission webhooks and the aggregated subresources.kubevirt.io API.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use virt_api::config;
use virt_api::front_proxy::{self, CONFIG_MAP, FrontProxy};
use virt_api::server::{KubeClient, Server, serve};
use virt_api::tls::{self, Certificates, Files};

/// Certificates are made by virt-controller's leader; on a fresh installation they come a moment later.
const CERTIFICATES_WITHIN: Duration = Duration::from_secs(300);

/// Admission webhooks and the aggregated subresources.kubevirt.io API.
#[derive(Debug, Parser)]
#[command(version)]
struct Options {
    /// Address to listen on.
    #[arg(long, default_value = "0.0.0.0:8443")]
    listen: SocketAddr,
    /// Namespace of the installation.
    #[arg(long, env = "POD_NAMESPACE", default_value = "kubevirt")]
    namespace: String,
    /// Directory with tls.crt and tls.key that this server shows.
    #[arg(long, default_value = "/etc/virt-api/certificates")]
    serving_certs: PathBuf,
    /// Directory with tls.crt and tls.key for calls to virt-handler.
    #[arg(long, default_value = "/etc/virt-handler/clientcertificates")]
    client_certs: PathBuf,
    /// Directory with ca-bundle: who signs virt-handler's certificates.
    #[arg(long, default_value = "/etc/virt-api/ca")]
    ca: PathBuf,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tls::install_provider();
    let options = Options::parse();
    tracing_subscriber::fmt()
        .json()
        .with_env_filter(
            tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| "info".into()),
        )
        .init();
    let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let client = Client::try_default().await.context("read the service account")?;
    let files = Files { serving: options.serving_certs, client: options.client_certs, ca: options.ca };
    let certificates = tokio::select! {
        certificates = wait_for_certificates(files) => certificates?,
        _ = terminate.recv() => return Ok(()),
    };
    tokio::spawn(certificates.clone().follow());
    let server = Arc::new(Server {
        client: KubeClient(client.clone()),
        namespace: options.namespace,
        certificates,
        front_proxy: front_proxy::Current::empty(),
        config: Arc::default(),
    });
    tokio::spawn(config::follow(client.clone(), server.config.clone()));
    tokio::spawn(follow_front_proxy(client, server.clone()));
    let listener = TcpListener::bind(options.listen).await.context("listen")?;
    tracing::info!(address = %options.listen, "serving");
    tokio::select! {
        served = serve(server, listener) => served.context("serve")?,
        _ = terminate.recv() => tracing::info!("asked to end"),
    }
    Ok(())
}

async fn wait_for_certificates(files: Files) -> anyhow::Result<Arc<Certificates>> {
    let started = tokio::time::Instant::now();
    let mut told = false;
    loop {
        match Certificates::read(files.clone()) {
            Ok(certificates) => return Ok(certificates),
            Err(error) if started.elapsed() > CERTIFICATES_WITHIN => {
                return Err(error).context("no certificates from virt-controller");
            }
            Err(error) if !told => {
                tracing::info!(%error, "waiting for certificates");
                told = true;
            }
            Err(_) => {}
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
}

/// Watches the config map that says whom the aggregator is.
async fn follow_front_proxy(client: Client, server: Arc<Server>) {
    let (namespace, name) = CONFIG_MAP;
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut changes = watcher(maps, only).default_backoff().applied_objects().boxed();
    while let Some(change) = changes.next().await {
        match change.map(|map| FrontProxy::from_config_map(&map)) {
            Ok(Ok(front_proxy)) => {
                server.front_proxy.store(Some(Arc::new(front_proxy)));
                tracing::info!("front-proxy configuration read");
            }
            Ok(Err(error)) => tracing::warn!(%error, "front-proxy configuration is not usable"),
            Err(error) => tracing::warn!(%error, "front-proxy configuration not watched"),
        }
    }
}
