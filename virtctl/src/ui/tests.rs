//! The page's server between a browser and an API server, both of which speak the real protocols on sockets.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use http::{HeaderValue, header};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;
use tokio_tungstenite::tungstenite::protocol::{CloseFrame, Role};
use tokio_tungstenite::tungstenite::{self, Message};

use super::ask::Cluster;
use super::gate::Gate;
use super::serve::{self, Server};

const SOON: Duration = Duration::from_secs(20);

/// The path of a request, and the value of its websocket key.
async fn head(connection: &mut BufReader<TcpStream>) -> Option<(String, Option<String>)> {
    let (mut path, mut key) = (String::new(), None);
    loop {
        let mut line = String::new();
        if connection.read_line(&mut line).await.ok()? == 0 {
            return None;
        }
        match line.trim_end().split_once(": ") {
            Some((name, value)) if name.eq_ignore_ascii_case("sec-websocket-key") => {
                key = Some(value.to_owned());
            }
            Some(_) => {}
            None if line.trim_end().is_empty() => return Some((path, key)),
            None => path = line.split(' ').nth(1)?.to_owned(),
        }
    }
}

/// An API server with one machine. Its first watch sends a change and then the error that the version is too
/// old; others send nothing.
async fn api_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut watched, mut seen) = (false, false);
        while let Ok((connection, _)) = listener.accept().await {
            let mut connection = BufReader::new(connection);
            let Some((path, key)) = head(&mut connection).await else { continue };
            if let Some(key) = key {
                tokio::spawn(guest(connection, path, key));
                continue;
            }
            // The instance is on node b whenever it is looked at again.
            let instance = path.contains("/virtualmachineinstances/web");
            let node = if instance && std::mem::replace(&mut seen, true) { "b" } else { "a" };
            let machine = |status: &str| {
                json!({"metadata": {"name": "web", "namespace": "shop", "resourceVersion": "2"},
                    "status": {"printableStatus": status}})
            };
            let machines = path.contains("/virtualmachines?");
            let watch = path.contains("watch=true");
            let body = match (machines, watch, watched) {
                _ if instance => json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
                    "metadata": {"name": "web", "namespace": "shop", "uid": "1"}, "spec": {"domain": {"devices": {}}},
                    "status": {"phase": "Running", "nodeName": node}})
                .to_string(),
                (true, true, false) => {
                    watched = true;
                    let changed = json!({"type": "MODIFIED", "object": machine("Running")});
                    let old = json!({"type": "ERROR", "object": {"code": 410, "message": "too old"}});
                    format!("{changed}\n{old}\n")
                }
                (_, true, _) => {
                    // A quiet watch: the connection stays open.
                    tokio::spawn(async move {
                        let quiet = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n";
                        let _ = connection.write_all(quiet.as_bytes()).await;
                        let _ = connection.read_u8().await;
                    });
                    continue;
                }
                (true, false, _) => {
                    json!({"metadata": {"resourceVersion": "1"}, "items": [machine("Stopped")]}).to_string()
                }
                (false, false, _) => json!({"metadata": {"resourceVersion": "1"}, "items": []}).to_string(),
            };
            let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n";
            connection.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        }
    });
    address
}

/// The stream of a guest: it echoes everything twice, until a message makes it close as taken by another
/// user, or as ended. The guest `off` refuses.
async fn guest(mut connection: BufReader<TcpStream>, path: String, key: String) {
    if path.contains("/off/") {
        let body = json!({"kind": "Status", "message": "VMI is not running", "code": 400});
        let head = "HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-type: application/json\r\n\r\n";
        connection.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
        return;
    }
    let accept = derive_accept_key(key.as_bytes());
    let head = format!(
        "HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-accept: {accept}\r\nsec-websocket-protocol: plain.kubevirt.io\r\n\r\n"
    );
    connection.write_all(head.as_bytes()).await.unwrap();
    let mut socket = WebSocketStream::from_raw_socket(connection.into_inner(), Role::Server, None).await;
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Binary(bytes) = message {
            let end = match &bytes[..] {
                b"taken" => Some((4001, "another")),
                b"ended" => Some((4000, "EOF")),
                _ => None,
            };
            if let Some((code, reason)) = end {
                let frame = CloseFrame { code: CloseCode::from(code), reason: reason.into() };
                socket.close(Some(frame)).await.unwrap();
                return;
            }
            socket.send(Message::Binary([bytes.clone(), bytes].concat().into())).await.unwrap();
        }
    }
}

