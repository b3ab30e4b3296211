//! The status of the `KubeVirt` object, computed whole from the outcome of a pass. Phases, conditions, reasons are
//! KubeVirt's.
//!
//! | outcome | phase | Available | Progressing | Degraded | Created | Synchronized |
//! |---|---|---|---|---|---|---|
//! | installing | Deploying | F DeploymentInProgress | T | F | T once all objects are there | - |
//! | another version | unchanged | T UpdateInProgress | T | T | T once all objects are there | - |
//! | one of these, stuck | | | | T DeploymentFailed | | |
//! | ready | Deployed | T AllComponentsReady | F | F | T AllResourcesCreated | - |
//! | failed | unchanged | F DeploymentFailed | F | T | unchanged | F DeploymentFailed |
//! | not valid | unchanged | unchanged | | | | F InvalidConfiguration |
//! | removing | Deleting | F DeletionInProgress | F | T | - | -, or F DeletionFailed |
//! | another object decides | unchanged | unchanged | | | | F ExistingDeployment |

use super::target::Deployment;
use barevirt_api::v1::{Condition, GenerationStatus, KubeVirtStatus, merge_condition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use std::time::Duration;

/// Condition: every object exists.
pub const CREATED: &str = "Created";
/// Condition: machines can be used.
pub const AVAILABLE: &str = "Available";
/// Condition: a change is in progress.
pub const PROGRESSING: &str = "Progressing";
/// Condition: something is wrong, or changing.
pub const DEGRADED: &str = "Degraded";
/// Condition: present, and false, where the wanted installation is not possible.
pub const SYNCHRONIZED: &str = "Synchronized";

/// How long a wait may take until it is reported as a problem.
pub const OVERDUE: Duration = Duration::from_secs(600);

/// The outcome of a pass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Work is left, or a component is not ready.
    Installing {
        /// Whether all objects exist.
        complete: bool,
        /// What is waited for.
        waiting: Vec<String>,
        /// Whether it will most likely not become ready.
        stuck: bool,
    },
    /// Everything is as wanted.
    Ready,
    /// The installation is not possible, for this reason.
    Failed(String),
    /// Admission would refuse the object; the running installation stays. All errors in it.
    Invalid(Vec<String>),
    /// It is being removed.
    Removing {
        /// What is waited for.
        waiting: Vec<String>,
    },
    /// The removal is refused or fails.
    RemovalFailed(String),
    /// Nothing is left.
    Removed,
    /// Another object decides, or this one is in the wrong namespace.
    Ignored(String),
}

/// Inputs of the status beside the outcome.
#[derive(Clone, Debug, PartialEq)]
pub struct Facts {
    /// The wanted installation; `None` where it could not be read.
    pub target: Option<Deployment>,
    /// Generation of the observed object.
    pub generation: Option<i64>,
    /// Version of this operator.
    pub operator_version: String,
    /// Default architecture of instances.
    pub architecture: String,
    /// Generations in which objects were left.
    pub generations: Vec<GenerationStatus>,
}

/// Whether the installed and the wanted installation differ.
pub fn is_update(status: &KubeVirtStatus, target: &Deployment) -> bool {
    status.observed_deployment_id.as_ref().is_some_and(|observed| *observed != target.id)
}

