//! Imports through proxies, and imports that the settings restrict.

use crate::server::{Request, Server, file, said};
use crate::tls::Authority;
use crate::world::{World, contents, http, redirect};
use barevirt_import_job::{Network, Source};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};
use virt_importer::proxy::Proxies;
use virt_importer::trust;

/// A world whose requests go through that proxy.
fn behind(proxy: SocketAddr, no_proxy: &str) -> World {
    let mut world = World::new();
    let proxy = Some(format!("http://me:pass@{proxy}"));
    let network = Network {
        http_proxy: proxy.clone(),
        https_proxy: proxy,
        no_proxy: no_proxy.to_owned(),
        ..Network::default()
    };
    world.importer.web.proxies = Arc::new(Proxies::of(&network).unwrap());
    world
}

const LOGIN: &str = "Basic bWU6cGFzcw==";

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_request_goes_to_the_proxy_as_a_whole() {
    let contents = contents(1 << 20);
    let body = contents.clone();
    // The name of the host is the proxy's to resolve.
    let proxy = Server::start(move |request| match request.path.as_str() {
        "http://images.example/old" => redirect("/disk?x=1"),
        "http://images.example/disk?x=1" => file(request, &body),
        path => panic!("{path}"),
    });
    let mut world = behind(proxy.address, "");
    world.importer.login = Some(("you".to_owned(), "secret".to_owned()));
    world.run(http("http://images.example/old".to_owned())).await.unwrap();
    world.has(&contents);
    for request in proxy.requests() {
        assert_eq!(request.headers["host"], "images.example");
        assert_eq!(request.headers["proxy-authorization"], LOGIN);
        assert_eq!(request.headers["authorization"], "Basic eW91OnNlY3JldA==");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listed_host_is_asked_without_the_proxy() {
    let contents = contents(1 << 20);
    let body = contents.clone();
    let server = Server::start(move |request| file(request, &body));
    let proxy = Server::start(|request| panic!("{}", request.path));
    let world = behind(proxy.address, ".svc, 127.0.0.0/8");
    world.run(http(server.url("/disk"))).await.unwrap();
    world.has(&contents);
    assert!(proxy.requests().is_empty());
    let [request] = server.requests().try_into().unwrap();
    assert!(!request.headers.contains_key("proxy-authorization"));
}

/// A proxy that connects to this address, whatever it is asked for; else it answers with that line.
fn tunnels(to: Result<SocketAddr, &'static str>) -> (SocketAddr, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Arc::new(Mutex::new(vec![]));
    let heads = seen.clone();
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut head = vec![];
            while !head.ends_with(b"\r\n\r\n") {
                let mut byte = [0];
                client.read_exact(&mut byte).unwrap();
                head.push(byte[0]);
            }
            heads.lock().unwrap().push(String::from_utf8(head).unwrap());
            let Ok(to) = to else {
                client.write_all(format!("HTTP/1.1 {}\r\n\r\n", to.unwrap_err()).as_bytes()).unwrap();
                continue;
            };
            client.write_all(b"HTTP/1.1 200 Connection established\r\nVia: proxy\r\n\r\n").unwrap();
            let server = TcpStream::connect(to).unwrap();
            let both = [(&client, &server), (&server, &client)];
            for (from, to) in both.map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap())) {
                std::thread::spawn(move || {
                    let (mut from, mut to) = (from, to);
                    // Either side may close it.
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Write);
                });
            }
        }
    });
    (address, seen)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_with_tls_goes_through_a_tunnel_and_ends_at_the_host() {
    let (authority, contents) = (Authority::new(), contents(1 << 20));
    let server = authority.server("images.example", contents.clone());
    let (proxy, heads) = tunnels(Ok(server));
    let mut world = behind(proxy, "");
    let source = || http("https://images.example/disk".to_owned());
    let failure = world.run(source()).await.unwrap_err();
    assert!(failure.is_final() && failure.to_string().contains("with TLS"), "{failure}");
    world.importer.web.tls =
        Arc::new(trust::tls(Path::new("/nothing"), Path::new("/nothing"), &authority.pem).unwrap());
    world.run(source()).await.unwrap();
    world.has(&contents);
    let expected = format!(
        "CONNECT images.example:443 HTTP/1.1\r\nHost: images.example:443\r\nProxy-Authorization: {LOGIN}\r\n\r\n"
    );
    assert!(heads.lock().unwrap().iter().all(|head| *head == expected), "{heads:?}");
    // A proxy that does not want to.
    let (proxy, _) = tunnels(Err("407 Proxy Authentication Required"));
    let failure = behind(proxy, "").run(source()).await.unwrap_err();
    let text = failure.to_string();
    assert!(!failure.is_final() && text.contains("does not connect to https://images.example"), "{text}");
    assert!(text.contains("answers 407") && !text.contains("pass"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn no_proxy_leads_to_an_address_that_is_forbidden() {
    for to in ["http://169.254.169.254/latest/", "http://[::1]:1/", "http://10.1.2.3/", "http://[fd00::1]/"] {
        let proxy = Server::start(move |request: &Request| match request.path.as_str() {
            "http://images.example/disk" => redirect(to),
            path => panic!("{path}"),
        });
        let failure =
            behind(proxy.address, "").run(http("http://images.example/disk".to_owned())).await.unwrap_err();
        assert!(
            failure.is_final() && failure.to_string().contains("another server leads to it"),
            "{to}: {failure}"
        );
        assert_eq!(proxy.requests().len(), 1, "{to}");
    }
    // Nor from a public host to a private one that is asked directly.
    let hidden = Server::start(|_| said("200 OK", &[], b"secret"));
    let to = hidden.url("/");
    let proxy = Server::start(move |_| redirect(&to));
    let world = behind(proxy.address, "127.0.0.1");
    let failure = world.run(http("http://images.example/disk".to_owned())).await.unwrap_err();
    assert!(failure.to_string().contains("another server leads to it"), "{failure}");
    assert!(hidden.requests().is_empty(), "it was asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_public_registry_names_no_private_server_for_its_tokens() {
    let hidden = Server::start(|_| said("200 OK", &[], br#"{"token":"t0ken"}"#));
    let challenge = format!("Bearer realm=\"{}\"", hidden.url("/token"));
    let proxy = Server::start(move |_| said("401 Unauthorized", &[("WWW-Authenticate", &challenge)], b"{}"));
    let source = Source::Registry {
        url: "docker://images.example/images/disk:1".to_owned(),
        architecture: None,
        insecure: true,
    };
    let failure = behind(proxy.address, "127.0.0.1").run(source).await.unwrap_err();
    assert!(failure.is_final() && failure.to_string().contains("another server leads to it"), "{failure}");
    assert!(hidden.requests().is_empty(), "it was asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_settings_may_permit_public_addresses_only() {
    let contents = contents(1 << 20);
    let body = contents.clone();
    let server = Server::start(move |request| file(request, &body));
    let mut world = World::new();
    world.importer.web.addresses.public_only = true;
    let failure = world.run(http(server.url("/disk"))).await.unwrap_err();
    assert!(
        failure.is_final() && failure.to_string().contains("the settings permit public addresses only"),
        "{failure}"
    );
    assert!(server.requests().is_empty(), "it was asked");
    // A proxy has an address of its own, which the settings name.
    let mut world = behind(server.address, "");
    world.importer.web.addresses.public_only = true;
    world.run(http("http://images.example/disk".to_owned())).await.unwrap();
    world.has(&contents);
}
