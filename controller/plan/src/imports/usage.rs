//! Pods that use a claim. Pure.

use k8s_openapi::api::core::v1::{PersistentVolumeClaimVolumeSource, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

/// A pod that uses a claim.
#[derive(Clone, Debug, PartialEq)]
pub struct User {
    /// Its name.
    pub pod: String,
    /// Since when it may write to the claim: its node has taken it.
    pub writes_since: Option<Time>,
}

/// The volumes of a pod that are the claim of that name.
fn volumes<'a>(
    pod: &'a Pod,
    claim: &'a str,
) -> impl Iterator<Item = &'a PersistentVolumeClaimVolumeSource> + 'a {
    let all = pod.spec.as_ref().and_then(|spec| spec.volumes.as_deref()).unwrap_or_default();
    let claims = all.iter().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    claims.filter(move |source| source.claim_name == claim)
}

/// Whether a pod has the claim of that name in its namespace open, or will.
pub fn uses(pod: &Pod, claim: &str) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    !matches!(phase, Some("Succeeded" | "Failed")) && volumes(pod, claim).next().is_some()
}

/// Of these pods the one that may write to the claim for the longest time, else one that uses it.
pub fn user<'a>(pods: impl IntoIterator<Item = &'a Pod>, claim: &str) -> Option<User> {
    let writes_since = |pod: &Pod| {
        let writes = volumes(pod, claim).any(|source| source.read_only != Some(true));
        pod.status.as_ref().and_then(|status| status.start_time.clone()).filter(|_| writes)
    };
    let users = pods.into_iter().filter(|pod| uses(pod, claim));
    let users = users.map(|pod| User { pod: pod.name_any(), writes_since: writes_since(pod) });
    users.min_by_key(|user| (user.writes_since.is_none(), user.writes_since.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_pod_that_writes_for_the_longest_time_counts_first() {
        let pod = |name: &str, phase: &str, claim: &str, read_only: bool, since: Option<&str>| -> Pod {
            let source = json!({ "claimName": claim, "readOnly": read_only });
            serde_json::from_value(json!({
                "metadata": { "name": name },
                "spec": { "containers": [], "volumes": [{ "name": "disk", "persistentVolumeClaim": source }] },
                "status": { "phase": phase, "startTime": since },
            }))
            .unwrap()
        };
        let at = ["2026-01-01T00:00:01Z", "2026-01-01T00:00:02Z"].map(Some);
        let mut pods = vec![
            pod("ended", "Succeeded", "golden", false, at[0]),
            pod("elsewhere", "Running", "other", false, at[0]),
        ];
        let found = |pods: &[Pod]| user(pods, "golden").map(|user| (user.pod, user.writes_since.is_some()));
        assert_eq!(found(&pods), None);
        for (next, writes) in [
            (pod("reader", "Running", "golden", true, at[0]), false),
            (pod("late", "Running", "golden", false, at[1]), true),
            (pod("early", "Running", "golden", false, at[0]), true),
        ] {
            let name = next.name_any();
            pods.push(next);
            pods.push(pod("unplaced", "Pending", "golden", false, None));
            assert_eq!(found(&pods), Some((name, writes)));
            pods.pop();
        }
    }
}
