//! doctor: looks at a cluster before and after an installation, and says what is missing and how to correct
//! it.
//!
//! ```text
//!   requests (each may be refused) -> Facts -> findings (pure) -> lines, or JSON
//! ```
//!
//! It writes nothing: it sends one object as a dry run, so that the webhooks answer.

mod certificates;
mod cluster;
mod findings;
mod installation;
mod versions;

use std::fmt::Write as _;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use http::{Method, Request};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::timeout;

use self::findings::{Facts, Finding, Severity};
pub(crate) use self::findings::{condition, word};
use crate::ask;
use crate::session::Session;
use crate::waiting;

/// How long one request may take.
const REQUEST: Duration = Duration::from_secs(20);

/// Arguments of `virtctl doctor`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    # Before an installation, and after it:\n  virtctl doctor\n\n  \
    # For a script: one object for each finding.\n  virtctl doctor --output json")]
pub(crate) struct Doctor {
    /// How the findings are printed.
    #[arg(short, long, value_enum, default_value_t = Output::Text)]
    output: Output,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Output {
    /// A line each, with what to do.
    Text,
    /// A list of objects: area, verdict, says, remedy.
    Json,
}

impl Doctor {
    pub(crate) async fn run(&self, session: &Session) -> anyhow::Result<()> {
        let facts = gather(&session.client).await;
        let findings = [cluster::findings(&facts), installation::findings(&facts)].concat();
        match self.output {
            Output::Text => print!("{}", text(&findings)),
            Output::Json => println!("{}", serde_json::to_string_pretty(&as_json(&findings))?),
        }
        let bad = findings.iter().filter(|finding| finding.severity == Severity::Problem).count();
        if bad > 0 {
            bail!("{bad} of {} findings are problems", findings.len());
        }
        Ok(())
    }
}

async fn get(client: &Client, path: &str) -> Result<Value, String> {
    ask::get(client, path).await.map_err(|failure| failure.message)
}

async fn list(client: &Client, path: &str) -> Result<Vec<Value>, String> {
    ask::list(client, path).await.map_err(|failure| failure.message)
}

/// What [`problems`] looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scope {
    /// The cluster alone, before an installation.
    Cluster,
    /// The installation as well.
    Installation,
}

/// What keeps machines from running, each with its remedy.
pub(crate) async fn problems(client: &Client, scope: Scope) -> Vec<String> {
    let facts = gather(client).await;
    let mut findings = cluster::findings(&facts);
    if scope == Scope::Installation {
        findings.extend(installation::findings(&facts));
    }
    findings
        .into_iter()
        .filter(|finding| finding.severity == Severity::Problem)
        .map(|Finding { area, says, remedy, .. }| match remedy {
            Some(remedy) => format!("{area}: {says}; {remedy}"),
            None => format!("{area}: {says}"),
        })
        .collect()
}

async fn gather(client: &Client) -> Facts {
    waiting::during("looking at the cluster", ask_all(client)).await
}

async fn ask_all(client: &Client) -> Facts {
    let version = get(client, "/version").await;
    let nodes = list(client, "/api/v1/nodes").await;
    let metrics = match nodes.iter().flatten().find_map(|node| node["metadata"]["name"].as_str()) {
        // Names in Kubernetes have no characters with a meaning in paths.
        Some(node) => kubelet_metrics(client, node).await,
        None => Err("no node is known".to_owned()),
    };
    let groups = get(client, "/apis").await;
    Facts {
        version,
        nodes,
        metrics,
        storage_classes: list(client, "/apis/storage.k8s.io/v1/storageclasses").await,
        groups: groups.map(|groups| groups["groups"].as_array().cloned().unwrap_or_default()),
        installations: list(client, "/apis/kubevirt.io/v1/kubevirts").await,
        deployments: list(client, "/apis/apps/v1/namespaces/kubevirt/deployments").await,
        daemon_sets: list(client, "/apis/apps/v1/namespaces/kubevirt/daemonsets").await,
        api_service: get(client, "/apis/apiregistration.k8s.io/v1/apiservices/v1.subresources.kubevirt.io")
            .await,
        server_version: get(client, "/apis/subresources.kubevirt.io/v1/version").await,
        trial: trial(client).await,
        certificates: certificates::gather(client).await,
        now: Timestamp::now(),
    }
}

/// The kubelet's metrics say which version of cgroups it uses.
async fn kubelet_metrics(client: &Client, node: &str) -> Result<String, String> {
    let path = format!("/api/v1/nodes/{node}/proxy/metrics");
    let request = Request::get(path).body(Vec::new()).map_err(|error| error.to_string())?;
    match timeout(REQUEST, client.request_text(request)).await {
        Ok(Ok(text)) => Ok(text),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", REQUEST.as_secs())),
    }
}

/// Creates a machine as a dry run, which shows that the API server reaches the webhooks and trusts their
/// certificates.
async fn trial(client: &Client) -> Result<(), String> {
    let machine = json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine",
        "metadata": {"generateName": "virtctl-doctor-"},
        "spec": {"runStrategy": "Halted", "template": {"spec": {"domain": {
            "memory": {"guest": "64Mi"}, "devices": {},
        }}}},
    });
    let path = "/apis/kubevirt.io/v1/namespaces/default/virtualmachines?dryRun=All";
    let sent = ask::send(client, Method::POST, path, "application/json", machine.to_string().into_bytes());
    sent.await.map(drop).map_err(|failure| failure.message)
}

fn text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for Finding { area, severity, says, remedy } in findings {
        // Writing into a string cannot fail.
        let _ = writeln!(text, "{:<8} {area:<13} {says}", severity.word());
        if let Some(remedy) = remedy {
            let _ = writeln!(text, "{:<22} -> {remedy}", "");
        }
    }
    text
}

fn as_json(findings: &[Finding]) -> Value {
    let one = |Finding { area, severity, says, remedy }: &Finding| json!({"area": area, "verdict": severity.word(), "says": says, "remedy": remedy});
    findings.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_a_line_and_its_remedy_another() {
        let findings = [
            Finding::good("nodes", "2 of 2 nodes are ready"),
            Finding::problem("storage", "there is no storage class", "install one"),
        ];
        assert_eq!(
            text(&findings),
            "ok       nodes         2 of 2 nodes are ready\n\
             problem  storage       there is no storage class\n                       -> install one\n"
        );
        assert_eq!(as_json(&findings)[1]["remedy"], "install one");
    }
}
