//! DataSources, where their definition is ours: writes what each refers to into its status.

use super::again::{self, DEADLINE};
use crate::cluster::Cluster;
use crate::write::FIELD_MANAGER;
use barevirt_api::cdi::{DATA_SOURCE_DEFINITION, DataSource, DataSourceStatus, DataVolume};
use barevirt_component::data_volumes;
use barevirt_component::request::{Error, call, call_opt};
use barevirt_plan::data_volumes::Place;
use barevirt_plan::imports::data_source::{self, End, Next};
use futures::StreamExt;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// How often a DataSource is looked at that names another one: such references are not tracked.
const CHAINED: Duration = Duration::from_secs(10);

/// Works until the future is dropped.
pub(super) async fn work(cluster: Arc<Cluster>) {
    let all: Api<DataSource> = Api::all(cluster.client.clone());
    let volumes: Api<DataVolume> = Api::all(cluster.client.clone());
    let controller = Controller::new(all, watcher::Config::default());
    let store = controller.store();
    let of_volume = move |volume: DataVolume| {
        let place = (volume.namespace().unwrap_or_default(), volume.name_any());
        let stands = move |source: &Arc<DataSource>| {
            let claim = source.spec.source.pvc.as_ref();
            claim.is_some_and(|claim| (&claim.namespace, &claim.name) == (&place.0, &place.1))
        };
        store
            .state()
            .into_iter()
            .filter(stands)
            .map(|source| ObjectRef::from_obj(&*source))
            .collect::<Vec<_>>()
    };
    controller
        .watches(volumes, watcher::Config::default(), of_volume)
        .run(reconcile, on_error, cluster)
        .for_each(|_| std::future::ready(()))
        .await;
}

async fn reconcile(source: Arc<DataSource>, cluster: Arc<Cluster>) -> Result<Action, Error> {
    let done = tokio::time::timeout(DEADLINE, reconcile_one(&cluster, &source)).await;
    let again = done.unwrap_or(Err(Error::Overdue(DEADLINE)))?;
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

async fn reconcile_one(cluster: &Cluster, source: &DataSource) -> Result<Option<Duration>, Error> {
    if source.metadata.deletion_timestamp.is_some() {
        return Ok(None);
    }
    let end = end(cluster, source).await?;
    let now = Time(Timestamp::now());
    if let Some(status) = data_source::status(source, &end, &now) {
        // As with DataVolumes: a CDI that was installed a moment ago finds its objects untouched.
        if !data_volumes::is_ours(&cluster.client, DATA_SOURCE_DEFINITION).await? {
            return Ok(None);
        }
        write(cluster, source, &status).await?;
    }
    let chained = source.spec.source.data_source.is_some().then_some(CHAINED);
    Ok(data_source::again(&end).or(chained))
}

/// Follows a DataSource to its end.
async fn end(cluster: &Cluster, source: &DataSource) -> Result<End, Error> {
    let mut at = source.clone();
    for steps in 0.. {
        let (place, stands_for) = match data_source::next(&at, steps) {
            Next::End(end) => return Ok(end),
            Next::Claim(place, source) => (place, source),
            Next::DataSource(place) => {
                let all: Api<DataSource> = Api::namespaced(cluster.client.clone(), &place.namespace);
                match call_opt("get", || format!("data source {place}"), all.get(&place.name)).await? {
                    Some(found) => at = found,
                    None => return Ok(data_source::missing(&place)),
                }
                continue;
            }
        };
        let (is_there, phase) = look(cluster, &place).await?;
        return Ok(data_source::claim(stands_for, is_there, phase.as_deref()));
    }
    Ok(End::default())
}

/// Whether a claim exists, and the phase of the DataVolume of its name.
async fn look(cluster: &Cluster, place: &Place) -> Result<(bool, Option<String>), Error> {
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(cluster.client.clone(), &place.namespace);
    let claim = call_opt("get", || format!("claim {place}"), claims.get_metadata(&place.name)).await?;
    let volumes: Api<DataVolume> = Api::namespaced(cluster.client.clone(), &place.namespace);
    let volume = call_opt("get", || format!("data volume {place}"), volumes.get(&place.name)).await?;
    let phase = volume.map(|volume| volume.status.and_then(|status| status.phase).unwrap_or_default());
    Ok((claim.is_some(), phase))
}

async fn write(cluster: &Cluster, source: &DataSource, status: &DataSourceStatus) -> Result<(), Error> {
    let (namespace, name) = (source.namespace().unwrap_or_default(), source.name_any());
    // Whole fields: a merge would leave the former source.
    let whole = |name: &str, value: Option<serde_json::Value>| (name.to_owned(), value.unwrap_or_default());
    let stands_for = &status.source;
    let stands_for = [
        whole("pvc", stands_for.pvc.as_ref().map(|source| json!(source))),
        whole("snapshot", stands_for.snapshot.as_ref().map(|source| json!(source))),
        whole("dataSource", None),
    ];
    let body = json!({
        "metadata": { "resourceVersion": source.metadata.resource_version, "uid": source.metadata.uid },
        "status": { "conditions": status.conditions, "source": serde_json::Map::from_iter(stands_for) },
    });
    let all: Api<DataSource> = Api::namespaced(cluster.client.clone(), &namespace);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(&body);
    let about = || format!("data source {namespace}/{name}");
    call("update the status of", about, all.patch_status(&name, &params, &patch)).await.map(drop)
}

fn on_error(source: Arc<DataSource>, error: &Error, _: Arc<Cluster>) -> Action {
    let (namespace, name) = (source.namespace(), source.name_any());
    again::after(error, || {
        warn!(namespace, name, %error, why = error.message(), "a data source could not be reconciled");
    })
}
