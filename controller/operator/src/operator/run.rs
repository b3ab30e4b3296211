//! The work of the leading process: it watches, and makes a pass after each change.

use super::cache::Cache;
use super::reconcile::{Reconciler, scopes};
use super::target::Own;
use super::webhook::Webhook;
use super::{data_volumes, definition, upload_service};
use barevirt_component::error::chain;
use barevirt_component::request::back_off;
use kube::Client;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// Changes come in bursts: one pass for each burst.
const GATHER: Duration = Duration::from_millis(100);
/// Pause between two passes while something fails.
const LEAST: Duration = Duration::from_secs(2);
/// How long a pass may take; each of its requests has its own deadline.
const DEADLINE: Duration = Duration::from_secs(120);

/// Works until the future is dropped.
pub async fn run(client: Client, own: Own, cache: Arc<Cache>, webhook: Arc<Webhook>, instance: &str) {
    let watches = cache.clone().follow(client.clone(), scopes(&own));
    let volumes = data_volumes::follow(client.clone(), cache.clone());
    let uploads = upload_service::follow(client.clone(), cache.clone());
    let mut reconciler = Reconciler::new(client.clone(), own, cache.clone(), webhook, instance);
    let (signer, certificates) = (reconciler.signer(), reconciler.watch_certificates());
    let mut certificate = reconciler.listen_to_certificates();
    // Whether CDI serves DataVolumes decides about some objects.
    let mut definitions = cache.looks().listen();
    let work = async {
        let mut is_defined = false;
        loop {
            if !is_defined {
                // A working installation continues without the fields of this version.
                is_defined = match definition::keep(&client).await {
                    Ok(()) => true,
                    Err(error) => {
                        warn!(error = %chain(&error), "the definition of KubeVirt objects is not kept");
                        false
                    }
                };
            }
            let pause = match tokio::time::timeout(DEADLINE, reconciler.pass()).await {
                Ok(Ok(pause)) => pause,
                Ok(Err(error)) => {
                    let pause = back_off(reconciler.failures());
                    warn!(error = %chain(&error), ?pause, "the pass ended early");
                    // A failed write of one object must not keep others from being corrected.
                    tokio::time::sleep(pause.min(LEAST)).await;
                    pause.saturating_sub(LEAST)
                }
                Err(_) => {
                    warn!(deadline = DEADLINE.as_secs(), "the pass took too long");
                    GATHER
                }
            };
            let changed = async {
                tokio::select! {
                    () = cache.changed() => {}
                    () = certificate.wait(pause) => {}
                    () = definitions.wait(pause) => {}
                }
            };
            if tokio::time::timeout(pause, changed).await.is_ok() {
                tokio::time::sleep(GATHER).await;
            }
        }
    };
    tokio::select! {
        () = watches => warn!("the watches ended"),
        () = volumes => {}
        () = uploads => {}
        () = signer => warn!("the watch of certificate requests ended"),
        () = certificates => warn!("the watches of certificates ended"),
        () = work => {}
    }
}
