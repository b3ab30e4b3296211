//! One pass: look, plan, write, report. It never waits for pods; what is not ready yet is looked at in the next pass.

mod remove;
mod status;
mod write;

use super::NAME;
use super::cache::{Cache, Scope};
use super::desired::{self, Around};
use super::kind::{Identity, Kind};
use super::monitors::{self, Monitors};
use super::plan::{self, Left, Order, Plan};
use super::report::Outcome;
use super::target::{Own, Refused, Target, deciding};
use super::trouble::Trouble;
use super::wanted::Wanted;
use super::webhook::Webhook;
use super::{trouble, versions};
use crate::certificates::{Keeper, RoundError};
use barevirt_api::names::APP_LABEL;
use barevirt_api::v1::KubeVirt;
use barevirt_api::validate::kinds::kubevirt::standing;
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

/// Time to the next look where more can be written.
const AGAIN: Duration = Duration::from_millis(200);
/// Time between two looks at the pods that are waited for.
const PODS: Duration = Duration::from_secs(5);
/// Time to the next look where there is nothing to do.
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
    /// Whether the next try may well succeed, so that nobody need be told.
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

/// What the leading process remembers from pass to pass. All of it can be lost.
pub struct Reconciler {
    client: Client,
    own: Own,
    cache: Arc<Cache>,
    notes: Notes,
    certificates: Keeper,
    left: BTreeMap<Identity, Left>,
    /// What is wanted, with what it was made from.
    wanted: Option<(Target, Around, Arc<Vec<Wanted>>)>,
    /// Who monitors.
    monitors: Monitors,
    /// What answers about the `KubeVirt` object.
    webhook: Arc<Webhook>,
    /// What keeps the pods of a component, and when that was looked at.
    trouble: Option<(Instant, Identity, Option<Trouble>)>,
    failures: u32,
}

impl Reconciler {
    /// One that has seen nothing yet.
    pub fn new(client: Client, own: Own, cache: Arc<Cache>, webhook: Arc<Webhook>, instance: &str) -> Self {
        Reconciler {
            notes: Notes::new(client.clone(), NAME, instance),
            certificates: Keeper::new(client.clone(), &own.namespace),
            client,
            own,
            cache,
            left: BTreeMap::new(),
            wanted: None,
            monitors: Monitors::default(),
            webhook,
            trouble: None,
            failures: 0,
        }
    }

    /// Looks once; when to look again, if nothing happens until then.
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
                // One that passes is told when it does not.
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

    /// Answers handlers' requests for certificates until it is dropped.
    pub fn signer(&self) -> impl Future<Output = ()> + use<> {
        self.certificates.signer()
    }

