//! Requests and limits of the pods that fill, receive, send or look at contents.

use barevirt_api::quantity;
use k8s_openapi::api::core::v1::ResourceRequirements;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// Where the settings give none: CDI's, so that quotas made for CDI fit.
const REQUESTS: [(&str, &str); 2] = [("cpu", "100m"), ("memory", "60M")];
const LIMITS: [(&str, &str); 2] = [("cpu", "750m"), ("memory", "600M")];

/// Those that the settings give, else the usual ones. A usual value is changed to the given one of its resource where the
/// request would be larger than the limit: the API server would refuse the pod.
pub(super) fn of(given: Option<&ResourceRequirements>) -> ResourceRequirements {
    let given_requests = given.and_then(|given| given.requests.as_ref());
    let given_limits = given.and_then(|given| given.limits.as_ref());
    let mut requests = completed(&REQUESTS, given_requests);
    let mut limits = completed(&LIMITS, given_limits);
    let has =
        |of: Option<&BTreeMap<String, Quantity>>, name: &str| of.is_some_and(|of| of.contains_key(name));
    for (name, request) in &mut requests {
        let Some(limit) = limits.get_mut(name).filter(|limit| is_larger(request, limit)) else { continue };
        if !has(given_requests, name) {
            *request = limit.clone();
        } else if !has(given_limits, name) {
            *limit = request.clone();
        }
    }
    ResourceRequirements { requests: Some(requests), limits: Some(limits), claims: None }
}

fn completed(
    usual: &[(&str, &str)],
    given: Option<&BTreeMap<String, Quantity>>,
) -> BTreeMap<String, Quantity> {
    let value = |(name, usual): &(&str, &str)| {
        let given = given.and_then(|given| given.get(*name)).cloned();
        ((*name).to_owned(), given.unwrap_or_else(|| Quantity((*usual).to_owned())))
    };
    usual.iter().map(value).collect()
}

/// Whether one is larger than the other, where both can be read.
fn is_larger(one: &Quantity, other: &Quantity) -> bool {
    quantity::millis(one).ok().zip(quantity::millis(other).ok()).is_some_and(|(one, other)| one > other)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn got(given: Value) -> Value {
        let given: ResourceRequirements = serde_json::from_value(given).unwrap();
        serde_json::to_value(of(Some(&given))).unwrap()
    }

    #[test]
    fn resources_that_are_not_given_have_cdis_defaults() {
        let usual = json!({
            "requests": { "cpu": "100m", "memory": "60M" }, "limits": { "cpu": "750m", "memory": "600M" },
        });
        assert_eq!(serde_json::to_value(of(None)).unwrap(), usual);
        assert_eq!(got(json!({})), usual);
        let some = got(json!({ "requests": { "cpu": 1 }, "limits": { "cpu": "2", "memory": "1Gi" } }));
        let expected = json!({
            "requests": { "cpu": "1", "memory": "60M" }, "limits": { "cpu": "2", "memory": "1Gi" },
        });
        assert_eq!(some, expected);
    }

    #[test]
    fn a_request_is_never_larger_than_a_limit_that_only_one_side_gives() {
        let small = got(json!({ "limits": { "cpu": "50m" } }));
        assert_eq!((&small["requests"]["cpu"], &small["limits"]["cpu"]), (&json!("50m"), &json!("50m")));
        let large = got(json!({ "requests": { "memory": "1Gi" } }));
        assert_eq!(
            (&large["requests"]["memory"], &large["limits"]["memory"]),
            (&json!("1Gi"), &json!("1Gi"))
        );
        // What people give contradictorily is theirs: the API server says so.
        let both = got(json!({ "requests": { "cpu": "2" }, "limits": { "cpu": "1" } }));
        assert_eq!((&both["requests"]["cpu"], &both["limits"]["cpu"]), (&json!("2"), &json!("1")));
    }
}
