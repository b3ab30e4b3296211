//! An alert, and its rule.

use serde_json::{Value, json};

/// The severity of an alert.
#[derive(Clone, Copy)]
pub(super) enum Severity {
    Critical,
    Warning,
    Info,
}

impl Severity {
    pub(super) fn name(self) -> &'static str {
        match self {
            Severity::Critical => "critical",
            Severity::Warning => "warning",
            Severity::Info => "info",
        }
    }
}

/// An alert.
pub(super) struct Alert {
    /// Its name.
    pub(super) name: &'static str,
    /// How urgent it is.
    pub(super) severity: Severity,
    /// What it means for the installation: `none` where a machine or a client is concerned.
    pub(super) impact: &'static str,
    /// How long the expression has to hold.
    pub(super) minutes: u32,
    /// What is wrong.
    pub(super) summary: String,
    /// When it is wrong.
    pub(super) expression: String,
}

impl Alert {
    /// The rule of an alert about the installation, which is in this namespace.
    pub(super) fn of_installation(self, namespace: &str) -> Value {
        let mut rule = self.rule();
        rule["labels"]["namespace"] = json!(namespace);
        rule
    }

    /// The rule. The alert is in the namespace of the series, as a label of the rule would replace that.
    pub(super) fn rule(self) -> Value {
        let mut rule = json!({
            "alert": self.name,
            "expr": self.expression,
            "annotations": {"summary": self.summary},
            "labels": {
                "severity": self.severity.name(),
                "operator_health_impact": self.impact,
                "kubernetes_operator_part_of": "kubevirt",
                "kubernetes_operator_component": "kubevirt",
            },
        });
        if self.minutes > 0 {
            rule["for"] = json!(format!("{}m", self.minutes));
        }
        rule
    }
}
