//! Finds the cluster's monitoring stack. The check is repeated, since Prometheus may come and go.

use super::target::Monitoring;
use crate::monitoring::{GROUP, Monitor};
use barevirt_component::request::Error;
use barevirt_component::request::call_opt;
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::Client;
use kube::api::Api;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// Pause between two looks.
pub(super) const PAUSE: Duration = Duration::from_secs(30);
/// Kinds of Prometheus' operator that are needed.
const KINDS: [&str; 2] = ["ServiceMonitor", "PrometheusRule"];

/// The last result, and its time.
#[derive(Default)]
pub(super) struct Monitors {
    found: Option<(Instant, Monitoring, Option<Monitor>)>,
}

impl Monitors {
    /// The present monitoring stack.
    pub(super) async fn current(
        &mut self,
        client: &Client,
        wanted: &Monitoring,
    ) -> Result<Option<Monitor>, Error> {
        if let Some((looked, of, found)) = &self.found
            && of == wanted
            && looked.elapsed() < PAUSE
        {
            return Ok(found.clone());
        }
        let found = look(client, wanted).await?;
        let before = self.found.as_ref().filter(|(_, of, _)| of == wanted).map(|(_, _, found)| found);
        if before != Some(&found) {
            match &found {
                Some(monitor) => info!(?monitor, "monitored"),
                None if wanted.is_asked_for => warn!(
                    account = wanted.account,
                    namespaces = wanted.namespaces.join(", "),
                    "there is no such service account: monitoring is not set up"
                ),
                None => {}
            }
        }
        self.found = Some((Instant::now(), wanted.clone(), found.clone()));
        Ok(found)
    }
}

async fn look(client: &Client, wanted: &Monitoring) -> Result<Option<Monitor>, Error> {
    for namespace in &wanted.namespaces {
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        let subject = || format!("service account {namespace}/{}", wanted.account);
        if call_opt("get", subject, accounts.get_metadata(&wanted.account)).await?.is_some() {
            let place = wanted.objects_in.as_ref().unwrap_or(namespace);
            return Ok(Some(Monitor {
                account: wanted.account.clone(),
                namespace: namespace.clone(),
                objects_in: are_defined(client).await?.then(|| place.clone()),
                runbooks: wanted.runbooks.clone(),
            }));
        }
    }
    Ok(None)
}

async fn are_defined(client: &Client) -> Result<bool, Error> {
    let version = format!("{GROUP}/v1");
    let listed = client.list_api_group_resources(&version);
    let listed = call_opt("list", || format!("kinds of {version}"), listed).await?;
    Ok(listed.is_some_and(|list| {
        KINDS.iter().all(|kind| list.resources.iter().any(|resource| resource.kind == *kind))
    }))
}
