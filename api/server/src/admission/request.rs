//! The request of a review, and how its objects are decoded.

use barevirt_api::settings::Settings;
use barevirt_api::validate::{self, Cause, Path};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::core::DynamicObject;
use kube::core::admission::{AdmissionRequest, AdmissionReview};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::Facts;
use crate::answer::Refusal;
use crate::front_proxy::User;

pub(super) type Request = AdmissionRequest<DynamicObject>;

/// The context of a decision, in addition to the request.
#[derive(Debug)]
pub struct Known<'a> {
    /// Namespace of the installation.
    pub namespace: &'a str,
    /// Settings of the installation.
    pub settings: &'a Settings,
    /// Facts about other objects.
    pub facts: &'a Facts,
    /// The current time.
    pub now: &'a Time,
}

pub(super) fn request(body: &[u8]) -> Result<Request, Refusal> {
    let review: AdmissionReview<DynamicObject> = serde_json::from_slice(body)
        .map_err(|error| Refusal::bad_request(format!("the body is not an AdmissionReview: {error}")))?;
    review
        .try_into()
        .map_err(|error| Refusal::bad_request(format!("the AdmissionReview has no request: {error}")))
}

/// The user who sends the request.
pub(super) fn user(request: &Request) -> User {
    let info = request.user_info.clone();
    User {
        name: info.username.unwrap_or_default(),
        groups: info.groups.unwrap_or_default(),
        extra: info.extra.unwrap_or_default(),
    }
}

pub(super) fn read<T: DeserializeOwned>(object: Option<&DynamicObject>) -> Result<T, Vec<Cause>> {
    let object = object.ok_or_else(|| vec![unreadable("the review has no object")])?;
    let value = value(object)?;
    validate::read(&value).map_err(|cause| vec![cause])
}

pub(super) fn unreadable(why: impl Into<String>) -> Cause {
    Cause::invalid(&Path::new(""), why)
}

pub(super) fn value(object: &impl Serialize) -> Result<Value, Vec<Cause>> {
    serde_json::to_value(object).map_err(|error| vec![unreadable(error.to_string())])
}
