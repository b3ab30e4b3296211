//! Readiness and liveness probes.

use crate::boolean;
use crate::names::PAUSE_AGENT_PROBES_ANNOTATION;
use k8s_openapi::api::core::v1::{ExecAction, HTTPGetAction, TCPSocketAction};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Succeeds when the guest agent answers `guest-ping`. No settings.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GuestAgentPing {}

/// Periodic health check of the guest; set exactly one of `exec`, `guestAgentPing`, `httpGet` and
/// `tcpSocket`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Probe {
    /// Command run in the guest through the agent (`guest-exec`); exit code 0 is success.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecAction>,
    /// Failures in a row that count as failed; 3 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure_threshold: Option<i32>,
    /// Checks that the guest agent answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_agent_ping: Option<GuestAgentPing>,
    /// HTTP request to the guest; a status from 200 to 399 is success. Needs the pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_get: Option<HTTPGetAction>,
    /// Seconds to wait after the start before the first check; 0 when not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initial_delay_seconds: Option<i32>,
    /// Seconds between checks; 10 when not given, at least 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub period_seconds: Option<i32>,
    /// Successes in a row that count as recovered; 1 when not given, and always 1 for liveness.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub success_threshold: Option<i32>,
    /// TCP connection to the guest; opening it is success. Needs the pod network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tcp_socket: Option<TCPSocketAction>,
    /// Seconds after which a check has failed; 1 when not given. A command started by `exec` goes on running
    /// in the guest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_seconds: Option<i32>,
}

impl Probe {
    /// Whether the probe asks the guest agent, by a process in the launcher's container.
    pub fn is_by_agent(&self) -> bool {
        self.exec.is_some() || self.guest_agent_ping.is_some()
    }
}

/// Whether an instance's probes by `guestAgentPing` are paused: they then succeed without asking the guest
/// agent. Probes by `exec` are not paused. The annotation's value is true for the words that Go reads as
/// true.
pub fn are_agent_pings_paused(instance: &ObjectMeta) -> bool {
    let annotations = instance.annotations.as_ref();
    let word = annotations.and_then(|annotations| annotations.get(PAUSE_AGENT_PROBES_ANNOTATION));
    word.is_some_and(|word| boolean::is_true(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_are_paused_by_the_words_for_true() {
        let paused = |word: &str| {
            let annotations = [(PAUSE_AGENT_PROBES_ANNOTATION.to_owned(), word.to_owned())].into();
            are_agent_pings_paused(&ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() })
        };
        for (word, expected) in [
            ("true", true),
            ("1", true),
            ("TRUE", true),
            ("false", false),
            ("0", false),
            ("foo", false),
            ("", false),
        ] {
            assert_eq!(paused(word), expected, "{word:?}");
        }
        assert!(!are_agent_pings_paused(&ObjectMeta::default()));
    }
}
