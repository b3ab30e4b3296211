//! install and upgrade: applies a release's objects to the cluster, and waits until everything runs.
//!
//! ```text
//!   files, or this program -> bundle (pure) --+
//!   what is there ----------> plan (pure) ----+--> apply, object by object --> wait: definition, virt-operator, KubeVirt
//!   doctor's problems ------------------------+                                progress (pure) says how far it is
//! ```
//!
//! Objects are applied by server-side apply, so a second run goes on where the first one ended. The
//! definition of the `KubeVirt` kind and the `KubeVirt` object are created but never changed: virt-operator
//! owns the first, the administrator the second.

mod bundle;
mod plan;
mod progress;

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, bail};
use barevirt_api::validate::kinds::duration;
use clap::Args;
use http::{Method, StatusCode};
use kube::Client;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use self::bundle::{Bundle, Object};
use self::plan::Found;
use self::progress::State;
use crate::doctor::Scope;
use crate::session::Session;
use crate::waiting::{self, Waiting};
use crate::{ask, doctor};

/// Paths of objects that are read.
const DEPLOYMENT: &str = "/apis/apps/v1/namespaces/kubevirt/deployments/virt-operator";
const PODS: &str = "/api/v1/namespaces/kubevirt/pods?limit=20&labelSelector=kubevirt.io%3Dvirt-operator";
const KUBEVIRTS: &str = "/apis/kubevirt.io/v1/namespaces/kubevirt/kubevirts";
/// Pause between two looks.
const PAUSE: Duration = Duration::from_secs(2);
/// The field manager of applied fields.
const OWNER: &str = "virtctl";

/// Where the objects come from, and how long it may take.
#[derive(Debug, Args)]
struct Source {
    /// Manifest, or folder of a release with barevirt-operator.yaml and barevirt-cr.yaml; can be repeated.
    /// The default is the manifests of this virtctl.
    #[arg(short = 'f', long, value_name = "FILE|FOLDER")]
    from: Vec<PathBuf>,
    /// How long it may take, such as 90s or 10m.
    #[arg(long, default_value = "10m", value_parser = time)]
    timeout: Duration,
    /// Only say what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Go on in spite of problems that were found.
    #[arg(long)]
    force: bool,
}

/// Arguments of `virtctl install`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # The version of this virtctl, which has to be a release:\n  virtctl install\n\n  \
    # What `make release` made:\n  virtctl install --from dist\n\n  \
    # On nodes without KVM, for a trial:\n  virtctl install --from dist --use-emulation")]
pub(crate) struct Install {
    #[command(flatten)]
    source: Source,
    /// Emulate guests: nodes need no KVM. Slow, for trials.
    #[arg(long)]
    use_emulation: bool,
}

/// Arguments of `virtctl upgrade`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # To the version of this virtctl, which has to be a release:\n  virtctl upgrade\n\n  \
    # What would be done, and the reasons against it:\n  virtctl upgrade --from dist --dry-run")]
pub(crate) struct Upgrade {
    #[command(flatten)]
    source: Source,
}

fn time(text: &str) -> Result<Duration, String> {
    duration::parse(text)
        .filter(|time| !time.is_zero())
        .ok_or_else(|| format!("{text:?} is not a time such as 90s or 10m"))
}

impl Install {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let client = &session.client;
        let mut bundle = Bundle::load(&self.source.from)?;
        if self.use_emulation
            && let Some(kubevirt) = &mut bundle.kubevirt
        {
            emulated(&mut kubevirt.value);
        }
        let found = look(client).await?;
        let never = plan::refuse_install(&found, &bundle.version, bundle.kubevirt.is_some());
        let looks_at = if found.operator.is_none() { Some(Scope::Cluster) } else { None };
        self.source.admit(client, never, Vec::new(), looks_at).await?;
        if self.use_emulation && found.kubevirt.is_some() {
            bail!(
                "there is a KubeVirt object already, which virtctl does not change: set \
                 spec.configuration.developerConfiguration.useEmulation in it"
            );
        }
        self.source.carry_out(client, &bundle, &found).await
    }
}

