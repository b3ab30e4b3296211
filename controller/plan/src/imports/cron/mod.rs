//! What is done for a DataImportCron where there is no CDI: a pod looks at its source, each new image gets a DataVolume, and
//! the DataSource refers to the newest filled one. Pure.
//!
//! ```text
//!   schedule: it is time --make--> pod --reports--> digest, an annotation (users may write it, too)
//!   digest, not that of the current import --make--> DataVolume MANAGED-DIGEST --succeeds--> lastImportedPVC
//!                                                                                        \--> DataSource; old ones are deleted
//! ```
//!
//! Names, labels, annotations, conditions and defaults are CDI's: a CDI that is installed later continues with what exists.

mod made;
mod poller;
mod retry;
mod schedule;
mod status;

use self::retry::Failure;
use self::schedule::Schedule;
use super::facts::{Event, Installation};
use super::stage::is_of;
use crate::data_volumes::status::SUCCEEDED;
use barevirt_api::cdi::{
    DESIRED_DIGEST, DataImportCron, DataImportCronStatus, DataSource, DataVolume, IMPORT_CRON_LABEL,
    ImportStatus, LAST_CRON_TIME, NEXT_CRON_TIME,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::{Value, json};
use std::time::Duration;

pub use made::import_name;
pub use poller::name as poller_name;

/// Annotation on a DataImportCron: why its source could not be looked at.
const POLL_FAILURE: &str = "import.barevirt.dev/pollFailure";
/// The longest pause before the schedule is looked at again: the clock may be set.
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);
/// How many imports are kept by default.
const KEEP: usize = 3;

/// The parts of the cluster that concern a DataImportCron.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The DataImportCron.
    pub cron: DataImportCron,
    /// The DataSource that it names.
    pub data_source: Option<DataSource>,
    /// Name of another existing DataImportCron that manages that DataSource.
    pub rival: Option<String>,
    /// The DataVolume of the wanted digest.
    pub wanted: Option<DataVolume>,
    /// All DataVolumes with its label.
    pub imports: Vec<DataVolume>,
    /// The pod with the name of its poller.
    pub poller: Option<Pod>,
    /// The present time.
    pub now: Time,
}

/// A step of the plan.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Make the pod that looks at the source.
    MakePoller(Box<Pod>),
    /// Delete that pod, by its UID.
    RemovePoller(String),
    /// Merge this into the DataImportCron.
    Annotate(Value),
    /// Make a DataVolume.
    Import(Box<DataVolume>),
    /// Merge this into the DataVolume of that name.
    Mark(String, Value),
    /// Delete the DataVolume of that name and UID.
    RemoveImport(String, String),
    /// Make the DataSource.
    MakeDataSource(Box<DataSource>),
    /// Merge this into the DataSource.
    Point(Value),
}

/// The plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Steps, in this order.
    pub steps: Vec<Step>,
    /// The status, where it changes. It is written after the steps.
    pub status: Option<DataImportCronStatus>,
    /// Events to emit after that.
    pub events: Vec<Event>,
    /// When to look again, where no watch reports a change.
    pub again: Option<Duration>,
}

impl Plan {
    /// Whether the plan writes anything, rather than only looking again later.
    pub fn changes(&self) -> bool {
        !self.steps.is_empty() || self.status.is_some()
    }
}

/// The wanted digest; an annotation that is not a digest never becomes part of a name.
pub fn desired(cron: &DataImportCron) -> Option<&str> {
    let digest = cron.annotations().get(DESIRED_DIGEST)?;
    barevirt_import_job::is_digest(digest).then_some(digest.as_str())
}

fn current(status: &DataImportCronStatus) -> Option<&ImportStatus> {
    status.current_imports.first()
}

