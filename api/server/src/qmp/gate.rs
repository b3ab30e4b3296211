//! Decides whether a user's command is passed on.

use barevirt_api::monitor::{self, Class};
use serde_json::Value;

use crate::answer::Refusal;
use crate::authorize;
use crate::front_proxy::User;
use crate::route::{Access, Called};
use crate::state::{KubeClient, State};

/// A person, the instance that they ask about, and the version of the API that they use.
#[derive(Debug, Clone)]
pub(super) struct Gate {
    pub(super) client: KubeClient,
    pub(super) user: User,
    version: &'static str,
    pub(super) namespace: String,
    pub(super) name: String,
    /// UID of the instance; empty while it is not known.
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

    /// Whether the person may give commands of that class. The class of queries is the path's own.
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

    /// Whether the person may give no command but queries. Who cannot be looked up counts as such a person.
    pub(super) async fn asks_only(&self) -> bool {
        for class in [Class::Harmless, Class::Disruptive] {
            if self.review(class).await.is_ok() {
                return false;
            }
        }
        true
    }

    /// The class of a command that the person may give.
    pub(super) async fn admit(&self, command: &str, arguments: &Value) -> Result<Class, Refusal> {
        let class = monitor::judge(command, arguments).map_err(|why| Refusal::forbidden(why.to_string()))?;
        self.review(class).await?;
        Ok(class)
    }
}
