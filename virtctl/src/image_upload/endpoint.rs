//! The endpoint of the proxy for an upload.

use anyhow::{Context, ensure};
use http::Uri;

/// Answers once the file has arrived, before it is processed.
const ASYNCHRONOUS: &str = "/v1beta1/upload-async";
/// Answers once the volume is filled. Every proxy has it.
const SYNCHRONOUS: &str = "/v1beta1/upload";

/// The endpoints of a proxy. A URL that names one leaves no choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Endpoints {
    /// Preferred, if the proxy has it.
    pub(super) asynchronous: Option<Uri>,
    pub(super) synchronous: Uri,
}

/// The user's URL, with https if it has no scheme.
pub(super) fn whole(url: &str) -> String {
    if url.contains("://") { url.to_owned() } else { format!("https://{url}") }
}

impl Endpoints {
    /// The endpoints of a proxy with that URL, which may have a path.
    pub(super) fn of(url: &str) -> anyhow::Result<Self> {
        let context = || format!("the upload proxy's URL {url:?} is not a URL");
        let base: Uri = url.parse().with_context(context)?;
        ensure!(
            matches!(base.scheme_str(), Some("http" | "https")),
            "the upload proxy's URL {url:?} is neither http nor https"
        );
        if base.path().contains(SYNCHRONOUS) {
            return Ok(Self { asynchronous: None, synchronous: base });
        }
        let at = |endpoint: &str| -> anyhow::Result<Uri> {
            let path = base.path().trim_end_matches('/');
            let query = base.query().map(|query| format!("?{query}")).unwrap_or_default();
            let mut parts = base.clone().into_parts();
            parts.path_and_query = Some(format!("{path}{endpoint}{query}").parse().with_context(context)?);
            Uri::from_parts(parts).with_context(context)
        };
        Ok(Self { asynchronous: Some(at(ASYNCHRONOUS)?), synchronous: at(SYNCHRONOUS)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(url: &str) -> (Option<String>, String) {
        let endpoints = Endpoints::of(&whole(url)).unwrap();
        (endpoints.asynchronous.map(|uri| uri.to_string()), endpoints.synchronous.to_string())
    }

    #[test]
    fn endpoints_are_below_the_proxys_url() {
        for (url, below) in [
            ("cdi-uploadproxy.example.com", "https://cdi-uploadproxy.example.com"),
            ("localhost:31001", "https://localhost:31001"),
            ("http://localhost:31001/", "http://localhost:31001"),
            ("https://example.com/cdi/", "https://example.com/cdi"),
            ("https://[::1]:8443", "https://[::1]:8443"),
        ] {
            let (asynchronous, synchronous) = read(url);
            assert_eq!(asynchronous, Some(format!("{below}/v1beta1/upload-async")), "{url}");
            assert_eq!(synchronous, format!("{below}/v1beta1/upload"), "{url}");
        }
        let (_, with_query) = read("https://example.com/a?b=c");
        assert_eq!(with_query, "https://example.com/a/v1beta1/upload?b=c");
    }

    #[test]
    fn an_endpoint_that_is_named_is_taken() {
        for url in ["https://example.com/v1beta1/upload", "https://example.com/v1beta1/upload-async"] {
            assert_eq!(read(url), (None, url.to_owned()));
        }
    }

    #[test]
    fn an_invalid_proxy_address_is_refused() {
        assert!(Endpoints::of(&whole("ftp://example.com")).unwrap_err().to_string().contains("neither"));
        assert!(Endpoints::of(&whole("a b")).unwrap_err().to_string().contains("is not a URL"));
    }
}
