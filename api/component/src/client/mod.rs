//! Clients of the API server: the names in their paths are checked, and their requests are counted, and limited
//! to a rate that may change while the process runs.
//!
//! ```text
//!   request --> path (are its names names?) --> limit (a token for each) --> count (code, verb, resource)
//!                                                        --> kube's own stack --> API server
//! ```
//!
//! Requests that must not wait use a client without a rate: the lease, and the watch of the `KubeVirt`
//! object, which sets the rates.

mod count;
pub mod limit;
mod path;

pub use count::Requests;
pub use limit::Limit;

use kube::client::ClientBuilder;
use kube::{Client, Config};

/// How a process reaches the API server.
#[derive(Clone, Debug)]
pub struct Connection {
    config: Config,
    requests: Requests,
}

impl Connection {
    /// Connects as the pod's service account, or with the user's kubeconfig. Requests are counted in
    /// `requests`.
    ///
    /// # Errors
    /// If neither exists, or neither can be used.
    pub async fn infer(requests: Requests) -> Result<Self, kube::config::InferConfigError> {
        Ok(Connection { config: Config::infer().await?, requests })
    }

    /// A client without a rate limit.
    ///
    /// # Errors
    /// If the configuration cannot be used.
    pub fn client(&self) -> Result<Client, kube::Error> {
        let builder = ClientBuilder::try_from(self.config.clone())?;
        Ok(builder.with_layer(&self.count()).with_layer(&path::Layer).build())
    }

    /// A client with a rate limit.
    ///
    /// # Errors
    /// If the configuration cannot be used.
    pub fn limited(&self, limit: &Limit) -> Result<Client, kube::Error> {
        let builder = ClientBuilder::try_from(self.config.clone())?;
        Ok(builder.with_layer(&self.count()).with_layer(&limit.layer()).with_layer(&path::Layer).build())
    }

    fn count(&self) -> count::Layer {
        let host = self.config.cluster_url.authority().map(ToString::to_string);
        self.requests.layer(host.unwrap_or_default())
    }
}
