//! Which request is meant: method and path to a [`Route`], without looking at anything else.
//!
//! Every path of the aggregated API that is not listed here is answered with 404 after authentication; what is
//! listed carries the attributes of its access review (see [`Route::access`]), so that no path can be served
//! without one. Paths and verbs are KubeVirt's.

use http::Method;

/// Versions under which `subresources.kubevirt.io` is served.
pub const VERSIONS: [&str; 2] = ["v1", "v1alpha3"];
/// The aggregated API's group.
pub const GROUP: &str = "subresources.kubevirt.io";

/// What a person may ask of a virtual machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MachineAction {
    /// Have it running.
    Start,
    /// Have it stopped.
    Stop,
    /// Have it stopped, then running.
    Restart,
}

/// What a person may ask of a running instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InstanceAction {
    /// Its first serial line, as a websocket.
    Console,
    /// Its display, as a websocket of RFB bytes.
    Vnc,
    /// One QMP command.
    Qmp,
}

/// A webhook of the API server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Defaults of a VirtualMachine.
    MutateMachine,
    /// Defaults and protection of status of a VirtualMachineInstance.
    MutateInstance,
    /// A VirtualMachine on create and update.
    ValidateMachine,
    /// A VirtualMachineInstance on create.
    ValidateInstanceCreate,
    /// A VirtualMachineInstance on update.
    ValidateInstanceUpdate,
}

/// One request that this server knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// Liveness and readiness.
    Healthz,
    /// An admission review.
    Webhook(Hook),
    /// `/apis`: the groups of this server.
    Groups,
    /// `/apis/subresources.kubevirt.io`.
    Group,
    /// `/apis/subresources.kubevirt.io/VERSION`: its resources.
    Resources(&'static str),
    /// The OpenAPI documents, which an aggregator fetches.
    OpenApiV2,
    /// The index of the OpenAPI v3 documents.
    OpenApiV3Index,
    /// One OpenAPI v3 document.
    OpenApiV3(&'static str),
    /// Version of the product.
    Version,
    /// A call on a VirtualMachine.
    Machine {
        /// What is asked.
        action: MachineAction,
        /// Namespace of the object.
        namespace: String,
        /// Name of the object.
        name: String,
    },
    /// A call on a VirtualMachineInstance.
    Instance {
        /// What is asked.
        action: InstanceAction,
        /// Namespace of the object.
        namespace: String,
        /// Name of the object.
        name: String,
    },
}

/// Why a request has no [`Route`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoute {
    /// No such path: 404.
    NotFound,
    /// The path exists, this method on it does not: 405.
    MethodNotAllowed,
}

/// The attributes of an access review.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// Kubernetes verb: get, update, create.
    pub verb: &'static str,
    /// Plural resource.
    pub resource: &'static str,
    /// Subresource.
    pub subresource: &'static str,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl MachineAction {
    const ALL: [(&'static str, Self); 3] =
        [("start", Self::Start), ("stop", Self::Stop), ("restart", Self::Restart)];

    /// Subresource name in paths and rules.
    pub fn subresource(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
        }
    }
}

impl InstanceAction {
    const ALL: [(&'static str, Self); 3] =
        [("console", Self::Console), ("vnc", Self::Vnc), ("qmp", Self::Qmp)];

    /// Subresource name in paths and rules.
    pub fn subresource(self) -> &'static str {
        match self {
            Self::Console => "console",
            Self::Vnc => "vnc",
            Self::Qmp => "qmp",
        }
    }

    fn method(self) -> (Method, &'static str) {
        match self {
            Self::Console | Self::Vnc => (Method::GET, "get"),
            Self::Qmp => (Method::POST, "create"),
        }
    }
}

impl Route {
    /// What the person must be allowed to do. `None`: a path that needs no permission of its own.
    pub fn access(&self) -> Option<Access> {
        match self {
            Self::Machine { action, namespace, name } => Some(Access {
                verb: "update",
                resource: "virtualmachines",
                subresource: action.subresource(),
                namespace: namespace.clone(),
                name: name.clone(),
            }),
            Self::Instance { action, namespace, name } => Some(Access {
                verb: action.method().1,
                resource: "virtualmachineinstances",
                subresource: action.subresource(),
                namespace: namespace.clone(),
                name: name.clone(),
            }),
            Self::Healthz
            | Self::Webhook(_)
            | Self::Groups
            | Self::Group
            | Self::Resources(_)
            | Self::OpenApiV2
            | Self::OpenApiV3Index
            | Self::OpenApiV3(_)
            | Self::Version => None,
        }
    }

    /// Whether the request must come from the API server's aggregator, with its certificate.
    /// Webhooks come without one, and so do the kubelet's probes; neither changes anything.
    pub fn behind_front_proxy(&self) -> bool {
        self.access().is_some()
    }
}

/// Finds the route of a request.
///
/// # Errors
/// [`NoRoute`] with the status to answer.
pub fn parse(method: &Method, path: &str) -> Result<Route, NoRoute> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let get = |route| only(method, &Method::GET, route);
    let post = |hook| only(method, &Method::POST, Route::Webhook(hook));
    match parts.as_slice() {
        ["healthz" | "readyz" | "livez"] => get(Route::Healthz),
        ["virtualmachines-mutate"] => post(Hook::MutateMachine),
        ["virtualmachineinstances-mutate"] => post(Hook::MutateInstance),
        ["virtualmachines-validate"] => post(Hook::ValidateMachine),
        ["virtualmachineinstances-validate-create"] => post(Hook::ValidateInstanceCreate),
        ["virtualmachineinstances-validate-update"] => post(Hook::ValidateInstanceUpdate),
        ["apis"] => get(Route::Groups),
        ["openapi", "v2"] => get(Route::OpenApiV2),
        ["openapi", "v3"] => get(Route::OpenApiV3Index),
        ["openapi", "v3", "apis", GROUP, version] => get(Route::OpenApiV3(known_version(version)?)),
        ["apis", GROUP] => get(Route::Group),
        ["apis", GROUP, version] => get(Route::Resources(known_version(version)?)),
        ["apis", GROUP, version, rest @ ..] => {
            known_version(version)?;
            subresource(method, rest)
        }
        _ => Err(NoRoute::NotFound),
    }
}

