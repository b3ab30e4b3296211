//! How long a migration may wait before its guest is handed over. Pure.

use super::observed::Observed;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use std::time::Duration;

/// Annotation of migrations: seconds after which an unschedulable target pod is given up.
const UNSCHEDULABLE_ANNOTATION: &str = "kubevirt.io/migrationUnschedulablePodTimeoutSeconds";
/// The same for a pod that is pending for any reason.
const PENDING_ANNOTATION: &str = "kubevirt.io/migrationPendingPodTimeoutSeconds";
const UNSCHEDULABLE_SECONDS: u64 = 300;
const PENDING_SECONDS: u64 = 900;

/// How long no node may take its target pod.
pub(super) fn unschedulable(observed: &Observed) -> Duration {
    limit(observed, UNSCHEDULABLE_ANNOTATION, UNSCHEDULABLE_SECONDS)
}

/// How long its target pod may be pending for any reason, or may not be made because something is missing.
pub(super) fn pending(observed: &Observed) -> Duration {
    limit(observed, PENDING_ANNOTATION, PENDING_SECONDS)
}

fn limit(observed: &Observed, annotation: &str, default: u64) -> Duration {
    let given = observed.migration.annotations().get(annotation).and_then(|given| given.parse().ok());
    Duration::from_secs(given.unwrap_or(default))
}

/// The time since then; none has passed without it.
pub(super) fn age(since: Option<&Time>, observed: &Observed) -> Duration {
    let since = since.map_or(observed.now, |time| time.0);
    Duration::try_from(observed.now.duration_since(since)).unwrap_or(Duration::ZERO)
}
