//! DataImportCrons, where their definition is ours: images that are imported again whenever their source has a new one.
//! [`plan`](imports::cron::plan) makes the decisions.

use super::again::{self, DEADLINE, REFUSED};
use super::observe::installation;
use crate::cluster::Cluster;
use crate::write::FIELD_MANAGER;
use barevirt_api::cdi::{
    DataImportCron, DataImportCronStatus, DataSource, DataVolume, IMPORT_CRON_DEFINITION, IMPORT_CRON_LABEL,
};
use barevirt_api::validate::is_dns_subdomain;
use barevirt_component::data_volumes;
use barevirt_component::notes::Note;
use barevirt_component::request::{Category, Error, call, call_opt};
use barevirt_plan::imports::LABEL;
use barevirt_plan::imports::cron::{Observed, Plan, Step, desired, import_name, plan, poller_name};
use futures::StreamExt;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, Preconditions};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::ObjectRef;
use kube::runtime::watcher;
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tracing::{info, warn};

/// Event: an object could not be created.
const FAILED_CREATE: &str = "FailedCreate";

/// Works until the future is dropped.
pub(super) async fn work(cluster: Arc<Cluster>) {
    let all: Api<DataImportCron> = Api::all(cluster.client.clone());
    let pods: Api<Pod> = Api::all(cluster.client.clone());
    let volumes: Api<DataVolume> = Api::all(cluster.client.clone());
    let sources: Api<DataSource> = Api::all(cluster.client.clone());
    let ours = watcher::Config::default().labels(&format!("{}={},{IMPORT_CRON_LABEL}", LABEL.0, LABEL.1));
    let labelled = watcher::Config::default().labels(IMPORT_CRON_LABEL);
    Controller::new(all, watcher::Config::default())
        .owns(pods, ours)
        .watches(volumes, labelled.clone(), |volume| of(&volume))
        .watches(sources, labelled, |source| of(&source))
        .run(reconcile, on_error, cluster)
        .for_each(|_| std::future::ready(()))
        .await;
}

/// The DataImportCron of an object, by its label.
fn of(made: &impl ResourceExt) -> Option<ObjectRef<DataImportCron>> {
    let cron = made.labels().get(IMPORT_CRON_LABEL)?;
    Some(ObjectRef::new(cron).within(&made.namespace()?))
}

async fn reconcile(cron: Arc<DataImportCron>, cluster: Arc<Cluster>) -> Result<Action, Error> {
    let (namespace, name) = (cron.namespace().unwrap_or_default(), cron.name_any());
    let done = tokio::time::timeout(DEADLINE, reconcile_one(&cluster, &namespace, &name)).await;
    let again = done.unwrap_or(Err(Error::Overdue(DEADLINE)))?;
    Ok(again.map_or_else(Action::await_change, Action::requeue))
}