fn subresource(method: &Method, rest: &[&str]) -> Result<Route, NoRoute> {
    match rest {
        ["version"] => only(method, &Method::GET, Route::Version),
        ["healthz"] => only(method, &Method::GET, Route::Healthz),
        ["namespaces", namespace, "virtualmachines", name, action] => {
            let action = find(&MachineAction::ALL, action)?;
            let (namespace, name) = object(namespace, name)?;
            only(method, &Method::PUT, Route::Machine { action, namespace, name })
        }
        ["namespaces", namespace, "virtualmachineinstances", name, action] => {
            let action: InstanceAction = find(&InstanceAction::ALL, action)?;
            let (namespace, name) = object(namespace, name)?;
            only(method, &action.method().0, Route::Instance { action, namespace, name })
        }
        _ => Err(NoRoute::NotFound),
    }
}

fn only(method: &Method, wanted: &Method, route: Route) -> Result<Route, NoRoute> {
    if method == wanted { Ok(route) } else { Err(NoRoute::MethodNotAllowed) }
}

fn find<T: Copy>(known: &[(&str, T)], word: &str) -> Result<T, NoRoute> {
    known.iter().find(|(name, _)| *name == word).map(|(_, value)| *value).ok_or(NoRoute::NotFound)
}

fn known_version(version: &str) -> Result<&'static str, NoRoute> {
    VERSIONS.into_iter().find(|known| *known == version).ok_or(NoRoute::NotFound)
}

/// Names as Kubernetes has them (DNS subdomain). Anything else, an escaped slash included, is no object.
fn object(namespace: &str, name: &str) -> Result<(String, String), NoRoute> {
    let good = |text: &str| {
        (1..=253).contains(&text.len())
            && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
            && text.starts_with(|c: char| c.is_ascii_alphanumeric())
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    };
    if good(namespace) && good(name) {
        Ok((namespace.to_owned(), name.to_owned()))
    } else {
        Err(NoRoute::NotFound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(method: Method, path: &str) -> Option<String> {
        parse(&method, path)
            .unwrap()
            .access()
            .map(|a| format!("{} {}/{} {}/{}", a.verb, a.resource, a.subresource, a.namespace, a.name))
    }

    #[test]
    fn every_object_path_has_its_access_review() {
        let base = "/apis/subresources.kubevirt.io";
        for version in VERSIONS {
            for (method, path, wanted) in [
                (Method::PUT, "virtualmachines/web/start", "update virtualmachines/start shop/web"),
                (Method::PUT, "virtualmachines/web/stop", "update virtualmachines/stop shop/web"),
                (Method::PUT, "virtualmachines/web/restart", "update virtualmachines/restart shop/web"),
                (
                    Method::GET,
                    "virtualmachineinstances/web/console",
                    "get virtualmachineinstances/console shop/web",
                ),
                (Method::GET, "virtualmachineinstances/web/vnc", "get virtualmachineinstances/vnc shop/web"),
                (
                    Method::POST,
                    "virtualmachineinstances/web/qmp",
                    "create virtualmachineinstances/qmp shop/web",
                ),
            ] {
                let got = access(method, &format!("{base}/{version}/namespaces/shop/{path}"));
                assert_eq!(got.as_deref(), Some(wanted));
            }
        }
        assert_eq!(access(Method::GET, &format!("{base}/v1/version")), None);
    }

    #[test]
    fn what_is_not_listed_is_not_found() {
        for path in [
            "/",
            "/metrics",
            "/apis/apps/v1",
            "/apis/subresources.kubevirt.io/v2",
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b",
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/start/now",
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/console",
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/..%2fb/console",
            "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachineinstances/../console",
        ] {
            assert_eq!(parse(&Method::GET, path), Err(NoRoute::NotFound), "{path}");
        }
    }

    #[test]
    fn a_wrong_method_is_told_apart() {
        let path = "/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/b/start";
        assert_eq!(parse(&Method::GET, path), Err(NoRoute::MethodNotAllowed));
        assert_eq!(parse(&Method::GET, "/virtualmachines-mutate"), Err(NoRoute::MethodNotAllowed));
    }

    proptest::proptest! {
        #[test]
        fn no_path_panics(path in ".{0,200}") {
            let _route = parse(&Method::GET, &path);
        }

        #[test]
        fn only_object_names_reach_an_object(name in "[ -~]{0,60}") {
            let path = format!("/apis/subresources.kubevirt.io/v1/namespaces/a/virtualmachines/{name}/start");
            if let Ok(Route::Machine { name: got, .. }) = parse(&Method::PUT, &path) {
                proptest::prop_assert!(!got.contains(['/', '%', '\\']));
            }
        }
    }
}
