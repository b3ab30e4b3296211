//! DataVolumes, where the cluster has no CDI.
//!
//! ```text
//!   definition of DataVolumes is ours, no CDI --> watches of DataVolumes, their claims and pods --> observe, plan, apply
//!                                        \-- definition of another owner, or CDI exists: what is not filled is handed over,
//!                                            then nothing, until that changes
//! ```
//!
//! The definition tells who serves DataVolumes: virt-operator makes it where there is none, and a definition of another
//! owner has another label. It is watched, and the work stops as soon as the definition is not ours. It is looked at again
//! before every change, so a DataVolume that was made under another definition is never touched. A CDI that is installed
//! later finds filled claims that belong to their DataVolumes and are marked as CDI marks them. It would leave unfilled ones
//! alone for ever, so these are deleted ([`hand_over`]).
//!
//! Where CDI is installed, only this definition and CDI's own are watched, and nothing is asked again and again.

mod again;
mod apply;
mod claims;
mod config;
mod crons;
mod hand_over;
mod observe;
mod populators;
mod profiles;
mod progress;
mod senders;
mod sources;
mod steps;
mod uploads;

use crate::cluster::Cluster;
use again::{DEADLINE, FAILED};
use barevirt_api::cdi::{
    CDI_DEFINITION, CONFIG, CONFIG_DEFINITION, CdiConfig, DATA_SOURCE_DEFINITION, DATA_VOLUME_DEFINITION,
    DataSource, DataVolume, IMPORT_CRON_DEFINITION, STORAGE_PROFILE_DEFINITION, StorageProfile,
};
use barevirt_component::changes::{Changes, Listener, SELDOM, named};
use barevirt_component::data_volumes;
use barevirt_component::request::Error;
use barevirt_plan::imports::{self, LABEL, SELECTOR, asked_by};
use futures::StreamExt;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kube::ResourceExt;
use kube::api::Api;
use kube::core::PartialObjectMeta;
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, watcher};
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};

/// Fills DataVolumes while this process serves them: never without an importer's image.
pub async fn run(cluster: Arc<Cluster>) {
    if cluster.importer_image().is_none() {
        info!("no importer: DataVolumes are left to CDI");
        return std::future::pending().await;
    }
    let owners = Changes::default();
    tokio::select! {
        () = fill(&cluster, &owners) => {}
        () = data_volumes::watch(&cluster.client, DATA_VOLUME_DEFINITION, &owners) => {}
        () = data_volumes::watch(&cluster.client, CDI_DEFINITION, &owners) => {}
        () = senders::sweep(&cluster) => {}
    }
}

async fn fill(cluster: &Arc<Cluster>, owners: &Changes) {
    let mut changed = owners.listen();
    // This process may be the first one after CDI was installed.
    let mut is_handed_over = false;
    loop {
        let pause = match is_ours(cluster).await {
            Some(true) => {
                is_handed_over = false;
                info!("DataVolumes are filled");
                tokio::select! {
                    () = work(cluster.clone()) => warn!("the watches of DataVolumes ended"),
                    () = follow(cluster, DATA_SOURCE_DEFINITION, sources::work) => {}
                    () = follow(cluster, IMPORT_CRON_DEFINITION, crons::work) => {}
                    () = keep_settings(cluster) => warn!("the watches of storage classes ended"),
                    () = claims::work(cluster.clone()) => warn!("the watches of claims that are filled for themselves ended"),
                    () = until_not_ours(cluster, &mut changed) => info!("another owner serves DataVolumes now"),
                }
                FAILED
            }
            Some(false) if is_handed_over => SELDOM,
            Some(false) => {
                let again = hand_over::round(cluster).await;
                is_handed_over = again.is_none();
                again.unwrap_or(SELDOM)
            }
            None => FAILED,
        };
        changed.wait(pause).await;
    }
}

async fn until_not_ours(cluster: &Cluster, changed: &mut Listener) {
    let mut pause = SELDOM;
    loop {
        changed.wait(pause).await;
        pause = match is_ours(cluster).await {
            Some(true) => SELDOM,
            Some(false) => return,
            // Without an answer nothing changes: nothing can be written either.
            None => FAILED,
        };
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

/// Serves the objects of another definition while that is ours, too.
async fn follow<W>(cluster: &Arc<Cluster>, definition: &'static str, work: impl Fn(Arc<Cluster>) -> W)
where
    W: Future<Output = ()>,
{
    let changes = Changes::default();
    let mut changed = changes.listen();
    let serve = async {
        loop {
            let pause = match data_volumes::is_ours(&cluster.client, definition).await {
                Ok(true) => {
                    work(cluster.clone()).await;
                    warn!(definition, "the watches of its objects ended");
                    FAILED
                }
                Ok(false) => SELDOM,
                Err(error) => {
                    warn!(definition, %error, "the owner of the definition is not known");
                    FAILED
                }
            };
            changed.wait(pause).await;
        }
    };
    tokio::select! {
        () = serve => {}
        () = data_volumes::watch(&cluster.client, definition, &changes) => {}
    }
}

/// Keeps the profiles of storage classes, and the settings in CDI's form, which name the classes.
async fn keep_settings(cluster: &Cluster) {
    let changes = Changes::default();
    let client = &cluster.client;
    let classes: Api<PartialObjectMeta<StorageClass>> = Api::all(client.clone());
    let profiles: Api<PartialObjectMeta<StorageProfile>> = Api::all(client.clone());
    let configs: Api<PartialObjectMeta<CdiConfig>> = Api::all(client.clone());
    let all = watcher::Config::default;
    tokio::select! {
        () = profiles::work(cluster, changes.listen()) => {}
        () = config::work(cluster, changes.listen()) => {}
        () = changes.follow(watcher(classes, all()), "storage classes") => {}
        () = changes.follow(watcher(profiles, all()), "storage profiles") => {}
        () = changes.follow(watcher(configs, named(CONFIG)), "the settings of imports") => {}
        () = data_volumes::watch(client, STORAGE_PROFILE_DEFINITION, &changes) => {}
        () = data_volumes::watch(client, CONFIG_DEFINITION, &changes) => {}
        () = cluster.installation().follow(config::given, |_| changes.tell()) => {}
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