async fn reconcile_one(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<Duration>, Error> {
    let Some(observed) = observe(cluster, namespace, name).await? else { return Ok(None) };
    let planned = plan(&observed, &installation(cluster).await?);
    // As with DataVolumes: a CDI that was installed a moment ago finds its objects untouched.
    if planned.changes() && !data_volumes::is_ours(&cluster.client, IMPORT_CRON_DEFINITION).await? {
        return Ok(None);
    }
    apply(cluster, &observed.cron, planned).await
}

/// Looks; `None` where the DataImportCron does not exist.
async fn observe(cluster: &Cluster, namespace: &str, name: &str) -> Result<Option<Observed>, Error> {
    let client = &cluster.client;
    let about = |kind: &str, name: &str| format!("{kind} {namespace}/{name}");
    let crons: Api<DataImportCron> = Api::namespaced(client.clone(), namespace);
    let found = call_opt("get", || about("data import cron", name), crons.get(name)).await?;
    let Some(cron) = found else { return Ok(None) };
    let sources: Api<DataSource> = Api::namespaced(client.clone(), namespace);
    let managed = &cron.spec.managed_data_source;
    // The plan refuses another one, which would become part of a request's path.
    let is_name = is_dns_subdomain(managed);
    let data_source = if is_name {
        call_opt("get", || about("data source", managed), sources.get(managed)).await?
    } else {
        None
    };
    let manager = data_source.as_ref().and_then(|source| source.labels().get(IMPORT_CRON_LABEL).cloned());
    let rival = match manager.filter(|manager| !manager.is_empty() && manager != name) {
        Some(other) => {
            let found = call_opt("get", || about("data import cron", &other), crons.get(&other)).await?;
            found.filter(|other| other.spec.managed_data_source == *managed).map(|_| other)
        }
        None => None,
    };
    let volumes: Api<DataVolume> = Api::namespaced(client.clone(), namespace);
    let wanted = match desired(&cron).filter(|_| is_name).map(|digest| import_name(managed, digest)) {
        Some(wanted) => call_opt("get", || about("data volume", &wanted), volumes.get(&wanted)).await?,
        None => None,
    };
    let own = ListParams::default().labels(&format!("{IMPORT_CRON_LABEL}={name}"));
    // Longer names do not fit into a label.
    let imports = if name.len() > 63 {
        vec![]
    } else {
        let about = || format!("data volumes of data import cron {namespace}/{name}");
        call("list", about, volumes.list(&own)).await?.items
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let poller = poller_name(name);
    let poller = call_opt("get", || about("pod", &poller), pods.get(&poller)).await?;
    let now = Time(Timestamp::now());
    Ok(Some(Observed { cron, data_source, rival, wanted, imports, poller, now }))
}

async fn apply(cluster: &Cluster, cron: &DataImportCron, planned: Plan) -> Result<Option<Duration>, Error> {
    let tell = |note: Note| cluster.notes.tell(note, cron.object_ref(&()));
    carry_out(&cluster.client, cron, planned, tell).await
}

/// Carries out a plan. The pod that looks at the source stands alone: while a quota has no room for it, the rest is done.
async fn carry_out(
    client: &Client,
    cron: &DataImportCron,
    planned: Plan,
    tell: impl Fn(Note),
) -> Result<Option<Duration>, Error> {
    let Plan { steps, status, events, mut again } = planned;
    for step in steps {
        let stands_alone = matches!(step, Step::MakePoller(_));
        match perform(client, cron, step).await {
            Err(error) if error.category() == Category::Refused => {
                tell(Note::warning(FAILED_CREATE, error.message()));
                again = Some(again.map_or(REFUSED, |again| again.min(REFUSED)));
                if !stands_alone {
                    return Ok(again);
                }
            }
            done => done?,
        }
    }
    if let Some(status) = &status {
        write(client, cron, status).await?;
    }
    for event in events {
        let barevirt_plan::imports::Event { warning, reason, message } = event;
        tell(if warning { Note::warning(reason, message) } else { Note::normal(reason, message) });
    }
    Ok(again)
}

async fn perform(client: &Client, cron: &DataImportCron, step: Step) -> Result<(), Error> {
    let (namespace, name) = (cron.namespace().unwrap_or_default(), cron.name_any());
    let manager = || Some(FIELD_MANAGER.to_owned());
    let make = PostParams { field_manager: manager(), ..PostParams::default() };
    let change = PatchParams { field_manager: manager(), ..PatchParams::default() };
    let very_one = |uid: String| {
        let preconditions = Preconditions { uid: Some(uid), resource_version: None };
        DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() }
    };
    let about = |kind: &'static str, name: &str| {
        let text = format!("{kind} {namespace}/{name}");
        move || text
    };
    let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
    let volumes: Api<DataVolume> = Api::namespaced(client.clone(), &namespace);
    let sources: Api<DataSource> = Api::namespaced(client.clone(), &namespace);
    let poller = poller_name(&name);
    let managed = &cron.spec.managed_data_source;
    match step {
        Step::MakePoller(pod) => {
            call("create", about("pod", &poller), pods.create(&make, &pod)).await.map(drop)
        }
        Step::RemovePoller(uid) => {
            let remove = very_one(uid);
            call_opt("delete", about("pod", &poller), pods.delete(&poller, &remove)).await.map(drop)
        }
        Step::Annotate(patch) => {
            let crons: Api<DataImportCron> = Api::namespaced(client.clone(), &namespace);
            let patch = Patch::Merge(&patch);
            let patched = crons.patch_metadata(&name, &change, &patch);
            call("patch", about("data import cron", &name), patched).await.map(drop)
        }
        Step::Import(volume) => {
            let import = volume.name_any();
            call("create", about("data volume", &import), volumes.create(&make, &volume)).await?;
            info!(namespace, data_import_cron = name, data_volume = import, "a newer image is imported");
            Ok(())
        }
        Step::Mark(import, patch) => {
            let patch = Patch::Merge(&patch);
            let patched = volumes.patch_metadata(&import, &change, &patch);
            call("patch", about("data volume", &import), patched).await.map(drop)
        }
        Step::RemoveImport(import, uid) => {
            let remove = very_one(uid);
            call_opt("delete", about("data volume", &import), volumes.delete(&import, &remove)).await?;
            info!(namespace, data_import_cron = name, data_volume = import, "deleted a former import");
            Ok(())
        }
        Step::MakeDataSource(source) => {
            call("create", about("data source", managed), sources.create(&make, &source)).await.map(drop)
        }
        Step::Point(patch) => {
            let patch = Patch::Merge(&patch);
            let patched = sources.patch(managed, &change, &patch);
            call("patch", about("data source", managed), patched).await.map(drop)
        }
    }
}

