//! What this server says of itself: groups, resources, OpenAPI, version.

use serde_json::{Value, json};

use crate::route::{GROUP, VERSIONS};

/// `/apis`.
pub fn groups() -> Value {
    json!({ "kind": "APIGroupList", "apiVersion": "v1", "groups": [group()] })
}

/// `/apis/subresources.kubevirt.io`.
pub fn group() -> Value {
    let version = |version: &str| json!({ "groupVersion": format!("{GROUP}/{version}"), "version": version });
    json!({
        "kind": "APIGroup",
        "apiVersion": "v1",
        "name": GROUP,
        "versions": VERSIONS.map(version),
        "preferredVersion": version(VERSIONS[0]),
    })
}

/// `/apis/subresources.kubevirt.io/VERSION`.
pub fn resources(version: &str) -> Value {
    let of = |name: &str, verb: &str| json!({ "name": name, "singularName": "", "namespaced": true, "kind": "", "verbs": [verb] });
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{version}"),
        "resources": [
            of("virtualmachines/start", "update"),
            of("virtualmachines/stop", "update"),
            of("virtualmachines/restart", "update"),
            of("virtualmachineinstances/console", "get"),
            of("virtualmachineinstances/vnc", "get"),
            of("virtualmachineinstances/qmp", "create"),
        ],
    })
}

/// `/openapi/v2`: an aggregator wants a document, even one without paths.
pub fn openapi_v2() -> Value {
    json!({ "swagger": "2.0", "info": info(), "paths": {} })
}

/// `/openapi/v3`.
pub fn openapi_v3_index() -> Value {
    let paths = VERSIONS.map(|version| {
        let path = format!("apis/{GROUP}/{version}");
        (path.clone(), json!({ "serverRelativeURL": format!("/openapi/v3/{path}") }))
    });
    json!({ "paths": serde_json::Map::from_iter(paths) })
}

/// `/openapi/v3/apis/subresources.kubevirt.io/VERSION`.
pub fn openapi_v3() -> Value {
    json!({ "openapi": "3.0.0", "info": info(), "paths": {} })
}

/// `version`, in the shape that KubeVirt's clients read.
pub fn version() -> Value {
    let commit = option_env!("BAREVIRT_COMMIT").unwrap_or("unknown");
    json!({
        "gitVersion": concat!("v", env!("CARGO_PKG_VERSION")),
        "gitCommit": commit,
        "gitTreeState": "",
        "buildDate": option_env!("BAREVIRT_BUILD_DATE").unwrap_or("unknown"),
        "goVersion": "none (rust)",
        "compiler": "rustc",
        "platform": "linux/amd64",
    })
}

fn info() -> Value {
    json!({ "title": "Barevirt", "version": concat!("v", env!("CARGO_PKG_VERSION")) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::route::{Route, parse};
    use http::Method;

    #[test]
    fn every_resource_announced_is_served_with_its_verb() {
        let list = resources("v1");
        for resource in list["resources"].as_array().unwrap() {
            let (kind, subresource) = resource["name"].as_str().unwrap().split_once('/').unwrap();
            let verb = resource["verbs"][0].as_str().unwrap();
            let method = match verb {
                "get" => Method::GET,
                "update" => Method::PUT,
                _ => Method::POST,
            };
            let path = format!("/apis/{GROUP}/v1/namespaces/a/{kind}/b/{subresource}");
            let access = parse(&method, &path).unwrap().access().unwrap();
            assert_eq!((access.verb, access.subresource), (verb, subresource));
        }
        assert!(matches!(parse(&Method::GET, &format!("/apis/{GROUP}/v1")), Ok(Route::Resources("v1"))));
    }
}
