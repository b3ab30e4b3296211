//! `virtctl port-forward`, the program itself, against an API server that opens its stream.

#![allow(clippy::unwrap_used)] // A test fails by panicking, helpers of tests too.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

/// How long the program may take.
const SOON: Duration = Duration::from_secs(30);
/// The first bytes of messages without a mask: binary, and the last one.
const BINARY: u8 = 0x82;
const CLOSE: u8 = 0x88;

/// Answers one request for a websocket.
fn open_stream(listener: &TcpListener) -> TcpStream {
    let (mut connection, _) = listener.accept().unwrap();
    let mut lines = BufReader::new(connection.try_clone().unwrap()).lines();
    let mut key = String::new();
    while let Some(line) = lines.next().transpose().unwrap().filter(|line| !line.is_empty()) {
        let header = line.split_once(": ");
        if let Some((_, value)) = header.filter(|(name, _)| name.eq_ignore_ascii_case("sec-websocket-key")) {
            value.clone_into(&mut key);
        }
    }
    let accept = derive_accept_key(key.as_bytes());
    let answer = format!(
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: {accept}\r\n\
         Sec-WebSocket-Protocol: plain.kubevirt.io\r\n\r\n"
    );
    connection.write_all(answer.as_bytes()).unwrap();
    connection
}

/// A message, without a mask as servers send it.
fn message(kind: u8, contents: &[u8]) -> Vec<u8> {
    let length = u8::try_from(contents.len()).unwrap();
    [&[kind, length], contents].concat()
}

/// Waits until the program has ended; ends it if it takes too long.
fn end(child: &mut Child) -> Option<i32> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        if begun.elapsed() > SOON {
            child.kill().unwrap();
            return None;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_forward_to_standard_output_ends_with_its_guest_although_standard_input_is_open() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = format!("http://{}", listener.local_addr().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_virtctl"));
    command.args(["--server", &server, "port-forward", "--stdio=true", "vmi/web/shop", "22"]);
    command.env("KUBECONFIG", folder.path().join("none")).env_remove("KUBERNETES_SERVICE_HOST");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stream = open_stream(&listener);
    stream.write_all(&message(BINARY, b"hello")).unwrap();
    let reason = [&1000_u16.to_be_bytes()[..], b"the guest has moved"].concat();
    stream.write_all(&message(CLOSE, &reason)).unwrap();
    // This end of its standard input is held until then.
    let code = end(&mut child);
    let (mut out, mut err) = (String::new(), String::new());
    child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert_eq!((code, out.as_str(), err.trim()), (Some(0), "hello", "the guest has moved"));
}
