//! Maps method and path to a [`Route`], without any other input.
//!
//! The calls of the aggregated API are those of [`crate::endpoints`]; any other path is answered with 404
//! after authentication. A call contains the attributes of its access review (see [`Route::access`]), so that
//! no call is served without one.

use barevirt_api::webhooks::Hook;
use http::Method;

use crate::endpoints::{ENDPOINTS, Endpoint, On};

/// Versions under which `subresources.kubevirt.io` is served.
pub const VERSIONS: [&str; 2] = ["v1", "v1alpha3"];
/// The aggregated API's group.
pub const GROUP: &str = "subresources.kubevirt.io";

/// First part of the path where evictions mark their instance; the second is the seal of the serving certificate.
pub const EVACUATION_PATH: &str = "pod-eviction-evacuate";

/// One request that this server knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Route {
    /// An admission review.
    Webhook(Hook),
    /// An eviction that may mark its instance, with the seal in its path: [`EVACUATION_PATH`].
    Evacuation(String),
    /// `/`: the paths below which this server answers.
    Paths,
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
    /// A call of [`crate::endpoints`].
    Call(Called),
}

/// A call and its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Called {
    /// The endpoint.
    pub endpoint: &'static Endpoint,
    /// Version in the path.
    pub version: &'static str,
    /// Namespace of the object; empty for the cluster.
    pub namespace: String,
    /// Name of the object; empty for calls without one.
    pub name: String,
    /// Path elements in the places where the endpoint has braces: letters and digits.
    pub parameters: Vec<String>,
}

/// Why a request has no [`Route`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoRoute {
    /// No such path: 404.
    NotFound,
    /// The path exists, but not with this method: 405.
    MethodNotAllowed,
}

/// The attributes of an access review. Empty attributes are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Access {
    /// API group.
    pub group: &'static str,
    /// Kubernetes verb: get, list, update, create.
    pub verb: &'static str,
    /// Version in the path.
    pub version: &'static str,
    /// Plural resource.
    pub resource: &'static str,
    /// Subresource.
    pub subresource: &'static str,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl Called {
    /// The permission that the user needs. `None` for a call that is open to all clients.
    pub fn access(&self) -> Option<Access> {
        if self.endpoint.on == On::Everyone {
            return None;
        }
        Some(Access {
            group: GROUP,
            verb: self.endpoint.verb.word(),
            version: self.version,
            resource: self.endpoint.resource(),
            subresource: self.endpoint.subresource(),
            namespace: self.namespace.clone(),
            name: self.name.clone(),
        })
    }
}

impl Route {
    /// The permission that the user needs. `None` for a path that needs no permission of its own.
    ///
    /// If a permission is needed, the request must come from the API server's aggregator with its
    /// certificate. Webhooks come without one.
    pub fn access(&self) -> Option<Access> {
        match self {
            Self::Call(called) => called.access(),
            Self::Webhook(_)
            | Self::Evacuation(_)
            | Self::Paths
            | Self::Groups
            | Self::Group
            | Self::Resources(_)
            | Self::OpenApiV2
            | Self::OpenApiV3Index
            | Self::OpenApiV3(_) => None,
        }
    }
}

/// Finds the route of a request.
///
/// # Errors
/// [`NoRoute`] with the status to answer.
pub fn parse(method: &Method, path: &str) -> Result<Route, NoRoute> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let get = |route| only(method, &Method::GET, route);
    match parts.as_slice() {
        [""] => get(Route::Paths),
        ["apis"] => get(Route::Groups),
        ["openapi", "v2"] => get(Route::OpenApiV2),
        ["openapi", "v3"] => get(Route::OpenApiV3Index),
        ["openapi", "v3", "apis", GROUP, version] => get(Route::OpenApiV3(known_version(version)?)),
        ["apis", GROUP] => get(Route::Group),
        ["apis", GROUP, version] => get(Route::Resources(known_version(version)?)),
        ["apis", GROUP, version, rest @ ..] => call(method, known_version(version)?, rest).map(Route::Call),
        [EVACUATION_PATH, seal] => only(method, &Method::POST, Route::Evacuation((*seal).to_owned())),
        [path] => Hook::at(path)
            .map_or(Err(NoRoute::NotFound), |hook| only(method, &Method::POST, Route::Webhook(hook))),
        _ => Err(NoRoute::NotFound),
    }
}

fn call(method: &Method, version: &'static str, rest: &[&str]) -> Result<Called, NoRoute> {
    let (on, namespace, name, words) = match rest {
        ["namespaces", namespace, "virtualmachines", name, words @ ..] => {
            (On::Machine, object_name(namespace)?, object_name(name)?, words)
        }
        ["namespaces", namespace, "virtualmachineinstances", name, words @ ..] => {
            (On::Instance, object_name(namespace)?, object_name(name)?, words)
        }
        ["namespaces", namespace, words @ ..] => {
            (On::Namespace, object_name(namespace)?, String::new(), words)
        }
        words => (On::Cluster, String::new(), String::new(), words),
    };
    let here = |endpoint: &&Endpoint| match endpoint.on {
        On::Everyone => on == On::Cluster,
        own => on == own,
    };
    let mut found = ENDPOINTS.iter().filter(here).filter(|endpoint| endpoint.matches(words)).peekable();
    if found.peek().is_none() {
        return Err(NoRoute::NotFound);
    }
    let endpoint =
        found.find(|endpoint| endpoint.verb.method() == *method).ok_or(NoRoute::MethodNotAllowed)?;
    let parameters = endpoint.parameters(words);
    Ok(Called { endpoint, version, namespace, name, parameters })
}

fn only(method: &Method, wanted: &Method, route: Route) -> Result<Route, NoRoute> {
    if method == wanted { Ok(route) } else { Err(NoRoute::MethodNotAllowed) }
}

fn known_version(version: &str) -> Result<&'static str, NoRoute> {
    VERSIONS.into_iter().find(|known| *known == version).ok_or(NoRoute::NotFound)
}

/// A name that objects can have (a DNS subdomain). Any other text, such as an escaped slash, is not an
/// object.
pub(crate) fn object_name(text: &str) -> Result<String, NoRoute> {
    let good = (1..=253).contains(&text.len())
        && text.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'.')
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric());
    if good { Ok(text.to_owned()) } else { Err(NoRoute::NotFound) }
}

#[cfg(test)]
#[path = "route_tests.rs"]
mod tests;
