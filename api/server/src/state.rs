//! Values that every request may use: clients, certificates, settings, open streams.

use std::sync::Arc;

use barevirt_component::installation::Reading;
use barevirt_component::probes::Probes;
use barevirt_component::server::bodies::Bodies;
use kube::Client;

use crate::admission::Created;
use crate::answer::Refusal;
use crate::front_proxy;
use crate::streams::Streams;
use crate::tls::Certificates;

/// Values that every request may use.
#[derive(Debug)]
pub struct State {
    /// The client with the service account of virt-api.
    pub client: KubeClient,
    /// A client for reads of webhooks, with its own rate limit.
    pub webhooks: KubeClient,
    /// Namespace of the installation.
    pub namespace: String,
    /// Certificates in use.
    pub certificates: Certificates,
    /// The configuration of the proxy that may speak for users.
    pub front_proxy: front_proxy::Current,
    /// Settings of the installation, metrics of this process.
    pub probes: Arc<Probes>,
    /// Limits on request bodies.
    pub bodies: Bodies,
    /// Open streams.
    pub streams: Streams,
    /// The count of admitted machines.
    pub created: Created,
}

impl State {
    /// Settings in effect.
    ///
    /// # Errors
    /// 503 before they were read for the first time.
    pub fn config(&self) -> Result<Arc<Reading>, Refusal> {
        self.probes
            .installation
            .get()
            .ok_or_else(|| Refusal::unavailable("the KubeVirt object has not been looked for yet"))
    }
}

/// `kube::Client` without a Debug that prints its layers.
#[derive(Clone)]
pub struct KubeClient(pub Client);

impl std::fmt::Debug for KubeClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KubeClient")
    }
}