    /// Failures in a row.
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
            // The watch brings the object as it is now.
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
            // Told before it is begun.
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
        let after = match self.put_right(&target, order).await? {
            Ok(after) => after,
            Err(refused) => return self.refuse(kubevirt, &refused).await,
        };
        let outcome = if after.is_ready() {
            self.trouble = None;
            self.certificates.clear().await?;
            Outcome::Ready
        } else {
            let trouble = match after.unready.first() {
                Some(component) => self.trouble(component).await?,
                None => None,
            };
            let mut waiting = after.waiting.clone();
            if let (Some(trouble), Some(first)) = (&trouble, waiting.first_mut()) {
                *first = format!("{first}; {}", trouble.why);
            }
            Outcome::Installing {
                complete: after.complete && after.write.is_empty(),
                waiting,
                stuck: trouble.is_some_and(|trouble| trouble.stuck),
            }
        };
        self.report(kubevirt, &outcome, Some(&deployment)).await?;
        Ok(match (after.write.is_empty(), after.unready.is_empty()) {
            // Something can be written that could not before.
            (false, _) => AGAIN,
            (true, false) => PODS,
            (true, true) => self.certificates.pause().min(monitors::PAUSE),
        })
    }

    /// What keeps the pods of a component that is waited for.
    async fn trouble(&mut self, component: &Identity) -> Result<Option<Trouble>, Error> {
        if let Some((looked, of, trouble)) = &self.trouble
            && of == component
            && looked.elapsed() < PODS
        {
            return Ok(trouble.clone());
        }
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.own.namespace);
        // From the API server's memory: there may be as many as there are nodes.
        let params = ListParams::default().labels(&format!("{APP_LABEL}={}", component.name)).match_any();
        let listed = call("list", || format!("pods of {component}"), pods.list(&params)).await?;
        let trouble = trouble::of(&listed.items);
        self.trouble = Some((Instant::now(), component.clone(), trouble.clone()));
        Ok(trouble)
    }

    /// Writes what differs, as far as its turn has come; what is left to be done then.
    async fn put_right(
        &mut self,
        target: &Target,
        order: Order,
    ) -> Result<Result<Plan, Vec<Refused>>, PassError> {
        let around = Around {
            authorities: self.certificates.bundle().await?,
            seal: self.certificates.seal(),
            monitor: self.monitors.current(&self.client, &target.monitoring).await?,
        };
        let authorities = around.authorities.clone();
        let wanted = match self.wanted(target, around) {
            Ok(wanted) => wanted,
            Err(refused) => return Ok(Err(refused)),
        };
        let own = self.webhook.answers();
        let plan = plan::plan(&wanted, &self.cache.objects(), &self.left, order, own);
        for write in &plan.write {
            if let Some(wanted) = wanted.get(write.place) {
                self.write(wanted, write).await?;
            }
        }
        // What was written may have changed what is ready.
        let after = plan::plan(&wanted, &self.cache.objects(), &self.left, order, own);
        if !after.write.iter().any(|write| wanted.get(write.place).is_some_and(Wanted::is_called)) {
            self.certificates.told(&authorities);
        }
        let known = self.cache.objects();
        for identity in &after.remove {
            // It was planned from these.
            let Some(object) = known.get(identity) else { continue };
            self.delete(identity, &object.uid).await?;
            info!(object = %identity, "removed what is not wanted any more");
        }
        Ok(Ok(after))
    }

    fn wanted(&mut self, target: &Target, around: Around) -> Result<Arc<Vec<Wanted>>, Vec<Refused>> {
        if let Some((made_for, made_with, wanted)) = &self.wanted
            && (made_for, made_with) == (target, &around)
        {
            return Ok(wanted.clone());
        }
        let wanted = Arc::new(desired::objects(target, &around)?);
        self.wanted = Some((target.clone(), around, wanted.clone()));
        Ok(wanted)
    }

    /// What runs is kept as it is until somebody puts the object right: it was written while nobody was asked, or is of
    /// another version's days.
    async fn keep(&mut self, kubevirt: &KubeVirt, causes: Vec<String>) -> Result<Duration, PassError> {
        self.report(kubevirt, &Outcome::Invalid(causes), None).await?;
        let status = kubevirt.status.clone().unwrap_or_default();
        if status.observed_deployment_id.is_none() {
            return Ok(IDLE);
        }
        // What this process has wanted last; else what the object asks for, if that is what runs.
        let known = self.wanted.as_ref().map(|(target, ..)| target.clone());
        let target = known.or_else(|| Target::of(&kubevirt.spec, &self.own).ok()).filter(|target| {
            status.observed_deployment_id.as_ref() == Some(&target.deployment(&self.own).id)
        });
        match target {
            Some(target) if self.cache.is_filled() => {
                let order = versions::order(&status, &target.deployment(&self.own));
                self.put_right(&target, order).await?.ok();
            }
            // Certificates do not wait.
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
        // What runs goes on, and its certificates do not wait for somebody to put the object right.
        self.certificates.bundle().await?;
        Ok(IDLE.min(self.certificates.pause()))
    }
}

/// All kinds that we install, where we install them.
pub fn scopes(own: &Own) -> Vec<Scope> {
    let mut scopes: Vec<Scope> = Kind::ALL
        .into_iter()
        .map(|kind| Scope {
            kind,
            // Where these are is the cluster's choice.
            namespace: (kind.is_namespaced() && kind != Kind::ServiceMonitor).then(|| own.namespace.clone()),
        })
        .collect();
    // Who the aggregator is, is read there.
    scopes.push(Scope { kind: Kind::RoleBinding, namespace: Some("kube-system".to_owned()) });
    scopes
}
