//! Settings of the installation: flags of this process, and the `KubeVirt` object as it is at the moment.

use barevirt_api::settings::Settings;
use barevirt_api::validate::selects;
use std::collections::BTreeMap;

/// What pods are built with.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Image of the launcher and of the container disks' helper.
    pub launcher_image: String,
    /// Pull policy for it, where the `KubeVirt` object names none.
    pub image_pull_policy: Option<String>,
    /// What the `KubeVirt` object says.
    pub settings: Settings,
}

impl Config {
    /// Pull policy for launchers.
    pub fn pull_policy(&self) -> Option<&str> {
        self.settings.image_pull_policy.as_deref().or(self.image_pull_policy.as_deref())
    }

    /// The same for pods of a namespace with these labels: without a CPU limit of their own where it is not selected.
    #[must_use]
    pub fn in_namespace(mut self, labels: Option<&BTreeMap<String, String>>) -> Self {
        // A selector that is none selects nothing; admission refuses it.
        self.settings.pods.cpu_limit.take_if(|selector| selects(selector, labels) != Ok(true));
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
            config.in_namespace(Some(&labels)).settings.pods.cpu_limit.is_some()
        };
        assert!(limits(&[("quota", "on"), ("a", "b")]));
        assert!(!limits(&[("quota", "off")]));
        assert!(config(json!({})).in_namespace(None).settings.pods.cpu_limit.is_none());
    }
}
