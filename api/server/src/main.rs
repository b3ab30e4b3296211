//! virt-api: admission webhooks and the aggregated subresources.kubevirt.io API.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use barevirt_api::settings::{Component, Rate};
use barevirt_component::certificates;
use barevirt_component::client::{Connection, Limit, Requests};
use barevirt_component::installation::Installation;
use barevirt_component::metrics::Metrics;
use barevirt_component::metrics::names::VIRT_API_READY;
use barevirt_component::probes::{self, Probes, listen};
use barevirt_component::server::bodies::Bodies;
use barevirt_component::{log, tls};
use clap::Parser;
use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client};
use tokio::signal::unix::{SignalKind, signal};
use virt_api::admission::Created;
use virt_api::front_proxy::{self, CONFIG_MAP, FrontProxy};
use virt_api::server::serve;
use virt_api::state::{KubeClient, State};
use virt_api::streams::Streams;
use virt_api::tls::{Certificates, Files};
use virt_api::uploads::{self, Uploads};

/// virt-operator makes the certificates; in a new installation they come a moment later.
const CERTIFICATES_TIMEOUT: Duration = Duration::from_secs(300);

/// Admission webhooks and the aggregated subresources.kubevirt.io API.
#[derive(Debug, Parser)]
#[command(version = barevirt_api::release::line())]
struct Options {
    /// Address of the webhooks and the aggregated API, over TLS.
    #[arg(long, default_value = "[::]:8444")]
    listen: SocketAddr,
    /// Address of uploads, over TLS.
    #[arg(long, default_value = "[::]:8445")]
    uploads_listen: SocketAddr,
    /// Address for /healthz, /readyz and /metrics, over TLS.
    #[arg(long, default_value = "[::]:8443")]
    probes_listen: SocketAddr,
    /// Namespace of the installation.
    #[arg(long, env = "POD_NAMESPACE", default_value = "kubevirt")]
    namespace: String,
    /// Directory with tls.crt and tls.key that this server shows.
    #[arg(long, default_value = "/etc/virt-api/certificates")]
    serving_certs: PathBuf,
    /// Directory with tls.crt and tls.key for calls to virt-handler.
    #[arg(long, default_value = "/etc/virt-handler/clientcertificates")]
    client_certs: PathBuf,
    /// Directory with ca-bundle, the authorities that sign virt-handler's certificates.
    #[arg(long, default_value = "/etc/virt-api/ca")]
    ca: PathBuf,
    /// Node of this process.
    #[arg(long, env = "NODE_NAME", default_value = "")]
    node_name: String,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    certificates::install_provider();
    let options = Options::parse();
    let level = log::start();
    let mut terminate = signal(SignalKind::terminate()).context("wait for SIGTERM")?;
    let mut metrics = Metrics::default();
    let requests = Requests::exported(&mut metrics);
    let ready = metrics.gauge(&VIRT_API_READY);
    let created = Created::exported(&mut metrics);
    let streams = Streams::default();
    metrics.collect(streams.clone());
    let connection = Connection::infer(requests).await.context("read the service account")?;
    let (limit, webhook_limit) = (Limit::new(Rate::CENTRAL), Limit::new(Rate::CENTRAL));
    let client = connection.limited(&limit).context("make a client")?;
    let webhooks = connection.limited(&webhook_limit).context("make a client")?;
    // The watch that sets the rates is not limited by them.
    let direct = connection.client().context("make a client")?;
    let installation = Installation::default();
    tokio::spawn(installation.clone().watch(direct.clone()));
    tokio::spawn(level.follow(installation.clone(), Component::Api, options.node_name));
    tokio::spawn(limit.follow(installation.clone(), "virt-api", |settings| settings.rates.api));
    let of_webhooks = |settings: &barevirt_api::settings::Settings| settings.rates.webhooks;
    tokio::spawn(webhook_limit.follow(installation.clone(), "webhooks", of_webhooks));
    let files = Files { serving: options.serving_certs, client: options.client_certs, ca: options.ca };
    let certificates = Certificates::follow(&files, &tls::policy(&installation));
    tokio::select! {
        ready = tokio::time::timeout(CERTIFICATES_TIMEOUT, certificates.ready()) => {
            ready.context("no certificates from virt-operator")?;
        }
        _ = terminate.recv() => return Ok(()),
    }
    let probes = Arc::new(Probes { installation: installation.clone(), leading: None, metrics });
    let state = Arc::new(State {
        client: KubeClient(client),
        webhooks: KubeClient(webhooks),
        namespace: options.namespace,
        certificates,
        front_proxy: front_proxy::Current::empty(),
        probes: probes.clone(),
        bodies: Bodies::default(),
        streams,
        created,
    });
    tokio::spawn(follow_front_proxy(direct, state.clone()));
    tokio::spawn(async move {
        installation.ready().await;
        ready.set(1);
    });
    let listener = listen(options.listen).await.context("listen")?;
    let of_uploads = listen(options.uploads_listen).await.context("listen for uploads")?;
    let uploads = uploads::serve(Uploads::new(state.clone()), of_uploads);
    let shown = state.clone();
    // Uploads share only the certificate with the clients of the API.
    let mut probes =
        tokio::spawn(probes::serve(options.probes_listen, probes, move || shown.certificates.probes()));
    tracing::info!(address = %options.listen, "serving");
    tokio::select! {
        () = serve(state, listener) => {}
        () = uploads => {}
        ended = &mut probes => ended.context("probes")?.context("probes")?,
        _ = terminate.recv() => tracing::info!("asked to end"),
    }
    Ok(())
}

/// Watches the config map that identifies the aggregator.
async fn follow_front_proxy(client: Client, state: Arc<State>) {
    let (namespace, name) = CONFIG_MAP;
    let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
    let only = watcher::Config::default().fields(&format!("metadata.name={name}"));
    let mut changes = watcher(maps, only).default_backoff().applied_objects().boxed();
    while let Some(change) = changes.next().await {
        match change.map(|map| FrontProxy::from_config_map(&map)) {
            Ok(Ok(front_proxy)) => {
                state.front_proxy.store(Some(Arc::new(front_proxy)));
                tracing::info!("front-proxy configuration read");
            }
            Ok(Err(error)) => tracing::warn!(%error, "front-proxy configuration is not usable"),
            Err(error) => tracing::warn!(%error, "front-proxy configuration not watched"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Options;
    use clap::CommandFactory;

    #[test]
    fn the_settings_know_its_flags() {
        let command = Options::command();
        let flags: Vec<&str> = command.get_arguments().filter_map(|flag| flag.get_long()).collect();
        assert_eq!(flags, barevirt_api::flags::VIRT_API);
    }
}
