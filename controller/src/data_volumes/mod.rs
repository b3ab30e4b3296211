//! DataVolumes, where the cluster has no CDI.
//!
//! ```text
//!   definition of DataVolumes is ours, no CDI --> watches of DataVolumes, their claims and pods --> observe, plan, apply
//!                                        \-- definition of another owner, or CDI exists: nothing, until that changes
//! ```
//!
//! The definition tells who serves DataVolumes: virt-operator makes it where there is none, and a definition of another
//! owner has another label. It is looked at every few seconds, and the work stops as soon as the definition is not ours. It
//! is looked at again before every change, so a DataVolume that was made under another definition is never touched. A CDI
//! that is installed later finds claims that belong to their DataVolumes, and filled ones marked as CDI marks them.

mod again;
mod apply;
mod claims;
mod config;
mod crons;
mod observe;
mod populators;
mod profiles;
mod progress;
mod senders;
mod sources;
mod steps;
mod uploads;

use crate::cluster::Cluster;
use again::DEADLINE;
use barevirt_api::cdi::{DATA_SOURCE_DEFINITION, DataSource, DataVolume, IMPORT_CRON_DEFINITION};
use barevirt_component::data_volumes;
use barevirt_component::request::Error;
use barevirt_plan::imports::{self, LABEL, SELECTOR, asked_by};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use kube::api::Api;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher;
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};

/// Pause between two looks at the owner of the definition.
const LOOK: Duration = Duration::from_secs(5);

/// Fills DataVolumes while this process serves them: never without an importer's image.
pub async fn run(cluster: Arc<Cluster>) {
    if cluster.importer_image().is_none() {
        info!("no importer: DataVolumes are left to CDI");
        return std::future::pending().await;
    }
    tokio::select! {
        () = fill(&cluster) => {}
        () = senders::sweep(&cluster) => {}
    }
}

async fn fill(cluster: &Arc<Cluster>) {
    loop {
        if is_ours(cluster).await == Some(true) {
            info!("DataVolumes are filled");
            tokio::select! {
                () = work(cluster.clone()) => warn!("the watches of DataVolumes ended"),
                () = follow_sources(cluster) => {}
                () = follow_crons(cluster) => {}
                () = profiles::work(cluster) => {}
                () = config::work(cluster) => {}
                () = claims::work(cluster.clone()) => warn!("the watches of claims that are filled for themselves ended"),
                () = until_not_ours(cluster) => info!("another owner serves DataVolumes now"),
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn until_not_ours(cluster: &Cluster) {
    loop {
        tokio::time::sleep(LOOK).await;
        // Without an answer nothing changes: nothing can be written either.
        if is_ours(cluster).await == Some(false) {
            return;
        }
    }
}

/// Whether we fill DataVolumes; `None` where that is not known.
async fn is_ours(cluster: &Cluster) -> Option<bool> {
    match data_volumes::are_ours(&cluster.client).await {
        Ok(ours) => Some(ours),
        Err(error) => {
            warn!(%error, "the owner of the definition of DataVolumes is not known");
            None
        }
    }
}

/// Serves DataSources while their definition is ours, too.
async fn follow_sources(cluster: &Arc<Cluster>) {
    loop {
        if data_volumes::is_ours(&cluster.client, DATA_SOURCE_DEFINITION).await.unwrap_or_default() {
            sources::work(cluster.clone()).await;
            warn!("the watches of DataSources ended");
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Serves DataImportCrons while their definition is ours, too.
async fn follow_crons(cluster: &Arc<Cluster>) {
    loop {
        if data_volumes::is_ours(&cluster.client, IMPORT_CRON_DEFINITION).await.unwrap_or_default() {
            crons::work(cluster.clone()).await;
            warn!("the watches of DataImportCrons ended");
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn work(cluster: Arc<Cluster>) {
    let ours = watcher::Config::default().labels(&format!("{}={}", LABEL.0, LABEL.1));
    let all: Api<DataVolume> = Api::all(cluster.client.clone());
    let claims: Api<PersistentVolumeClaim> = Api::all(cluster.client.clone());
    let pods: Api<Pod> = Api::all(cluster.client.clone());
    let sources: Api<DataSource> = Api::all(cluster.client.clone());
    let controller = Controller::new(all, watcher::Config::default());
    let (of_source, of_claim) = (controller.store(), controller.store());
    // DataVolumes that wait for a source are queued when it changes.
    let waiting =
        |store: &Store<DataVolume>, is: &dyn Fn(&DataVolume) -> bool| -> Vec<ObjectRef<DataVolume>> {
            store.state().iter().filter(|one| is(one)).map(|one| ObjectRef::from_obj(&**one)).collect()
        };
    controller
        .owns(claims.clone(), ours.clone())
        .owns(pods.clone(), ours.clone())
        .watches(pods, watcher::Config::default().labels(SELECTOR), |pod| {
            asked_by(&pod).map(|(namespace, name, _)| ObjectRef::new(&name).within(&namespace))
        })
        .watches(sources, watcher::Config::default(), move |_| {
            waiting(&of_source, &|volume| volume.spec.source_ref.is_some() && imports::is_waiting(volume))
        })
        .watches(claims, ours, move |claim| waiting(&of_claim, &|volume| imports::may_copy(volume, &claim)))
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

/// One reconciliation; returns when the next one is due without an event.
async fn reconcile_one(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<Duration>, Error> {
    let installation = observe::installation(cluster).await?;
    let found = observe::observe(cluster, namespace, name, &installation.overhead).await?;
    let Some(observed) = found else { return Ok(None) };
    let plan = imports::plan(&observed, &installation);
    // The DataVolume was read before this check: if it was made for a CDI that has just been installed, this look finds that
    // CDI.
    if plan.changes() && !data_volumes::are_ours(&cluster.client).await? {
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
