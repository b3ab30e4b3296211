//! Decides whether a user's command is passed on.

use barevirt_api::monitor::{self, Class};
use serde_json::Value;

use crate::answer::Refusal;
use crate::authorize;
use crate::front_proxy::User;
use crate::route::{Access, Called};
use crate::state::{KubeClient, State};

/// A user, the instance of the request, and the version of the API in its path.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    pub(super) client: KubeClient,
    pub(super) user: User,
    version: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
    /// UID of the instance; empty while unknown.
    pub(super) uid: String,
}

impl Gate {
    pub(super) fn new(state: &State, user: &User, called: &Called) -> Self {
        Self {
            client: state.client.clone(),
            user: user.clone(),
            version: called.version,
            namespace: called.namespace.clone(),
            name: called.name.clone(),
            uid: String::new(),
        }
    }

    /// Whether the user may give commands of this class. Queries need only the right to the path itself.
    async fn review(&self, class: Class) -> Result<(), Refusal> {
        match class {
            Class::Query => Ok(()),
            Class::Harmless | Class::Disruptive => {
                let access = Access {
                    group: crate::route::GROUP,
                    verb: "create",
                    version: self.version,
                    resource: "virtualmachineinstances",
                    subresource: class.subresource(),
                    namespace: self.namespace.clone(),
                    name: self.name.clone(),
                };
                authorize::allow(&self.client.0, &self.user, &access).await
            }
        }
    }

    /// Whether the user may only give queries. If the permission cannot be checked, the answer is yes.
    pub(super) async fn asks_only(&self) -> bool {
        for class in [Class::Harmless, Class::Disruptive] {
            if self.review(class).await.is_ok() {
                return false;
            }
        }
        true
    }

    /// The class of a command, if the user may give it.
    pub(super) async fn admit(&self, command: &str, arguments: &Value) -> Result<Class, Refusal> {
        let class = monitor::judge(command, arguments).map_err(|why| Refusal::forbidden(why.to_string()))?;
        self.review(class).await?;
        Ok(class)
    }
}
