//! Decides which requests are answered. Pure.
//!
//! The loopback is open to every user and every page of this machine. So a request must have the token of this run, which
//! only the page at the printed address gets, and must come from that page:
//!
//! - `Host` is ours: another name that resolves to this address (DNS rebinding) is refused.
//! - `Origin`, and `Sec-Fetch-Site` if the browser sends it, are ours. A request that changes something, or
//!   asks for a websocket, must have an `Origin`.
//! - No answer has a CORS header, so no other page can read an answer.
//!
//! The token is in the fragment of the address, which browsers send to no server. The page reads it there, keeps it in the
//! storage of its tab for this host and port, and gives it with each request: in a header, or as a protocol of a
//! websocket. It is not in a cookie, since a browser sends the cookies of 127.0.0.1 to all ports.
//!
//! The files of the page have no secrets: they are the same in every virtctl. Another page loads none of them; only the
//! page itself may be opened by a link.

use http::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, ORIGIN, SEC_WEBSOCKET_PROTOCOL};
use http::{Method, StatusCode};

/// The header in which browsers say from which site a request comes.
const FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
/// The protocol of our websockets, beside the one with the token.
pub(super) const PROTOCOL: &str = "virtctl-ui";

/// The secret of one run, and its port.
#[derive(Debug)]
pub(super) struct Gate {
    port: u16,
    token: String,
}

/// Why a request is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    /// It asks for another host.
    Host,
    /// It comes from another page.
    Origin,
    /// It does not have the token of this run.
    Token,
}

impl Refusal {
    /// The status of the answer.
    pub(super) fn status(self) -> StatusCode {
        match self {
            Self::Host => StatusCode::MISDIRECTED_REQUEST,
            Self::Origin => StatusCode::FORBIDDEN,
            Self::Token => StatusCode::UNAUTHORIZED,
        }
    }

    /// A sentence for the user.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Host => "This page is on 127.0.0.1 and localhost only.",
            Self::Origin => "This request comes from another page, and is refused.",
            Self::Token => "Open the address that `virtctl ui` printed: it has the token of this run.",
        }
    }
}

impl Gate {
    /// The gate of a run on that port. `token` is part of the address.
    pub(super) fn new(port: u16, token: String) -> Self {
        Self { port, token }
    }

    /// The address for the user.
    pub(super) fn address(&self) -> String {
        format!("http://127.0.0.1:{}/#token={}", self.port, self.token)
    }

    fn hosts(&self) -> [String; 2] {
        ["127.0.0.1", "localhost"].map(|name| format!("{name}:{}", self.port))
    }

    fn is_host(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        let host = text(headers, &HOST).unwrap_or_default();
        if self.hosts().iter().any(|ours| ours == host) { Ok(()) } else { Err(Refusal::Host) }
    }

    /// Whether a file of the page may be sent.
    pub(super) fn show(&self, path: &str, headers: &HeaderMap) -> Result<(), Refusal> {
        self.is_host(headers)?;
        if path == "/" || is_own_site(headers) { Ok(()) } else { Err(Refusal::Origin) }
    }

    /// Whether any other request may be answered. `upgrade`: it asks for a websocket.
    pub(super) fn admit(&self, method: &Method, upgrade: bool, headers: &HeaderMap) -> Result<(), Refusal> {
        self.is_host(headers)?;
        let host = text(headers, &HOST).unwrap_or_default();
        let ours = match text(headers, &ORIGIN) {
            Some(origin) => origin.strip_prefix("http://") == Some(host),
            None => !headers.contains_key(ORIGIN) && method == Method::GET && !upgrade,
        };
        if !(ours && is_own_site(headers)) {
            return Err(Refusal::Origin);
        }
        if self.has_token(upgrade, headers) { Ok(()) } else { Err(Refusal::Token) }
    }

    fn has_token(&self, upgrade: bool, headers: &HeaderMap) -> bool {
        let given = text(headers, &AUTHORIZATION).and_then(|value| value.strip_prefix("Bearer "));
        // A page cannot add headers to the request for a websocket, but protocols.
        let offered = headers
            .get_all(SEC_WEBSOCKET_PROTOCOL)
            .iter()
            .filter(|_| upgrade)
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|protocol| protocol.trim().strip_prefix("token-"));
        given.into_iter().chain(offered).any(|given| same(given, &self.token))
    }
}

