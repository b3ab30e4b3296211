//! A session with one cluster: which kubeconfig, context and namespace, and calls on the subresource API.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use clap::Args;
use http::{Method, Request, header};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde::Serialize;
use serde_json::Value;

/// Which cluster, as kubectl has it.
#[derive(Debug, Args)]
pub(crate) struct Connection {
    /// Path to the kubeconfig file to use.
    #[arg(long, global = true)]
    kubeconfig: Option<PathBuf>,
    /// The name of the kubeconfig context to use.
    #[arg(long, global = true)]
    context: Option<String>,
    /// The namespace of the object.
    #[arg(short, long, global = true)]
    namespace: Option<String>,
}

/// A client and the namespace of the call.
pub(crate) struct Session {
    pub(crate) client: Client,
    pub(crate) namespace: String,
}

impl Connection {
    /// The flags that choose the same cluster in another call of this program; the namespace is left out.
    pub(crate) fn flags(&self) -> Vec<OsString> {
        let mut flags = vec![];
        if let Some(path) = &self.kubeconfig {
            flags.extend(["--kubeconfig".into(), path.clone().into_os_string()]);
        }
        if let Some(context) = &self.context {
            flags.extend(["--context".into(), context.into()]);
        }
        flags
    }

    /// The namespace of the command line.
    pub(crate) fn asked_namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// Reads the configuration; nothing is sent yet.
    pub(crate) async fn open(&self) -> anyhow::Result<Session> {
        let chosen = KubeConfigOptions { context: self.context.clone(), ..KubeConfigOptions::default() };
        let mut config = match &self.kubeconfig {
            Some(path) => {
                let file = Kubeconfig::read_from(path)
                    .with_context(|| format!("read kubeconfig {}", path.display()))?;
                Config::from_custom_kubeconfig(file, &chosen).await.context("use kubeconfig")?
            }
            None if self.context.is_some() => {
                Config::from_kubeconfig(&chosen).await.context("use kubeconfig")?
            }
            None => Config::infer().await.context("no kubeconfig, and not inside a cluster")?,
        };
        let namespace = self.namespace.clone().unwrap_or_else(|| config.default_namespace.clone());
        // What a server refuses is told at once: 503 and 504 are answers about a guest here, and no command is sent twice.
        config.default_retry = false;
        let client = Client::try_from(config).context("make a client")?;
        Ok(Session { client, namespace })
    }
}

/// Which object a person means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Machine,
    Instance,
}

impl Kind {
    /// Reads any of its spellings.
    pub(crate) fn parse(word: &str) -> Option<Self> {
        match word.to_lowercase().as_str() {
            "vm" | "vms" | "virtualmachine" | "virtualmachines" => Some(Self::Machine),
            "vmi" | "vmis" | "virtualmachineinstance" | "virtualmachineinstances" => Some(Self::Instance),
            _ => None,
        }
    }
}

/// Plural of instances, as in paths.
pub(crate) const INSTANCES: &str = "virtualmachineinstances";

/// Path of a subresource.
pub(crate) fn path(namespace: &str, resource: &str, name: &str, subresource: &str) -> String {
    format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/{resource}/{name}/{subresource}")
}

/// `dryRun` of a call's options, and the line that says so.
pub(crate) fn dry_run(wanted: bool) -> Vec<String> {
    if wanted {
        println!("Dry Run execution");
        vec!["All".to_owned()]
    } else {
        Vec::new()
    }
}

impl Session {
    /// Calls a subresource with a JSON body and returns the answer's text.
    pub(crate) async fn call(
        &self,
        method: Method,
        path: String,
        body: &impl Serialize,
    ) -> Result<String, kube::Error> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(serde_json::to_vec(body).map_err(kube::Error::SerdeError)?)
            .map_err(kube::Error::HttpError)?;
        self.client.request_text(request).await
    }

    /// Calls a subresource and reads its answer as JSON.
    pub(crate) async fn call_json(
        &self,
        method: Method,
        path: String,
        body: &impl Serialize,
    ) -> anyhow::Result<Value> {
        let text = self.call(method, path, body).await.map_err(plain)?;
        serde_json::from_str(&text).context("the server's answer is not JSON")
    }
}

/// The sentence in an answer that is no success.
pub(crate) fn sentence(body: &[u8]) -> String {
    serde_json::from_slice::<Value>(body)
        .ok()
        .and_then(|status| status["message"].as_str().map(str::to_owned))
        .unwrap_or_else(|| String::from_utf8_lossy(body).into_owned())
}

/// The server's own sentence, where it sent one.
pub(crate) fn plain(error: kube::Error) -> anyhow::Error {
    match error {
        kube::Error::Api(status) if !status.message.is_empty() => anyhow::anyhow!(status.message.clone()),
        other => other.into(),
    }
}
