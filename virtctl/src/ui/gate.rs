//! Decides which requests are answered. Pure.
//!
//! The loopback is open to every user and every page of this machine. So a request must have a cookie, which
//! only a browser with the printed address gets, and must come from our own page:
//!
//! - `Host` is ours: another name that resolves to this address (DNS rebinding) is refused.
//! - `Origin`, and `Sec-Fetch-Site` if the browser sends it, are ours. A request that changes something, or
//!   asks for a websocket, must have an `Origin`.
//! - No answer has a CORS header, so no other page can read an answer.

use http::header::{COOKIE, HOST, HeaderMap, HeaderName, ORIGIN};
use http::{Method, StatusCode};

/// The header in which browsers say from which site a request comes.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The secrets of one run, and its port.
#[derive(Debug)]
pub(super) struct Gate {
    port: u16,
    token: String,
    cookie: String,
}

/// Why a request is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It asks for another host.
    Host,
    /// It comes from another page.
    Origin,
    /// It has no cookie of this run.
    Cookie,
}

impl Refusal {
    /// The status of the answer.
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin => StatusCode::FORBIDDEN,
            Self::Cookie => StatusCode::UNAUTHORIZED,
        }
    }

    /// A sentence for the user.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Host => "This page is on 127.0.0.1 and localhost only.",
            Self::Origin => "This request comes from another page, and is refused.",
            Self::Cookie => "Open the address that `virtctl ui` printed: it has the token of this run.",
        }
    }
}

impl Gate {
    /// The gate of a run on that port. `token` is part of the address; the browser gets `cookie` in exchange
    /// for it.
    pub(super) fn new(port: u16, token: String, cookie: String) -> Self {
        Self { port, token, cookie }
    }

    /// The address for the user.
    pub(super) fn address(&self) -> String {
        format!("http://127.0.0.1:{}/?token={}", self.port, self.token)
    }

    fn hosts(&self) -> [String; 2] {
        ["127.0.0.1", "localhost"].map(|name| format!("{name}:{}", self.port))
    }

    /// Whether the request asks for this server.
    pub(super) fn is_host(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = text(headers, &HOST).unwrap_or_default();
        if self.hosts().iter().any(|ours| ours == host) { Ok(()) } else { Err(Refusal::Host) }
    }

    /// Whether the request may be answered. `upgrade`: it asks for a websocket.
    pub(super) fn admit(&self, method: &Method, upgrade: bool, headers: &HeaderMap) -> Result<(), Refusal> {
        self.is_host(headers)?;
        let host = text(headers, &HOST).unwrap_or_default();
        let ours = match text(headers, &ORIGIN) {
            Some(origin) => origin.strip_prefix("http://") == Some(host),
            None => !headers.contains_key(ORIGIN) && method == Method::GET && !upgrade,
        };
        let site = text(headers, &FETCH_SITE);
        // Browsers send `none` if the user typed the address.
        let same = !headers.contains_key(FETCH_SITE) || matches!(site, Some("same-origin" | "none"));
        if !(ours && same) {
            return Err(Refusal::Origin);
        }
        if self.has_cookie(headers) { Ok(()) } else { Err(Refusal::Cookie) }
    }

    /// The cookie for a request with the right token: the value of `Set-Cookie`. `query` is what follows the
    /// question mark.
    pub(super) fn exchange(&self, query: Option<&str>) -> Option<String> {
        let given = query?.split('&').find_map(|pair| pair.strip_prefix("token="))?;
        let cookie = format!("{}={}; Path=/; HttpOnly; SameSite=Strict", self.cookie_name(), self.cookie);
        same(given, &self.token).then_some(cookie)
    }

    /// Cookies are not bound to a port, so each run has its own name.
    fn cookie_name(&self) -> String {
        format!("virtctl-ui-{}", self.port)
    }

    fn has_cookie(&self, headers: &HeaderMap) -> bool {
        let name = self.cookie_name();
        headers
            .get_all(COOKIE)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(';'))
            .filter_map(|pair| pair.trim().split_once('='))
            .any(|(key, value)| key == name && same(value, &self.cookie))
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name)?.to_str().ok()
}

