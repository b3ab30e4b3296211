//! Status of a DataSource: which claim it refers to in the end, and whether that claim can be copied.
//!
//! ```text
//!   DataSource --> claim                    is it there, and filled?
//!            \---> another of its namespace --> ... at most MOST_STEPS times
//! ```

use super::condition::{ConditionFields, condition, merged};
use crate::data_volumes::Place;
use crate::data_volumes::status::SUCCEEDED;
use barevirt_api::cdi::{DATA_SOURCE, DataSource, DataSourceSource, DataSourceStatus};
use barevirt_api::validate::{is_dns_label, is_dns_subdomain};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use std::borrow::Cow;
use std::time::Duration;

/// Longest chain of DataSources from one to its claim, the first not counted.
pub const MOST_STEPS: usize = 4;
/// How often a DataSource is looked at whose claim is not watched.
const UNWATCHED: Duration = Duration::from_secs(10);

/// Where a DataSource leads.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// To another DataSource.
    DataSource(Place),
    /// To a claim of its namespace.
    Claim(Place, DataSourceSource),
    /// The result is already known.
    End(End),
}

/// Where a DataSource ends.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct End {
    /// What it refers to.
    pub source: DataSourceSource,
    /// Whether that can be copied; `None` where this is not known.
    pub is_ready: Option<bool>,
    /// Reason of the condition.
    pub reason: Cow<'static, str>,
    /// Message of the condition.
    pub message: String,
}

fn not_ready(source: DataSourceSource, reason: &'static str, message: String) -> Next {
    Next::End(End { source, is_ready: Some(false), reason: reason.into(), message })
}

/// The source as the status repeats it: without names that no object has, since what users write has no limit of its own.
fn repeated(said: &DataSourceSource) -> DataSourceSource {
    let is_name = |namespace: &str, name: &str| {
        (namespace.is_empty() || is_dns_label(namespace)) && is_dns_subdomain(name)
    };
    DataSourceSource {
        data_source: None,
        pvc: said.pvc.clone().filter(|claim| is_name(&claim.namespace, &claim.name)),
        snapshot: said.snapshot.clone().filter(|one| is_name(&one.namespace, &one.name)),
    }
}

/// Where `at` leads after `steps` steps.
pub fn next(at: &DataSource, steps: usize) -> Next {
    let own = at.namespace().unwrap_or_default();
    let said = &at.spec.source;
    if let Some(other) = &said.data_source {
        let nothing = DataSourceSource::default();
        let namespace = if other.namespace.is_empty() { &own } else { &other.namespace };
        if *namespace != own {
            let why = format!("{DATA_SOURCE} {own}/{} names one of another namespace", at.name_any());
            return not_ready(nothing, "CrossNamespaceReference", why);
        }
        if other.name == at.name_any() {
            let why = format!("{DATA_SOURCE} {own}/{} names itself", other.name);
            return not_ready(nothing, "SelfReference", why);
        }
        if steps >= MOST_STEPS {
            let why = format!("more than {MOST_STEPS} DataSources name one another");
            return not_ready(nothing, "MaxReferenceDepthReached", why);
        }
        return match Place::new(DATA_SOURCE, namespace, &other.name) {
            Ok(place) => Next::DataSource(place),
            Err(why) => not_ready(nothing, "NotFound", why),
        };
    }
    if said.snapshot.is_some() {
        let why = "spec.source.snapshot is served by CDI alone, and this cluster has none";
        return not_ready(repeated(said), "NotSupported", why.to_owned());
    }
    let Some(claim) = &said.pvc else {
        return not_ready(repeated(said), "NoSource", "No source PVC or snapshot set".to_owned());
    };
    let namespace = if claim.namespace.is_empty() { &own } else { &claim.namespace };
    match Place::new("claim", namespace, &claim.name) {
        Err(why) => not_ready(repeated(said), "NotFound", why),
        Ok(place) if place.namespace == own => Next::Claim(place, repeated(said)),
        // The author of a DataSource may not be allowed to learn whether the claim exists.
        Ok(place) => Next::End(End {
            source: repeated(said),
            is_ready: None,
            reason: "OtherNamespace".into(),
            message: format!("whether claim {place} exists is shown only to users who may copy it"),
        }),
    }
}

/// The result where another DataSource of the chain does not exist.
pub fn missing(place: &Place) -> End {
    End {
        is_ready: Some(false),
        reason: "NotFound".into(),
        message: format!("there is no {DATA_SOURCE} {place}"),
        ..End::default()
    }
}

/// The result for a claim: whether it exists, and the phase of the DataVolume of its name, if there is one.
pub fn claim(source: DataSourceSource, is_there: bool, data_volume: Option<&str>) -> End {
    let (is_ready, reason, message): (bool, Cow<'static, str>, String) = match (data_volume, is_there) {
        (Some(SUCCEEDED), true) | (None, true) => {
            (true, "Ready".into(), "DataSource is ready to be consumed".to_owned())
        }
        (Some(SUCCEEDED) | None, false) => (false, "NotFound".into(), "PVC not found".to_owned()),
        (Some(phase), _) => (false, phase.to_owned().into(), format!("Import DataVolume phase {phase}")),
    };
    End { source, is_ready: Some(is_ready), reason, message }
}

