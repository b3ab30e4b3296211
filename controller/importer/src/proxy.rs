//! Proxies: which requests go through one, and how.
//!
//! ```text
//!   http:   GET http://host/path --> proxy
//!   https:  CONNECT host:443 ------> proxy --200--> TLS with the host
//! ```
//!
//! The names of hosts are resolved by the proxy, so it decides where such a request leads.

use crate::failure::Failure;
use crate::url::{Url, basic};
use barevirt_import_job::Network;
use std::net::IpAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest head of a proxy's answer, in bytes.
const LONGEST_HEAD: usize = 16 << 10;

/// The proxies of an installation.
#[derive(Clone, Debug, Default)]
pub struct Proxies {
    http: Option<Url>,
    https: Option<Url>,
    without: Vec<Without>,
}

/// Hosts to which no proxy leads.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Without {
    /// Each.
    All,
    /// Addresses with these first bits.
    Net(IpAddr, u8),
    /// Names that end with a dot and this one, and this one `itself`; with that port, if one is given.
    Name { name: String, itself: bool, port: Option<u16> },
}

impl Proxies {
    /// The proxies of the settings.
    ///
    /// # Errors
    /// One is not an address of a proxy.
    pub fn of(network: &Network) -> Result<Self, Failure> {
        let proxy = |text: &Option<String>| {
            let Some(text) = text else { return Ok(None) };
            let url = Url::parse(text)?;
            if url.tls {
                return Err(Failure::Final(format!(
                    "proxy {}: only http proxies are supported",
                    url.shown()
                )));
            }
            Ok(Some(url))
        };
        let without = network.no_proxy.split(',').map(str::trim).filter(|text| !text.is_empty());
        Ok(Proxies {
            http: proxy(&network.http_proxy)?,
            https: proxy(&network.https_proxy)?,
            without: without.map(Without::of).collect(),
        })
    }

    /// The proxy for requests to that address.
    #[must_use]
    pub fn to(&self, url: &Url) -> Option<&Url> {
        let proxy = if url.tls { &self.https } else { &self.http };
        proxy.as_ref().filter(|_| !self.without.iter().any(|without| without.has(url)))
    }
}

impl Without {
    fn of(text: &str) -> Self {
        if text == "*" {
            return Without::All;
        }
        if let Some((address, bits)) = text.split_once('/')
            && let (Ok(address), Ok(bits)) = (address.parse::<IpAddr>(), bits.parse())
        {
            return Without::Net(address, bits);
        }
        if let Ok(address) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Without::Net(address, if address.is_ipv4() { 32 } else { 128 });
        }
        let (name, port) = match text.rsplit_once(':') {
            Some((name, port)) if port.parse::<u16>().is_ok() => (name, port.parse().ok()),
            _ => (text, None),
        };
        let below = name.strip_prefix("*.").or_else(|| name.strip_prefix('.'));
        Without::Name { name: below.unwrap_or(name).to_ascii_lowercase(), itself: below.is_none(), port }
    }

    fn has(&self, url: &Url) -> bool {
        match self {
            Without::All => true,
            Without::Net(net, bits) => {
                url.host.parse().is_ok_and(|address| starts_with(address, *net, *bits))
            }
            Without::Name { name, itself, port } => {
                let host = url.host.trim_end_matches('.').to_ascii_lowercase();
                let is_below = host.strip_suffix(name.as_str()).is_some_and(|rest| rest.ends_with('.'));
                (is_below || *itself && host == *name) && port.is_none_or(|port| port == url.port)
            }
        }
    }
}

fn starts_with(address: IpAddr, net: IpAddr, bits: u8) -> bool {
    let (address, net, length) = match (address, net) {
        (IpAddr::V4(address), IpAddr::V4(net)) => (address.to_bits().into(), net.to_bits().into(), 32),
        (IpAddr::V6(address), IpAddr::V6(net)) => (address.to_bits(), net.to_bits(), 128_u8),
        _ => return false,
    };
    let rest = u32::from(length.saturating_sub(bits));
    let first = |bits: u128| bits.checked_shr(rest).unwrap_or(0);
    first(address) == first(net)
}

