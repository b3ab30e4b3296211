//! Virtual machines, their instances and launcher pods, behind a lease.

use anyhow::Context;
use clap::Parser;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use virt_controller::{cluster, health, lease, process, run};

/// Turns virtual machines into instances and instances into launcher pods.
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// Namespace of the components, where the lease is.
    #[arg(long, env = "NAMESPACE", default_value = barevirt_api::names::INSTALL_NAMESPACE)]
    namespace: String,
    /// Image of virt-launcher and the container disks' helper.
    #[arg(long, env = "LAUNCHER_IMAGE")]
    launcher_image: String,
    /// Pull policy for it, unless the KubeVirt object names one.
    #[arg(long, env = "IMAGE_PULL_POLICY")]
    image_pull_policy: Option<String>,
    /// Seconds after which a silent node counts as lost.
    #[arg(long, env = "NODE_GRACE_SECONDS", default_value_t = 300)]
    node_grace_seconds: u64,
    /// Address for /healthz and /leader, plain HTTP.
    #[arg(long, env = "HEALTH_LISTEN", default_value = "0.0.0.0:8080")]
    health_listen: SocketAddr,
    /// Name of this process in the lease; the pod's name.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
}

fn main() -> anyhow::Result<ExitCode> {
    process::run(work(Flags::parse()))
}

async fn work(flags: Flags) -> anyhow::Result<ExitCode> {
    let stop = process::stop()?;
    tokio::pin!(stop);

    let leading = Arc::new(AtomicBool::new(false));
    let probes = tokio::spawn(health::serve(flags.health_listen, leading.clone()));

    let config = kube::Config::infer().await.context("cannot find out how to reach the API server")?;
    let client = kube::Client::try_from(config).context("cannot make a client")?;
    let identity = flags.identity.unwrap_or_else(|| format!("process-{}", std::process::id()));
    let leases: Api<Lease> = Api::namespaced(client.clone(), &flags.namespace);
    let mut candidate = lease::Candidate::new(leases, lease::NAME, identity.clone());
    tokio::select! {
        () = candidate.acquire() => {}
        () = &mut stop => return Ok(ExitCode::SUCCESS),
        ended = probes => {
            ended.context("health server")?.context("health server")?;
        }
    }
    leading.store(true, Ordering::Relaxed);

    let options = cluster::Options {
        launcher_image: flags.launcher_image,
        image_pull_policy: flags.image_pull_policy,
        node_grace: Duration::from_secs(flags.node_grace_seconds),
    };
    let ended = tokio::select! {
        () = run::run(client, &identity, options) => Some("the work ended"),
        () = candidate.hold() => Some("the lease was lost"),
        () = &mut stop => None,
    };
    // From here on nothing is written any more: the work was dropped.
    Ok(process::end(&candidate, ended).await)
}
