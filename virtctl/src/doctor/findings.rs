//! Facts about a cluster, and the findings that follow from them.

use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

/// The API server's answer to each request; an error holds the server's reason.
#[derive(Debug)]
pub(super) struct Facts {
    /// The version of Kubernetes.
    pub(super) version: Result<Value, String>,
    pub(super) nodes: Result<Vec<Value>, String>,
    /// Metrics of one kubelet, in Prometheus' format.
    pub(super) metrics: Result<String, String>,
    pub(super) storage_classes: Result<Vec<Value>, String>,
    /// API groups that are served.
    pub(super) groups: Result<Vec<Value>, String>,
    /// `KubeVirt` objects.
    pub(super) installations: Result<Vec<Value>, String>,
    /// Deployments of the components.
    pub(super) deployments: Result<Vec<Value>, String>,
    pub(super) daemon_sets: Result<Vec<Value>, String>,
    /// The registration of virt-api's subresources.
    pub(super) api_service: Result<Value, String>,
    /// The version that virt-api reports.
    pub(super) server_version: Result<Value, String>,
    /// Whether a machine passes admission, in a dry run.
    pub(super) trial: Result<(), String>,
    /// Certificates of the installation.
    pub(super) certificates: Vec<Kept>,
    /// The time of this machine.
    pub(super) now: Timestamp,
}

/// Certificates of one kind.
#[derive(Debug)]
pub(super) struct Kept {
    /// Whose they are.
    pub(super) of: &'static str,
    pub(super) is_authority: bool,
    /// The certificates, PEM; `None` if their object is missing.
    pub(super) pem: Result<Option<String>, String>,
}

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Severity {
    /// As it should be.
    Good,
    /// It could not be checked, or is not known yet.
    Unknown,
    /// Machines run, but an expected feature does not work.
    Warning,
    /// Machines do not run.
    Problem,
}

impl Severity {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Severity::Good => "ok",
            Severity::Unknown => "unknown",
            Severity::Warning => "warning",
            Severity::Problem => "problem",
        }
    }
}

/// The result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) area: &'static str,
    pub(super) severity: Severity,
    pub(super) says: String,
    /// What to do about it.
    pub(super) remedy: Option<String>,
}

impl Finding {
    pub(super) fn good(area: &'static str, says: impl Into<String>) -> Self {
        Self { area, severity: Severity::Good, says: says.into(), remedy: None }
    }

    pub(super) fn unknown(area: &'static str, says: impl Into<String>) -> Self {
        Self { area, severity: Severity::Unknown, says: says.into(), remedy: None }
    }

    pub(super) fn warning(area: &'static str, says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { area, severity: Severity::Warning, says: says.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn problem(area: &'static str, says: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { area, severity: Severity::Problem, says: says.into(), remedy: Some(remedy.into()) }
    }
}

/// A text in an object; empty if there is none.
pub(crate) fn word<'a>(value: &'a Value, at: &str) -> &'a str {
    value.pointer(at).and_then(Value::as_str).unwrap_or_default()
}

/// A condition of an object.
pub(crate) fn condition<'a>(object: &'a Value, name: &str) -> Option<&'a Value> {
    object["status"]["conditions"].as_array()?.iter().find(|condition| condition["type"] == name)
}
