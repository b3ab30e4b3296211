//! An upload proxy: HTTPS on this machine's loopback, one request per connection. The first upload is
//! answered with 503.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned, crypto};

/// Longest time that a client may be silent.
const QUIET: Duration = Duration::from_secs(30);
/// Larger than any request of these tests.
const LONGEST: u64 = 64 << 20;

/// The state of the proxy.
struct Shared {
    token: String,
    put_off: AtomicBool,
    ended: AtomicBool,
    images: Mutex<Vec<Vec<u8>>>,
}

/// A proxy for one test, until it is dropped.
pub(super) struct Proxy {
    url: String,
    address: std::net::SocketAddr,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Starts a proxy that accepts images with that token.
    pub(super) fn start(token: &str) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let tls = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            token: token.to_owned(),
            put_off: AtomicBool::new(true),
            ended: AtomicBool::new(false),
            images: Mutex::default(),
        });
        let (tls, known) = (Arc::new(tls), shared.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if known.ended.load(Ordering::Relaxed) {
                    break;
                }
                let (tls, known) = (tls.clone(), known.clone());
                thread::spawn(move || {
                    if let Err(error) = serve(stream, tls, &known) {
                        eprintln!("upload proxy: {error:#}");
                    }
                });
            }
        });
        Ok(Self { url: format!("https://127.0.0.1:{}", address.port()), address, shared })
    }

    /// The URL for a CDIConfig.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The images that arrived.
    pub(super) fn images(&self) -> Vec<Vec<u8>> {
        self.shared.images.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        // This connection wakes the listener, so that it can end.
        let _ = TcpStream::connect(self.address);
    }
}

/// One request, and its answer.
fn serve(stream: TcpStream, tls: Arc<ServerConfig>, known: &Shared) -> Result<()> {
    stream.set_read_timeout(Some(QUIET))?;
    stream.set_write_timeout(Some(QUIET))?;
    let mut stream = BufReader::new(StreamOwned::new(ServerConnection::new(tls)?, stream));
    let (status, text) = answer(&mut stream, known)?;
    let length = text.len();
    let mut stream = stream.into_inner();
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{text}")?;
    stream.conn.send_close_notify();
    stream.flush().context("answer")
}

fn line(stream: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    stream.take(16 << 10).read_line(&mut line)?;
    ensure!(line.ends_with('\n'), "a request ends in its head: {line:?}");
    Ok(line.trim_end().to_owned())
}

fn answer(stream: &mut impl BufRead, known: &Shared) -> Result<(&'static str, &'static str)> {
    let first = line(stream)?;
    let (mut length, mut bearer) = (0, None);
    loop {
        let header = line(stream)?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(": ").with_context(|| format!("no header: {header:?}"))?;
        match name.to_lowercase().as_str() {
            "content-length" => length = value.parse()?,
            "authorization" => bearer = value.strip_prefix("Bearer ").map(str::to_owned),
            _ => {}
        }
    }
    ensure!(length <= LONGEST, "{length} bytes are too many");
    let mut body = Vec::new();
    stream.take(length).read_to_end(&mut body)?;
    ensure!(body.len() as u64 == length, "{} bytes of {length}", body.len());
    if bearer.as_deref() != Some(known.token.as_str()) {
        return Ok(("401 Unauthorized", ""));
    }
    match first.as_str() {
        "HEAD /v1beta1/upload-async HTTP/1.1" => Ok(("200 OK", "")),
        "POST /v1beta1/upload-async HTTP/1.1" if known.put_off.swap(false, Ordering::Relaxed) => {
            Ok(("503 Service Unavailable", "not yet"))
        }
        "POST /v1beta1/upload-async HTTP/1.1" => {
            known.images.lock().unwrap_or_else(PoisonError::into_inner).push(body);
            Ok(("200 OK", ""))
        }
        other => bail!("nobody asks a proxy for {other:?}"),
    }
}
