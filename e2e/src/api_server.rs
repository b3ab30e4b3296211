//! Requests of the tests to the API server, over one connection.
//!
//! `kubectl get` gives the same answers, but takes a tenth of a second of processor time for each. A test
//! that waits asks hundreds of times, and several tests wait at once, beside guests that are emulated on the
//! same processors.
//!
//! ```text
//!   ["vmi", "vm", "-n", "ns"] --> Question --> discovery (short names, plural, group) --> GET, or list and watch
//! ```

use crate::command::{cluster_script, succeed};
use anyhow::{Context, Result, bail};
use futures::TryStreamExt;
use http::Request;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::core::discovery::v2::APIGroupDiscoveryList;
use kube::core::{Status, WatchEvent};
use serde_json::Value;
use std::future::Future;
use std::pin::pin;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Longest time for one answer.
const DEADLINE: Duration = Duration::from_secs(60);
/// Pause before a watch that ended is opened again.
const PAUSE: Duration = Duration::from_millis(200);

/// A request, from the arguments of `kubectl get`.
#[derive(Debug, Default, PartialEq, Eq)]
struct Question<'a> {
    kind: &'a str,
    name: Option<&'a str>,
    namespace: Option<&'a str>,
    labels: Option<&'a str>,
    fields: Option<&'a str>,
}

impl<'a> Question<'a> {
    /// Understands KIND, NAME, `-n`, `-l`, `--field-selector` and `-A`; nothing else.
    fn parse(arguments: &[&'a str]) -> Result<Self> {
        let mut question = Question::default();
        let mut words = arguments.iter().copied();
        let mut all = false;
        while let Some(word) = words.next() {
            let mut value = || words.next().with_context(|| format!("{word} has no value"));
            match word {
                "-n" => question.namespace = Some(value()?),
                "-l" => question.labels = Some(value()?),
                "--field-selector" => question.fields = Some(value()?),
                "-A" => all = true,
                _ if word.starts_with('-') => bail!("{word} is not understood here"),
                _ if question.kind.is_empty() => question.kind = word,
                _ if question.name.is_none() => question.name = Some(word),
                _ => bail!("{word} is one word too many"),
            }
        }
        if question.namespace.is_none() && !all {
            // The same default as in kubectl; resources without namespaces ignore it.
            question.namespace = Some("default");
        }
        Ok(question)
    }
}

/// Where a kind is served.
#[derive(Clone, Debug)]
struct Resource {
    /// `/api/v1` or `/apis/GROUP/VERSION`.
    base: String,
    group: String,
    plural: String,
    names: Vec<String>,
    kind: String,
    namespaced: bool,
}

impl Resource {
    /// Whether kubectl accepts the word for this resource: plural, singular, a short name, or one of them
    /// followed by the group.
    fn is_called(&self, word: &str) -> bool {
        let own = |word: &str| self.names.iter().any(|name| name == word);
        own(word) || word.split_once('.').is_some_and(|(name, group)| group == self.group && own(name))
    }

    fn collection(&self, question: &Question<'_>) -> String {
        match question.namespace {
            Some(namespace) if self.namespaced => {
                format!("{}/namespaces/{namespace}/{}", self.base, self.plural)
            }
            _ => format!("{}/{}", self.base, self.plural),
        }
    }

    /// Adds fields that objects of a list lack, and removes fields that no test uses.
    fn finish(&self, mut object: Value) -> Value {
        if let Some(fields) = object.as_object_mut() {
            let version = self.base.trim_start_matches("/apis/").trim_start_matches("/api/").to_owned();
            fields.entry("apiVersion").or_insert_with(|| version.into());
            fields.entry("kind").or_insert_with(|| self.kind.clone().into());
        }
        if let Some(metadata) = object["metadata"].as_object_mut() {
            metadata.remove("managedFields");
        }
        object
    }
}

struct ApiServer {
    runtime: Runtime,
    client: Client,
    known: Mutex<Vec<Resource>>,
}

fn api_server() -> Result<&'static ApiServer> {
    static ONE: OnceLock<Result<ApiServer, String>> = OnceLock::new();
    let connect = || ApiServer::connect().map_err(|error| format!("{error:#}"));
    ONE.get_or_init(connect).as_ref().map_err(|error| anyhow::anyhow!("{error}"))
}

