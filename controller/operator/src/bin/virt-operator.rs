//! Installs what the `KubeVirt` object asks for and keeps it so, behind a lease.

use anyhow::Context;
use barevirt_install::Images;
use barevirt_install::operator::cache::Cache;
use barevirt_install::operator::probes::{self, State};
use barevirt_install::operator::target::Own;
use barevirt_install::operator::{NAME, run};
use clap::Parser;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use virt_controller::{lease, process};

/// Installs what the KubeVirt object asks for and keeps it so; makes the components' certificates.
///
/// VIRT_API_DIGEST, VIRT_CONTROLLER_DIGEST, VIRT_HANDLER_DIGEST, VIRT_LAUNCHER_DIGEST and VIRT_OPERATOR_DIGEST tell which
/// build the tag stands for, so that another build is rolled out.
#[derive(Parser)]
#[command(version)]
struct Flags {
    /// Namespace of the installation.
    #[arg(long, env = "NAMESPACE", default_value = barevirt_api::names::INSTALL_NAMESPACE)]
    namespace: String,
    /// This program's own image: the others have its registry and tag, unless the KubeVirt object says otherwise.
    #[arg(long, env = "VIRT_OPERATOR_IMAGE")]
    image: String,
    /// Pull policy for the others, unless the KubeVirt object names one.
    #[arg(long, env = "IMAGE_PULL_POLICY", default_value = "IfNotPresent")]
    image_pull_policy: String,
    /// Address for /healthz and /metrics, over TLS.
    #[arg(long, env = "LISTEN", default_value = "[::]:8443")]
    listen: SocketAddr,
    /// Name of this process in the lease; the pod's name.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
}

/// Images whose builds can be told.
const IMAGES: [&str; 5] = ["virt-api", "virt-controller", "virt-handler", "virt-launcher", NAME];

fn main() -> anyhow::Result<ExitCode> {
    process::run(work(Flags::parse()))
}

fn own(flags: &Flags) -> anyhow::Result<Own> {
    let digest = |image: &str| {
        let variable = format!("{}_DIGEST", image.replace('-', "_").to_uppercase());
        std::env::var(variable).ok().filter(|digest| !digest.is_empty())
    };
    Ok(Own {
        namespace: flags.namespace.clone(),
        images: Images::beside(&flags.image, &flags.image_pull_policy).context("--image")?,
        digests: IMAGES.iter().filter_map(|image| Some(((*image).to_owned(), digest(image)?))).collect(),
        version: concat!("v", env!("CARGO_PKG_VERSION")).to_owned(),
        architecture: match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
        .to_owned(),
    })
}

async fn work(flags: Flags) -> anyhow::Result<ExitCode> {
    let stop = process::stop()?;
    tokio::pin!(stop);

    let own = own(&flags)?;
    let config = kube::Config::infer().await.context("cannot find out how to reach the API server")?;
    let client = kube::Client::try_from(config).context("cannot make a client")?;
    let server = client.apiserver_version().await.context("the API server does not tell its version")?;
    let state = Arc::new(State {
        leading: AtomicBool::new(false),
        cache: Arc::new(Cache::default()),
        server: serde_json::to_value(server).context("version of the API server")?,
    });
    let mut probes = tokio::spawn(probes::serve(flags.listen, state.clone()));

    let identity = flags.identity.clone().unwrap_or_else(|| format!("process-{}", std::process::id()));
    let leases: Api<Lease> = Api::namespaced(client.clone(), &flags.namespace);
    let mut candidate = lease::Candidate::new(leases, NAME, identity.clone());
    tokio::select! {
        () = candidate.acquire() => {}
        () = &mut stop => return Ok(ExitCode::SUCCESS),
        ended = &mut probes => {
            ended.context("probes")?.context("probes")?;
        }
    }
    state.leading.store(true, Ordering::Relaxed);

    let ended = tokio::select! {
        () = run::run(client, own, state.cache.clone(), &identity) => Some("the work ended"),
        () = candidate.hold() => Some("the lease was lost"),
        _ = &mut probes => Some("the probes ended"),
        () = &mut stop => None,
    };
    // From here on nothing is written any more: the work was dropped.
    Ok(process::end(&candidate, ended).await)
}
