//! Tests of the dashboard in `manifests/grafana`: a panel over a metric that no component exports would silently stay empty.
#![cfg(test)]

use super::expression::metrics;
use barevirt_component::metrics::names::is_exported;
use serde_json::Value;
use std::collections::BTreeSet;

const DASHBOARD: &str = include_str!("../../../../manifests/grafana/barevirt.json");

/// File in which virt-handler names the metrics of a guest's control group.
const CONTROL_GROUPS: &str = include_str!("../../../../handler/src/metrics/container.rs");

fn is_known(name: &str) -> bool {
    is_exported(name) || CONTROL_GROUPS.contains(&format!("\"{name}\""))
}

fn panels() -> Vec<Value> {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    dashboard["panels"].as_array().unwrap().clone()
}

/// Expressions of the panels, with the title of each.
fn expressions() -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let of = |panel: &Value| {
        let title = text(&panel["title"]);
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets.iter().map(|target| (title.clone(), text(&target["expr"]))).collect::<Vec<_>>()
    };
    panels().iter().flat_map(of).collect()
}

#[test]
fn panels_show_only_what_the_components_export() {
    let all = expressions();
    assert!(all.len() > 30, "only {} expressions were found", all.len());
    for (title, expression) in all {
        let names = metrics(&expression);
        assert!(!names.is_empty(), "{title}: {expression}");
        for name in names {
            assert!(is_known(&name), "{title}: nobody exports {name}");
        }
    }
}

#[test]
fn variables_ask_for_what_the_components_export() {
    let dashboard: Value = serde_json::from_str(DASHBOARD).unwrap();
    let mut seen = 0;
    for variable in dashboard["templating"]["list"].as_array().unwrap() {
        let Some(query) = variable["query"]["query"].as_str() else { continue };
        // `label_values(METRIC{...}, LABEL)`.
        let metric =
            query.strip_prefix("label_values(").and_then(|rest| rest.split(['{', ',']).next()).unwrap();
        assert!(is_exported(metric), "nobody exports {metric}");
        seen += 1;
    }
    assert_eq!(seen, 2);
}

#[test]
fn panels_have_numbers_and_places_of_their_own() {
    let mut numbers = BTreeSet::new();
    let mut places = BTreeSet::new();
    for panel in panels() {
        assert!(numbers.insert(panel["id"].as_u64().unwrap()), "{}", panel["title"]);
        let place = |name: &str| panel["gridPos"][name].as_u64().unwrap();
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(x < 24 && places.insert((x, y)), "{} covers another panel", panel["title"]);
            }
        }
    }
}
