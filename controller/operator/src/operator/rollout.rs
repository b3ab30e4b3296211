//! The progress of a component's pods towards its deployment or daemon set.

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};

/// State of a component's pods, KubeVirt's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rollout {
    /// All pods are of the newest revision, and enough are ready.
    Done,
    /// Not all pods are new or ready, for this reason.
    Going {
        /// The reason.
        why: String,
        /// Whether a pod of any revision is usable meanwhile.
        serves: bool,
        /// Whether at least one pod of the newest revision is ready, as far as the counts prove it.
        proven: bool,
    },
}

impl Rollout {
    /// Of a deployment: done without pods of other revisions and with at least one usable pod.
    pub fn of_deployment(deployment: &Deployment) -> Rollout {
        let status = deployment.status.clone().unwrap_or_default();
        let wanted = deployment.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1);
        let updated = status.updated_replicas.unwrap_or(0);
        let old = status.replicas.unwrap_or(0).saturating_sub(updated);
        let available = status.available_replicas.unwrap_or(0);
        let seen = status.observed_generation >= deployment.metadata.generation;
        let proven = seen && available > old;
        let going = |why: String| Rollout::Going { why, serves: available > 0, proven };
        if !seen {
            going("its change is not seen yet".to_owned())
        } else if updated < wanted || old > 0 {
            going(format!("{updated} of {wanted} pods are new, {old} are old"))
        } else if available == 0 && wanted > 0 {
            going(format!("none of {wanted} pods is ready"))
        } else {
            Rollout::Done
        }
    }

    /// Of a daemon set: done when the newest revision is ready on every node.
    pub fn of_daemon_set(set: &DaemonSet) -> Rollout {
        let status = set.status.clone().unwrap_or_default();
        let wanted = status.desired_number_scheduled;
        let updated = status.updated_number_scheduled.unwrap_or(0);
        let seen = status.observed_generation >= set.metadata.generation;
        // Even if all pods that are not ready were new ones, this many new ones would be ready.
        let proven = seen && updated.saturating_sub(wanted.saturating_sub(status.number_ready)) > 0;
        let going = |why: String| Rollout::Going { why, serves: status.number_ready > 0, proven };
        if !seen {
            going("its change is not seen yet".to_owned())
        } else if wanted == 0 {
            going("no node is fit for it".to_owned())
        } else if updated < wanted {
            going(format!("{updated} of {wanted} pods are new"))
        } else if status.number_ready < wanted {
            going(format!("{} of {wanted} pods are ready", status.number_ready))
        } else {
            Rollout::Done
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment(generation: i64, replicas: [i32; 4]) -> Rollout {
        let [wanted, total, updated, available] = replicas;
        Rollout::of_deployment(
            &serde_json::from_value(json!({
                "metadata": {"generation": 2},
                "spec": {"replicas": wanted, "selector": {}, "template": {}},
                "status": {
                    "observedGeneration": generation, "replicas": total, "updatedReplicas": updated,
                    "availableReplicas": available,
                },
            }))
            .unwrap(),
        )
    }

    #[test]
    fn a_deployment_is_done_without_old_pods_and_with_one_that_is_ready() {
        assert_eq!(deployment(2, [2, 2, 2, 2]), Rollout::Done);
        assert_eq!(deployment(2, [2, 2, 2, 1]), Rollout::Done);
        for (generation, replicas) in
            [(1, [2, 2, 2, 2]), (2, [2, 3, 2, 2]), (2, [2, 1, 1, 1]), (2, [2, 2, 2, 0]), (2, [2, 2, 1, 2])]
        {
            assert!(matches!(deployment(generation, replicas), Rollout::Going { .. }), "{replicas:?}");
        }
        assert_eq!(deployment(2, [0, 0, 0, 0]), Rollout::Done);
        let serves = |rollout| matches!(rollout, Rollout::Going { serves: true, .. });
        assert!(serves(deployment(2, [2, 3, 1, 2])) && !serves(deployment(2, [2, 2, 2, 0])));
    }

    #[test]
    fn a_daemon_set_is_done_when_every_node_is() {
        let set = |generation: i64, wanted: i32, updated: i32, ready: i32| {
            Rollout::of_daemon_set(
                &serde_json::from_value(json!({
                    "metadata": {"generation": 2},
                    "spec": {"selector": {}, "template": {}},
                    "status": {
                        "observedGeneration": generation, "desiredNumberScheduled": wanted,
                        "updatedNumberScheduled": updated, "numberReady": ready,
                        "currentNumberScheduled": wanted, "numberMisscheduled": 0,
                    },
                }))
                .unwrap(),
            )
        };
        assert_eq!(set(2, 2, 2, 2), Rollout::Done);
        for (generation, wanted, updated, ready) in [(1, 2, 2, 2), (2, 2, 1, 2), (2, 2, 2, 1), (2, 0, 0, 0)] {
            assert!(matches!(set(generation, wanted, updated, ready), Rollout::Going { .. }));
        }
        // Of five nodes: no new pod, one that is not ready, one that is ready, and then the next one.
        let proven = |rollout: &Rollout| matches!(rollout, Rollout::Going { proven: true, .. });
        for (generation, updated, ready, expected) in [
            (2, 0, 5, false),
            (2, 0, 4, false),
            (2, 1, 4, false),
            (2, 1, 5, true),
            (2, 2, 4, true),
            (1, 2, 5, false),
        ] {
            let rollout = set(generation, 5, updated, ready);
            assert_eq!(proven(&rollout), expected, "{updated} new, {ready} ready");
        }
    }
}
