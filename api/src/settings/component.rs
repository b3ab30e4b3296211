//! Settings of the components themselves: log levels, request rates and TLS.

use crate::v1::{
    DeveloperConfiguration, KubeVirtConfiguration, LogVerbosity, ReloadableComponentConfiguration,
};
use std::collections::BTreeMap;

/// A component that has its own settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Component {
    /// virt-api.
    Api,
    /// virt-controller.
    Controller,
    /// virt-handler.
    Handler,
    /// virt-launcher.
    Launcher,
    /// virt-operator.
    Operator,
}

/// Largest level that has an effect.
pub const VERBOSITY_LIMIT: u32 = 9;

/// How much is logged: levels as klog and KubeVirt count them, by component and by node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verbosity {
    components: BTreeMap<Component, u32>,
    nodes: BTreeMap<String, u32>,
}

impl Verbosity {
    pub(super) fn of_configuration(developer: &DeveloperConfiguration) -> Self {
        let Some(LogVerbosity {
            node_verbosity,
            virt_api,
            virt_controller,
            virt_handler,
            virt_launcher,
            virt_operator,
            // This component does not exist here; the field is refused by name.
            virt_synchronization_controller: _,
        }) = &developer.log_verbosity
        else {
            return Verbosity::default();
        };
        let level = |value: i32| u32::try_from(value).ok().filter(|level| *level <= VERBOSITY_LIMIT);
        let components = [
            (Component::Api, virt_api),
            (Component::Controller, virt_controller),
            (Component::Handler, virt_handler),
            (Component::Launcher, virt_launcher),
            (Component::Operator, virt_operator),
        ];
        Verbosity {
            components: components
                .into_iter()
                .filter_map(|(component, value)| Some((component, level((*value)?)?)))
                .collect(),
            // As in KubeVirt, zero counts as not given here.
            nodes: node_verbosity
                .iter()
                .filter_map(|(node, value)| Some((node.clone(), level(*value).filter(|level| *level > 0)?)))
                .collect(),
        }
    }

    /// The level of a component on a node; `None` if none is configured. A node's own level comes first.
    pub fn of(&self, component: Component, node: &str) -> Option<u32> {
        self.nodes.get(node).or_else(|| self.components.get(&component)).copied()
    }
}

/// Limit on a component's requests to the API server: a long-term rate, and a burst after a quiet time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Requests per second; above zero.
    pub qps: f64,
    /// Requests at once; at least one.
    pub burst: u32,
}

impl Rate {
    /// KubeVirt's default for virt-api, its webhooks and virt-controller.
    pub const CENTRAL: Rate = Rate { qps: 200.0, burst: 400 };
    /// KubeVirt's default for each virt-handler.
    pub const NODE: Rate = Rate { qps: 50.0, burst: 100 };

    fn given(configuration: Option<&ReloadableComponentConfiguration>, default: Rate) -> Rate {
        let bucket = configuration
            .and_then(|configuration| configuration.rest_client.as_ref())
            .and_then(|client| client.rate_limiter.as_ref())
            .and_then(|limiter| limiter.token_bucket_rate_limiter.as_ref());
        let Some(bucket) = bucket else { return default };
        Rate {
            qps: Some(bucket.qps).filter(|qps| qps.is_finite() && *qps > 0.0).unwrap_or(default.qps),
            burst: u32::try_from(bucket.burst).ok().filter(|burst| *burst > 0).unwrap_or(default.burst),
        }
    }
}

/// Request rates of the components.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// virt-api, for requests of users.
    pub api: Rate,
    /// virt-api, for requests of its webhooks.
    pub webhooks: Rate,
    /// virt-controller.
    pub controller: Rate,
    /// Each virt-handler.
    pub handler: Rate,
}

impl Default for Rates {
    fn default() -> Self {
        Rates { api: Rate::CENTRAL, webhooks: Rate::CENTRAL, controller: Rate::CENTRAL, handler: Rate::NODE }
    }
}