/// The status, where it changes.
pub fn status(data_source: &DataSource, end: &End, now: &Time) -> Option<DataSourceStatus> {
    let old = data_source.status.clone().unwrap_or_default();
    let ready = match end.is_ready {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let condition: ConditionFields = condition("Ready", ready, end.reason.clone(), end.message.clone());
    let new = DataSourceStatus {
        conditions: merged(old.conditions.clone(), condition, now),
        source: end.source.clone(),
    };
    (new != old || data_source.status.is_none()).then_some(new)
}

/// When to look again: only claims of DataVolumes are watched.
pub fn again(end: &End) -> Option<Duration> {
    (end.is_ready == Some(false)).then_some(UNWATCHED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn data_source(name: &str, source: &Value) -> DataSource {
        let value = json!({ "metadata": { "name": name, "namespace": "ns" }, "spec": { "source": source } });
        serde_json::from_value(value).unwrap()
    }

    fn reason(next: Next) -> Cow<'static, str> {
        match next {
            Next::End(end) => end.reason,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_data_source_leads_to_one_claim_or_says_why_not() {
        let claim = json!({ "pvc": { "name": "golden", "namespace": "ns" } });
        let Next::Claim(place, source) = next(&data_source("a", &claim), 0) else { panic!() };
        assert_eq!((place.to_string().as_str(), source.pvc.unwrap().name.as_str()), ("ns/golden", "golden"));
        let other =
            |name: &str, namespace: &str| json!({ "dataSource": { "name": name, "namespace": namespace } });
        let Next::DataSource(place) = next(&data_source("a", &other("b", "ns")), MOST_STEPS - 1) else {
            panic!()
        };
        assert_eq!(place.to_string(), "ns/b");
        for (source, steps, expected) in [
            (other("b", "ns"), MOST_STEPS, "MaxReferenceDepthReached"),
            (other("a", "ns"), 0, "SelfReference"),
            (other("b", "elsewhere"), 0, "CrossNamespaceReference"),
            (other("../b", "ns"), 0, "NotFound"),
            (json!({ "snapshot": { "name": "s", "namespace": "ns" } }), 0, "NotSupported"),
            (json!({}), 0, "NoSource"),
            (json!({ "pvc": { "name": "x", "namespace": "elsewhere" } }), 0, "OtherNamespace"),
        ] {
            assert_eq!(reason(next(&data_source("a", &source), steps)), expected, "{source}");
        }
    }

    #[test]
    fn a_status_repeats_no_name_without_limit() {
        let long = "x".repeat(1 << 20);
        let named = json!({ "name": long, "namespace": long });
        let own = json!({ "name": long, "namespace": "ns" });
        let now: Time = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        for source in [
            json!({ "pvc": named }),
            json!({ "pvc": own }),
            json!({ "snapshot": named }),
            json!({ "dataSource": own }),
            json!({ "pvc": { "name": "golden", "namespace": "ns" }, "snapshot": own }),
        ] {
            let data_source = data_source("a", &source);
            let Next::End(end) = next(&data_source, 0) else { panic!() };
            let status = status(&data_source, &end, &now).unwrap();
            let written = serde_json::to_string(&status).unwrap();
            assert!(written.len() < 1000, "{} bytes", written.len());
        }
        let why = Place::new("claim", &long, &long).unwrap_err();
        assert!(why.len() < 200, "{} bytes", why.len());
    }

    #[test]
    fn a_claim_is_ready_once_it_is_there_and_filled() {
        let of = |is_there, phase| {
            let end = claim(DataSourceSource::default(), is_there, phase);
            (end.is_ready, end.reason, end.message)
        };
        assert_eq!(of(true, None).0, Some(true));
        assert_eq!(of(true, Some("Succeeded")).0, Some(true));
        assert_eq!(of(false, None).1, "NotFound");
        assert_eq!(of(false, Some("Succeeded")).1, "NotFound");
        assert_eq!(
            of(true, Some("ImportInProgress")),
            (Some(false), "ImportInProgress".into(), "Import DataVolume phase ImportInProgress".to_owned())
        );
    }

    #[test]
    fn an_unchanged_status_is_not_written_again() {
        let now = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        let mut data_source = data_source("a", &json!({}));
        let end = claim(DataSourceSource::default(), true, None);
        let status = status(&data_source, &end, &now).unwrap();
        assert_eq!(
            (status.conditions[0].type_.as_str(), status.conditions[0].status.as_str()),
            ("Ready", "True")
        );
        data_source.status = Some(status);
        let later = serde_json::from_value(json!("2026-01-02T00:00:00Z")).unwrap();
        assert_eq!(super::status(&data_source, &end, &later), None);
        assert!(
            super::status(&data_source, &missing(&Place::new("x", "ns", "b").unwrap()), &later).is_some()
        );
    }
}
