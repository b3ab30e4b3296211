//! Maps method and path to a route. Pure.

use barevirt_api::cdi::{UPLOAD_GROUP as GROUP, UPLOAD_VERSION as VERSION};
use http::Method;

use super::proxy::UploadMode;
use crate::route::{Access, NoRoute, object_name};

/// One request that this listener knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Route {
    /// `/apis`.
    Groups,
    /// `/apis/GROUP`.
    Group,
    /// `/apis/GROUP/VERSION`.
    Resources,
    /// A request for a token.
    Token {
        /// Namespace of the claim.
        namespace: String,
    },
    /// An image or its rest, from a user whom the API server knows.
    Upload {
        /// Namespace of the claim.
        namespace: String,
        /// Name of the claim.
        claim: String,
        /// When it is answered.
        mode: UploadMode,
    },
    /// An image, or a check whether it may be sent, from a client with a token.
    Proxied(UploadMode),
    /// A path that only CDI's proxy supports.
    NotServed(&'static str),
}

/// The permission that a user needs for a token.
pub(super) fn token_access(namespace: &str) -> Access {
    Access {
        group: GROUP,
        verb: "create",
        version: VERSION,
        resource: "uploadtokenrequests",
        subresource: "",
        namespace: namespace.to_owned(),
        name: String::new(),
    }
}

/// The permission that a user needs to send an image.
pub(super) fn upload_access(namespace: &str, claim: &str) -> Access {
    Access { resource: "uploads", subresource: "proxy", name: claim.to_owned(), ..token_access(namespace) }
}

/// Finds the route of a request.
pub(super) fn parse(method: &Method, path: &str) -> Result<Route, NoRoute> {
    let parts: Vec<&str> = path.trim_matches('/').split('/').collect();
    let only = |wanted: &[Method], route: Route| {
        if wanted.contains(method) { Ok(route) } else { Err(NoRoute::MethodNotAllowed) }
    };
    let sent = [Method::HEAD, Method::POST, Method::PUT];
    match parts.as_slice() {
        ["apis"] => only(&[Method::GET], Route::Groups),
        ["apis", GROUP] => only(&[Method::GET], Route::Group),
        ["apis", GROUP, VERSION] => only(&[Method::GET], Route::Resources),
        ["apis", GROUP, VERSION, "namespaces", namespace, "uploadtokenrequests"] => {
            only(&[Method::POST], Route::Token { namespace: object_name(namespace)? })
        }
        // The API server exempts this subresource, and paths below it, from its request timeout.
        ["apis", GROUP, VERSION, "namespaces", namespace, "uploads", claim, "proxy", below @ ..] => {
            let (namespace, claim) = (object_name(namespace)?, object_name(claim)?);
            let mode = match below {
                [] => UploadMode::Asynchronous,
                ["rest"] => UploadMode::Rest,
                _ => return Err(NoRoute::NotFound),
            };
            only(&[Method::POST], Route::Upload { namespace, claim, mode })
        }
        [VERSION, "upload"] => only(&sent, Route::Proxied(UploadMode::Synchronous)),
        [VERSION, "upload-async"] => only(&sent, Route::Proxied(UploadMode::Asynchronous)),
        [VERSION, "upload-rest"] => only(&[Method::POST], Route::Proxied(UploadMode::Rest)),
        [VERSION, "upload-form" | "upload-form-async"] => Ok(Route::NotServed("forms")),
        _ => Err(NoRoute::NotFound),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_path_is_one_request() {
        let apis = "/apis/upload.cdi.kubevirt.io/v1beta1";
        let of = |method: Method, path: &str| parse(&method, path);
        assert_eq!(of(Method::GET, apis), Ok(Route::Resources));
        let token = Route::Token { namespace: "shop".to_owned() };
        assert_eq!(of(Method::POST, &format!("{apis}/namespaces/shop/uploadtokenrequests")), Ok(token));
        let path = format!("{apis}/namespaces/shop/uploads/disk/proxy");
        for (below, mode) in [("", UploadMode::Asynchronous), ("/rest", UploadMode::Rest)] {
            let upload = Route::Upload { namespace: "shop".to_owned(), claim: "disk".to_owned(), mode };
            assert_eq!(of(Method::POST, &format!("{path}{below}")), Ok(upload));
        }
        assert_eq!(of(Method::GET, &path), Err(NoRoute::MethodNotAllowed));
        assert_eq!(of(Method::POST, &format!("{path}/other")), Err(NoRoute::NotFound));
        assert_eq!(of(Method::POST, "/v1beta1/upload-rest"), Ok(Route::Proxied(UploadMode::Rest)));
        assert_eq!(of(Method::PUT, "/v1beta1/upload"), Ok(Route::Proxied(UploadMode::Synchronous)));
        assert_eq!(of(Method::HEAD, "/v1beta1/upload-async"), Ok(Route::Proxied(UploadMode::Asynchronous)));
        assert_eq!(of(Method::POST, "/v1beta1/upload-form"), Ok(Route::NotServed("forms")));
        for path in [
            "/",
            "/v1beta1",
            // CDI's pods have this path; clients send archives as they send images.
            "/v1beta1/upload-archive",
            "/validate",
            "/apis/subresources.kubevirt.io/v1",
            "/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/a%2fb/uploads/disk/proxy",
            "/apis/upload.cdi.kubevirt.io/v1beta1/namespaces/shop/uploads/../proxy",
        ] {
            assert_eq!(of(Method::POST, path), Err(NoRoute::NotFound), "{path}");
        }
    }
}
