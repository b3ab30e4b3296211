//! Writes and deletes single objects.

use super::Reconciler;
use crate::operator::cache::{Scope, seen};
use crate::operator::kind::{Identity, Kind};
use crate::operator::observed::ObservedObject;
use crate::operator::plan::{Left, Why, Write};
use crate::operator::rollout::Rollout;
use crate::operator::wanted::Wanted;
use crate::operator::{NAME, foreign, identify, owned};
use barevirt_component::error::response;
use barevirt_component::request::Error;
use barevirt_component::request::{call, call_opt};
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use kube::{Client, Resource};
use tracing::{debug, info};

impl Reconciler {
    /// Applies an object, and removes additions of others. `generation` is that of the `KubeVirt` object.
    pub(super) async fn write(
        &mut self,
        wanted: &Wanted,
        write: &Write,
        generation: Option<i64>,
    ) -> Result<(), Error> {
        let Write { canary, why, .. } = *write;
        let identity = &wanted.identity;
        let (hash, body) = match &wanted.canary {
            Some(form) if canary => (&form.hash, &form.body),
            _ => (&wanted.hash, &wanted.body),
        };
        let api = api(&self.client, identity);
        let before = self.cache.objects().remove(identity);
        let generation = written_for(why, before.as_ref(), generation);
        let body = identify::for_generation(body, generation.as_deref());
        let params = PatchParams::apply(NAME).force();
        let patch = Patch::Apply(&*body);
        let apply = || call("apply", || identity.to_string(), api.patch(&identity.name, &params, &patch));
        let mut object = match apply().await {
            Ok(object) => object,
            Err(error) if cannot_be_changed(identity, &error) => {
                // The role of a binding cannot be changed: the binding is replaced.
                let Some(before) = &before else {
                    // No object of ours has that name.
                    let owner = "somebody else".to_owned();
                    return Err(Error::Foreign { subject: identity.to_string(), owner });
                };
                self.delete(identity, &before.uid).await?;
                info!(object = %identity, "removed, to be made again");
                apply().await?
            }
            Err(error) => return Err(error),
        };
        // An object of the API has a JSON form.
        if let Some(patch) = foreign::removal(&serde_json::to_value(&object).unwrap_or_default()) {
            let patch: json_patch::Patch = serde_json::from_value(patch).unwrap_or_default();
            let params = PatchParams { field_manager: Some(NAME.to_owned()), ..PatchParams::default() };
            let patch = Patch::Json::<()>(patch);
            let removed = api.patch(&identity.name, &params, &patch);
            object = call("take away what others added to", || identity.to_string(), removed).await?;
            info!(object = %identity, "took away what others had added");
        }
        let rollout = rollout(identity.kind, &object);
        let after = seen(object.meta(), rollout);
        let changed =
            before.as_ref().is_none_or(|before| before.mark != after.mark || before.uid != after.uid);
        if changed && why != Why::Unknown {
            info!(object = %identity, why = why.name(), canary, "applied");
        } else {
            debug!(object = %identity, why = why.name(), canary, changed, "applied");
        }
        let left = Left { uid: after.uid.clone(), hash: hash.clone(), mark: after.mark.clone() };
        self.left.insert(identity.clone(), left);
        self.cache.put(identity, before.as_ref(), after);
        Ok(())
    }

    /// Deletes the object with that UID, if it still has the name.
    pub(super) async fn delete(&self, identity: &Identity, uid: &str) -> Result<(), Error> {
        let params = match identity.kind.has_pods() {
            // It is gone only when its pods are.
            true => DeleteParams::foreground(),
            false => DeleteParams::background(),
        };
        let api = api(&self.client, identity);
        let params = owned::of(uid, params);
        let deleted = api.delete(&identity.name, &params);
        call_opt("delete", || identity.to_string(), deleted).await.map(drop)
    }
}

/// The generation that an object names. Contents that stay keep theirs: a new leader changes nothing.
fn written_for(why: Why, before: Option<&ObservedObject>, current: Option<i64>) -> Option<String> {
    let kept = before.filter(|_| why == Why::Unknown).and_then(|before| before.generation.clone());
    kept.or_else(|| current.map(|generation| generation.to_string()))
}

fn api(client: &Client, identity: &Identity) -> Api<DynamicObject> {
    Scope { kind: identity.kind, namespace: identity.namespace.clone() }.api(client.clone())
}

fn cannot_be_changed(identity: &Identity, error: &Error) -> bool {
    let binding = matches!(identity.kind, Kind::ClusterRoleBinding | Kind::RoleBinding);
    let invalid = match error {
        Error::Api { source, .. } => response(source).is_some_and(|answer| answer.code == 422),
        Error::Deadline { .. } | Error::Foreign { .. } | Error::Overdue(_) => false,
    };
    binding && invalid
}

fn rollout(kind: Kind, object: &DynamicObject) -> Option<Rollout> {
    if !kind.has_pods() {
        return None;
    }
    let value = serde_json::to_value(object).ok()?;
    if kind == Kind::DaemonSet {
        serde_json::from_value(value).ok().map(|object| Rollout::of_daemon_set(&object))
    } else {
        serde_json::from_value(value).ok().map(|object| Rollout::of_deployment(&object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operator::observed::Mark;

    #[test]
    fn only_contents_that_change_get_another_generation() {
        let seen = |generation: Option<&str>| ObservedObject {
            uid: "1".to_owned(),
            mark: Mark::Generation(2),
            hash: None,
            generation: generation.map(str::to_owned),
            terminating: false,
            rollout: None,
        };
        for (why, before, expected) in [
            (Why::Missing, None, Some("7")),
            (Why::Wanted, Some(seen(Some("5"))), Some("7")),
            (Why::Edited, Some(seen(Some("5"))), Some("7")),
            (Why::Unknown, Some(seen(Some("5"))), Some("5")),
            (Why::Unknown, Some(seen(None)), Some("7")),
        ] {
            assert_eq!(written_for(why, before.as_ref(), Some(7)).as_deref(), expected, "{why:?}");
        }
        assert_eq!(written_for(Why::Missing, None, None), None);
    }
}