/// The status after a pass.
pub fn status(old: &KubeVirtStatus, outcome: &Outcome, facts: &Facts, now: &Time) -> KubeVirtStatus {
    let mut status = old.clone();
    let set = |conditions: &mut Vec<Condition>, type_: &str, value: bool, reason: &str, message: &str| {
        merge_condition(conditions, Condition::new(type_, value, reason, message), now);
    };
    if let Outcome::Ignored(why) = outcome {
        set(&mut status.conditions, SYNCHRONIZED, false, "ExistingDeployment", why);
        return status;
    }
    status.operator_version = Some(facts.operator_version.clone());
    status.default_architecture = Some(facts.architecture.clone());
    status.generations.clone_from(&facts.generations);
    if let Some(target) = &facts.target {
        status.target_deployment_id = Some(target.id.clone());
        status.target_deployment_config = Some(target.config.clone());
        status.target_kube_virt_version = Some(target.version.clone());
        status.target_kube_virt_registry = Some(target.registry.clone());
    }
    let all = |conditions: &mut Vec<Condition>, values: [bool; 3], reason: &str, message: &str| {
        for (type_, value) in [AVAILABLE, PROGRESSING, DEGRADED].into_iter().zip(values) {
            set(conditions, type_, value, reason, message);
        }
    };
    match outcome {
        Outcome::Installing { complete, waiting, stuck } => {
            status.phase.get_or_insert_with(|| "Deploying".to_owned());
            Condition::remove(&mut status.conditions, SYNCHRONIZED);
            let target = facts.target.as_ref();
            let updating = target.is_some_and(|target| is_update(old, target));
            let (version, registry) =
                target.map_or(("", ""), |target| (target.version.as_str(), target.registry.as_str()));
            let mut message = if updating {
                format!(
                    "Transitioning from previous version {} with registry {} to target version {version} using registry {registry}",
                    old.observed_kube_virt_version.as_deref().unwrap_or_default(),
                    old.observed_kube_virt_registry.as_deref().unwrap_or_default(),
                )
            } else {
                format!("Deploying version {version} with registry {registry}")
            };
            if let Some(first) = waiting.first() {
                message = format!("{message}; waiting for {first}");
            }
            if updating {
                all(&mut status.conditions, [true, true, true], "UpdateInProgress", &message);
            } else {
                all(&mut status.conditions, [false, true, false], "DeploymentInProgress", &message);
            }
            if *stuck {
                set(&mut status.conditions, DEGRADED, true, "DeploymentFailed", &message);
            } else if is_overdue(&status.conditions, PROGRESSING, now) {
                let message = format!("Not done after {} minutes: {message}", OVERDUE.as_secs() / 60);
                set(&mut status.conditions, DEGRADED, true, "DeploymentFailed", &message);
            }
            if *complete {
                created(&mut status.conditions, now);
            } else {
                Condition::remove(&mut status.conditions, CREATED);
            }
        }
        Outcome::Ready => {
            status.phase = Some("Deployed".to_owned());
            Condition::remove(&mut status.conditions, SYNCHRONIZED);
            created(&mut status.conditions, now);
            all(
                &mut status.conditions,
                [true, false, false],
                "AllComponentsReady",
                "All components are ready.",
            );
            status.observed_generation = facts.generation;
            status.observed_deployment_id.clone_from(&status.target_deployment_id);
            status.observed_deployment_config.clone_from(&status.target_deployment_config);
            status.observed_kube_virt_version.clone_from(&status.target_kube_virt_version);
            status.observed_kube_virt_registry.clone_from(&status.target_kube_virt_registry);
        }
        Outcome::Failed(why) => {
            status.phase.get_or_insert_with(|| "Deploying".to_owned());
            let message = format!("An error occurred during deployment: {why}");
            all(&mut status.conditions, [false, false, true], "DeploymentFailed", &message);
            // The running installation stays as it was.
            if old.phase.as_deref() == Some("Deployed") && Condition::is_set(&old.conditions, AVAILABLE) {
                let message = format!("{message}; what was installed before stays");
                merge_condition(
                    &mut status.conditions,
                    Condition::new(AVAILABLE, true, "DeploymentFailed", message),
                    now,
                );
            }
            merge_condition(
                &mut status.conditions,
                Condition::new(SYNCHRONIZED, false, "DeploymentFailed", message),
                now,
            );
        }
        Outcome::Invalid(causes) => {
            let message = format!("The configuration is not valid: {}", causes.join("; "));
            if old.observed_deployment_id.is_none() {
                // Nothing runs, and nothing will until a user corrects it.
                status.phase.get_or_insert_with(|| "Deploying".to_owned());
                all(&mut status.conditions, [false, false, true], "InvalidConfiguration", &message);
            }
            merge_condition(
                &mut status.conditions,
                Condition::new(SYNCHRONIZED, false, "InvalidConfiguration", message),
                now,
            );
        }
        Outcome::Removing { waiting } => {
            status.phase = Some("Deleting".to_owned());
            Condition::remove(&mut status.conditions, CREATED);
            Condition::remove(&mut status.conditions, SYNCHRONIZED);
            let message = match waiting.first() {
                None => "Deletion was triggered".to_owned(),
                Some(first) if waiting.len() == 1 => format!("Deletion was triggered; waiting for {first}"),
                Some(first) => format!(
                    "Deletion was triggered; waiting for {first} and {} more",
                    waiting.len().saturating_sub(1)
                ),
            };
            all(&mut status.conditions, [false, false, true], "DeletionInProgress", &message);
        }
        Outcome::RemovalFailed(why) => {
            status.phase = Some("Deleting".to_owned());
            let message = format!("An error occurred during deletion: {why}");
            merge_condition(
                &mut status.conditions,
                Condition::new(SYNCHRONIZED, false, "DeletionFailed", message),
                now,
            );
        }
        Outcome::Removed => {
            status.phase = Some("Deleted".to_owned());
            Condition::remove(&mut status.conditions, SYNCHRONIZED);
        }
        Outcome::Ignored(_) => {}
    }
    status
}

fn created(conditions: &mut Vec<Condition>, now: &Time) {
    let condition = Condition::new(CREATED, true, "AllResourcesCreated", "All resources were created.");
    merge_condition(conditions, condition, now);
}

