//! A web server that answers as a test says: the real protocol on loopback, without a library that would correct errors.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A request: its path with query, and its header lines by name in lower case.
#[derive(Clone, Debug, Default)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
}

impl Request {
    /// Where a range begins.
    pub(crate) fn start(&self) -> Option<usize> {
        self.headers.get("range")?.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }
}

/// An answer: raw bytes, then what follows.
pub(crate) struct Answer {
    pub(crate) bytes: Vec<u8>,
    pub(crate) then: Then,
}

/// What follows an answer.
pub(crate) enum Then {
    /// The connection is closed.
    Close,
    /// The connection stays open for a while.
    Wait,
    /// These bytes again and again, up to a bound: an importer without limits is not to fill the disk.
    Repeat { bytes: Vec<u8>, pause: Duration },
}

/// Most bytes of an answer that is repeated.
const MOST_REPEATED: usize = 256 << 20;

/// A server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Starts a server that answers each request with `answer`.
    pub(crate) fn start(answer: impl Fn(&Request) -> Answer + Send + Sync + 'static) -> Self {
        Self::start_at(Ipv4Addr::LOCALHOST, answer)
    }

    pub(crate) fn start_at(
        ip: Ipv4Addr,
        answer: impl Fn(&Request) -> Answer + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((IpAddr::V4(ip), 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let requests = Arc::new(Mutex::new(vec![]));
        let (seen, answer) = (requests.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (seen, answer) = (seen.clone(), answer.clone());
                std::thread::spawn(move || serve(stream, &seen, &*answer));
            }
        });
        Server { address, requests }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.requests.lock().unwrap().clone()
    }
}

fn serve(mut stream: TcpStream, seen: &Mutex<Vec<Request>>, answer: &dyn Fn(&Request) -> Answer) {
    let mut bytes = vec![];
    while !bytes.windows(4).any(|end| end == b"\r\n\r\n") {
        let mut buffer = [0; 1024];
        match stream.read(&mut buffer) {
            // TLS, from a client that expects it.
            Ok(1..) if bytes.is_empty() && buffer[0] == 0x16 => {
                let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
                return;
            }
            Ok(count @ 1..) => bytes.extend_from_slice(&buffer[..count]),
            _ => return,
        }
    }
    let text = String::from_utf8(bytes).unwrap();
    let mut lines = text.lines();
    let path = lines.next().unwrap().split(' ').nth(1).unwrap().to_owned();
    let headers = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(name, value)| (name.to_lowercase(), value.to_owned()))
        .collect();
    let request = Request { path, headers };
    seen.lock().unwrap().push(request.clone());
    let Answer { bytes, then } = answer(&request);
    if stream.write_all(&bytes).is_err() {
        return;
    }
    match then {
        Then::Close => {}
        Then::Wait => std::thread::sleep(Duration::from_secs(30)),
        Then::Repeat { bytes, pause } => {
            for _ in 0..MOST_REPEATED / bytes.len() {
                if stream.write_all(&bytes).is_err() {
                    break;
                }
                std::thread::sleep(pause);
            }
        }
    }
    let _ = stream.shutdown(Shutdown::Both);
}

/// A complete answer.
pub(crate) fn said(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut headers = headers.to_vec();
    let length = body.len().to_string();
    headers.push(("Content-Length", &length));
    head(status, &headers, body)
}

/// An answer with only these header lines.
pub(crate) fn head(status: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut text = format!("HTTP/1.1 {status}\r\n");
    for (name, value) in headers {
        text.push_str(&format!("{name}: {value}\r\n"));
    }
    let mut bytes = (text + "\r\n").into_bytes();
    bytes.extend_from_slice(body);
    Answer { bytes, then: Then::Close }
}

/// A file, from a server that supports ranges.
pub(crate) fn file(request: &Request, body: &[u8]) -> Answer {
    match request.start() {
        Some(start) => {
            let range = format!("bytes {start}-{}/{}", body.len() - 1, body.len());
            said("206 Partial Content", &[("Content-Range", &range), ("ETag", "\"1\"")], &body[start..])
        }
        None => said("200 OK", &[("ETag", "\"1\"")], body),
    }
}
