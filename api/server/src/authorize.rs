//! Permissions of users: a SubjectAccessReview for every path that touches an object.

use std::collections::BTreeMap;

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::api::PostParams;
use kube::{Api, Client};

use crate::answer::Refusal;
use crate::front_proxy::User;
use crate::route::Access;

/// The review for a user and the requested access. Pure.
pub fn review(user: &User, access: &Access) -> SubjectAccessReview {
    let unless_empty = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let attributes = ResourceAttributes {
        group: Some(access.group.to_owned()),
        version: Some(access.version.to_owned()),
        verb: Some(access.verb.to_owned()),
        resource: Some(access.resource.to_owned()),
        subresource: unless_empty(access.subresource),
        namespace: unless_empty(&access.namespace),
        name: unless_empty(&access.name),
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

/// Asks the API server, and refuses a user who is not allowed.
///
/// # Errors
/// 403 with the API server's reason, or 500 if the API server does not answer.
pub async fn allow(client: &Client, user: &User, access: &Access) -> Result<(), Refusal> {
    let status = answer(client, user, access).await?;
    if is_allowed(&status) {
        return Ok(());
    }
    Err(Refusal::forbidden(denial(user, access, status.reason.as_deref().unwrap_or_default())))
}

/// Asks the API server whether a user is allowed.
///
/// # Errors
/// 500 if the API server does not answer.
pub async fn may(client: &Client, user: &User, access: &Access) -> Result<bool, Refusal> {
    answer(client, user, access).await.map(|status| is_allowed(&status))
}

async fn answer(client: &Client, user: &User, access: &Access) -> Result<SubjectAccessReviewStatus, Refusal> {
    let reviews: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = reviews.create(&PostParams::default(), &review(user, access)).await;
    let answer = answer.map_err(|error| Refusal::internal(format!("review access: {error}")))?;
    Ok(answer.status.unwrap_or_default())
}

fn is_allowed(status: &SubjectAccessReviewStatus) -> bool {
    status.allowed && !status.denied.unwrap_or_default()
}

/// A denial in the form of the API server's own.
fn denial(user: &User, access: &Access, reason: &str) -> String {
    let Access { group, verb, resource, subresource, namespace, .. } = access;
    let resource =
        if subresource.is_empty() { (*resource).to_owned() } else { format!("{resource}/{subresource}") };
    let place = if namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace \"{namespace}\"")
    };
    let reason = if reason.is_empty() { String::new() } else { format!(": {reason}") };
    let user = &user.name;
    format!("user \"{user}\" cannot {verb} resource \"{resource}\" in API group \"{group}\" {place}{reason}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ann() -> User {
        User {
            name: "ann".into(),
            groups: vec!["dev".into()],
            extra: BTreeMap::from([("scopes".into(), vec!["a".into()])]),
        }
    }

    fn access(method: http::Method, path: &str) -> Access {
        let path = format!("/apis/subresources.kubevirt.io/{path}");
        crate::route::parse(&method, &path).unwrap().access().unwrap()
    }

    #[test]
    fn the_review_carries_the_whole_identity() {
        let access =
            access(http::Method::GET, "v1alpha3/namespaces/shop/virtualmachineinstances/web/vnc/screenshot");
        let spec = serde_json::to_value(review(&ann(), &access)).unwrap()["spec"].clone();
        let wanted = serde_json::json!({
            "user": "ann",
            "groups": ["dev"],
            "extra": { "scopes": ["a"] },
            "resourceAttributes": {
                "group": "subresources.kubevirt.io", "version": "v1alpha3", "verb": "get",
                "resource": "virtualmachineinstances", "subresource": "vnc/screenshot",
                "namespace": "shop", "name": "web",
            },
        });
        assert_eq!(spec, wanted);
        assert_eq!(
            denial(&ann(), &access, ""),
            "user \"ann\" cannot get resource \"virtualmachineinstances/vnc/screenshot\" in API group \
             \"subresources.kubevirt.io\" in the namespace \"shop\""
        );
    }

    #[test]
    fn a_review_has_only_the_parts_of_its_call() {
        let access = access(http::Method::GET, "v1/dump-cluster-profiler");
        let spec = serde_json::to_value(review(&ann(), &access)).unwrap()["spec"].clone();
        let wanted = serde_json::json!({
            "group": "subresources.kubevirt.io", "version": "v1", "verb": "list",
            "resource": "dump-cluster-profiler",
        });
        assert_eq!(spec["resourceAttributes"], wanted);
        assert_eq!(
            denial(&ann(), &access, "not for you"),
            "user \"ann\" cannot list resource \"dump-cluster-profiler\" in API group \
             \"subresources.kubevirt.io\" at the cluster scope: not for you"
        );
    }
}