fn is_overdue(conditions: &[Condition], type_: &str, now: &Time) -> bool {
    let since = Condition::find(conditions, type_)
        .filter(|condition| condition.is_true())
        .and_then(|condition| condition.last_transition_time.as_ref());
    let limit = i64::try_from(OVERDUE.as_secs()).unwrap_or(i64::MAX);
    since.is_some_and(|since| now.0.as_second().saturating_sub(since.0.as_second()) >= limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::jiff::Timestamp;

    fn at(second: i64) -> Time {
        Time(Timestamp::from_second(second).unwrap())
    }

    fn facts(id: &str) -> Facts {
        Facts {
            target: Some(Deployment {
                id: id.into(),
                config: "{}".into(),
                version: format!("v-{id}"),
                registry: "r".into(),
            }),
            generation: Some(3),
            operator_version: "v0".into(),
            architecture: "amd64".into(),
            generations: vec![],
        }
    }

    fn installing(complete: bool) -> Outcome {
        Outcome::Installing {
            complete,
            waiting: vec!["Deployment kubevirt/virt-api: x".into()],
            stuck: false,
        }
    }

    /// `Available/T/Reason` of all conditions, sorted.
    fn table(status: &KubeVirtStatus) -> String {
        let mut rows: Vec<String> = status
            .conditions
            .iter()
            .map(|condition| {
                let value = condition.status.chars().next().unwrap_or('?');
                format!("{}/{value}/{}", condition.type_, condition.reason.as_deref().unwrap_or("-"))
            })
            .collect();
        rows.sort();
        rows.join(" ")
    }

    #[test]
    fn an_installation_from_start_to_end() {
        let progress = "Available/F/DeploymentInProgress Degraded/F/DeploymentInProgress Progressing/T/DeploymentInProgress";
        let first = status(&KubeVirtStatus::default(), &installing(false), &facts("a"), &at(1));
        assert_eq!((first.phase.as_deref(), table(&first).as_str()), (Some("Deploying"), progress));
        let message = first.conditions[0].message.as_deref().unwrap();
        assert!(
            message.contains("Deploying version v-a with registry r; waiting for Deployment"),
            "{message}"
        );
        assert_eq!(first.observed_generation, None);
        let second = status(&first, &installing(true), &facts("a"), &at(2));
        let created = format!(
            "Available/F/DeploymentInProgress Created/T/AllResourcesCreated {}",
            progress.split_once(' ').unwrap().1
        );
        assert_eq!(table(&second), created);
        let ready = status(&second, &Outcome::Ready, &facts("a"), &at(3));
        assert_eq!(
            table(&ready),
            "Available/T/AllComponentsReady Created/T/AllResourcesCreated Degraded/F/AllComponentsReady Progressing/F/AllComponentsReady"
        );
        assert_eq!((ready.phase.as_deref(), ready.observed_generation), (Some("Deployed"), Some(3)));
        assert_eq!(ready.observed_deployment_id, ready.target_deployment_id);
        assert_eq!(ready.observed_kube_virt_version.as_deref(), Some("v-a"));
        // The same outcome again changes nothing.
        assert_eq!(status(&ready, &Outcome::Ready, &facts("a"), &at(9)), ready);
    }

    #[test]
    fn an_update_keeps_what_runs_available() {
        let ready = status(&KubeVirtStatus::default(), &Outcome::Ready, &facts("a"), &at(1));
        let updating = status(&ready, &installing(false), &facts("b"), &at(2));
        assert_eq!(
            table(&updating),
            "Available/T/UpdateInProgress Degraded/T/UpdateInProgress Progressing/T/UpdateInProgress"
        );
        assert_eq!(updating.observed_kube_virt_version.as_deref(), Some("v-a"));
        assert_eq!(updating.target_kube_virt_version.as_deref(), Some("v-b"));
        let message = updating.conditions.last().and_then(|condition| condition.message.clone()).unwrap();
        assert!(
            message.starts_with("Transitioning from previous version v-a with registry r to"),
            "{message}"
        );
        assert_eq!(updating.phase.as_deref(), Some("Deployed"));
    }

    #[test]
    fn an_overdue_wait_is_reported() {
        let first = status(&KubeVirtStatus::default(), &installing(true), &facts("a"), &at(0));
        let limit = i64::try_from(OVERDUE.as_secs()).unwrap();
        let before = status(&first, &installing(true), &facts("a"), &at(limit - 1));
        assert_eq!(table(&before), table(&first));
        let after = status(&before, &installing(true), &facts("a"), &at(limit));
        assert!(table(&after).contains("Degraded/T/DeploymentFailed"), "{}", table(&after));
        assert!(table(&after).contains("Progressing/T/DeploymentInProgress"));
    }

    #[test]
    fn a_stuck_rollout_is_reported_while_it_lasts() {
        let stuck = Outcome::Installing {
            complete: true,
            waiting: vec!["DaemonSet kubevirt/virt-handler: pod x: ImagePullBackOff".into()],
            stuck: true,
        };
        let ready = status(&KubeVirtStatus::default(), &Outcome::Ready, &facts("a"), &at(1));
        let told = status(&ready, &stuck, &facts("b"), &at(2));
        assert_eq!(
            table(&told),
            "Available/T/UpdateInProgress Created/T/AllResourcesCreated Degraded/T/DeploymentFailed Progressing/T/UpdateInProgress"
        );
        let degraded = Condition::find(&told.conditions, DEGRADED).and_then(|found| found.message.clone());
        assert!(degraded.unwrap().contains("pod x: ImagePullBackOff"));
        let after = status(&told, &installing(true), &facts("b"), &at(3));
        assert!(table(&after).contains("Degraded/T/UpdateInProgress"));
    }

    #[test]
    fn a_failure_names_its_reason_and_leaves_what_runs_available() {
        let failed = Outcome::Failed("spec.infra.replicas: must be at least 1".into());
        let first = status(&KubeVirtStatus::default(), &failed, &facts("a"), &at(1));
        assert_eq!(
            table(&first),
            "Available/F/DeploymentFailed Degraded/T/DeploymentFailed Progressing/F/DeploymentFailed Synchronized/F/DeploymentFailed"
        );
        let ready = status(&KubeVirtStatus::default(), &Outcome::Ready, &facts("a"), &at(1));
        let later = status(&ready, &failed, &facts("a"), &at(2));
        assert!(table(&later).contains("Available/T/DeploymentFailed"));
        assert!(later.conditions.iter().any(|condition| {
            condition.message.as_deref().is_some_and(|message| message.contains("spec.infra.replicas"))
        }));
        // It is withdrawn when it is over.
        let again = status(&later, &Outcome::Ready, &facts("a"), &at(3));
        assert!(!table(&again).contains("Synchronized"));
    }

    #[test]
    fn an_invalid_object_changes_nothing_and_is_reported() {
        let invalid = Outcome::Invalid(vec!["spec.a: wrong".into(), "spec.b: wrong too".into()]);
        let none = Facts { target: None, ..facts("a") };
        let first = status(&KubeVirtStatus::default(), &invalid, &none, &at(1));
        assert_eq!(
            table(&first),
            "Available/F/InvalidConfiguration Degraded/T/InvalidConfiguration Progressing/F/InvalidConfiguration Synchronized/F/InvalidConfiguration"
        );
        let ready = status(&KubeVirtStatus::default(), &Outcome::Ready, &facts("a"), &at(1));
        let later = status(&ready, &invalid, &none, &at(2));
        assert_eq!(table(&later), format!("{} Synchronized/F/InvalidConfiguration", table(&ready)));
        let told = Condition::find(&later.conditions, SYNCHRONIZED).and_then(|told| told.message.as_deref());
        assert_eq!(told, Some("The configuration is not valid: spec.a: wrong; spec.b: wrong too"));
        let again = status(&later, &Outcome::Ready, &facts("a"), &at(3));
        assert_eq!(table(&again), table(&ready));
    }

    #[test]
    fn a_removal_is_reported_and_so_is_what_blocks_it() {
        let ready = status(&KubeVirtStatus::default(), &Outcome::Ready, &facts("a"), &at(1));
        let blocked = status(&ready, &Outcome::RemovalFailed("machines exist".into()), &facts("a"), &at(2));
        assert!(table(&blocked).contains("Synchronized/F/DeletionFailed"));
        assert!(table(&blocked).contains("Available/T/AllComponentsReady"), "what runs goes on");
        let removing = status(&blocked, &Outcome::Removing { waiting: vec![] }, &facts("a"), &at(3));
        assert_eq!(removing.phase.as_deref(), Some("Deleting"));
        assert_eq!(
            table(&removing),
            "Available/F/DeletionInProgress Degraded/T/DeletionInProgress Progressing/F/DeletionInProgress"
        );
        let removed = status(&removing, &Outcome::Removed, &facts("a"), &at(4));
        assert_eq!(removed.phase.as_deref(), Some("Deleted"));
    }

    #[test]
    fn an_ignored_kubevirt_reports_only_that_it_is_ignored() {
        let ignored =
            status(&KubeVirtStatus::default(), &Outcome::Ignored("another".into()), &facts("a"), &at(1));
        assert_eq!(table(&ignored), "Synchronized/F/ExistingDeployment");
        assert_eq!((ignored.phase, ignored.target_deployment_id), (None, None));
    }
}
