//! CDI's status of a DataVolume. No field is taken for granted: another version may write something else.

use serde_json::Value;

/// Phase: filled.
pub const SUCCEEDED: &str = "Succeeded";
/// Phase: given up.
pub const FAILED: &str = "Failed";
/// Phase: it is filled once its claim is bound, which needs a pod to be placed.
pub const WAIT_FOR_FIRST_CONSUMER: &str = "WaitForFirstConsumer";
/// Phase: it is filled as soon as a pod is to be placed, and bound only then.
pub const PENDING_POPULATION: &str = "PendingPopulation";

/// The status of a DataVolume.
#[derive(Clone, Copy, Debug)]
pub struct Status<'a>(&'a Value);

impl<'a> Status<'a> {
    /// The status of a DataVolume, given without its metadata.
    pub fn of(data: &'a Value) -> Self {
        Status(&data["status"])
    }

    /// The phase; empty before CDI has seen it.
    pub fn phase(self) -> &'a str {
        self.0["phase"].as_str().unwrap_or_default()
    }

    /// A condition.
    pub fn condition(self, type_: &str) -> Option<&'a Value> {
        let all = self.0["conditions"].as_array().into_iter().flatten();
        all.into_iter().find(|condition| condition["type"] == type_)
    }

    /// Why the pod that fills it has stopped with an error.
    pub fn stopped(self) -> Option<&'a str> {
        let running = self.condition("Running").filter(|running| {
            running["status"] == "False"
                && matches!(running["reason"].as_str(), Some("Error" | "ImagePullFailed"))
        })?;
        Some(running["message"].as_str().unwrap_or_default())
    }
}
