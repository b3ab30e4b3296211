//! The routes of methods and paths.

use super::*;
use crate::endpoints::{Call, MachineAction};

/// A path of this endpoint, with sample values instead of the braces.
fn path(endpoint: &Endpoint, version: &str) -> String {
    let words: Vec<&str> = endpoint
        .path
        .split('/')
        .map(|word| match word {
            "{port}" => "5900",
            "{protocol}" => "udp",
            word => word,
        })
        .collect();
    let base = format!("/apis/{GROUP}/{version}");
    let path = words.join("/");
    match endpoint.on {
        On::Everyone | On::Cluster => format!("{base}/{path}"),
        On::Namespace => format!("{base}/namespaces/shop/{path}"),
        On::Machine | On::Instance => format!("{base}/namespaces/shop/{}/web/{path}", endpoint.resource()),
    }
}

/// Every call with its access review, and whether it is supported. A change here changes permissions or
/// supported calls.
#[test]
fn every_call_has_its_access_review() {
    let mut table = String::new();
    for endpoint in ENDPOINTS {
        let lines = VERSIONS.map(|version| {
            let method = endpoint.verb.method();
            let path = path(endpoint, version);
            let route = parse(&method, &path).unwrap();
            let Route::Call(called) = &route else { panic!("{path} is {route:?}") };
            assert_eq!(called.endpoint, endpoint, "{path}");
            let access = route.access().map_or("everybody".to_owned(), |access| {
                assert_eq!(access.version, version);
                let Access { verb, resource, subresource, namespace, name, .. } = access;
                let resource = [resource, subresource].join("/");
                format!("{verb} {} [{namespace}/{name}]", resource.trim_end_matches('/'))
            });
            let not_yet = if called.endpoint.call == Call::NotYet { " (not yet)" } else { "" };
            let path = path.trim_start_matches(&format!("/apis/{GROUP}/{version}")).to_owned();
            format!("{method} {path} -> {access}{not_yet}\n")
        });
        assert_eq!(lines[0], lines[1], "both versions serve the same");
        table.push_str(&lines[0]);
    }
    insta::assert_snapshot!("calls", table);
}

#[test]
fn no_two_calls_share_a_request() {
    for (at, endpoint) in ENDPOINTS.iter().enumerate() {
        for other in &ENDPOINTS[at + 1..] {
            let same =
                path(endpoint, "v1") == path(other, "v1") && endpoint.verb.method() == other.verb.method();
            assert!(!same, "{} {}", endpoint.title(), endpoint.path);
        }
    }
}

#[test]
fn unknown_paths_are_not_found() {
    for path in [
        "/healthz",
        "/metrics",
        "/apis/apps/v1",
        "/apis/subresources.kubevirt.io/v2",
        "/apis/subresources.kubevirt.io/v2/version",
        "/apis/subresources.kubevirt.io/v1/start-profiler",
        "/apis/subresources.kubevirt.io/v1/namespaces",
        "/apis/subresources.kubevirt.io/v1/namespaces/a",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/version",
        "/apis/subresources.kubevirt.io/v1/expand-vm-spec",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/start/now",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/console",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/evacuate",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/portforward",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/portforward/22/tcp/more",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/portforward/%32",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/b/sev",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/..%2fb/console",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/../console",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances//console",
        "/apis/subresources.kubevirt.io/v1/namespaces/a/pods/b/console",
    ] {
        assert_eq!(parse(&Method::GET, path), Err(NoRoute::NotFound), "{path}");
    }
}

#[test]
fn a_wrong_method_has_its_own_error() {
    let path = "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/start";
    assert_eq!(parse(&Method::GET, path), Err(NoRoute::MethodNotAllowed));
    assert_eq!(parse(&Method::PATCH, path), Err(NoRoute::MethodNotAllowed));
    assert_eq!(parse(&Method::GET, "/virtualmachines-mutate"), Err(NoRoute::MethodNotAllowed));
}

#[test]
fn an_evacuation_path_needs_a_token() {
    let post = |path: &str| parse(&Method::POST, path);
    assert_eq!(post("/pod-eviction-evacuate/ab12"), Ok(Route::Evacuation("ab12".to_owned())));
    for path in ["/pod-eviction-evacuate", "/pod-eviction-evacuate/", "/pod-eviction-evacuate/a/b"] {
        assert_eq!(post(path), Err(NoRoute::NotFound), "{path}");
    }
}

#[test]
fn discovery_paths_need_no_review() {
    for path in [
        "/",
        "/apis",
        "/apis/subresources.kubevirt.io",
        "/apis/subresources.kubevirt.io/v1",
        "/apis/subresources.kubevirt.io/v1/",
        "/apis/subresources.kubevirt.io/v1alpha3/version",
        "/apis/subresources.kubevirt.io/v1/guestfs",
        "/apis/subresources.kubevirt.io/v1/healthz",
        "/openapi/v2",
        "/openapi/v3",
        "/openapi/v3/apis/subresources.kubevirt.io/v1",
    ] {
        assert_eq!(parse(&Method::GET, path).unwrap().access(), None, "{path}");
    }
}

proptest::proptest! {
    #[test]
    fn no_path_panics(path in ".{0,200}") {
        let _route = parse(&Method::GET, &path);
    }

    #[test]
    fn only_object_names_reach_an_object(name in "[ -~]{0,60}") {
        let path = format!("/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/{name}/start");
        if let Ok(Route::Call(called)) = parse(&Method::PUT, &path) {
            proptest::prop_assert_eq!(called.endpoint.call, Call::Machine(MachineAction::Start));
            proptest::prop_assert!(!called.name.contains(['/', '%', '\\']));
        }
    }

    #[test]
    fn each_call_on_an_object_has_an_access_review(words in "(/[a-z-]{1,12}){1,4}") {
        for method in [Method::GET, Method::PUT, Method::POST] {
            let path = format!("/apis/{GROUP}/v1/namespaces/a/virtualmachineinstances/b{words}");
            if let Ok(route) = parse(&method, &path) {
                let access = route.access();
                proptest::prop_assert!(access.is_some_and(|access| access.name == "b" && !access.subresource.is_empty()));
            }
        }
    }
}
