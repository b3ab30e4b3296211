//! One pass: look, plan, write, report. It never waits for pods; what is not ready yet is looked at in the next pass.

use super::cache::{Cache, Scope, seen, selector};
use super::desired::{self, Around, Wanted};
use super::kind::{Identity, Kind};
use super::monitors::{self, Monitors};
use super::plan::{self, Left, Mark, Order, Plan, Why, Write};
use super::report::{self, Facts, Outcome};
use super::rollout::Rollout;
use super::target::{Deployment, Own, Refused, Target, deciding};
use super::trouble::Trouble;
use super::webhook::Webhook;
use super::{APPLIED_ANNOTATION, FINALIZER, NAME, existing, foreign, removal, trouble, versions};
use crate::certificates::{Keeper, RoundError};
use barevirt_api::names::APP_LABEL;
use barevirt_api::v1::{Condition, GenerationStatus, KubeVirt, KubeVirtStatus};
use barevirt_api::validate::kinds::kubevirt::standing;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::{debug, info};
use virt_controller::error::{Category, Error, response};
use virt_controller::notes::{Note, Notes};
use virt_controller::shell::{call, call_opt};

/// Time to the next look at something that is being removed.
const REMOVING: Duration = Duration::from_secs(2);
/// Time to the next look where more can be written.
const AGAIN: Duration = Duration::from_millis(200);
/// Time between two looks at the pods that are waited for.
const PODS: Duration = Duration::from_secs(5);
/// Time to the next look where there is nothing to do.
const IDLE: Duration = Duration::from_secs(60);
/// A finalizer of former versions of KubeVirt.
const FORMER_FINALIZER: &str = "foregroundDeleteKubeVirt";
/// What our components made by themselves.
const LEASES: [&str; 1] = ["virt-controller"];
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
            PassError::Certificates(_) => virt_controller::error::chain(self),
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
            notes: Notes::by(client.clone(), NAME, instance),
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
        if !after.write.iter().any(|write| wanted.get(write.place).is_some_and(desired::Wanted::is_called)) {
            self.certificates.told(&authorities);
        }
        for identity in &after.remove {
            self.delete(identity).await?;
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

    /// Makes an object what it should be, and takes away what others added.
    async fn write(&mut self, wanted: &Wanted, write: &Write) -> Result<(), Error> {
        let Write { canary, why, .. } = *write;
        let identity = &wanted.identity;
        let (hash, body) = match &wanted.canary {
            Some(form) if canary => (&form.hash, &form.body),
            _ => (&wanted.hash, &wanted.body),
        };
        let api = api(&self.client, identity);
        let before = self.cache.objects().remove(identity);
        let params = PatchParams::apply(NAME).force();
        let patch = Patch::Apply(body);
        let apply = || call("apply", || identity.to_string(), api.patch(&identity.name, &params, &patch));
        let mut object = match apply().await {
            Ok(object) => object,
            Err(error) if cannot_be_changed(identity, &error) => {
                // The role of a binding is fixed: another one takes its place.
                self.delete(identity).await?;
                info!(object = %identity, "removed, to be made anew");
                apply().await?
            }
            Err(error) => return Err(error),
        };
        // An object has a JSON form.
        if let Some(patch) = foreign::removal(&serde_json::to_value(&object).unwrap_or_default()) {
            let patch: json_patch::Patch = serde_json::from_value(patch).unwrap_or_default();
            let params = PatchParams { field_manager: Some(NAME.to_owned()), ..PatchParams::default() };
            let patch = Patch::Json::<()>(patch);
            let removed = api.patch(&identity.name, &params, &patch);
            object = call("take away what others added to", || identity.to_string(), removed).await?;
            info!(object = %identity, "took away what others had added");
        }
        let rollout = rollout(identity.kind, &object);
        let after = seen(object.meta(), rollout);
        let changed =
            before.as_ref().is_none_or(|before| before.mark != after.mark || before.uid != after.uid);
        if changed && why != Why::Unknown {
            info!(object = %identity, why = why.name(), canary, "applied");
        } else {
            debug!(object = %identity, why = why.name(), canary, changed, "applied");
        }
        let left = Left { uid: after.uid.clone(), hash: hash.clone(), mark: after.mark.clone() };
        self.left.insert(identity.clone(), left);
        self.cache.put(identity, before.as_ref(), after);
        Ok(())
    }

    async fn delete(&self, identity: &Identity) -> Result<(), Error> {
        let params = match identity.kind.has_pods() {
            // It is gone when its pods are.
            true => DeleteParams::foreground(),
            false => DeleteParams::background(),
        };
        let api = api(&self.client, identity);
        let deleted = api.delete(&identity.name, &params);
        call_opt("delete", || identity.to_string(), deleted).await.map(drop)
    }

    async fn remove(&mut self, kubevirt: &KubeVirt) -> Result<Duration, PassError> {
        if !kubevirt.finalizers().iter().any(|finalizer| is_ours(finalizer)) {
            return Ok(IDLE);
        }
        let begun = kubevirt.status.as_ref().is_some_and(|status| {
            Condition::find(&status.conditions, report::AVAILABLE)
                .is_some_and(|condition| condition.reason.as_deref() == Some("DeletionInProgress"))
        });
        let blocks = kubevirt.spec.uninstall_strategy.as_deref() == Some("BlockUninstallIfWorkloadsExist");
        if blocks
            && !begun
            && let Some(workloads) = existing::workloads(&self.client).await?
        {
            let why =
                format!("spec.uninstallStrategy is BlockUninstallIfWorkloadsExist and there are {workloads}");
            self.report(kubevirt, &Outcome::RemovalFailed(why), None).await?;
            // Until they are gone, everything goes on as it was. What cannot be had was told before; now the condition tells of
            // the machines.
            if self.cache.is_filled()
                && let Ok(target) = Target::of(&kubevirt.spec, &self.own)
            {
                let status = kubevirt.status.clone().unwrap_or_default();
                let order = versions::order(&status, &target.deployment(&self.own));
                self.put_right(&target, order).await?.ok();
            }
            return Ok(REMOVING);
        }
        self.left.clear();
        self.certificates.forget();
        let mut found = vec![];
        for scope in scopes(&self.own) {
            let api = scope.metadata(self.client.clone());
            let params = ListParams::default().labels(&selector());
            let listed = call_opt("list", || scope.kind.plural().to_owned(), api.list(&params)).await?;
            for object in listed.into_iter().flat_map(|list| list.items) {
                // Made by us, and not merely called so.
                if object.annotations().contains_key(APPLIED_ANNOTATION) {
                    let identity =
                        Identity { kind: scope.kind, namespace: object.namespace(), name: object.name_any() };
                    found.push((identity, object.metadata.deletion_timestamp.is_some()));
                }
            }
        }
        let removal = removal::plan(&found);
        if removal.is_done() {
            self.certificates.remove().await?;
            self.remove_leases().await?;
            self.report(kubevirt, &Outcome::Removed, None).await?;
            self.set_finalizer(kubevirt, false).await?;
            info!("removed");
            return Ok(IDLE);
        }
        let waiting: Vec<String> =
            removal.delete.iter().chain(&removal.wait).map(ToString::to_string).collect();
        // Told before it is begun: from then on workloads that appear do not stop it half-way.
        if self.report(kubevirt, &Outcome::Removing { waiting }, None).await? {
            return Ok(Duration::ZERO);
        }
        for identity in &removal.delete {
            self.delete(identity).await?;
            info!(object = %identity, "removing");
        }
        Ok(REMOVING)
    }

    async fn remove_leases(&self) -> Result<(), Error> {
        let leases: Api<Lease> = Api::namespaced(self.client.clone(), &self.own.namespace);
        let params = DeleteParams::default();
        for name in LEASES {
            let deleted = leases.delete(name, &params);
            call_opt("delete", || format!("lease {name}"), deleted).await?;
        }
        Ok(())
    }

    /// Sets or takes away the finalizer; whether that was a write.
    async fn set_finalizer(&self, kubevirt: &KubeVirt, wanted: bool) -> Result<bool, Error> {
        let kubevirt = &self.cache.newest(kubevirt);
        let mut finalizers: Vec<String> =
            kubevirt.finalizers().iter().filter(|finalizer| !is_ours(finalizer)).cloned().collect();
        if wanted {
            finalizers.push(FINALIZER.to_owned());
        }
        let (mut before, mut after) = (kubevirt.finalizers().to_vec(), finalizers.clone());
        before.sort();
        after.sort();
        if before == after {
            return Ok(false);
        }
        let patch = Patch::Merge(json!({"metadata": {
            "uid": kubevirt.metadata.uid,
            "resourceVersion": kubevirt.metadata.resource_version,
            "finalizers": finalizers,
        }}));
        let api = kubevirts(&self.client, kubevirt);
        let name = kubevirt.name_any();
        let params = PatchParams { field_manager: Some(NAME.to_owned()), ..PatchParams::default() };
        let written =
            call_opt("write finalizers of", || subject(kubevirt), api.patch(&name, &params, &patch)).await?;
        if let Some(written) = written {
            self.cache.put_kubevirt(kubevirt, written);
        }
        Ok(true)
    }

    /// Writes the status if it differs; whether it did.
    async fn report(
        &self,
        kubevirt: &KubeVirt,
        outcome: &Outcome,
        target: Option<&Deployment>,
    ) -> Result<bool, Error> {
        let kubevirt = &self.cache.newest(kubevirt);
        let old = kubevirt.status.clone().unwrap_or_default();
        let architecture = kubevirt
            .spec
            .configuration
            .as_ref()
            .and_then(|configuration| configuration.architecture_configuration.as_ref())
            .and_then(|configuration| configuration.default_architecture.clone())
            .unwrap_or_else(|| self.own.architecture.clone());
        let facts = Facts {
            target: target.cloned(),
            generation: kubevirt.metadata.generation,
            operator_version: self.own.version.clone(),
            architecture,
            generations: if target.is_some() { self.generations() } else { old.generations.clone() },
        };
        let new = report::status(&old, outcome, &facts, &Time(Timestamp::now()));
        if new == old {
            return Ok(false);
        }
        let mut object = kubevirt.clone();
        object.status = Some(new.clone());
        let api = kubevirts(&self.client, kubevirt);
        let name = kubevirt.name_any();
        let params = PostParams { field_manager: Some(NAME.to_owned()), ..PostParams::default() };
        let written =
            call("write status of", || subject(kubevirt), api.replace_status(&name, &params, &object));
        self.cache.put_kubevirt(kubevirt, written.await?);
        self.tell(kubevirt, &old, &new);
        Ok(true)
    }

    /// One line and one event for each condition that is another than before.
    fn tell(&self, kubevirt: &KubeVirt, old: &KubeVirtStatus, new: &KubeVirtStatus) {
        for condition in &new.conditions {
            let before = Condition::find(&old.conditions, &condition.type_);
            if before.is_some_and(|before| {
                (&before.status, &before.reason) == (&condition.status, &condition.reason)
            }) {
                continue;
            }
            let reason = condition.reason.clone().unwrap_or_default();
            let message = condition.message.clone().unwrap_or_default();
            info!(
                condition = condition.type_,
                status = condition.status,
                reason,
                message,
                "condition changed"
            );
            let failed = condition.reason.as_deref() == Some("DeploymentFailed")
                && Condition::find(&new.conditions, report::SYNCHRONIZED).is_none();
            let warning =
                condition.type_ == report::SYNCHRONIZED || condition.type_ == report::DEGRADED && failed;
            if warning || condition.type_ == report::AVAILABLE {
                let note =
                    if warning { Note::warning(reason, message) } else { Note::normal(reason, message) };
                self.notes.tell(note, kubevirt.object_ref(&()));
            }
        }
        if old.phase != new.phase {
            info!(from = old.phase, to = new.phase, "phase changed");
        }
    }

    /// The state in which we left the objects that KubeVirt tells it of.
    fn generations(&self) -> Vec<GenerationStatus> {
        self.left
            .iter()
            .filter_map(|(identity, left)| match (identity.kind, &left.mark) {
                (
                    Kind::Deployment
                    | Kind::DaemonSet
                    | Kind::CustomResourceDefinition
                    | Kind::MutatingWebhookConfiguration
                    | Kind::ValidatingWebhookConfiguration,
                    Mark::Generation(generation),
                ) => Some(GenerationStatus {
                    group: identity.kind.group().to_owned(),
                    resource: identity.kind.plural().to_owned(),
                    namespace: identity.namespace.clone(),
                    name: identity.name.clone(),
                    last_generation: *generation,
                    hash: Some(left.hash.clone()),
                }),
                _ => None,
            })
            .collect()
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

fn api(client: &Client, identity: &Identity) -> Api<DynamicObject> {
    Scope { kind: identity.kind, namespace: identity.namespace.clone() }.api(client.clone())
}

fn kubevirts(client: &Client, kubevirt: &KubeVirt) -> Api<KubeVirt> {
    Api::namespaced(client.clone(), &kubevirt.namespace().unwrap_or_default())
}

fn subject(kubevirt: &KubeVirt) -> String {
    format!("KubeVirt {}/{}", kubevirt.namespace().unwrap_or_default(), kubevirt.name_any())
}

fn is_ours(finalizer: &str) -> bool {
    finalizer == FINALIZER || finalizer == FORMER_FINALIZER
}

fn cannot_be_changed(identity: &Identity, error: &Error) -> bool {
    let binding = matches!(identity.kind, Kind::ClusterRoleBinding | Kind::RoleBinding);
    let invalid = match error {
        Error::Api { source, .. } => response(source).is_some_and(|answer| answer.code == 422),
        Error::Deadline { .. } | Error::Foreign { .. } | Error::Overdue(_) => false,
    };
    binding && invalid
}

fn rollout(kind: Kind, object: &DynamicObject) -> Option<Rollout> {
    if !kind.has_pods() {
        return None;
    }
    let value = serde_json::to_value(object).ok()?;
    if kind == Kind::DaemonSet {
        serde_json::from_value(value).ok().map(|object| Rollout::of_daemon_set(&object))
    } else {
        serde_json::from_value(value).ok().map(|object| Rollout::of_deployment(&object))
    }
}
