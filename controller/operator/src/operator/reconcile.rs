//! One pass: look, plan, write, report. It never waits for pods; the next pass looks at what is not ready yet.

mod remove;
mod status;
mod write;

use super::NAME;
use super::cache::{Cache, Scope};
use super::desired::{self, Inputs};
use super::kind::{Identity, Kind};
use super::monitors::{self, Monitors};
use super::plan::{self, Left, Order, Plan};
use super::pod_problem::PodProblem;
use super::report::Outcome;
use super::rule_of_copies::Cdi;
use super::target::{Own, Refused, Target, deciding};
use super::wanted::Wanted;
use super::webhook::Webhook;
use super::{pod_problem, versions};
use crate::certificates::{Keeper, RoundError};
use barevirt_api::names::APP_LABEL;
use barevirt_api::v1::KubeVirt;
use barevirt_api::validate::kinds::kubevirt::standing;
use barevirt_component::changes::Listener;
use barevirt_component::notes::Notes;
use barevirt_component::request::call;
use barevirt_component::request::{Category, Error};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::info;

/// Pause before the next look while more can be written.
const AGAIN: Duration = Duration::from_millis(200);
/// Pause between two looks at pods that are waited for.
const PODS: Duration = Duration::from_secs(5);
/// Pause before the next look when there is nothing to do.
const IDLE: Duration = Duration::from_secs(60);
/// Why a pass ended early.
#[derive(Debug, thiserror::Error)]
pub enum PassError {
    /// A request failed.
    #[error(transparent)]
    Api(#[from] Error),
    /// The certificates could not be kept.
    #[error("cannot keep the certificates")]
    Certificates(#[from] RoundError),
}

impl PassError {
    /// Whether the next try may well succeed, so that it need not be reported.
    fn is_passing(&self) -> bool {
        match self {
            PassError::Api(error) | PassError::Certificates(RoundError::Api(error)) => {
                error.category() != Category::Refused
            }
            PassError::Certificates(RoundError::Certificate(_) | RoundError::Unsettled) => false,
        }
    }

    fn message(&self) -> String {
        match self {
            PassError::Api(error) => format!("{error}: {}", error.message()),
            PassError::Certificates(_) => barevirt_component::error::chain(self),
        }
    }
}

/// The leading process's memory across passes. All of it can be lost.
pub struct Reconciler {
    client: Client,
    own: Own,
    cache: Arc<Cache>,
    notes: Notes,
    certificates: Keeper,
    left: BTreeMap<Identity, Left>,
    /// The wanted objects, with the inputs that they were made from.
    wanted: Option<(Target, Inputs, Arc<Vec<Wanted>>)>,
    /// The monitoring stack.
    monitors: Monitors,
    /// Whether CDI serves DataVolumes.
    cdi: Cdi,
    /// The webhook of the `KubeVirt` object.
    webhook: Arc<Webhook>,
    /// Why a component's pods are not ready, and when that was looked at.
    problem: Option<(Instant, Identity, Option<PodProblem>)>,
    failures: u32,
}

impl Reconciler {
    /// A reconciler without memory.
    pub fn new(client: Client, own: Own, cache: Arc<Cache>, webhook: Arc<Webhook>, instance: &str) -> Self {
        Reconciler {
            notes: Notes::new(client.clone(), NAME, instance),
            certificates: Keeper::new(client.clone(), &own.namespace),
            client,
            own,
            cdi: Cdi::new(cache.looks().listen()),
            cache,
            left: BTreeMap::new(),
            wanted: None,
            monitors: Monitors::default(),
            webhook,
            problem: None,
            failures: 0,
        }
    }

    /// Looks once; returns when to look again without an event.
    pub async fn pass(&mut self) -> Result<Duration, PassError> {
        let Some(objects) = self.cache.kubevirts() else { return Ok(IDLE) };
        let Some(kubevirt) = deciding(&objects).cloned() else { return Ok(IDLE) };
        for other in objects.iter().filter(|other| other.metadata.uid != kubevirt.metadata.uid) {
            let why = format!(
                "There is an active KubeVirt deployment: {}/{}",
                kubevirt.namespace().unwrap_or_default(),
                kubevirt.name_any()
            );
            self.ignore(other, why).await?;
        }
        if kubevirt.namespace().as_deref() != Some(self.own.namespace.as_str()) {
            let why = format!("A KubeVirt has to be in namespace {}, the operator's", self.own.namespace);
            self.ignore(&kubevirt, why).await?;
            return Ok(IDLE);
        }
        let result = if kubevirt.metadata.deletion_timestamp.is_some() {
            self.remove(&kubevirt).await
        } else {
            self.install(&kubevirt).await
        };
        match result {
            Ok(pause) => {
                self.failures = 0;
                Ok(pause)
            }
            Err(error) => {
                self.failures = self.failures.saturating_add(1);
                // A temporary error is reported only if it does not pass.
                if !error.is_passing() || self.failures >= 5 {
                    let outcome = if kubevirt.metadata.deletion_timestamp.is_some() {
                        Outcome::RemovalFailed(error.message())
                    } else {
                        Outcome::Failed(error.message())
                    };
                    self.report(&kubevirt, &outcome, None).await?;
                }
                Err(error)
            }
        }
    }

    /// Answers handlers' certificate requests until the future is dropped.
    pub fn signer(&self) -> impl Future<Output = ()> + use<> {
        self.certificates.signer()
    }

    /// Watches the certificates' secrets until the future is dropped.
    pub fn watch_certificates(&self) -> impl Future<Output = ()> + use<> {
        self.certificates.watch()
    }

    /// Hears of changes of the certificates: a pass is due after one.
    pub fn listen_to_certificates(&self) -> Listener {
        self.certificates.listen()
    }

    /// Number of consecutive failures.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    async fn ignore(&self, kubevirt: &KubeVirt, why: String) -> Result<(), Error> {
        if kubevirt.metadata.deletion_timestamp.is_some() {
            return self.set_finalizer(kubevirt, false).await.map(drop);
        }
        self.report(kubevirt, &Outcome::Ignored(why), None).await.map(drop)
    }

    async fn install(&mut self, kubevirt: &KubeVirt) -> Result<Duration, PassError> {
        if self.set_finalizer(kubevirt, true).await? {
            // The watch will deliver the new state of the object.
            return Ok(IDLE);
        }
        let causes = standing(kubevirt);
        if !causes.is_empty() {
            let causes = causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect();
            return self.keep(kubevirt, causes).await;
        }
        self.certificates.follow(&kubevirt.spec);
        let target = match Target::of(&kubevirt.spec, &self.own) {
            Ok(target) => target,
            Err(refused) => return self.refuse(kubevirt, &refused).await,
        };
        let deployment = target.deployment(&self.own);
        let old = kubevirt.status.clone().unwrap_or_default();
        if old.target_deployment_id.as_ref() != Some(&deployment.id) {
            // Reported before it begins.
            let outcome = Outcome::Installing { complete: false, waiting: vec![], stuck: false };
            if self.report(kubevirt, &outcome, Some(&deployment)).await? {
                info!(
                    version = deployment.version,
                    registry = deployment.registry,
                    id = deployment.id,
                    "installing"
                );
                return Ok(IDLE);
            }
        }
        if !self.cache.is_filled() {
            // What was not listed yet would count as missing.
            return Ok(IDLE);
        }
        let order = versions::order(&old, &deployment);
        let after = match self.put_right(&target, order, kubevirt.metadata.generation).await? {
            Ok(after) => after,
            Err(refused) => return self.refuse(kubevirt, &refused).await,
        };
        let outcome = if after.is_ready() {
            self.problem = None;
            self.certificates.clear().await?;
            Outcome::Ready
        } else {
            let problem = match after.unready.first() {
                Some(component) => self.problem(component).await?,
                None => None,
            };
            let mut waiting = after.waiting.clone();
            if let (Some(problem), Some(first)) = (&problem, waiting.first_mut()) {
                *first = format!("{first}; {}", problem.why);
            }
            Outcome::Installing {
                complete: after.complete && after.write.is_empty(),
                waiting,
                stuck: problem.is_some_and(|problem| problem.stuck),
            }
        };
        self.report(kubevirt, &outcome, Some(&deployment)).await?;
        Ok(match (after.write.is_empty(), after.unready.is_empty()) {
            // Objects that had to wait can be written now.
            (false, _) => AGAIN,
            (true, false) => PODS,
            (true, true) => self.certificates.pause().min(monitors::PAUSE),
        })
    }

    /// Why the pods of a component are not ready.
    async fn problem(&mut self, component: &Identity) -> Result<Option<PodProblem>, Error> {
        if let Some((looked, of, problem)) = &self.problem
            && of == component
            && looked.elapsed() < PODS
        {
            return Ok(problem.clone());
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.own.namespace);
        // From the API server's cache: there may be as many pods as nodes.
        let params = ListParams::default().labels(&format!("{APP_LABEL}={}", component.name)).match_any();
        let listed = call("list", || format!("pods of {component}"), pods.list(&params)).await?;
        let problem = pod_problem::of(&listed.items);
        self.problem = Some((Instant::now(), component.clone(), problem.clone()));
        Ok(problem)
    }

    /// Writes the differences whose turn has come; returns the remaining plan. `generation` is the target's.
    async fn put_right(
        &mut self,
        target: &Target,
        order: Order,
        generation: Option<i64>,
    ) -> Result<Result<Plan, Vec<Refused>>, PassError> {
        let inputs = Inputs {
            authorities: self.certificates.bundle().await?,
            seal: self.certificates.seal(),
            monitor: self.monitors.current(&self.client, &target.monitoring).await?,
            deployment: target.deployment(&self.own),
            cdi: self.cdi.serves(&self.client).await?,
        };
        let authorities = inputs.authorities.clone();
        let wanted = match self.wanted(target, inputs) {
            Ok(wanted) => wanted,
            Err(refused) => return Ok(Err(refused)),
        };
        let own = self.webhook.answers();
        let plan = plan::plan(&wanted, &self.cache.objects(), &self.left, order, own);
        for write in &plan.write {
            if let Some(wanted) = wanted.get(write.place) {
                self.write(wanted, write, generation).await?;
            }
        }
        // The writes may have changed what is ready.
        let after = plan::plan(&wanted, &self.cache.objects(), &self.left, order, own);
        if !after.write.iter().any(|write| wanted.get(write.place).is_some_and(Wanted::is_called)) {
            self.certificates.note_published(&authorities);
        }
        let known = self.cache.objects();
        for identity in &after.remove {
            // The removals were planned from these objects.
            let Some(object) = known.get(identity) else { continue };
            self.delete(identity, &object.uid).await?;
            info!(object = %identity, "removed what is not wanted any more");
        }
        Ok(Ok(after))
    }

    fn wanted(&mut self, target: &Target, inputs: Inputs) -> Result<Arc<Vec<Wanted>>, Vec<Refused>> {
        if let Some((made_for, made_with, wanted)) = &self.wanted
            && (made_for, made_with) == (target, &inputs)
        {
            return Ok(wanted.clone());
        }
        let wanted = Arc::new(desired::objects(target, &inputs)?);
        self.wanted = Some((target.clone(), inputs, wanted.clone()));
        Ok(wanted)
    }

    /// The running installation is kept as it is until a user corrects the object: it was written without admission, or
    /// dates from another version.
    async fn keep(&mut self, kubevirt: &KubeVirt, causes: Vec<String>) -> Result<Duration, PassError> {
        self.report(kubevirt, &Outcome::Invalid(causes), None).await?;
        let status = kubevirt.status.clone().unwrap_or_default();
        if status.observed_deployment_id.is_none() {
            return Ok(IDLE);
        }
        // This process's last target; otherwise the object's, if that is what runs.
        let known = self.wanted.as_ref().map(|(target, ..)| target.clone());
        let target = known.or_else(|| Target::of(&kubevirt.spec, &self.own).ok()).filter(|target| {
            status.observed_deployment_id.as_ref() == Some(&target.deployment(&self.own).id)
        });
        match target {
            Some(target) if self.cache.is_filled() => {
                let order = versions::order(&status, &target.deployment(&self.own));
                // The object's own generation is not in effect.
                self.put_right(&target, order, status.observed_generation).await?.ok();
            }
            // The certificates are still renewed.
            _ => drop(self.certificates.bundle().await?),
        }
        Ok(IDLE.min(self.certificates.pause()))
    }

    async fn refuse(&mut self, kubevirt: &KubeVirt, refused: &[Refused]) -> Result<Duration, PassError> {
        let why: Vec<String> = refused.iter().map(ToString::to_string).collect();
        self.report(kubevirt, &Outcome::Failed(why.join("; ")), None).await?;
        if kubevirt.status.as_ref().is_none_or(|status| status.observed_deployment_id.is_none()) {
            return Ok(IDLE);
        }
        // The running installation stays, and its certificates are renewed meanwhile.
        self.certificates.bundle().await?;
        Ok(IDLE.min(self.certificates.pause()))
    }
}

/// All kinds that we install, with their namespaces.
pub fn scopes(own: &Own) -> Vec<Scope> {
    let mut scopes: Vec<Scope> = Kind::ALL
        .into_iter()
        .map(|kind| Scope {
            kind,
            // Their namespace is the cluster's choice.
            namespace: (kind.is_namespaced() && kind != Kind::ServiceMonitor).then(|| own.namespace.clone()),
        })
        .collect();
    // The role for reading the aggregator's identity is there.
    scopes.push(Scope { kind: Kind::RoleBinding, namespace: Some("kube-system".to_owned()) });
    scopes
}