/// The page's server, in front of that API server.
async fn page() -> SocketAddr {
    let config = Config::new(format!("http://{}", api_server().await).parse().unwrap());
    let cluster = Cluster::new(Client::try_from(config).unwrap(), "shop", None);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let gate = Gate::new(address.port(), "secret".to_owned());
    tokio::spawn(serve::run(listener, Arc::new(Server::new(gate, cluster))));
    address
}

/// A websocket of a browser that comes from `origin`.
async fn websocket(
    page: SocketAddr,
    path: &str,
    origin: &str,
) -> Result<WebSocketStream<TcpStream>, tungstenite::Error> {
    let mut request = format!("ws://{page}{path}").into_client_request().unwrap();
    let offered = HeaderValue::from_static("virtctl-ui, token-secret");
    request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, offered);
    request.headers_mut().insert(header::ORIGIN, HeaderValue::from_str(origin).unwrap());
    let connection = TcpStream::connect(page).await.unwrap();
    timeout(SOON, tokio_tungstenite::client_async(request, connection))
        .await
        .unwrap()
        .map(|(socket, _)| socket)
}

async fn next(socket: &mut WebSocketStream<TcpStream>) -> Message {
    loop {
        match timeout(SOON, socket.next()).await.unwrap().unwrap().unwrap() {
            Message::Ping(_) | Message::Pong(_) => {}
            message => return message,
        }
    }
}

#[tokio::test]
async fn changes_are_streamed_and_begin_again_when_some_were_missed() {
    let page = page().await;
    let mut browser = TcpStream::connect(page).await.unwrap();
    let request = format!("GET /api/live HTTP/1.1\r\nhost: {page}\r\nauthorization: Bearer secret\r\n\r\n");
    browser.write_all(request.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(browser).lines();
    let mut told = Vec::new();
    while told.len() < 7 {
        let line = timeout(SOON, lines.next_line()).await.unwrap().unwrap().unwrap();
        let Ok(line) = serde_json::from_str::<Value>(&line) else { continue };
        if line["kind"] == "machine" {
            let status = line["object"]["status"]["printableStatus"].as_str().unwrap_or_default();
            told.push(format!("{} {status}", line["op"].as_str().unwrap()).trim_end().to_owned());
        }
    }
    assert_eq!(told, ["reset", "set Stopped", "synced", "set Running", "reset", "set Stopped", "synced"]);
}

#[tokio::test]
async fn a_console_is_carried_both_ways_and_says_how_it_ended() {
    let page = page().await;
    let mut console =
        websocket(page, "/api/machines/shop/web/console", &format!("http://{page}")).await.unwrap();
    console.send(Message::Binary("ls".into())).await.unwrap();
    assert_eq!(next(&mut console).await, Message::Binary("lsls".into()));
    console.send(Message::Binary("taken".into())).await.unwrap();
    let Message::Close(Some(frame)) = next(&mut console).await else { panic!("no reason") };
    assert_eq!((u16::from(frame.code), frame.reason.as_str()), (4001, "another"));
}

#[tokio::test]
async fn the_end_of_a_display_whose_guest_has_moved_names_the_node() {
    let page = page().await;
    let mut display = websocket(page, "/api/machines/shop/web/vnc", &format!("http://{page}")).await.unwrap();
    display.send(Message::Binary("ended".into())).await.unwrap();
    let Message::Close(Some(frame)) = next(&mut display).await else { panic!("no reason") };
    assert_eq!((u16::from(frame.code), frame.reason.as_str()), (4012, "web has moved to node b"));
}

#[tokio::test]
async fn a_refusal_closes_the_websocket_with_the_reason() {
    let page = page().await;
    let mut display = websocket(page, "/api/machines/shop/off/vnc", &format!("http://{page}")).await.unwrap();
    let Message::Close(Some(frame)) = next(&mut display).await else { panic!("no reason") };
    assert_eq!((u16::from(frame.code), frame.reason.as_str()), (4010, "VMI is not running"));
}

#[tokio::test]
async fn another_page_opens_no_console() {
    let page = page().await;
    let refused = websocket(page, "/api/machines/shop/web/console", "http://evil.example").await;
    let Err(tungstenite::Error::Http(answer)) = refused else { panic!("it was opened") };
    assert_eq!(answer.status(), 403);
}
