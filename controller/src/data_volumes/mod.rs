//! DataVolumes, where the cluster has no CDI.
//!
//! ```text
//!   definition of DataVolumes is ours, no CDI --> watches of DataVolumes, their claims and pods --> observe, plan, apply
//!                                        \-- somebody else's, or CDI's kind is there: nothing, until that changes
//! ```
//!
//! The definition says whose DataVolumes are: virt-operator makes it where there is none, and one that somebody puts in its place
//! bears another label. It is looked at every few seconds, and the work is dropped as soon as it is not ours. It is looked at
//! again before anything is changed: a DataVolume that was made under another definition is never touched. What CDI then finds
//! are claims that belong to their DataVolumes, those that are filled marked as CDI marks them.

mod again;
mod apply;
mod observe;
mod progress;
mod steps;
mod uploads;

use crate::cluster::Cluster;
use again::DEADLINE;
use barevirt_api::cdi::DataVolume;
use barevirt_component::data_volumes::are_ours;
use barevirt_component::request::Error;
use barevirt_plan::imports::{self, LABEL};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::watcher;
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};

/// Between two looks at whose the definition is.
const LOOK: Duration = Duration::from_secs(5);

/// Fills DataVolumes whenever that is ours to do. Without an importer's image it never is.
pub async fn run(cluster: Arc<Cluster>) {
    if cluster.importer_image().is_none() {
        info!("no importer: DataVolumes are left to CDI");
        return std::future::pending().await;
    }
    loop {
        if is_ours(&cluster).await == Some(true) {
            info!("DataVolumes are filled");
            tokio::select! {
                () = work(cluster.clone()) => warn!("the watches of DataVolumes ended"),
                () = uploads::work(cluster.clone()) => warn!("the watches of claims to upload into ended"),
                () = until_not_ours(&cluster) => info!("DataVolumes are somebody else's now"),
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn until_not_ours(cluster: &Cluster) {
    loop {
        tokio::time::sleep(LOOK).await;
        // Without an answer it is as before: nothing can be written either.
        if is_ours(cluster).await == Some(false) {
            return;
        }
    }
}

/// Whether DataVolumes are ours to fill; none where that is not known.
async fn is_ours(cluster: &Cluster) -> Option<bool> {
    match are_ours(&cluster.client).await {
        Ok(ours) => Some(ours),
        Err(error) => {
            warn!(%error, "not known whose DataVolumes are");
            None
        }
    }
}

async fn work(cluster: Arc<Cluster>) {
    let ours = watcher::Config::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
    let all: Api<DataVolume> = Api::all(cluster.client.clone());
    let claims: Api<PersistentVolumeClaim> = Api::all(cluster.client.clone());
    let pods: Api<Pod> = Api::all(cluster.client.clone());
    Controller::new(all, watcher::Config::default())
        .owns(claims, ours.clone())
        .owns(pods, ours)
        .run(reconcile, on_error, cluster)
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile(data_volume: Arc<DataVolume>, cluster: Arc<Cluster>) -> Result<Action, Error> {
    let (namespace, name) = (data_volume.namespace().unwrap_or_default(), data_volume.name_any());
    let done = tokio::time::timeout(DEADLINE, reconcile_one(&cluster, &namespace, &name)).await;
    let again = done.unwrap_or(Err(Error::Overdue(DEADLINE)))?;
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

/// One reconciliation; the time of the next where one is due without an event.
async fn reconcile_one(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<Duration>, Error> {
    let Some(observed) = observe::observe(cluster, namespace, name).await? else { return Ok(None) };
    let installation = observe::installation(cluster).await?;
    let plan = imports::plan(&observed, &installation);
    // The DataVolume was read before: if somebody made it for a CDI that is there since a moment, this look sees that CDI.
    if plan.changes() && !are_ours(&cluster.client).await? {
        return Ok(None);
    }
    apply::apply(cluster, &observed, plan).await
}

fn on_error(data_volume: Arc<DataVolume>, error: &Error, _: Arc<Cluster>) -> Action {
    let (namespace, name) = (data_volume.namespace(), data_volume.name_any());
    again::after(error, || {
        warn!(namespace, name, %error, why = error.message(), "a data volume could not be reconciled");
    })
}
