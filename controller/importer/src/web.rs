//! A request to a web server, with its redirects.
//!
//! ```text
//!   address --resolve--> addresses --(allowed?)--> connection --> answer --3xx--> next address
//!      \--(is there a proxy for it?)--> proxy ----------/
//! ```

use crate::address::{Addresses, Reach};
use crate::failure::Failure;
use crate::proxy::{self, Proxies};
use crate::s3::Signer;
use crate::url::{Url, basic};
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

/// Most redirects that are followed.
const MOST_REDIRECTS: usize = 10;
/// Most addresses of a host that are tried.
const MOST_ADDRESSES: usize = 4;
/// Most header lines of an answer.
const MOST_HEADERS: usize = 100;

/// Time limits and retries.
#[derive(Clone, Debug)]
pub struct RetryPolicy {
    /// For a connection, with TLS; for each of a host's addresses.
    pub connect: Duration,
    /// For the head of an answer.
    pub answer: Duration,
    /// The time within which [`RetryPolicy::least`] bytes must arrive.
    pub stall: Duration,
    /// Minimum number of bytes in [`RetryPolicy::stall`]; with fewer the connection is given up.
    pub least: u64,
    /// Most consecutive tries without progress.
    pub tries: u32,
    /// Pause before the second try; doubled each time, up to [`RetryPolicy::longest_pause`].
    pub pause: Duration,
    /// The longest pause.
    pub longest_pause: Duration,
    /// The time that any disk may take.
    pub whole: Duration,
    /// Bytes of a disk for each further second.
    pub pace: u64,
}

impl RetryPolicy {
    /// The longest time for a disk of that size, in bytes, however steadily its server sends.
    #[must_use]
    pub fn longest(&self, size: u64) -> Duration {
        self.whole.saturating_add(Duration::from_secs(size / self.pace.max(1)))
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        RetryPolicy {
            connect: Duration::from_secs(15),
            answer: Duration::from_secs(60),
            stall: Duration::from_secs(120),
            least: 64 << 10,
            tries: 6,
            pause: Duration::from_secs(1),
            longest_pause: Duration::from_secs(30),
            // A day for ten gibibytes, over a line of a megabit in a second.
            whole: Duration::from_secs(60 * 60),
            pace: 128 << 10,
        }
    }
}

/// An HTTP client.
#[derive(Clone, Debug)]
pub struct Web {
    /// TLS with the trusted authorities.
    pub tls: Arc<ClientConfig>,
    /// The addresses that may be connected to.
    pub addresses: Addresses,
    /// The proxies that lead to them.
    pub proxies: Arc<Proxies>,
    /// Its time limits and retries.
    pub policy: RetryPolicy,
    /// The name that a server's certificate must have, if it is not the host's.
    pub name: Option<&'static str>,
}

/// A request.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Its address.
    pub url: Url,
    /// Header lines only for this server: they may be secret.
    pub private: HeaderMap,
    /// Header lines for every server, also after redirects.
    pub headers: HeaderMap,
    /// Signer of the requests to this server.
    pub signer: Option<Signer>,
}

