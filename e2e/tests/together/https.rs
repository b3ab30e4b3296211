//! An HTTPS server of a test, on this machine's loopback: one request per connection, and no library between the test and what it
//! sends, so that a test can answer what it wants.

use anyhow::{Context, Result, ensure};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned, crypto};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

/// Longest time that a client may be silent.
const QUIET: Duration = Duration::from_secs(30);
/// Larger than any request of these tests.
const LONGEST: u64 = 64 << 20;

/// A request.
pub(crate) struct Request {
    /// The first line, such as `HEAD / HTTP/1.1`.
    pub line: String,
    /// Value of the header `Authorization`.
    pub authorization: Option<String>,
    /// The body.
    pub body: Vec<u8>,
}

/// Status and body of an answer.
pub(crate) type Answer = (&'static str, String);

/// A server, until it is dropped.
pub(crate) struct Server {
    address: SocketAddr,
    certificate: String,
    ended: Arc<AtomicBool>,
}

impl Server {
    /// Starts a server with a certificate of its own.
    pub(crate) fn start(answer: impl Fn(Request) -> Result<Answer> + Send + Sync + 'static) -> Result<Self> {
        let made = rcgen::generate_simple_self_signed(["localhost", "127.0.0.1"].map(str::to_owned))?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let tls = ServerConfig::builder_with_provider(Arc::new(crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(vec![made.cert.der().clone()], key)?;
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let ended = Arc::new(AtomicBool::new(false));
        let (tls, answer, over) = (Arc::new(tls), Arc::new(answer), ended.clone());
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                if over.load(Ordering::Relaxed) {
                    break;
                }
                let (tls, answer) = (tls.clone(), answer.clone());
                thread::spawn(move || {
                    if let Err(error) = serve(stream, tls, &*answer) {
                        eprintln!("HTTPS server of the test: {error:#}");
                    }
                });
            }
        });
        Ok(Self { address, certificate: made.cert.pem(), ended })
    }

    /// The server's address as a URL without a path.
    pub(crate) fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// The server's certificate, PEM.
    pub(crate) fn certificate(&self) -> &str {
        &self.certificate
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // This connection wakes the listener, so that it can end.
        let _ = TcpStream::connect(self.address);
    }
}

/// One request, and its answer.
fn serve(
    stream: TcpStream,
    tls: Arc<ServerConfig>,
    answer: impl Fn(Request) -> Result<Answer>,
) -> Result<()> {
    stream.set_read_timeout(Some(QUIET))?;
    stream.set_write_timeout(Some(QUIET))?;
    let mut stream = BufReader::new(StreamOwned::new(ServerConnection::new(tls)?, stream));
    let (status, text) = answer(read(&mut stream)?)?;
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

fn read(stream: &mut impl BufRead) -> Result<Request> {
    let first = line(stream)?;
    let (mut length, mut authorization) = (0, None);
    loop {
        let header = line(stream)?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(": ").with_context(|| format!("no header: {header:?}"))?;
        match name.to_lowercase().as_str() {
            "content-length" => length = value.parse()?,
            "authorization" => authorization = Some(value.to_owned()),
            _ => {}
        }
    }
    ensure!(length <= LONGEST, "{length} bytes are too many");
    let mut body = Vec::new();
    stream.take(length).read_to_end(&mut body)?;
    ensure!(body.len() as u64 == length, "{} bytes of {length}", body.len());
    Ok(Request { line: first, authorization, body })
}