/// Plans the next steps.
pub fn plan(observed: &Observed, installation: &Installation) -> Plan {
    let Observed { cron, .. } = observed;
    if cron.metadata.deletion_timestamp.is_some() {
        // Its dependents are deleted with it.
        return Plan::default();
    }
    let old = cron.status.clone().unwrap_or_default();
    if let Some(rival) = &observed.rival {
        let message = format!(
            "DataSource {} is already managed by DataImportCron {rival}",
            cron.spec.managed_data_source
        );
        let status = status::refused(&old, "ErrDataSourceAlreadyManaged", &message, &observed.now);
        return with_warning(old, status, "ErrDataSourceAlreadyManaged", message);
    }
    let schedule = match (cron.spec.schedule.trim(), made::problem(cron)) {
        (_, Some(problem)) => Err(problem),
        ("", None) => Ok(None),
        (schedule, None) => {
            let parsed = Schedule::parse(schedule).and_then(|schedule| {
                let comes = schedule.next(observed.now.0).is_some();
                comes.then_some(Some(schedule)).ok_or_else(|| "it never comes".to_owned())
            });
            parsed.map_err(|why| format!("spec.schedule: {why}"))
        }
    };
    let schedule = match schedule {
        Ok(schedule) => schedule,
        Err(why) => {
            let status = status::refused(&old, "Invalid", &why, &observed.now);
            return with_warning(old, status, "InvalidDataImportCron", why);
        }
    };
    let mut plan = Plan::default();
    poll(observed, schedule.as_ref(), installation, &mut plan);
    let new = import(observed, &old, &mut plan);
    point(observed, &new, &mut plan);
    collect(observed, &new, &mut plan);
    plan.status = (new != old).then_some(new);
    plan
}

fn with_warning(
    old: DataImportCronStatus,
    new: DataImportCronStatus,
    reason: &'static str,
    message: String,
) -> Plan {
    if new == old {
        return Plan::default();
    }
    Plan { status: Some(new), events: vec![Event { warning: true, reason, message }], ..Plan::default() }
}

/// Looks at the source when the schedule says so.
fn poll(observed: &Observed, schedule: Option<&Schedule>, installation: &Installation, plan: &mut Plan) {
    let (cron, now) = (&observed.cron, observed.now.0);
    let pod = observed.poller.as_ref().filter(|pod| is_of(pod.owner_references(), cron));
    if let Some(pod) = pod {
        let Some(found) = poller::found(pod) else { return };
        let next = schedule.and_then(|schedule| schedule.next(now)).map(|next| next.to_string());
        // Null removes an annotation.
        let (digest, failure) = match found {
            Ok(digest) => (Some(digest), None),
            Err(why) => {
                let message = format!("the source cannot be looked at: {why}");
                plan.events.push(Event { warning: true, reason: "PollFailed", message });
                (cron.annotations().get(DESIRED_DIGEST).cloned(), Some(why))
            }
        };
        if pod.metadata.deletion_timestamp.is_none() {
            plan.steps.push(Step::Annotate(json!({ "metadata": { "annotations": {
                (DESIRED_DIGEST): digest, (POLL_FAILURE): failure, (NEXT_CRON_TIME): next,
                (LAST_CRON_TIME): now.round(k8s_openapi::jiff::Unit::Second).unwrap_or(now).to_string(),
            } } })));
            plan.steps.extend(pod.uid().map(Step::RemovePoller));
        }
        return;
    }
    if schedule.is_none() {
        return;
    }
    let known = cron.annotations().get(NEXT_CRON_TIME).and_then(|text| text.parse::<Timestamp>().ok());
    match known {
        Some(next) if next > now => plan.again = Some(pause(now, next)),
        // A pod of another owner blocks the name until it is gone.
        _ if observed.poller.is_some() => plan.again = Some(Duration::from_secs(60)),
        // At first, and when the schedule says so.
        _ => {
            let pod = poller::of(cron, installation);
            plan.steps.push(Step::MakePoller(Box::new(pod)));
        }
    }
}

fn pause(now: Timestamp, next: Timestamp) -> Duration {
    let left = Duration::try_from(next.duration_since(now)).unwrap_or_default();
    (left + Duration::from_secs(1)).min(LONGEST_PAUSE)
}

