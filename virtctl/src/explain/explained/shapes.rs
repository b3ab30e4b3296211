//! Manifests of the shapes that KubeVirt's user guide has, and that other programs write, stay accepted, and can be planned. They
//! are beside this file, in our own words.

use super::*;
use crate::explain::arguments;
use crate::explain::manifests::Manifests;
use barevirt_api::validate::kinds::kubevirt;

const SETTINGS: &str = include_str!("shapes/settings.yaml");

/// Each with where its shapes are from.
const ACCEPTED: [(&str, &str); 7] = [
    ("Forklift", include_str!("shapes/forklift.yaml")),
    ("Harvester", include_str!("shapes/harvester.yaml")),
    ("providers of cluster nodes", include_str!("shapes/providers.yaml")),
    ("pipelines and templates", include_str!("shapes/pipelines.yaml")),
    ("networks of the user guide", include_str!("shapes/network.yaml")),
    ("storage of the user guide", include_str!("shapes/storage.yaml")),
    ("compute of the user guide", include_str!("shapes/compute.yaml")),
];

const REFUSED: &str = include_str!("shapes/refused.yaml");

fn manifests(text: &str) -> Manifests {
    let mut manifests = Manifests::default();
    manifests.add(SETTINGS).unwrap();
    manifests.add(text).unwrap();
    assert!(!manifests.subjects.is_empty());
    manifests
}

fn explained(text: &str) -> Vec<Explained> {
    let manifests = manifests(text);
    let settings = Settings::from_kubevirt(manifests.kubevirt.as_ref().map(|object| &object.spec));
    let config = arguments::config("virt-launcher".to_owned(), settings);
    let context = ExplainContext { config, namespace: None, now: Timestamp::UNIX_EPOCH };
    let explain = |subject| explain(subject, &context, |vm| manifests.lookups(vm));
    manifests.subjects.iter().map(explain).collect()
}

#[test]
fn shapes_of_others_are_accepted_and_planned() {
    for (from, text) in ACCEPTED {
        for explained in explained(text) {
            assert_eq!(explained.causes, [], "{from}: {} {}", explained.kind, explained.name);
            assert!(explained.outcome.is_some(), "{from}: {}", explained.name);
        }
    }
}

#[test]
fn settings_of_others_are_accepted() {
    let settings = manifests(ACCEPTED[0].1).kubevirt.unwrap();
    assert_eq!(kubevirt::create(&settings, false, "kubevirt"), []);
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    let explained = explained(REFUSED);
    let mut fields: Vec<&str> = explained[0].causes.iter().map(|cause| cause.field.as_str()).collect();
    fields.sort_unstable();
    assert_eq!(
        fields,
        [
            "metadata.annotations",
            "spec.domain.devices.disks[0].lun.reservation",
            "spec.domain.devices.gpus[0].claimName",
            "spec.domain.devices.gpus[0].requestName",
            "spec.domain.launchSecurity",
            "spec.resourceClaims",
        ]
    );
    let annotation = explained[0].causes.iter().find(|cause| cause.field == "metadata.annotations").unwrap();
    assert!(annotation.message.contains("keep-launcher-alive-after-failure"), "{}", annotation.message);
}
