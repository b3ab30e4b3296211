//! Settings of the installation: flags of this process, and the present state of the `KubeVirt` object.

use barevirt_api::settings::{Factor, QuotaLimits, Settings};
use barevirt_api::validate::selects;
use k8s_openapi::api::core::v1::ResourceQuota;
use std::collections::BTreeMap;

/// KubeVirt's label of a namespace: the ratio of memory limit to memory request, where a quota asks for a limit.
const MEMORY_LIMIT_RATIO_LABEL: &str = "alpha.kubevirt.io/auto-memory-limits-ratio";

/// Settings that pods are built with.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Image of the launcher and of the container disks' helper.
    pub launcher_image: String,
    /// Pull policy of this image, where the `KubeVirt` object names none.
    pub image_pull_policy: Option<String>,
    /// Settings of the `KubeVirt` object.
    pub settings: Settings,
}

impl Config {
    /// Pull policy for launchers.
    pub fn pull_policy(&self) -> Option<&str> {
        self.settings.image_pull_policy.as_deref().or(self.image_pull_policy.as_deref())
    }

    /// These settings for pods of a namespace with these labels and quotas: without CPU limits where the namespace is not
    /// selected, and with the limits that a quota asks for.
    #[must_use]
    pub fn in_namespace(
        mut self,
        labels: Option<&BTreeMap<String, String>>,
        quotas: &[ResourceQuota],
    ) -> Self {
        // An invalid selector selects nothing; admission refuses it.
        self.settings.pods.cpu_limit.take_if(|selector| selects(selector, labels) != Ok(true));
        let counted = |limit: &str| {
            let hard = |quota: &ResourceQuota| quota.spec.as_ref().and_then(|spec| spec.hard.clone());
            quotas.iter().filter_map(hard).any(|hard| hard.contains_key(limit))
        };
        // A label that is not such a number is ignored, as in KubeVirt.
        let ratio = labels.and_then(|labels| labels.get(MEMORY_LIMIT_RATIO_LABEL));
        let factor = ratio.and_then(|ratio| Factor::parse(ratio)).unwrap_or(QuotaLimits::MEMORY);
        self.settings.pods.quota =
            QuotaLimits { cpu: counted("limits.cpu"), memory: counted("limits.memory").then_some(factor) };
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::v1::KubeVirtSpec;
    use serde_json::json;

    fn config(configuration: serde_json::Value) -> Config {
        let spec: KubeVirtSpec = serde_json::from_value(json!({ "configuration": configuration })).unwrap();
        Config {
            launcher_image: "launcher".to_owned(),
            image_pull_policy: Some("IfNotPresent".to_owned()),
            settings: Settings::from_kubevirt(Some(&spec)),
        }
    }

    #[test]
    fn the_object_wins_over_the_flag() {
        assert_eq!(config(json!({"imagePullPolicy": "Always"})).pull_policy(), Some("Always"));
        assert_eq!(config(json!({})).pull_policy(), Some("IfNotPresent"));
    }

    #[test]
    fn only_selected_namespaces_have_limits() {
        let limits = |labels: &[(&str, &str)]| {
            let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            let config =
                config(json!({"autoCPULimitNamespaceLabelSelector": {"matchLabels": {"quota": "on"}}}));
            config.in_namespace(Some(&labels), &[]).settings.pods.cpu_limit.is_some()
        };
        assert!(limits(&[("quota", "on"), ("a", "b")]));
        assert!(!limits(&[("quota", "off")]));
        assert!(config(json!({})).in_namespace(None, &[]).settings.pods.cpu_limit.is_none());
    }

    #[test]
    fn limits_that_quotas_count() {
        let quota = |hard: serde_json::Value| {
            serde_json::from_value::<ResourceQuota>(json!({"metadata": {}, "spec": {"hard": hard}})).unwrap()
        };
        let limits = |ratio: Option<&str>, quotas: &[ResourceQuota]| {
            let labels =
                ratio.map(|ratio| (MEMORY_LIMIT_RATIO_LABEL.to_owned(), ratio.to_owned())).into_iter();
            config(json!({})).in_namespace(Some(&labels.collect()), quotas).settings.pods.quota
        };
        let none = QuotaLimits::default();
        assert_eq!(limits(None, &[]), none);
        assert_eq!(limits(None, &[quota(json!({"requests.memory": "1Gi", "pods": "4"}))]), none);
        let cpu = quota(json!({"limits.cpu": "4"}));
        let memory = quota(json!({"limits.memory": "4Gi"}));
        assert_eq!(limits(None, std::slice::from_ref(&cpu)), QuotaLimits { cpu: true, memory: None });
        let both = |factor| QuotaLimits { cpu: true, memory: Some(factor) };
        let quotas = [cpu, memory];
        assert_eq!(limits(None, &quotas), both(QuotaLimits::MEMORY));
        assert_eq!(limits(Some("1.5"), &quotas), both(Factor::parse("1.5").unwrap()));
        assert_eq!(limits(Some("0.5"), &quotas), both(QuotaLimits::MEMORY));
    }
}
