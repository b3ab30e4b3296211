//! Whether a change of versions is an upgrade or a downgrade, which decides the order of components.

use super::plan::Order;
use super::report;
use super::target::Deployment;
use barevirt_api::v1::KubeVirtStatus;
use semver::Version;

/// The order in which components are changed to reach the target. It depends only on the cluster, so that the next process
/// gets the same order.
pub fn order(status: &KubeVirtStatus, target: &Deployment) -> Order {
    if !report::is_update(status, target) {
        return Order::ApiFirst;
    }
    let observed = status.observed_kube_virt_version.as_deref().unwrap_or_default();
    if is_back(observed, &target.version) { Order::ApiFirst } else { Order::HandlerFirst }
}

/// Whether the second version is not newer than the first. Versions that are not numbers count as newer, as in KubeVirt.
fn is_back(observed: &str, target: &str) -> bool {
    let read = |text: &str| Version::parse(text.strip_prefix('v').unwrap_or(text)).ok();
    match (read(observed), read(target)) {
        (Some(observed), Some(target)) => target.cmp_precedence(&observed).is_le(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_compared_and_words_are_new() {
        for (observed, target, expected) in [
            ("v1.2.0", "v1.10.0", false),
            ("v1.10.0", "v1.2.0", true),
            ("v1.2.0", "1.2.0", true),
            ("v1.2.0-rc.1", "v1.2.0", false),
            ("v1.2.0", "v1.2.0-rc.1", true),
            ("v1.2.0+a", "v1.2.0+b", true),
            ("devel", "devel-2", false),
            ("devel", "v1.2.0", false),
            ("v1.2", "v1.1", false),
        ] {
            assert_eq!(is_back(observed, target), expected, "{observed} to {target}");
        }
    }

    #[test]
    fn an_update_that_is_taken_back_half_way_begins_with_virt_api() {
        let deployment = |id: &str, version: &str| Deployment {
            id: id.into(),
            config: String::new(),
            version: version.into(),
            registry: String::new(),
        };
        let status = KubeVirtStatus {
            observed_deployment_id: Some("a".into()),
            observed_kube_virt_version: Some("devel".into()),
            ..KubeVirtStatus::default()
        };
        assert_eq!(order(&status, &deployment("b", "next")), Order::HandlerFirst);
        assert_eq!(order(&status, &deployment("a", "devel")), Order::ApiFirst);
        assert_eq!(order(&KubeVirtStatus::default(), &deployment("a", "v1.0.0")), Order::ApiFirst);
        let newer = KubeVirtStatus { observed_kube_virt_version: Some("v2.0.0".into()), ..status };
        assert_eq!(order(&newer, &deployment("b", "v1.0.0")), Order::ApiFirst);
        assert_eq!(order(&newer, &deployment("b", "v2.0.1")), Order::HandlerFirst);
    }
}