/// Has a proxy connect to the host of an address.
///
/// # Errors
/// It refuses, or does not speak HTTP.
pub async fn tunnel(stream: &mut TcpStream, proxy: &Url, url: &Url) -> Result<(), Failure> {
    let lost = |error: std::io::Error| Failure::Passing(format!("ask proxy {}: {error}", proxy.shown()));
    let host = if url.host.contains(':') { format!("[{}]", url.host) } else { url.host.clone() };
    let mut head = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n", port = url.port);
    if let Some(login) = login(proxy) {
        head.push_str(&format!("Proxy-Authorization: {login}\r\n"));
    }
    stream.write_all(format!("{head}\r\n").as_bytes()).await.map_err(lost)?;
    let mut answer = vec![];
    // The host says nothing before the client does, so that nothing follows the head.
    while !answer.ends_with(b"\r\n\r\n") {
        let mut buffer = [0; 1024];
        let count = stream.read(&mut buffer).await.map_err(lost)?;
        answer.extend_from_slice(&buffer[..count]);
        if count == 0 || answer.len() > LONGEST_HEAD {
            return Err(lost(std::io::ErrorKind::InvalidData.into()));
        }
    }
    let line = String::from_utf8_lossy(&answer);
    let line = line.lines().next().unwrap_or_default();
    let status = line.strip_prefix("HTTP/1.").and_then(|line| line.split(' ').nth(1));
    match status.unwrap_or_default() {
        "200" => Ok(()),
        // A proxy answers so as well if the host cannot be reached for a while.
        status => Err(Failure::Passing(format!(
            "proxy {} does not connect to {}: it answers {}",
            proxy.shown(),
            url.origin(),
            status.get(..3).unwrap_or("something else")
        ))),
    }
}

/// The value of `Proxy-Authorization`.
pub(crate) fn login(proxy: &Url) -> Option<String> {
    let login = proxy.login.as_ref()?;
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    Some(basic(user, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(no_proxy: &str) -> Proxies {
        let proxy = |name: &str| Some(format!("http://{name}.example:3128"));
        let (http_proxy, https_proxy) = (proxy("plain"), proxy("secure"));
        let network =
            Network { http_proxy, https_proxy, no_proxy: no_proxy.to_owned(), ..Network::default() };
        Proxies::of(&network).unwrap()
    }

    #[test]
    fn each_scheme_has_its_proxy() {
        let to = |url: &str| proxies("").to(&Url::parse(url).unwrap()).map(|proxy| proxy.host.clone());
        assert_eq!(to("http://a.example/").as_deref(), Some("plain.example"));
        assert_eq!(to("https://a.example/").as_deref(), Some("secure.example"));
        let none = Proxies::of(&Network::default()).unwrap();
        assert!(none.to(&Url::parse("http://a.example/").unwrap()).is_none());
        let secure = Network { http_proxy: Some("https://p.example".to_owned()), ..Network::default() };
        assert!(Proxies::of(&secure).unwrap_err().to_string().contains("only http proxies"));
    }

    #[test]
    fn no_proxy_leads_to_hosts_that_are_listed() {
        for (list, host, direct) in [
            ("*", "a.example", true),
            ("a.example", "a.example", true),
            ("A.example", "a.EXAMPLE.", true),
            ("a.example", "b.a.example", true),
            ("a.example", "ba.example", false),
            (".a.example", "a.example", false),
            (".a.example", "b.a.example", true),
            ("*.a.example", "b.a.example", true),
            ("x, .svc ,y", "web.shop.svc", true),
            ("10.0.0.0/8", "10.9.9.9", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("0.0.0.0/0", "11.0.0.1", true),
            ("10.0.0.0/8", "ten.example", false),
            ("10.1.1.1", "10.1.1.1", true),
            ("10.1.1.1", "10.1.1.2", false),
            ("fd00::/8", "[fd12::1]", true),
            ("[fd12::1]", "[fd12::1]", true),
            ("fd00::/8", "[fe80::1]", false),
            ("::/0", "10.1.1.1", false),
            ("a.example:80", "a.example", true),
            ("a.example:81", "a.example", false),
            ("", "a.example", false),
        ] {
            let url = Url::parse(&format!("http://{host}/")).unwrap();
            assert_eq!(proxies(list).to(&url).is_none(), direct, "{list:?} {host}");
        }
    }
}
