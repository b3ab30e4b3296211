//! Annotations of a DataVolume, or of a claim, that the pod which fills it gets: those that CDI passes on.

use barevirt_api::networks::NETWORKS_ANNOTATION;
use std::collections::BTreeMap;

/// The annotations, and what a pod has where they are not given. A proxy container would keep the pod from ending.
const PASSED: [(&str, Option<&str>); 4] = [
    (NETWORKS_ANNOTATION, None),
    ("v1.multus-cni.io/default-network", None),
    ("sidecar.istio.io/inject", Some("false")),
    ("linkerd.io/inject", Some("disabled")),
];

/// Those among the annotations of an object.
pub(super) fn given(all: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    PASSED.into_iter().filter_map(|(name, _)| Some((name.to_owned(), all.get(name)?.clone()))).collect()
}

/// Those of a pod for which users give none.
pub(super) fn usual() -> BTreeMap<String, String> {
    PASSED.into_iter().filter_map(|(name, usual)| Some((name.to_owned(), usual?.to_owned()))).collect()
}

/// Those of the pod of an object with these annotations.
pub(super) fn passed(all: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let mut passed = usual();
    passed.extend(given(all));
    passed
}