/// An answer.
#[derive(Debug)]
pub struct Answer {
    /// The address that answered.
    pub url: Url,
    /// Its status.
    pub status: StatusCode,
    /// Its header lines.
    pub headers: HeaderMap,
    /// Its body.
    pub body: Incoming,
    /// The network of the server that answered.
    pub reach: Reach,
    /// The connection's task, which ends with this answer.
    connection: JoinSet<()>,
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Web {
    /// Sends a GET request, and follows redirects. Answers with any other status are returned.
    ///
    /// # Errors
    /// There is no answer, or a redirect leads to a forbidden address.
    pub async fn get(&self, ask: &Ask) -> Result<Answer, Failure> {
        self.get_from(ask, None).await
    }

    /// The same; `from`: the network of the server that named the address, if one did. It may name only what it may redirect to.
    ///
    /// # Errors
    /// There is no answer, or the address or that of a redirect is forbidden.
    pub async fn get_from(&self, ask: &Ask, mut from: Option<Reach>) -> Result<Answer, Failure> {
        let mut url = ask.url.clone();
        for _ in 0..=MOST_REDIRECTS {
            let answer = self.once(ask, &url, from).await?;
            if !answer.status.is_redirection() || answer.status == StatusCode::NOT_MODIFIED {
                return Ok(answer);
            }
            let location = answer.headers.get(header::LOCATION).and_then(|value| value.to_str().ok());
            let location = location.ok_or_else(|| {
                Failure::Final(format!(
                    "{} redirects ({}) without saying where to",
                    url.shown(),
                    answer.status
                ))
            })?;
            url = answer.url.follow(location)?;
            from = Some(answer.reach);
        }
        Err(Failure::Final(format!("{} redirects more than {MOST_REDIRECTS} times", ask.url.shown())))
    }

    /// Sends one request. `from`: the network of the server that led here.
    async fn once(&self, ask: &Ask, url: &Url, from: Option<Reach>) -> Result<Answer, Failure> {
        let proxy = self.proxies.to(url);
        let (stream, reach) = match proxy {
            None => self.connect(url, from).await?,
            Some(proxy) => self.through(proxy, url, from).await?,
        };
        // A proxy that is no tunnel needs to know whom to ask.
        let asked = proxy.filter(|_| !url.tls);
        let mut request = match asked {
            None => Request::get(&url.path),
            Some(_) => Request::get(format!("http://{}{}", url.authority(), url.path)),
        };
        if let Some(headers) = request.headers_mut() {
            if let Some(login) = asked.and_then(proxy::login)
                && let Ok(value) = HeaderValue::from_str(&login)
            {
                headers.insert(header::PROXY_AUTHORIZATION, value);
            }
            headers.insert(header::USER_AGENT, HeaderValue::from_static("virt-importer"));
            headers.insert(header::ACCEPT, HeaderValue::from_static("*/*"));
            // Bytes are counted and ranges requested in the server's own encoding.
            headers.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            if let Ok(host) = HeaderValue::from_str(&url.authority()) {
                headers.insert(header::HOST, host);
            }
            let own = (url.origin() == ask.url.origin()).then_some(&ask.private);
            for (name, value) in ask.headers.iter().chain(own.iter().copied().flatten()) {
                headers.insert(name, value.clone());
            }
            if let Some(login) = &url.login
                && !headers.contains_key(header::AUTHORIZATION)
            {
                let (user, password) = login.split_once(':').unwrap_or((login, ""));
                if let Ok(value) = HeaderValue::from_str(&basic(user, password)) {
                    headers.insert(header::AUTHORIZATION, value);
                }
            }
            if own.is_some()
                && let Some(signer) = &ask.signer
            {
                signer.sign(headers, url, SystemTime::now());
            }
        }
        let request = request
            .body(Empty::<Bytes>::new())
            .map_err(|error| Failure::Final(format!("ask {}: {error}", url.shown())))?;
        let lost = |error: hyper::Error| {
            let why =
                std::error::Error::source(&error).map(|source| format!(": {source}")).unwrap_or_default();
            Failure::Passing(format!("ask {}: {error}{why}", url.shown()))
        };
        let (mut sender, connection) = http1::Builder::new()
            .max_headers(MOST_HEADERS)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(lost)?;
        let mut connections = JoinSet::new();
        connections.spawn(async move {
            // The reader of the answer gets the error as well.
            let _ = connection.await;
        });
        let late = |_| Failure::Passing(format!("ask {}: no answer in time", url.shown()));
        let answer =
            timeout(self.policy.answer, sender.send_request(request)).await.map_err(late)?.map_err(lost)?;
        let (head, body) = answer.into_parts();
        Ok(Answer {
            url: url.clone(),
            status: head.status,
            headers: head.headers,
            body,
            reach,
            connection: connections,
        })
    }

    async fn connect(&self, url: &Url, from: Option<Reach>) -> Result<(Box<dyn Stream>, Reach), Failure> {
        let open = |address: SocketAddr| async move {
            let reach = self.permitted(address.ip(), url, from)?;
            let stream = TcpStream::connect(address).await.map_err(|error| unconnected(url, &error))?;
            Ok((self.secured(url, stream).await?, reach))
        };
        self.first_of(url, "it has no address", open).await
    }

    /// Connects through a proxy, which resolves the host's name.
    async fn through(
        &self,
        proxy: &Url,
        url: &Url,
        from: Option<Reach>,
    ) -> Result<(Box<dyn Stream>, Reach), Failure> {
        let reach = match url.host.parse() {
            Ok(address) => self.permitted(address, url, from)?,
            // So that it leads to no private server by a redirect.
            Err(_) => Reach::Public,
        };
        let open = |address: SocketAddr| async move {
            let stream = TcpStream::connect(address).await;
            let mut stream = stream.map_err(|error| unconnected(proxy, &error))?;
            if !url.tls {
                return Ok((Box::new(stream) as Box<dyn Stream>, reach));
            }
            proxy::tunnel(&mut stream, proxy, url).await?;
            Ok((self.secured(url, stream).await?, reach))
        };
        self.first_of(proxy, "the proxy has no address", open).await
    }

    /// The first connection that comes about, of all addresses of a server; else why the last one did not. `none`: what is wrong
    /// if there is no address.
    async fn first_of<T, F: Future<Output = Result<T, Failure>>>(
        &self,
        server: &Url,
        none: &str,
        open: impl Fn(SocketAddr) -> F,
    ) -> Result<T, Failure> {
        let mut last = unconnected(server, &none);
        for address in self.resolve(server).await? {
            match timeout(self.policy.connect, open(address)).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(failure)) => last = failure,
                Err(_) => last = unconnected(server, &"no connection in time"),
            }
        }
        Err(last)
    }

    async fn resolve(&self, url: &Url) -> Result<Vec<SocketAddr>, Failure> {
        let found = timeout(self.policy.connect, lookup_host((url.host.as_str(), url.port))).await;
        let found = found.map_err(|_| unconnected(url, &"its name was not resolved in time"))?;
        Ok(found.map_err(|error| unconnected(url, &error))?.take(MOST_ADDRESSES).collect())
    }

    /// The network of an address that may be connected to.
    fn permitted(&self, address: IpAddr, url: &Url, from: Option<Reach>) -> Result<Reach, Failure> {
        let reach = self.addresses.reach(address);
        match self.addresses.forbids(from, reach) {
            None => Ok(reach),
            Some(why) => {
                let text = format!("address {address} of {} may not be connected to: {why}", url.host);
                // As where no server listens: its name may lead elsewhere later. What a server chooses stays refused.
                let is_absent = from.is_none() && self.addresses.is_own(address);
                Err(if is_absent { Failure::Passing(text) } else { Failure::Final(text) })
            }
        }
    }

    /// Adds TLS, if the address has it.
    async fn secured(&self, url: &Url, stream: TcpStream) -> Result<Box<dyn Stream>, Failure> {
        if !url.tls {
            return Ok(Box::new(stream));
        }
        let origin = url.origin();
        let name = self.name.map_or_else(|| url.host.clone(), str::to_owned);
        let name = ServerName::try_from(name)
            .map_err(|error| Failure::Final(format!("connect to {origin}: {error}")))?;
        match TlsConnector::from(self.tls.clone()).connect(name, stream).await {
            Ok(stream) => Ok(Box::new(stream)),
            Err(error) => {
                let tls = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
                let text = format!("connect to {origin} with TLS: {error}");
                Err(match tls {
                    Some(rustls::Error::InvalidCertificate(_) | rustls::Error::InvalidMessage(_)) => {
                        Failure::Final(text)
                    }
                    _ => Failure::Passing(text),
                })
            }
        }
    }
}