/// Whether two secrets are the same, compared in constant time.
fn same(given: &str, secret: &str) -> bool {
    let differ = given.bytes().zip(secret.bytes()).fold(0, |differ, (a, b)| differ | (a ^ b));
    given.len() == secret.len() && differ == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gate() -> Gate {
        Gate::new(8080, "the-token".to_owned(), "the-cookie".to_owned())
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    const HOSTS: (&str, &str) = ("host", "127.0.0.1:8080");
    const COOKIES: (&str, &str) = ("cookie", "other=1; virtctl-ui-8080=the-cookie");
    const OURS: (&str, &str) = ("origin", "http://127.0.0.1:8080");

    fn admitted(method: Method, pairs: &[(&'static str, &'static str)]) -> Result<(), Refusal> {
        gate().admit(&method, false, &headers(pairs))
    }

    #[test]
    fn the_token_is_exchanged_for_a_cookie() {
        assert_eq!(gate().address(), "http://127.0.0.1:8080/?token=the-token");
        let cookie = gate().exchange(Some("token=the-token")).unwrap();
        assert_eq!(cookie, "virtctl-ui-8080=the-cookie; Path=/; HttpOnly; SameSite=Strict");
        for query in
            [None, Some(""), Some("token="), Some("token=the-toke"), Some("token=the-tokem"), Some("token")]
        {
            assert_eq!(gate().exchange(query), None, "{query:?}");
        }
    }

    #[test]
    fn our_page_is_answered() {
        assert_eq!(admitted(Method::GET, &[HOSTS, COOKIES]), Ok(()));
        assert_eq!(admitted(Method::POST, &[HOSTS, COOKIES, OURS]), Ok(()));
        let local = [("host", "localhost:8080"), COOKIES, ("origin", "http://localhost:8080")];
        assert_eq!(admitted(Method::POST, &local), Ok(()));
        assert_eq!(admitted(Method::GET, &[HOSTS, COOKIES, ("sec-fetch-site", "same-origin")]), Ok(()));
    }

    #[test]
    fn another_host_is_refused() {
        for host in ["evil.example:8080", "127.0.0.1", "127.0.0.1:80", "localhost:8080.evil.example", ""] {
            assert_eq!(admitted(Method::GET, &[("host", host), COOKIES]), Err(Refusal::Host), "{host}");
        }
        assert_eq!(admitted(Method::GET, &[COOKIES]), Err(Refusal::Host));
    }

    #[test]
    fn another_page_is_refused() {
        for origin in [
            "http://evil.example",
            "null",
            "http://127.0.0.1:8081",
            "http://localhost:8080",
            "https://127.0.0.1:8080",
        ] {
            let refused = admitted(Method::GET, &[HOSTS, COOKIES, ("origin", origin)]);
            assert_eq!(refused, Err(Refusal::Origin), "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            assert_eq!(
                admitted(Method::GET, &[HOSTS, COOKIES, ("sec-fetch-site", site)]),
                Err(Refusal::Origin)
            );
        }
        // Requests that change something, and websockets, need an `Origin`.
        for method in [Method::POST, Method::PUT, Method::DELETE] {
            assert_eq!(admitted(method, &[HOSTS, COOKIES]), Err(Refusal::Origin));
        }
        let upgrade = gate().admit(&Method::GET, true, &headers(&[HOSTS, COOKIES]));
        assert_eq!(upgrade, Err(Refusal::Origin));
        assert_eq!(gate().admit(&Method::GET, true, &headers(&[HOSTS, COOKIES, OURS])), Ok(()));
    }

    #[test]
    fn without_the_cookie_of_this_run_nothing_is_answered() {
        for cookie in
            ["", "virtctl-ui-8080=", "virtctl-ui-8080=the-token", "virtctl-ui-8081=the-cookie", "the-cookie"]
        {
            assert_eq!(admitted(Method::GET, &[HOSTS, ("cookie", cookie)]), Err(Refusal::Cookie), "{cookie}");
        }
        assert_eq!(admitted(Method::POST, &[HOSTS, OURS]), Err(Refusal::Cookie));
    }
}
