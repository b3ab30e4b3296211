//! Requests to the API server, each with a deadline.

use std::time::Duration;

use anyhow::Context;
use http::{Method, Request, StatusCode, header};
use kube::Client;
use serde_json::Value;
use tokio::time::timeout;

use super::answer::Failure;
use crate::session::{self, Session};

/// How long the API server may take for an answer.
pub(super) const ANSWER: Duration = Duration::from_secs(30);
/// The API group of machines and instances.
pub(super) const KUBEVIRT: &str = "/apis/kubevirt.io/v1";

/// The cluster, with the rights of the user.
pub(super) struct Cluster {
    client: Client,
    /// Version of the API server, to show on the page; empty if it is not known.
    pub(super) server: String,
    /// The namespace of a manifest that names none.
    pub(super) namespace: String,
    /// The only namespace whose machines are shown; all namespaces if there is none.
    pub(super) scope: Option<String>,
}

impl Cluster {
    /// A cluster with that client, about which nothing is known yet.
    pub(super) fn new(client: Client, namespace: &str, scope: Option<&str>) -> Self {
        let (namespace, scope) = (namespace.to_owned(), scope.map(str::to_owned));
        Self { client, server: String::new(), namespace, scope }
    }

    /// Finds out whether the user may see the machines of all namespaces; else one namespace is shown. `asked` is the namespace of
    /// the command line. Fails if the API server does not answer or does not have the kind.
    pub(super) async fn of(session: &Session, asked: Option<&str>) -> anyhow::Result<Self> {
        let mut cluster = Self::new(session.client.clone(), &session.namespace, asked);
        if let Ok(version) = cluster.get("/version").await {
            cluster.server = version["gitVersion"].as_str().unwrap_or_default().to_owned();
        }
        match cluster.get(&cluster.list_path("virtualmachines", "limit=1")).await {
            Ok(_) => return Ok(cluster),
            Err(failure) if failure.status == StatusCode::FORBIDDEN && cluster.scope.is_none() => {}
            Err(failure) => return Err(anyhow::anyhow!(failure.message)).context("list virtual machines"),
        }
        cluster.scope = Some(cluster.namespace.clone());
        let listed = cluster.get(&cluster.list_path("virtualmachines", "limit=1")).await;
        listed.map_err(|failure| anyhow::anyhow!(failure.message)).context("list virtual machines")?;
        Ok(cluster)
    }

    /// The path of a list of machines or instances, in the namespaces that are shown.
    pub(super) fn list_path(&self, plural: &str, query: &str) -> String {
        let within = self.scope.iter().map(|scope| format!("/namespaces/{scope}")).collect::<String>();
        format!("{KUBEVIRT}{within}/{plural}?{query}")
    }

    /// For calls in one namespace.
    pub(super) fn session(&self, namespace: &str) -> Session {
        Session { client: self.client.clone(), namespace: namespace.to_owned() }
    }

    /// For streamed answers, whose readers have their own deadlines.
    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    /// An object, or a list of them.
    pub(super) async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.json(Method::GET, path, None).await
    }

    /// An object, or none if it does not exist.
    pub(super) async fn find(&self, path: &str) -> Result<Option<Value>, Failure> {
        match self.get(path).await {
            Ok(object) => Ok(Some(object)),
            Err(failure) if failure.status == StatusCode::NOT_FOUND => Ok(None),
            Err(failure) => Err(failure),
        }
    }

    /// The items of a list.
    pub(super) async fn list(&self, path: &str) -> Result<Vec<Value>, Failure> {
        match self.get(path).await?["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    /// An answer that is JSON.
    pub(super) async fn json(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Failure> {
        let text = self.text(method, path, body).await?;
        serde_json::from_str(&text).map_err(|_| Failure {
            status: StatusCode::BAD_GATEWAY,
            message: format!("the API server's answer to {path} is not JSON"),
        })
    }

    /// Any answer. Fails with the API server's status and message.
    pub(super) async fn text(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<String, Failure> {
        let mut request = Request::builder().method(method).uri(path);
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
        let request = request.body(bytes).map_err(Failure::bad)?;
        within(self.client.request_text(request)).await?.map_err(failed)
    }
}

/// The result, if it arrives before the deadline.
pub(super) async fn within<T>(answer: impl Future<Output = T>) -> Result<T, Failure> {
    timeout(ANSWER, answer).await.map_err(|_| Failure {
        status: StatusCode::GATEWAY_TIMEOUT,
        message: format!("the API server did not answer within {} s", ANSWER.as_secs()),
    })
}

/// The failure of a request.
pub(super) fn failed(error: kube::Error) -> Failure {
    let status = match &error {
        kube::Error::Api(status) => StatusCode::from_u16(status.code).ok(),
        _ => None,
    };
    // This server uses 401 for a missing token.
    let status =
        status.filter(|status| *status != StatusCode::UNAUTHORIZED).unwrap_or(StatusCode::BAD_GATEWAY);
    Failure { status, message: format!("{:#}", session::plain(error)) }
}
