//! Installs what the `KubeVirt` object asks for and keeps it installed, behind a lease.

use anyhow::Context;
use barevirt_api::release;
use barevirt_api::settings::Component;
use barevirt_component::certificates::{Clients, Server};
use barevirt_component::client::{Connection, Requests};
use barevirt_component::installation::Installation;
use barevirt_component::log::Level;
use barevirt_component::metrics::Metrics;
use barevirt_component::metrics::names::{EMULATION, VIRT_OPERATOR_LEADING, VIRT_OPERATOR_READY};
use barevirt_component::probes::{self, Probes};
use barevirt_component::tls;
use barevirt_component::{lease, process};
use barevirt_install::monitoring::RUNBOOKS;
use barevirt_install::operator::cache::Cache;
use barevirt_install::operator::target::Own;
use barevirt_install::operator::webhook::Webhook;
use barevirt_install::operator::{NAME, run};
use barevirt_install::{INSTALLED, Images, variable};
use clap::Parser;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::watch;

/// Installs what the KubeVirt object asks for and keeps it installed; makes the components' certificates.
///
/// VIRT_API_IMAGE, VIRT_CONTROLLER_IMAGE, VIRT_HANDLER_IMAGE, VIRT_IMPORTER_IMAGE, VIRT_LAUNCHER_IMAGE and VIRT_PASST_IMAGE name
/// an image in full, by tag or by digest. The same names with DIGEST at their end, and VIRT_OPERATOR_DIGEST, say which build a tag means, so
/// that another build is rolled out.
#[derive(Parser)]
#[command(name = "virt-operator", version = barevirt_api::release::line())]
struct Flags {
    /// Namespace of the installation.
    #[arg(long, env = "NAMESPACE", default_value = barevirt_api::names::INSTALL_NAMESPACE)]
    namespace: String,
    /// This program's own image: the others have its registry and tag, unless the KubeVirt object says otherwise.
    #[arg(long, env = "VIRT_OPERATOR_IMAGE")]
    image: String,
    /// Version of the images, if this program's own image is named by its digest; by default this program's version.
    #[arg(long = "kubevirt-version", env = "KUBEVIRT_VERSION")]
    images_version: Option<String>,
    /// Address of an alert's page, with %s for the alert.
    #[arg(long, env = "RUNBOOK_URL_TEMPLATE", default_value = RUNBOOKS, value_parser = runbooks)]
    runbook_url_template: String,
    /// Pull policy for the others, unless the KubeVirt object names one.
    #[arg(long, env = "IMAGE_PULL_POLICY", default_value = "IfNotPresent")]
    image_pull_policy: String,
    /// Address for /healthz and /metrics, over TLS.
    #[arg(long, env = "LISTEN", default_value = "[::]:8443")]
    listen: SocketAddr,
    /// Address for admission of the KubeVirt object, over TLS.
    #[arg(long, env = "WEBHOOK_LISTEN", default_value = "[::]:8444")]
    webhook_listen: SocketAddr,
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

fn runbooks(template: &str) -> Result<String, String> {
    if template.matches("%s").count() == 1 {
        return Ok(template.to_owned());
    }
    Err("there must be one %s in it, for the alert".to_owned())
}

fn own(flags: &Flags) -> anyhow::Result<Own> {
    let given = |variable: &str| std::env::var(variable).ok().filter(|value| !value.is_empty());
    let digest = |image: &str| given(&format!("{}_DIGEST", image.replace('-', "_").to_uppercase()));
    let version = flags.images_version.as_deref().filter(|version| !version.is_empty());
    let version = version.unwrap_or_else(|| release::tag());
    let mut images = Images::beside(&flags.image, version, &flags.image_pull_policy).context("--image")?;
    for name in INSTALLED {
        let variable = variable(name);
        if let Some(reference) = given(&variable) {
            images.pin(name, &reference).context(variable)?;
        }
    }
    // The digest of each image may be given.
    let all = INSTALLED.into_iter().chain([NAME]);
    Ok(Own {
        namespace: flags.namespace.clone(),
        images,
        digests: all.filter_map(|image| Some((image.to_owned(), digest(image)?))).collect(),
        version: release::tag().to_owned(),
        architecture: match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        }
        .to_owned(),
        runbooks: flags.runbook_url_template.clone(),
    })
}

async fn work(flags: Flags, level: Level) -> anyhow::Result<ExitCode> {
    let stop = process::stop()?;
    tokio::pin!(stop);

    let own = own(&flags)?;
    let mut metrics = Metrics::default();
    let requests = Requests::exported(&mut metrics);
    let connection =
        Connection::infer(requests).await.context("cannot find out how to reach the API server")?;
    let client = connection.client().context("cannot make a client")?;
    let installation = Installation::default();
    tokio::spawn(installation.clone().watch(client.clone()));
    tokio::spawn(level.follow(installation.clone(), Component::Operator, flags.node_name.clone()));

    let leading = Arc::new(AtomicBool::new(false));
    let leads = metrics.gauge(&VIRT_OPERATOR_LEADING);
    metrics.gauge(&VIRT_OPERATOR_READY).set(1);
    let known = installation.clone();
    metrics.look(&EMULATION, move || f64::from(u8::from(known.settings().use_emulation)));
    let made = tls::self_made(NAME).context("certificate")?;
    let (_made, shown) = watch::channel(Some(Arc::new(made)));
    let policy = tls::policy(&installation);
    let webhook = Webhook::follow(client.clone(), &flags.namespace, policy.clone());
    let proper = Server::follow(webhook.shown(), Clients::Everybody, policy.clone(), &[b"http/1.1"]);
    // A temporary certificate, until the leading operator has made the proper one.
    let server = Server::follow(shown, Clients::Everybody, policy, &[b"http/1.1"]);
    let tls = move || proper.current().or_else(|| server.current());
    let told = Probes { installation, leading: Some(leading.clone()), metrics };
    let mut probes = tokio::spawn(probes::serve(flags.listen, Arc::new(told), tls));

    let mut reviews = tokio::spawn(webhook.clone().serve(flags.webhook_listen));

    let identity = flags.identity.clone().unwrap_or_else(|| format!("process-{}", std::process::id()));
    let leases: Api<Lease> = Api::namespaced(client.clone(), &flags.namespace);
    let mut candidate = lease::Candidate::new(leases, NAME, identity.clone());
    tokio::select! {
        () = candidate.acquire() => {}
        () = &mut stop => return Ok(ExitCode::SUCCESS),
        ended = &mut probes => {
            ended.context("probes")?.context("probes")?;
        }
        ended = &mut reviews => {
            ended.context("webhook")?.context("webhook")?;
        }
    }
    leading.store(true, Ordering::Relaxed);
    leads.set(1);
    let cache = Arc::new(Cache::default());

    let ended = tokio::select! {
        () = run::run(client, own, cache, webhook, &identity) => Some("the work ended"),
        () = candidate.hold() => Some("the lease was lost"),
        _ = &mut probes => Some("the probes ended"),
        _ = &mut reviews => Some("the webhook ended"),
        () = &mut stop => None,
    };
    // The work was dropped: nothing is written from here on.
    Ok(process::end(&candidate, ended).await)
}