/// Whether the browser says that the request comes from the page itself, or that the user typed the address; or says nothing.
fn is_own_site(headers: &HeaderMap) -> bool {
    let site = text(headers, &FETCH_SITE);
    !headers.contains_key(FETCH_SITE) || matches!(site, Some("same-origin" | "none"))
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
        Gate::new(8080, "the-token".to_owned())
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    const HOSTS: (&str, &str) = ("host", "127.0.0.1:8080");
    const TOKEN: (&str, &str) = ("authorization", "Bearer the-token");
    const OFFERED: (&str, &str) = ("sec-websocket-protocol", "virtctl-ui, token-the-token");
    const OURS: (&str, &str) = ("origin", "http://127.0.0.1:8080");

    fn admitted(method: Method, pairs: &[(&'static str, &'static str)]) -> Result<(), Refusal> {
        gate().admit(&method, false, &headers(pairs))
    }

    fn upgraded(pairs: &[(&'static str, &'static str)]) -> Result<(), Refusal> {
        gate().admit(&Method::GET, true, &headers(pairs))
    }

    #[test]
    fn the_token_is_where_a_browser_sends_it_to_no_server() {
        assert_eq!(gate().address(), "http://127.0.0.1:8080/#token=the-token");
    }

    #[test]
    fn our_page_is_answered() {
        assert_eq!(admitted(Method::GET, &[HOSTS, TOKEN]), Ok(()));
        assert_eq!(admitted(Method::POST, &[HOSTS, TOKEN, OURS]), Ok(()));
        let local = [("host", "localhost:8080"), TOKEN, ("origin", "http://localhost:8080")];
        assert_eq!(admitted(Method::POST, &local), Ok(()));
        assert_eq!(admitted(Method::GET, &[HOSTS, TOKEN, ("sec-fetch-site", "same-origin")]), Ok(()));
        assert_eq!(upgraded(&[HOSTS, OFFERED, OURS]), Ok(()));
    }

    #[test]
    fn another_host_is_refused() {
        for host in ["evil.example:8080", "127.0.0.1", "127.0.0.1:80", "localhost:8080.evil.example", ""] {
            assert_eq!(admitted(Method::GET, &[("host", host), TOKEN]), Err(Refusal::Host), "{host}");
            assert_eq!(gate().show("/", &headers(&[("host", host)])), Err(Refusal::Host), "{host}");
        }
        assert_eq!(admitted(Method::GET, &[TOKEN]), Err(Refusal::Host));
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
            let refused = admitted(Method::GET, &[HOSTS, TOKEN, ("origin", origin)]);
            assert_eq!(refused, Err(Refusal::Origin), "{origin}");
        }
        for site in ["cross-site", "same-site"] {
            assert_eq!(
                admitted(Method::GET, &[HOSTS, TOKEN, ("sec-fetch-site", site)]),
                Err(Refusal::Origin)
            );
        }
        // Requests that change something, and websockets, need an `Origin`.
        for method in [Method::POST, Method::PUT, Method::DELETE] {
            assert_eq!(admitted(method, &[HOSTS, TOKEN]), Err(Refusal::Origin));
        }
        assert_eq!(upgraded(&[HOSTS, OFFERED]), Err(Refusal::Origin));
    }

    #[test]
    fn another_page_loads_no_file_but_leads_to_the_page() {
        let show = |path: &str, site| gate().show(path, &headers(&[HOSTS, ("sec-fetch-site", site)]));
        for site in ["cross-site", "same-site"] {
            assert_eq!(show("/app.js", site), Err(Refusal::Origin), "{site}");
            assert_eq!(show("/", site), Ok(()), "{site}");
        }
        assert_eq!(show("/app.js", "same-origin"), Ok(()));
        assert_eq!(gate().show("/app.js", &headers(&[HOSTS])), Ok(()));
    }

    #[test]
    fn without_the_token_of_this_run_nothing_is_answered() {
        for given in ["", "Bearer ", "Bearer the-toke", "Bearer the-tokem", "Bearer the-token2", "the-token"]
        {
            assert_eq!(
                admitted(Method::GET, &[HOSTS, ("authorization", given)]),
                Err(Refusal::Token),
                "{given}"
            );
        }
        for given in ["virtctl-ui", "token-", "token-the-tokem", "the-token"] {
            let offered = [HOSTS, OURS, ("sec-websocket-protocol", given)];
            assert_eq!(upgraded(&offered), Err(Refusal::Token), "{given}");
        }
        assert_eq!(admitted(Method::POST, &[HOSTS, OURS]), Err(Refusal::Token));
        // Only a websocket has protocols, and nothing has a cookie.
        assert_eq!(admitted(Method::GET, &[HOSTS, OFFERED]), Err(Refusal::Token));
        assert_eq!(admitted(Method::GET, &[HOSTS, ("cookie", "token=the-token")]), Err(Refusal::Token));
    }
}
