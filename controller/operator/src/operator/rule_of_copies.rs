//! Whether the policy for copies of claims of other namespaces is installed: not where CDI serves DataVolumes. CDI has its own
//! rule for them, which permits what the policy refuses.

use super::kind::{Identity, Kind};
use barevirt_api::cdi::DATA_VOLUME_DEFINITION;
use barevirt_api::names::{COPIES_BINDING, COPIES_POLICY};
use barevirt_component::changes::Listener;
use barevirt_component::data_volumes::is_of_another;
use barevirt_component::request::Error;
use kube::Client;

/// Whether the object belongs to that rule.
pub(super) fn is_part(identity: &Identity) -> bool {
    let parts = [
        (Kind::ValidatingAdmissionPolicy, COPIES_POLICY),
        (Kind::ValidatingAdmissionPolicyBinding, COPIES_BINDING),
    ];
    parts.contains(&(identity.kind, identity.name.as_str()))
}

/// Whether CDI serves DataVolumes, as it was last found.
pub(super) struct Cdi {
    /// Hears of changes of the definitions.
    changed: Listener,
    found: Option<bool>,
}

impl Cdi {
    /// Nothing is known yet.
    pub(super) fn new(changed: Listener) -> Self {
        Cdi { changed, found: None }
    }

    /// Whether it does; looks only after a change.
    pub(super) async fn serves(&mut self, client: &Client) -> Result<bool, Error> {
        if self.changed.has_heard() {
            self.found = None;
        }
        if let Some(found) = self.found {
            return Ok(found);
        }
        let found = is_of_another(client, DATA_VOLUME_DEFINITION).await?;
        self.found = Some(found);
        Ok(found)
    }
}