async fn write(client: &Client, cron: &DataImportCron, status: &DataImportCronStatus) -> Result<(), Error> {
    let (namespace, name) = (cron.namespace().unwrap_or_default(), cron.name_any());
    // No resource version: a step may have just changed the annotations, and there is no other writer of the status.
    let mut body = json!({ "metadata": { "uid": cron.metadata.uid }, "status": status });
    // An empty list is written, too: a merge without it would leave the former one.
    body["status"]["currentImports"] = json!(status.current_imports);
    let crons: Api<DataImportCron> = Api::namespaced(client.clone(), &namespace);
    let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = Patch::Merge(&body);
    let about = || format!("data import cron {namespace}/{name}");
    call("update the status of", about, crons.patch_status(&name, &params, &patch)).await.map(drop)
}

fn on_error(cron: Arc<DataImportCron>, error: &Error, _: Arc<Cluster>) -> Action {
    let (namespace, name) = (cron.namespace(), cron.name_any());
    again::after(error, || {
        warn!(namespace, name, %error, why = error.message(), "a data import cron could not be reconciled");
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{Request, Response};
    use kube::client::Body;
    use std::sync::Mutex;

    /// An API server that has no room for pods.
    fn server(asked: Arc<Mutex<Vec<String>>>) -> Client {
        let service = tower::service_fn(move |request: Request<Body>| {
            let path = request.uri().path().to_owned();
            let is_pod = path.ends_with("/pods");
            let name = path.rsplit('/').next().unwrap_or_default();
            asked.lock().unwrap().push(format!("{} {name}", request.method()));
            let metadata = json!({ "name": "a", "namespace": "ns" });
            let answer = if is_pod {
                json!({ "apiVersion": "v1", "kind": "Status", "status": "Failure", "message": "exceeded quota", "code": 403 })
            } else {
                json!({ "metadata": metadata, "spec": cron().spec })
            };
            let code = if is_pod { 403_u16 } else { 201 };
            let answer = Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
            std::future::ready(answer)
        });
        Client::new(service, "default")
    }

    fn cron() -> DataImportCron {
        let mut cron = DataImportCron::new("a", Default::default());
        cron.metadata.namespace = Some("ns".to_owned());
        cron
    }

    #[tokio::test]
    async fn a_poller_that_is_refused_holds_up_nothing_else() {
        let asked = Arc::new(Mutex::new(vec![]));
        let told = Mutex::new(vec![]);
        let annotate = Step::Annotate(json!({ "metadata": {} }));
        let planned = Plan {
            steps: vec![Step::MakePoller(Box::default()), annotate],
            status: Some(DataImportCronStatus::default()),
            ..Plan::default()
        };
        let tell = |note: Note| told.lock().unwrap().push(note.reason);
        let again = carry_out(&server(asked.clone()), &cron(), planned, tell).await.unwrap();
        assert_eq!(again, Some(REFUSED), "it is tried again");
        assert_eq!(*told.lock().unwrap(), [FAILED_CREATE]);
        assert_eq!(*asked.lock().unwrap(), ["POST pods", "PATCH a", "PATCH status"]);
    }
}