impl Upgrade {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let client = &session.client;
        let bundle = Bundle::load(&self.source.from)?;
        let found = look(client).await?;
        let (never, forced) = plan::refuse_upgrade(&found, &bundle.version);
        let from = plan::operator_version(&found);
        if from.as_ref() == Some(&bundle.version) {
            // The upgrade was begun by an earlier run.
            self.source.admit(client, never, Vec::new(), None).await?;
        } else {
            self.source.admit(client, never, forced, Some(Scope::Installation)).await?;
            let from = from.as_deref().unwrap_or("an unknown version");
            eprintln!("virt-operator: from {from} to {}", bundle.version);
        }
        self.source.carry_out(client, &bundle, &found).await?;
        let outdated = ask::find(client, &format!("{KUBEVIRTS}/kubevirt")).await?;
        let outdated = outdated
            .and_then(|kubevirt| kubevirt["status"]["outdatedVirtualMachineInstanceWorkloads"].as_u64())
            .unwrap_or_default();
        if outdated > 0 && !self.source.dry_run {
            println!(
                "{outdated} instances run with a launcher of a former version, until they are started again or moved."
            );
        }
        Ok(())
    }
}

impl Source {
    /// Fails if there are reasons against it. --force overrides those in `forced`, but not those in `never`.
    /// doctor checks the scope.
    async fn admit(
        &self,
        client: &Client,
        never: Vec<String>,
        mut forced: Vec<String>,
        scope: Option<Scope>,
    ) -> anyhow::Result<()> {
        if let [one] = never.as_slice() {
            bail!("{one}");
        }
        if !never.is_empty() {
            bail!("it cannot begin:\n  {}", never.join("\n  "));
        }
        if let Some(scope) = scope {
            forced.extend(doctor::problems(client, scope).await);
        }
        for why in &forced {
            eprintln!("against it: {why}");
        }
        if !forced.is_empty() && !self.force && !self.dry_run {
            bail!("{} reasons against it; --force overrides them", forced.len());
        }
        Ok(())
    }

    async fn carry_out(&self, client: &Client, bundle: &Bundle, found: &Found) -> anyhow::Result<()> {
        let expected = plan::expected(found, &bundle.version);
        if self.dry_run {
            for object in bundle.objects.iter().chain(&bundle.kubevirt) {
                let kept = object.is("KubeVirt") && found.kubevirt.is_some();
                println!("{}{}", object.name(), if kept { ", stays as it is" } else { "" });
            }
            println!("{expected} would be installed; nothing was changed.");
            return Ok(());
        }
        let deadline = Deadline { at: Instant::now() + self.timeout, length: self.timeout };
        let mut waiting = Waiting::begin();
        for object in &bundle.objects {
            waiting.tell(&format!("writing {}", object.name()));
            apply(client, object, &deadline).await.with_context(|| object.name())?;
            if object.is("CustomResourceDefinition") {
                deadline
                    .wait(&mut waiting, async || {
                        Ok(progress::definition(&ask::get(client, &object.place.object).await?))
                    })
                    .await?;
            }
        }
        deadline.wait(&mut waiting, async || operator_state(client).await).await?;
        let kubevirt = match (&found.kubevirt, &bundle.kubevirt) {
            (None, Some(object)) => {
                waiting.tell(&format!("writing {}", object.name()));
                make(client, object, &deadline).await.with_context(|| object.name())?;
                object.place.object.clone()
            }
            (Some(kubevirt), _) => format!("{KUBEVIRTS}/{}", doctor::word(kubevirt, "/metadata/name")),
            (None, None) => bail!("there is no KubeVirt object"),
        };
        deadline
            .wait(&mut waiting, async || {
                Ok(progress::installation(&ask::get(client, &kubevirt).await?, &expected))
            })
            .await?;
        let took = waiting.lasted();
        drop(waiting);
        println!("Barevirt {expected} is available, after {} s.", took.as_secs());
        Ok(())
    }
}

/// Reads the state of the cluster.
async fn look(client: &Client) -> anyhow::Result<Found> {
    waiting::during("looking for an installation", find(client)).await
}