fn unconnected(url: &Url, why: &dyn std::fmt::Display) -> Failure {
    Failure::Passing(format!("connect to {}: {why}", url.origin()))
}

impl Answer {
    /// The whole body, at most `most` bytes.
    ///
    /// # Errors
    /// It is longer, or cannot be read.
    pub async fn whole(self, most: usize, within: Duration) -> Result<Bytes, Failure> {
        let Answer { url, body, connection: _connection, .. } = self;
        let body = timeout(within, Limited::new(body, most).collect()).await;
        let body = body.map_err(|_| Failure::Passing(format!("read {}: not in time", url.shown())))?;
        let body = body.map_err(|error| Failure::Passing(format!("read {}: {error}", url.shown())))?;
        Ok(body.to_bytes())
    }

    /// A header line of the answer, if it is text.
    #[must_use]
    pub fn header(&self, name: HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// Why this answer is not an image. A server error may be temporary.
    #[must_use]
    pub fn refusal(&self) -> Failure {
        let text = format!("{} answers {}", self.url.shown(), self.status);
        let passes = [StatusCode::REQUEST_TIMEOUT, StatusCode::TOO_EARLY, StatusCode::TOO_MANY_REQUESTS]
            .contains(&self.status);
        if self.status.is_server_error() || passes { Failure::Passing(text) } else { Failure::Final(text) }
    }
}

/// Parses a header line that a user wrote.
///
/// # Errors
/// It is not a header line.
pub fn header_line(line: &str) -> Result<(HeaderName, HeaderValue), Failure> {
    let wrong = || Failure::Final("a header line is not written \"Name: value\"".to_owned());
    let (name, value) = line.trim().split_once(':').ok_or_else(wrong)?;
    let name = HeaderName::from_bytes(name.trim().as_bytes()).map_err(|_| wrong())?;
    let mut value = HeaderValue::from_str(value.trim()).map_err(|_| wrong())?;
    value.set_sensitive(true);
    if [header::HOST, header::RANGE, header::CONTENT_LENGTH, header::TRANSFER_ENCODING, header::CONNECTION]
        .contains(&name)
    {
        return Err(Failure::Final(format!("header {name} must not be given")));
    }
    Ok((name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_has_an_hour_and_a_time_that_grows_with_its_size() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.longest(0), Duration::from_secs(3600));
        assert_eq!(policy.longest(10 << 30), Duration::from_secs(3600 + 81920));
        assert!(policy.longest(u64::MAX) > policy.longest(1 << 50));
    }

    #[test]
    fn header_lines_that_are_ours_are_not_to_be_given() {
        assert!(header_line("X-A: b: c").is_ok());
        for bad in ["", "X", "Host: a", "range: bytes=0-", "X-A: b\nHost: c", "X A: b"] {
            assert!(header_line(bad).unwrap_err().is_final(), "{bad}");
        }
    }
}
