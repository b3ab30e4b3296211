//! Whether the person may: a SubjectAccessReview for every path that touches an object.

use std::collections::BTreeMap;

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::answer::Refusal;
use crate::front_proxy::User;
use crate::route::{Access, GROUP};

/// The review for a user and what they ask. Pure.
pub fn review(user: &User, access: &Access) -> SubjectAccessReview {
    let attributes = ResourceAttributes {
        group: Some(GROUP.to_owned()),
        version: Some("v1".to_owned()),
        verb: Some(access.verb.to_owned()),
        resource: Some(access.resource.to_owned()),
        subresource: Some(access.subresource.to_owned()),
        namespace: Some(access.namespace.clone()),
        name: Some(access.name.clone()),
        ..ResourceAttributes::default()
    };
    let extra: BTreeMap<String, Vec<String>> = user.extra.clone();
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            groups: Some(user.groups.clone()),
            extra: Some(extra),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}

/// Asks the API server.
///
/// # Errors
/// 403 with the API server's reason, or 500 where it could not be asked.
pub async fn allow(client: &Client, user: &User, access: &Access) -> Result<(), Refusal> {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = reviews
        .create(&PostParams::default(), &review(user, access))
        .await
        .map_err(|error| Refusal::internal(format!("review access: {error}")))?;
    let status = answer.status.unwrap_or_default();
    if status.allowed && !status.denied.unwrap_or_default() {
        return Ok(());
    }
    let Access { verb, resource, subresource, namespace, .. } = access;
    let reason =
        status.reason.filter(|reason| !reason.is_empty()).map_or(String::new(), |r| format!(": {r}"));
    Err(Refusal::forbidden(format!(
        "user \"{}\" cannot {verb} resource \"{resource}/{subresource}\" in API group \"{GROUP}\" in the \
         namespace \"{namespace}\"{reason}",
        user.name
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_review_carries_the_whole_identity() {
        let user = User {
            name: "ann".into(),
            groups: vec!["dev".into()],
            extra: BTreeMap::from([("scopes".into(), vec!["a".into()])]),
        };
        let access = Access {
            verb: "get",
            resource: "virtualmachineinstances",
            subresource: "console",
            namespace: "shop".into(),
            name: "web".into(),
        };
        let spec = serde_json::to_value(review(&user, &access)).unwrap()["spec"].clone();
        let wanted = serde_json::json!({
            "user": "ann",
            "groups": ["dev"],
            "extra": { "scopes": ["a"] },
            "resourceAttributes": {
                "group": "subresources.kubevirt.io", "version": "v1", "verb": "get",
                "resource": "virtualmachineinstances", "subresource": "console",
                "namespace": "shop", "name": "web",
            },
        });
        assert_eq!(spec, wanted);
    }
}