/// Imports the source's image; returns the resulting status.
fn import(observed: &Observed, old: &DataImportCronStatus, plan: &mut Plan) -> DataImportCronStatus {
    let (cron, now) = (&observed.cron, &observed.now);
    let mut new = old.clone();
    let named = |name: &str| observed.imports.iter().find(|import| import.name_any() == name);
    let mut import = current(old).and_then(|current| named(&current.data_volume_name));
    if import.is_none() {
        // The DataVolume was deleted: the wanted digest is imported again.
        new.current_imports.clear();
    }
    let phase = |import: &DataVolume| {
        import.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default()
    };
    let mut done = import.is_some_and(|import| phase(import) == SUCCEEDED);
    let wanted = desired(cron);
    let is_new = wanted.is_some_and(|wanted| current(&new).is_none_or(|current| current.digest != wanted));
    // A stuck import does not delay a newer image.
    if let Some(stuck) = import.filter(|import| is_new && status::is_stuck(import)) {
        plan.steps.extend(remove(stuck));
        new.current_imports.clear();
        import = None;
    }
    let polled = cron.annotations().get(LAST_CRON_TIME).and_then(|text| text.parse::<Timestamp>().ok());
    let digest = current(old).map(|current| current.digest.as_str());
    let failed = import.filter(|_| !is_new).zip(digest);
    let failed = failed.and_then(|(import, digest)| Some((import, Failure::of(import, digest, cron)?)));
    // What kept it from being imported may have passed: it is made again once it is gone.
    if let Some((import, failure)) = &failed
        && failure.is_due(polled)
        && let Some(step) = remove(import)
    {
        plan.steps.extend([step, Step::Annotate(failure.counted())]);
    }
    let mut taken = None;
    if let Some(digest) = wanted.filter(|_| is_new && (done || import.is_none())) {
        let name = import_name(&cron.spec.managed_data_source, digest);
        match &observed.wanted {
            None => {
                plan.steps.push(Step::Import(Box::new(made::data_volume(cron, &name, digest, now))));
                done = false;
            }
            Some(found) if found.labels().get(IMPORT_CRON_LABEL) == Some(&cron.name_any()) => {
                plan.steps.push(Step::Mark(name.clone(), made::used(now)));
                done = phase(found) == SUCCEEDED;
            }
            Some(_) => taken = Some(name.clone()),
        }
        if taken.is_none() {
            new.current_imports = vec![ImportStatus { data_volume_name: name, digest: digest.to_owned() }];
            import = observed.wanted.as_ref();
        }
    }
    if done {
        plan.steps.extend(retry::forget(cron).map(Step::Annotate));
    }
    if done && let Some(current) = current(&new) {
        let claim = made::claim(cron, &current.data_volume_name);
        if new.last_imported_pvc.as_ref() != Some(&claim) {
            new.last_imported_pvc = Some(claim);
            new.last_import_timestamp = Some(now.clone());
        }
        new.source_format = Some("pvc".to_owned());
    }
    new.last_execution_timestamp = polled.map(Time).or(new.last_execution_timestamp);
    let facts = status::CronFacts {
        failure: cron.annotations().get(POLL_FAILURE).map(String::as_str),
        phase: import.map(phase),
        is_current: wanted.is_some() && current(&new).map(|current| current.digest.as_str()) == wanted,
        is_done: done,
        has_import: !new.current_imports.is_empty(),
        taken: taken.as_deref(),
        failed: failed.map(|(_, failure)| failure.message()),
    };
    status::with_conditions(new, &facts, now)
}

fn remove(import: &DataVolume) -> Option<Step> {
    let goes = import.metadata.deletion_timestamp.is_none();
    import.uid().filter(|_| goes).map(|uid| Step::RemoveImport(import.name_any(), uid))
}

/// Makes the DataSource refer to the last import.
fn point(observed: &Observed, status: &DataImportCronStatus, plan: &mut Plan) {
    let wanted = made::data_source(&observed.cron, status.last_imported_pvc.as_ref());
    match &observed.data_source {
        None => plan.steps.push(Step::MakeDataSource(Box::new(wanted))),
        Some(found) if found.metadata.deletion_timestamp.is_some() => {}
        // A user who removes the label takes the DataSource over.
        Some(found) if found.labels().get(IMPORT_CRON_LABEL) != Some(&observed.cron.name_any()) => {}
        Some(found) => plan.steps.extend(made::pointed(found, &wanted).map(Step::Point)),
    }
}

/// Deletes old imports.
fn collect(observed: &Observed, status: &DataImportCronStatus, plan: &mut Plan) {
    let spec = &observed.cron.spec;
    let Some(last) = status.last_imported_pvc.as_ref().map(|claim| claim.name.as_str()) else { return };
    let is_current = current(status).is_some_and(|current| current.data_volume_name == last);
    if spec.garbage_collect.as_deref() == Some("Never") || !is_current {
        return;
    }
    let keep = spec.imports_to_keep.map_or(Some(KEEP), |keep| usize::try_from(keep).ok()).unwrap_or(KEEP);
    let mut all: Vec<&DataVolume> = observed.imports.iter().collect();
    all.sort_by_key(|import| std::cmp::Reverse(made::last_used(import)));
    let outdated = all.into_iter().skip(keep).filter(|import| import.name_any() != last);
    plan.steps.extend(outdated.filter_map(remove));
}

#[cfg(test)]
mod tests;
