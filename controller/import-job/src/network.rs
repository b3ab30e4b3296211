//! What the settings of the installation say about the network of importers.

use serde::{Deserialize, Serialize};

/// Environment variable with a [`Network`] (JSON). Without it there is no proxy, and nothing is forbidden beyond what always is.
pub const NETWORK: &str = "IMPORT_NETWORK";

/// How importers reach their servers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Network {
    /// Proxy for addresses with `http`: `http://[user:password@]host[:port]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_proxy: Option<String>,
    /// Proxy for addresses with `https`, in the same form.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub https_proxy: Option<String>,
    /// Hosts that are reached without a proxy: names, suffixes, addresses and networks, with commas between them.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub no_proxy: String,
    /// Certificates of authorities that are trusted in addition to the usual ones, PEM.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub authorities: String,
    /// Whether only public addresses may be connected to.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub public_only: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_written_as_it_is_read() {
        assert_eq!(serde_json::to_string(&Network::default()).unwrap(), "{}");
        let network = Network {
            http_proxy: Some("http://a:3128".to_owned()),
            no_proxy: ".svc".to_owned(),
            public_only: true,
            ..Network::default()
        };
        let text = serde_json::to_string(&network).unwrap();
        assert_eq!(text, r#"{"httpProxy":"http://a:3128","noProxy":".svc","publicOnly":true}"#);
        assert_eq!(serde_json::from_str::<Network>(&text).unwrap(), network);
    }
}