async fn find(client: &Client) -> anyhow::Result<Found> {
    let operator = ask::find(client, DEPLOYMENT).await.map_err(anyhow::Error::from);
    let operator = operator.context("look for virt-operator")?;
    let all = match ask::find(client, KUBEVIRTS).await {
        Ok(list) => list.map(|list| list["items"].clone()).unwrap_or_default(),
        Err(failure) => return Err(anyhow::Error::from(failure).context("look for KubeVirt objects")),
    };
    Ok(Found { operator, kubevirt: all.get(0).cloned() })
}

async fn operator_state(client: &Client) -> Result<State, ask::Failure> {
    let deployment = ask::get(client, DEPLOYMENT).await?;
    // The pods only explain the state, so a failure to read them does not matter.
    let pods = ask::get(client, PODS).await.ok();
    let pods = pods.and_then(|pods| pods["items"].as_array().cloned()).unwrap_or_default();
    Ok(progress::operator(&deployment, &pods))
}

/// Sets that guests are emulated.
fn emulated(kubevirt: &mut Value) {
    let mut at = kubevirt;
    for field in ["spec", "configuration", "developerConfiguration"] {
        if !at[field].is_object() {
            at[field] = json!({});
        }
        at = &mut at[field];
    }
    at["useEmulation"] = json!(true);
}

/// Applies the object. An existing definition is not changed, since virt-operator updates it.
async fn apply(client: &Client, object: &Object, deadline: &Deadline) -> anyhow::Result<()> {
    if object.is("CustomResourceDefinition") {
        return make(client, object, deadline).await;
    }
    let path = format!("{}?fieldManager={OWNER}&force=true", object.place.object);
    let body = serde_json::to_vec(&object.value)?;
    deadline
        .insist(async || {
            ask::send(client, Method::PATCH, &path, "application/apply-patch+yaml", body.clone()).await
        })
        .await
}

/// Creates the object if it does not exist.
async fn make(client: &Client, object: &Object, deadline: &Deadline) -> anyhow::Result<()> {
    let path = format!("{}?fieldManager={OWNER}", object.place.list);
    let body = serde_json::to_vec(&object.value)?;
    deadline
        .insist(async || {
            if let Some(there) = ask::find(client, &object.place.object).await? {
                return Ok(there);
            }
            ask::send(client, Method::POST, &path, "application/json", body.clone()).await
        })
        .await
}

/// The time by which everything has to be done.
struct Deadline {
    at: Instant,
    length: Duration,
}

impl Deadline {
    fn is_over(&self) -> bool {
        Instant::now() >= self.at
    }

    /// Repeats the request as long as the error may be temporary.
    async fn insist(&self, request: impl AsyncFn() -> Result<Value, ask::Failure>) -> anyhow::Result<()> {
        loop {
            match request().await {
                Ok(_) => return Ok(()),
                Err(failure) if failure.may_pass() && !self.is_over() => sleep(PAUSE).await,
                Err(failure) => return Err(failure.into()),
            }
        }
    }

    /// Reads the object until it is done. An API server that does not answer, and a kind that is not served
    /// yet, are temporary.
    async fn wait(
        &self,
        waiting: &mut Waiting,
        look: impl AsyncFn() -> Result<State, ask::Failure>,
    ) -> anyhow::Result<()> {
        loop {
            let told = match look().await {
                Ok(State::Done) => return Ok(()),
                Ok(State::Never(why)) => bail!("{why}"),
                Ok(State::Waiting(what)) => what,
                Err(failure) if failure.may_pass() || failure.status == Some(StatusCode::NOT_FOUND) => {
                    failure.message
                }
                Err(failure) => return Err(failure.into()),
            };
            if self.is_over() {
                bail!(
                    "not done within {} s: {told}. What was done stays; run it again to go on, and see virtctl doctor",
                    self.length.as_secs()
                );
            }
            waiting.tell(&told);
            sleep(PAUSE).await;
        }
    }
}

#[cfg(test)]
mod tests;