impl Rates {
    pub(super) fn of_configuration(configuration: &KubeVirtConfiguration) -> Self {
        let default = Rates::default();
        Rates {
            api: Rate::given(configuration.api_configuration.as_ref(), default.api),
            webhooks: Rate::given(configuration.webhook_configuration.as_ref(), default.webhooks),
            controller: Rate::given(configuration.controller_configuration.as_ref(), default.controller),
            handler: Rate::given(configuration.handler_configuration.as_ref(), default.handler),
        }
    }
}

/// A version of TLS that the servers can speak.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum TlsVersion {
    /// 1.2.
    #[default]
    V1_2,
    /// 1.3.
    V1_3,
}

/// Suites of TLS 1.2 that the servers can speak, by their IANA names.
pub const TLS12_SUITES: [&str; 6] = [
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
];

/// TLS versions and cipher suites that the servers of the components accept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The oldest version.
    pub least: TlsVersion,
    /// Suites of TLS 1.2, by IANA name; empty means all supported suites. TLS 1.3 has its own suites, which
    /// cannot be chosen.
    pub suites: Vec<String>,
}

impl Tls {
    pub(super) fn of_configuration(configuration: &KubeVirtConfiguration) -> Self {
        let Some(given) = &configuration.tls_configuration else { return Tls::default() };
        let least = match given.min_tls_version.as_deref() {
            Some("VersionTLS13") => TlsVersion::V1_3,
            _ => TlsVersion::V1_2,
        };
        let known = |suite: &&String| TLS12_SUITES.contains(&suite.as_str());
        Tls { least, suites: given.ciphers.iter().filter(known).cloned().collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn configuration(value: Value) -> KubeVirtConfiguration {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn a_nodes_level_comes_before_a_components() {
        let developer: DeveloperConfiguration = serde_json::from_value(json!({"logVerbosity": {
            "virtAPI": 3, "virtHandler": 0, "virtLauncher": 10, "nodeVerbosity": {"one": 6, "two": 0}}}))
        .unwrap();
        let verbosity = Verbosity::of_configuration(&developer);
        assert_eq!(verbosity.of(Component::Api, "two"), Some(3));
        assert_eq!(verbosity.of(Component::Api, "one"), Some(6));
        assert_eq!(verbosity.of(Component::Handler, "two"), Some(0));
        assert_eq!(verbosity.of(Component::Launcher, ""), None);
        assert_eq!(verbosity.of(Component::Operator, "one"), Some(6));
    }

    #[test]
    fn rates_are_kubevirts_unless_given() {
        assert_eq!(Rates::of_configuration(&configuration(json!({}))), Rates::default());
        let bucket = |qps: f64, burst: i32| json!({"restClient": {"rateLimiter": {"tokenBucketRateLimiter": {"qps": qps, "burst": burst}}}});
        let rates = Rates::of_configuration(&configuration(json!({
            "apiConfiguration": bucket(7.5, 9), "handlerConfiguration": bucket(0.0, 3),
            "controllerConfiguration": bucket(-1.0, -1), "webhookConfiguration": {}})));
        assert_eq!(rates.api, Rate { qps: 7.5, burst: 9 });
        assert_eq!(rates.handler, Rate { qps: 50.0, burst: 3 });
        assert_eq!((rates.controller, rates.webhooks), (Rate::CENTRAL, Rate::CENTRAL));
    }

    #[test]
    fn tls_is_1_2_unless_1_3_is_asked_for() {
        assert_eq!(Tls::of_configuration(&configuration(json!({}))), Tls::default());
        let newer = Tls::of_configuration(&configuration(
            json!({"tlsConfiguration": {"minTLSVersion": "VersionTLS13"}}),
        ));
        assert_eq!(newer.least, TlsVersion::V1_3);
        let chosen = json!({"tlsConfiguration": {"minTLSVersion": "VersionTLS12",
            "ciphers": [TLS12_SUITES[1], "TLS_RSA_WITH_RC4_128_SHA"]}});
        assert_eq!(Tls::of_configuration(&configuration(chosen)).suites, [TLS12_SUITES[1]]);
    }
}
