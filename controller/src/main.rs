//! Virtual machines, their instances and launcher pods, behind a lease.

use anyhow::Context;
use barevirt_api::names;
use barevirt_api::settings::{Component, Rate};
use barevirt_component::certificates::{Clients, Server, files};
use barevirt_component::client::{Connection, Limit, Requests};
use barevirt_component::installation::Installation;
use barevirt_component::lease;
use barevirt_component::log::Level;
use barevirt_component::metrics::Metrics;
use barevirt_component::metrics::names::{VIRT_CONTROLLER_LEADING, VIRT_CONTROLLER_READY};
use barevirt_component::probes::{self, Probes};
use barevirt_component::{process, tls};
use clap::Parser;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use virt_controller::backlog::Backlogs;
use virt_controller::inventory::Inventory;
use virt_controller::{NAME, cluster, run};

/// Turns virtual machines into instances and instances into launcher pods.
#[derive(Parser)]
#[command(version = barevirt_api::release::line())]
struct Flags {
    /// Namespace of the components, where the lease is.
    #[arg(long, env = "NAMESPACE", default_value = names::INSTALL_NAMESPACE)]
    namespace: String,
    /// Image of virt-launcher and the container disks' helper.
    #[arg(long, env = "LAUNCHER_IMAGE")]
    launcher_image: String,
    /// Image of virt-importer, which fills DataVolumes where there is no CDI; without it they are left to CDI.
    #[arg(long, env = "IMPORTER_IMAGE")]
    importer_image: Option<String>,
    /// Image of passt, which joins guests with `passtBinding` to the pod network; without it such guests wait.
    #[arg(long, env = "PASST_IMAGE")]
    passt_image: Option<String>,
    /// Pull policy for these images, unless the KubeVirt object names one.
    #[arg(long, env = "IMAGE_PULL_POLICY")]
    image_pull_policy: Option<String>,
    /// Seconds after which a silent node counts as lost.
    #[arg(long, env = "NODE_GRACE_SECONDS", default_value_t = 300)]
    node_grace_seconds: u64,
    /// Address for /healthz, /leader and /metrics, over TLS.
    #[arg(long, env = "LISTEN", default_value = "[::]:8443")]
    listen: SocketAddr,
    /// Directory with tls.crt and tls.key for them.
    #[arg(long, env = "CERTIFICATES", default_value = "/etc/virt-controller/certificates")]
    certificates: PathBuf,
    /// Name of this process in the lease; the pod's name.
    #[arg(long, env = "POD_NAME")]
    identity: Option<String>,
    /// Node of this process.
    #[arg(long, env = "NODE_NAME", default_value = "")]
    node_name: String,
}

fn main() -> anyhow::Result<ExitCode> {
    process::run(|level| work(Flags::parse(), level))
}

async fn work(flags: Flags, level: Level) -> anyhow::Result<ExitCode> {
    let stop = process::stop()?;
    tokio::pin!(stop);

    let mut metrics = Metrics::default();
    let requests = Requests::exported(&mut metrics);
    let connection =
        Connection::infer(requests).await.context("cannot find out how to reach the API server")?;
    // The lease and the settings must not wait for the limiter.
    let direct = connection.client().context("cannot make a client")?;
    let limit = Limit::new(Rate::CENTRAL);
    let client = connection.limited(&limit).context("cannot make a client")?;

    let installation = Installation::default();
    tokio::spawn(installation.clone().watch(direct.clone()));
    tokio::spawn(level.follow(installation.clone(), Component::Controller, flags.node_name.clone()));
    tokio::spawn(limit.follow(installation.clone(), "virt-controller", |settings| settings.rates.controller));

    let leading = Arc::new(AtomicBool::new(false));
    let leads = metrics.gauge(&VIRT_CONTROLLER_LEADING);
    metrics.gauge(&VIRT_CONTROLLER_READY).set(1);
    let inventory = Inventory::new(installation.clone());
    inventory.export(&mut metrics);
    let backlogs = Backlogs::exported(&mut metrics);
    let shown = files::pair_or(&flags.certificates, tls::self_made(NAME).context("certificate")?);
    let server = Server::follow(shown, Clients::Everybody, tls::policy(&installation), &[b"http/1.1"]);
    let told = Probes { installation: installation.clone(), leading: Some(leading.clone()), metrics };
    let mut probes = tokio::spawn(probes::serve(flags.listen, Arc::new(told), move || server.current()));

    let identity = flags.identity.unwrap_or_else(|| format!("process-{}", std::process::id()));
    let leases: Api<Lease> = Api::namespaced(direct, &flags.namespace);
    let mut candidate = lease::Candidate::new(leases, NAME, identity.clone());
    tokio::select! {
        () = candidate.acquire() => {}
        () = &mut stop => return Ok(ExitCode::SUCCESS),
        ended = &mut probes => {
            ended.context("probes")?.context("probes")?;
        }
    }
    leading.store(true, Ordering::Relaxed);
    leads.set(1);

    let options = cluster::Options {
        launcher_image: flags.launcher_image,
        importer_image: flags.importer_image,
        passt_image: flags.passt_image,
        image_pull_policy: flags.image_pull_policy,
        node_grace: Duration::from_secs(flags.node_grace_seconds),
        installation,
        inventory,
        backlogs,
        namespace: flags.namespace,
    };
    let ended = tokio::select! {
        () = run::run(client, &identity, options) => Some("the work ended"),
        () = candidate.hold() => Some("the lease was lost"),
        _ = &mut probes => Some("the probes ended"),
        () = &mut stop => None,
    };
    // The work was dropped: nothing is written from here on.
    Ok(process::end(&candidate, ended).await)
}

#[cfg(test)]
mod tests {
    use super::Flags;
    use clap::CommandFactory;

    #[test]
    fn the_settings_know_its_flags() {
        let command = Flags::command();
        let flags: Vec<&str> = command.get_arguments().filter_map(|flag| flag.get_long()).collect();
        assert_eq!(flags, barevirt_api::flags::VIRT_CONTROLLER);
    }
}
