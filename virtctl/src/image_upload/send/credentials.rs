//! A request as the user of the kubeconfig: the API server's address, credentials and impersonation.

use anyhow::Context;
use http::{Request, Response};
use http_body_util::Empty;
use hyper::body::Bytes;
use kube::Config;
use kube::client::ConfigExt;
use tower::{Layer, ServiceExt, service_fn};

/// The user's part of requests.
pub(super) struct Credentials(Config);

impl Credentials {
    /// The user of a kubeconfig.
    pub(super) fn of(config: &Config) -> Self {
        Self(config.clone())
    }

    /// Adds address and credentials of the user. It computes them each time, since tokens expire.
    pub(super) async fn sign(&self, request: Request<()>) -> anyhow::Result<Request<()>> {
        let context = || "read the credentials of the kubeconfig";
        // This service returns the request, as changed by the layers, inside its answer.
        let end = service_fn(|request: Request<Empty<Bytes>>| async move {
            let (parts, _) = request.into_parts();
            Ok::<_, tower::BoxError>(Response::new(parts))
        });
        let request = request.map(|()| Empty::new());
        let named = self.0.base_uri_layer().layer(end);
        let extra = self.0.extra_headers_layer().with_context(context)?;
        let parts = match self.0.auth_layer().with_context(context)? {
            Some(auth) => extra.layer(auth.layer(named)).oneshot(request).await,
            None => extra.layer(named).oneshot(request).await,
        };
        let parts = parts.map_err(anyhow::Error::from_boxed).with_context(context)?.into_body();
        Ok(Request::from_parts(parts, ()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_request_is_the_persons() {
        let mut config = Config::new("https://server.example:6443/below".parse().unwrap());
        config.auth_info.token = Some("secret".to_owned().into());
        config.auth_info.impersonate = Some("ann".to_owned());
        let request = Request::post("/apis/x?y=z").header("host", "h").body(()).unwrap();
        let signed = Credentials::of(&config).sign(request).await.unwrap();
        assert_eq!(signed.uri(), "https://server.example:6443/below/apis/x?y=z");
        assert_eq!(signed.headers()["authorization"], "Bearer secret");
        assert_eq!(signed.headers()["impersonate-user"], "ann");
        assert_eq!((signed.method().as_str(), &signed.headers()["host"]), ("POST", &"h".parse().unwrap()));
    }
}