impl ApiServer {
    fn connect() -> Result<Self> {
        // The tests' own certificates may have installed it already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let path = succeed(&mut cluster_script("kubeconfig.sh"), None)?;
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let client = runtime.block_on(async {
            let config = Kubeconfig::read_from(path.trim())?;
            let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default()).await?;
            anyhow::Ok(Client::try_from(config)?)
        })?;
        Ok(Self { runtime, client, known: Mutex::new(Vec::new()) })
    }

    fn block_on<T>(&self, within: Duration, answer: impl Future<Output = Result<T>>) -> Result<Option<T>> {
        self.runtime.block_on(async { tokio::time::timeout(within, answer).await.ok().transpose() })
    }

    async fn get(&self, path: &str) -> Result<Option<Value>, kube::Error> {
        let request = Request::get(path).body(Vec::new()).map_err(kube::Error::HttpError)?;
        match self.client.request(request).await {
            Ok(value) => Ok(Some(value)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Where a kind is served.
    async fn resource(&self, word: &str) -> Result<Resource> {
        let found = self.find(|resource| resource.is_called(word)).await?;
        found.with_context(|| format!("the server doesn't have a resource type \"{word}\""))
    }

    /// The first resource that fits; asks the cluster if none that is known does.
    async fn find(&self, fits: impl Fn(&Resource) -> bool) -> Result<Option<Resource>> {
        let lock = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let find = |known: &[Resource]| known.iter().find(|resource| fits(resource)).cloned();
        let found = find(&lock());
        if found.is_some() {
            return Ok(found);
        }
        let core = self.client.list_core_api_versions_aggregated().await.context("discovery of /api")?;
        let groups = self.client.list_api_groups_aggregated().await.context("discovery of /apis")?;
        let mut all = resources(core);
        all.extend(resources(groups));
        let found = find(&all);
        *lock() = all;
        Ok(found)
    }

    async fn ask(&self, question: &Question<'_>) -> Result<Option<Value>> {
        let resource = self.resource(question.kind).await?;
        let collection = resource.collection(question);
        if let Some(name) = question.name {
            let answer = self.get(&format!("{collection}/{name}")).await?;
            return Ok(answer.map(|object| resource.finish(object)));
        }
        let Some(mut list) = self.get(&format!("{collection}?{}", selectors(question))).await? else {
            // The kind was deleted since it was discovered.
            self.known.lock().unwrap_or_else(PoisonError::into_inner).clear();
            bail!("the server doesn't have a resource type \"{}\"", question.kind);
        };
        if let Some(items) = list["items"].as_array_mut() {
            for item in items {
                *item = resource.finish(item.take());
            }
        }
        Ok(Some(list))
    }

    /// Calls `look` with an object now and after each change, with `None` if it does not exist, until `look`
    /// returns something.
    async fn observe<T>(
        &self,
        question: &Question<'_>,
        look: &mut impl FnMut(Option<Value>) -> Option<T>,
    ) -> Result<T> {
        let resource = self.resource(question.kind).await?;
        let name = question.name.context("a name is needed")?;
        let path = format!("{}?fieldSelector=metadata.name%3D{name}", resource.collection(question));
        loop {
            let Some(list) = self.get(&path).await? else {
                // The kind is not served: its definition was just deleted or just created.
                if let Some(found) = look(None) {
                    return Ok(found);
                }
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let item = list["items"].get(0).cloned();
            if let Some(found) = look(item.map(|item| resource.finish(item))) {
                return Ok(found);
            }
            let version = list["metadata"]["resourceVersion"].as_str().unwrap_or("0");
            let request =
                Request::get(format!("{path}&watch=true&resourceVersion={version}")).body(Vec::new())?;
            let mut changes = pin!(self.client.request_events::<Value>(request).await?);
            // A watch that breaks is opened again: tests kill components that it passes through.
            while let Ok(Some(change)) = changes.try_next().await {
                let object = match change {
                    WatchEvent::Added(object) | WatchEvent::Modified(object) => Some(object),
                    WatchEvent::Deleted(_) => None,
                    WatchEvent::Bookmark(_) => continue,
                    WatchEvent::Error(_) => break,
                };
                if let Some(found) = look(object.map(|object| resource.finish(object))) {
                    return Ok(found);
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn resources(list: APIGroupDiscoveryList) -> Vec<Resource> {
    let mut found = Vec::new();
    for group in list.items {
        let name = group.metadata.and_then(|metadata| metadata.name).unwrap_or_default();
        // The preferred version is the first.
        let Some(version) = group.versions.into_iter().next() else { continue };
        let served = version.version.unwrap_or_default();
        let base = if name.is_empty() { format!("/api/{served}") } else { format!("/apis/{name}/{served}") };
        for resource in version.resources {
            let Some(plural) = resource.resource else { continue };
            let mut names = resource.short_names;
            names.push(plural.clone());
            names.extend(resource.singular_resource);
            found.push(Resource {
                base: base.clone(),
                group: name.clone(),
                plural,
                names,
                kind: resource.response_kind.and_then(|kind| kind.kind).unwrap_or_default(),
                namespaced: resource.scope.as_deref() == Some("Namespaced"),
            });
        }
    }
    found
}

fn selectors(question: &Question<'_>) -> String {
    let pairs = [("labelSelector", question.labels), ("fieldSelector", question.fields)];
    let encoded = pairs.iter().filter_map(|(key, value)| Some(format!("{key}={}", escape((*value)?))));
    encoded.collect::<Vec<_>>().join("&")
}

/// A value of a query: characters other than letters, digits and `-._` are percent-encoded.
fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    text.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// The result of `kubectl get ARGUMENTS -o json`: an object, or a list if no name is given. `None` if there
/// is no such object.
///
/// # Errors
/// When the server does not answer in a minute, refuses, or knows no such kind.
pub fn get(arguments: &[&str]) -> Result<Option<Value>> {
    let question = Question::parse(arguments)?;
    let server = api_server()?;
    let answer = server.block_on(DEADLINE, server.ask(&question));
    answer
        .with_context(|| format!("get {}", arguments.join(" ")))?
        .with_context(|| format!("get {}: no answer within {} s", arguments.join(" "), DEADLINE.as_secs()))
}

/// The server's answer for a path, as `kubectl get --raw PATH` prints it.
///
/// # Errors
/// When the server does not answer in a minute, or refuses.
pub fn text(path: &str) -> Result<String> {
    send(Request::get(path).body(Vec::new())?)
}

/// The path of an object, or of all objects of a kind if no name is given. The arguments are those of `kubectl get`.
///
/// # Errors
/// When the server does not answer in a minute, or knows no such kind.
pub fn path(arguments: &[&str]) -> Result<String> {
    let question = Question::parse(arguments)?;
    let server = api_server()?;
    let resource = server.block_on(DEADLINE, server.resource(question.kind))?.context("no answer in time")?;
    let collection = resource.collection(&question);
    Ok(match question.name {
        Some(name) => format!("{collection}/{name}"),
        None => collection,
    })
}

/// The path of the objects whose manifests have that `apiVersion` and `kind`; `None` if the server has no such kind.
///
/// # Errors
/// When the server does not answer in a minute.
pub fn collection(version: &str, kind: &str, namespace: &str) -> Result<Option<String>> {
    let group = version.split_once('/').map_or("", |(group, _)| group);
    let server = api_server()?;
    let fits = |resource: &Resource| resource.group == group && resource.kind == kind;
    let found = server.block_on(DEADLINE, server.find(fits))?.context("no answer in time")?;
    let base = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{version}") };
    let question = Question { namespace: Some(namespace), ..Question::default() };
    Ok(found.map(|resource| Resource { base, ..resource }.collection(&question)))
}

/// Creates the object in the collection at that path.
///
/// # Errors
/// When the server does not answer in a minute, or refuses.
pub fn create(path: &str, object: &Value) -> Result<()> {
    let request = Request::post(path).header("content-type", "application/json");
    send(request.body(object.to_string().into_bytes())?).map(drop)
}

/// Deletes the object at that path, if it exists, and does not wait until it is gone.
///
/// # Errors
/// When the server does not answer in a minute, or refuses.
pub fn delete(path: &str) -> Result<()> {
    match send(Request::delete(path).body(Vec::new())?) {
        Err(error) if refusal(&error).is_some_and(|status| status.code == 404) => Ok(()),
        sent => sent.map(drop),
    }
}

/// What the server said, if the error is its refusal.
pub fn refusal(error: &anyhow::Error) -> Option<&Status> {
    match error.downcast_ref() {
        Some(kube::Error::Api(status)) => Some(status),
        _ => None,
    }
}

/// The server's answer to a request.
///
/// # Errors
/// When the server does not answer in a minute, or refuses.
pub fn send(request: Request<Vec<u8>>) -> Result<String> {
    let server = api_server()?;
    let what = format!("{} {}", request.method(), request.uri().path());
    let answer = server.block_on(DEADLINE, async { Ok(server.client.request_text(request).await?) });
    answer
        .with_context(|| what.clone())?
        .with_context(|| format!("{what}: no answer within {} s", DEADLINE.as_secs()))
}

/// Calls `look` with an object now and after each of its changes, with `None` if it does not exist, until
/// `look` returns something. Returns that, or `None` when the time is over.
///
/// # Errors
/// When the server refuses, or knows no such kind.
pub fn watch<T>(
    arguments: &[&str],
    within: Duration,
    mut look: impl FnMut(Option<Value>) -> Option<T>,
) -> Result<Option<T>> {
    let question = Question::parse(arguments)?;
    let server = api_server()?;
    let deadline = Instant::now() + within;
    let found = server.block_on(within, server.observe(&question, &mut look));
    let found = found.with_context(|| format!("watch {}", arguments.join(" ")))?;
    debug_assert!(found.is_some() || Instant::now() >= deadline);
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_kubectl_become_a_question() {
        let words = ["pod", "-n", "kubevirt", "-l", "kubevirt.io=virt-api"];
        let question = Question::parse(&words).unwrap();
        let wanted = Question {
            kind: "pod",
            namespace: Some("kubevirt"),
            labels: Some("kubevirt.io=virt-api"),
            ..Question::default()
        };
        assert_eq!(question, wanted);
        assert_eq!(selectors(&question), "labelSelector=kubevirt.io%3Dvirt-api");
        assert_eq!(Question::parse(&["node", "node01"]).unwrap().name, Some("node01"));
        assert!(Question::parse(&["node", "--watch"]).is_err());
        assert!(Question::parse(&["node", "-l"]).is_err());
    }

    #[test]
    fn the_status_of_a_refusal_is_found_behind_its_context() {
        let status = Status::failure("no", "Forbidden").with_code(403).boxed();
        let error = anyhow::Error::from(kube::Error::Api(status)).context("POST /api/v1/pods");
        assert_eq!(refusal(&error).unwrap().code, 403);
        assert!(refusal(&anyhow::anyhow!("no answer")).is_none());
    }

    #[test]
    fn a_resource_has_several_names() {
        let claims = Resource {
            base: "/apis/cdi.kubevirt.io/v1beta1".to_owned(),
            group: "cdi.kubevirt.io".to_owned(),
            plural: "datavolumes".to_owned(),
            names: vec!["dv".to_owned(), "datavolumes".to_owned(), "datavolume".to_owned()],
            kind: "DataVolume".to_owned(),
            namespaced: true,
        };
        assert!(claims.is_called("dv") && claims.is_called("datavolumes.cdi.kubevirt.io"));
        assert!(!claims.is_called("datavolumes.kubevirt.io") && !claims.is_called("d"));
        let question = Question::parse(&["dv", "-n", "ns"]).unwrap();
        assert_eq!(claims.collection(&question), "/apis/cdi.kubevirt.io/v1beta1/namespaces/ns/datavolumes");
        let object = claims.finish(serde_json::json!({ "metadata": { "managedFields": [] } }));
        assert_eq!(object["apiVersion"], "cdi.kubevirt.io/v1beta1");
        assert_eq!(object["kind"], "DataVolume");
        assert!(object["metadata"].get("managedFields").is_none());
    }
}
