//! One node first: a daemon set's new pods replace the old ones on one node, and on the others only when one new pod is
//! ready.
//!
//! ```text
//!   old pods --write canary form--> at most one pod is missing --one new pod is ready--> write full form --> the rest
//!                                        |
//!                                        +-- it does not become ready: nothing more happens until another version is wanted
//! ```
//!
//! The canary form is the object with an update strategy that lets one pod be missing at a time. The applied hash shows
//! which form the cluster has, so that a killed process continues where it stopped. If the object does not exist at all,
//! nothing can break, and the full form is written at once.

use super::kind::Kind;
use super::observed::ObservedObject;
use super::rollout::Rollout;
use super::wanted::{Form, Wanted};
use serde_json::{Value, json};

/// The contents of an object's canary; `None` for kinds whose pods Kubernetes does not replace node by node.
pub fn form(kind: Kind, body: &Value) -> Option<Value> {
    let strategy = &body["spec"]["updateStrategy"];
    if kind != Kind::DaemonSet || strategy["type"] == "OnDelete" {
        return None;
    }
    let one = match &strategy["rollingUpdate"]["maxSurge"] {
        // Without a surge, one pod may be missing.
        surge if surge.is_null() || *surge == 0 || *surge == "0%" => json!({"maxUnavailable": 1}),
        // With a surge, the new pod comes before the old one goes.
        _ => json!({"maxSurge": 1, "maxUnavailable": 0}),
    };
    let mut body = body.clone();
    body["spec"]["updateStrategy"] = json!({"type": "RollingUpdate", "rollingUpdate": one});
    Some(body)
}

/// The canary form, if the object is to have it now.
pub fn is_due<'a>(wanted: &'a Wanted, seen: Option<&ObservedObject>) -> Option<&'a Form> {
    let (canary, seen) = (wanted.canary.as_ref()?, seen?);
    let due = match &seen.hash {
        Some(hash) if *hash == wanted.hash => false,
        Some(hash) if *hash == canary.hash => !is_proven(seen.rollout.as_ref()),
        Some(_) | None => true,
    };
    due.then_some(canary)
}

fn is_proven(rollout: Option<&Rollout>) -> bool {
    match rollout {
        None => false,
        Some(Rollout::Done) => true,
        Some(Rollout::Going { proven, .. }) => *proven,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_pod_is_away_at_a_time() {
        let canary = |strategy: Value| {
            form(Kind::DaemonSet, &json!({"spec": {"updateStrategy": strategy, "template": {"x": 1}}}))
        };
        let unavailable = json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}});
        let surge = json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}});
        for (strategy, expected) in [
            (json!(null), &unavailable),
            (json!({"type": "RollingUpdate"}), &unavailable),
            (json!({"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}}), &unavailable),
            (
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 3}}),
                &unavailable,
            ),
            (
                json!({"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "30%", "maxUnavailable": 0}}),
                &surge,
            ),
        ] {
            let body = canary(strategy).unwrap();
            assert_eq!(body["spec"]["updateStrategy"], *expected);
            assert_eq!(body["spec"]["template"], json!({"x": 1}));
        }
        assert_eq!(canary(json!({"type": "OnDelete"})), None);
        assert_eq!(form(Kind::Deployment, &json!({"spec": {}})), None);
    }
}
