//! Tests of the server over real TLS, with a launcher in its own process.

use std::path::Path;
use std::time::Duration;

use barevirt_api::names::{HANDLER_CLIENT_COMMON_NAME as VIRT_API_NAME, handler_host};
use barevirt_component::certificates::{Clients, TlsPolicy, files};
use futures::{SinkExt, StreamExt};
use http::header;
use http_body_util::{BodyExt, Full};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use super::*;
use crate::fake_launcher::FakeLauncher;
use crate::launchers::find;
use crate::launchers::pods_dir::PodsDir;

/// The node whose handler the server is.
const NODE: &str = "home";
const CONSOLE: &str = "/v1/namespaces/shop/virtualmachineinstances/web/console";

/// An authority that can sign certificates.
type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority(name: &str) -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// A certificate and its key, as PEM.
fn leaf(authority: &Authority, name: &str, usage: ExtendedKeyUsagePurpose) -> (String, String) {
    leaf_with(authority, name, usage, |_| {})
}

fn leaf_with(
    authority: &Authority,
    name: &str,
    usage: ExtendedKeyUsagePurpose,
    change: impl FnOnce(&mut CertificateParams),
) -> (String, String) {
    let mut params = CertificateParams::new(vec![handler_host(NODE)]).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.extended_key_usages = vec![usage];
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, authority).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn write_files(directory: &Path, authority: &Authority) {
    let (certificate, key) = leaf(authority, "virt-handler", ExtendedKeyUsagePurpose::ServerAuth);
    std::fs::write(directory.join("tls.crt"), certificate).unwrap();
    std::fs::write(directory.join("tls.key"), key).unwrap();
    std::fs::write(directory.join("ca-bundle"), authority.pem()).unwrap();
}

/// A server for the launchers of a node, and its address.
async fn serve_node(directory: &Path, launchers: Launchers) -> std::net::SocketAddr {
    let (_ready, not_ready) = watch::channel(None);
    serve_node_that(directory, not_ready, launchers).await
}

async fn serve_node_that(
    directory: &Path,
    not_ready: NotReady,
    launchers: Launchers,
) -> std::net::SocketAddr {
    barevirt_component::certificates::install_provider();
    let trusted = files::authorities(&directory.join("ca-bundle"));
    let policy = watch::Sender::new(TlsPolicy::default());
    let clients = Clients::SignedBy(trusted);
    let server = Server::follow(files::pair(directory), clients, policy.subscribe(), tls::PROTOCOLS);
    server.ready().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(run(listener, server, not_ready, launchers));
    address
}

async fn dial(
    address: std::net::SocketAddr,
    trusted: &Authority,
    shown: Option<&(String, String)>,
) -> std::io::Result<TlsStream<TcpStream>> {
    use rustls_pki_types::pem::PemObject;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(trusted.der().clone()).unwrap();
    let builder = ClientConfig::builder().with_root_certificates(roots);
    let config = match shown {
        Some((certificate, key)) => {
            let chain =
                vec![rustls_pki_types::CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
            let key = rustls_pki_types::PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
            builder.with_client_auth_cert(chain, key).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    let tcp = TcpStream::connect(address).await?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(handler_host(NODE)).unwrap(), tcp).await
}

/// Sends one request and returns the status code and the body of the answer.
async fn ask(stream: TlsStream<TcpStream>, request: Request<Full<Bytes>>) -> Option<(StatusCode, String)> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.ok()?;
    tokio::spawn(connection);
    let answer = sender.send_request(request).await.ok()?;
    let code = answer.status();
    let body = answer.into_body().collect().await.ok()?.to_bytes();
    Some((code, String::from_utf8_lossy(&body).into_owned()))
}

fn get(path: &str) -> Request<Full<Bytes>> {
    Request::get(path).header(header::HOST, "virt-handler").body(Full::default()).unwrap()
}

fn post(path: &str, body: &'static str) -> Request<Full<Bytes>> {
    Request::post(path).header(header::HOST, "virt-handler").body(Full::from(body)).unwrap()
}

/// Tests what each certificate is accepted for: only virt-api is answered, however other certificates were
/// issued.
#[tokio::test]
async fn only_virt_api_is_answered() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    let directory = tempfile::tempdir().unwrap();
    let (ours, another) = (authority("ours"), authority("ours"));
    write_files(directory.path(), &ours);
    let address = serve_node(directory.path(), Launchers::default()).await;
    let expired = |params: &mut CertificateParams| {
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2021, 1, 1);
    };
    let twice = |params: &mut CertificateParams| {
        params.distinguished_name.push(DnType::OrganizationName, "system:masters");
    };
    // A known client that is not virt-api gets 401, and an unknown client gets no answer.
    let unauthorized = Some(StatusCode::UNAUTHORIZED);
    for (who, shown, answered) in [
        ("nobody", None, unauthorized),
        ("virt-api", Some(leaf(&ours, VIRT_API_NAME, ClientAuth)), Some(StatusCode::NOT_FOUND)),
        (
            "virt-api of some organization",
            Some(leaf_with(&ours, VIRT_API_NAME, ClientAuth, twice)),
            Some(StatusCode::NOT_FOUND),
        ),
        ("another client", Some(leaf(&ours, "kubevirt.io:system:client:other", ClientAuth)), unauthorized),
        ("a client without a name", Some(leaf(&ours, "", ClientAuth)), unauthorized),
        ("a handler", Some(leaf(&ours, "virt-handler", ServerAuth)), None),
        ("a handler called virt-api", Some(leaf(&ours, VIRT_API_NAME, ServerAuth)), None),
        ("virt-api's server", Some(leaf(&ours, "virt-api.kubevirt.pod.cluster.local", ServerAuth)), None),
        (
            "virt-controller",
            Some(leaf(&ours, "virt-controller.kubevirt.pod.cluster.local", ServerAuth)),
            None,
        ),
        ("a stale virt-api", Some(leaf_with(&ours, VIRT_API_NAME, ClientAuth, expired)), None),
        ("another authority's virt-api", Some(leaf(&another, VIRT_API_NAME, ClientAuth)), None),
    ] {
        let answer = match dial(address, &ours, shown.as_ref()).await {
            Ok(stream) => ask(stream, get(CONSOLE)).await,
            Err(_) => None,
        };
        assert_eq!(answer.map(|(code, _)| code), answered, "{who}");
    }

    let nobody = dial(address, &ours, None).await.unwrap();
    assert_eq!(ask(nobody, get("/healthz")).await, Some((StatusCode::OK, "ok".to_owned())));
    let api = leaf(&ours, VIRT_API_NAME, ClientAuth);
    let (_, body) = ask(dial(address, &ours, Some(&api)).await.unwrap(), get(CONSOLE)).await.unwrap();
    assert!(body.contains("virtualmachineinstance shop/web is not on this node"), "{body}");
    let stream = dial(address, &ours, Some(&api)).await.unwrap();
    assert_eq!(ask(stream, get("/v1/other")).await.unwrap().0, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn without_a_certificate_it_is_alive_and_not_ready_and_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let ours = authority("ours");
    write_files(directory.path(), &ours);
    let why = "certificate request virt-handler-home-x waits for virt-operator, which signs it";
    let (not_ready, receiver) = watch::channel(Some(why.to_owned()));
    let address = serve_node_that(directory.path(), receiver, Launchers::default()).await;
    let look = async |path| ask(dial(address, &ours, None).await.unwrap(), get(path)).await.unwrap();
    assert_eq!(look("/healthz").await.0, StatusCode::OK);
    let (code, body) = look("/readyz").await;
    assert_eq!((code, body.contains(why)), (StatusCode::SERVICE_UNAVAILABLE, true), "{body}");
    not_ready.send_replace(None);
    assert_eq!(look("/readyz").await, (StatusCode::OK, "ok".to_owned()));
}

#[tokio::test]
async fn certificates_are_taken_over_when_they_change() {
    let directory = tempfile::tempdir().unwrap();
    let (former, next) = (authority("former"), authority("next"));
    write_files(directory.path(), &former);
    let address = serve_node(directory.path(), Launchers::default()).await;
    dial(address, &former, None).await.unwrap();
    assert!(dial(address, &next, None).await.is_err());
    write_files(directory.path(), &next);
    let taken_over = async {
        while dial(address, &next, None).await.is_err() {
            sleep(Duration::from_millis(100)).await;
        }
    };
    timeout(Duration::from_secs(15), taken_over).await.unwrap();
}

#[tokio::test]
async fn a_request_waits_for_a_guest_that_has_just_arrived() {
    let Some(fake) = FakeLauncher::start() else { return };
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let launcher = find(&pods, &fake.container).await.unwrap();
    let launchers = Launchers::default();
    let arrive = async {
        sleep(Duration::from_millis(200)).await;
        let (connect, receiver) = watch::channel(None);
        launchers.insert(("shop".to_owned(), "web".to_owned()), Default::default(), receiver);
        sleep(Duration::from_millis(200)).await;
        connect.send_replace(Some(launcher));
        connect
    };
    let (found, _connected) = tokio::join!(launchers.wait("shop", "web"), arrive);
    assert!(found.is_some());
}

#[tokio::test]
async fn console_and_monitor_of_a_guest() {
    let Some(fake) = FakeLauncher::start() else { return };
    let pods = PodsDir::open(fake.pods.path()).unwrap();
    let launcher = find(&pods, &fake.container).await.unwrap();
    let launchers = Launchers::default();
    let (_keep, receiver) = watch::channel(Some(launcher));
    launchers.insert(("shop".to_owned(), "web".to_owned()), Default::default(), receiver);
    let (_none, receiver) = watch::channel(None);
    launchers.insert(("shop".to_owned(), "starting".to_owned()), Default::default(), receiver);
    let directory = tempfile::tempdir().unwrap();
    let ours = authority("ours");
    write_files(directory.path(), &ours);
    let address = serve_node(directory.path(), launchers).await;
    let api = leaf(&ours, VIRT_API_NAME, ExtendedKeyUsagePurpose::ClientAuth);
    let dial = || dial(address, &ours, Some(&api));

    // The message is larger than all buffers: unread data waits, and nothing is lost or changed.
    let mut request = format!("wss://virt-handler{CONSOLE}").into_client_request().unwrap();
    request.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, "plain.kubevirt.io".parse().unwrap());
    let (mut socket, answer) = tokio_tungstenite::client_async(request, dial().await.unwrap()).await.unwrap();
    assert_eq!(answer.headers()[header::SEC_WEBSOCKET_PROTOCOL], "plain.kubevirt.io");
    let sent: Vec<u8> = (0..4_000_000_u32).map(|number| number.to_le_bytes()[0]).collect();
    let mut received = Vec::new();
    let (mut to, mut from) = socket.split();
    let send = async {
        for chunk in sent.chunks(50_000) {
            to.send(Message::Binary(Bytes::copy_from_slice(chunk))).await.unwrap();
        }
    };
    let receive = async {
        while received.len() < sent.len() {
            match from.next().await.unwrap().unwrap() {
                Message::Binary(bytes) => received.extend_from_slice(&bytes),
                other => assert!(other.is_ping(), "{other:?}"),
            }
        }
    };
    timeout(Duration::from_secs(30), async { tokio::join!(send, receive) }).await.unwrap();
    assert!(sent == received);
    // Another client connects: the first one is closed with the reason.
    let request = format!("wss://virt-handler{CONSOLE}").into_client_request().unwrap();
    let (second, _) = tokio_tungstenite::client_async(request, dial().await.unwrap()).await.unwrap();
    socket = to.reunite(from).unwrap();
    let told = timeout(Duration::from_secs(5), socket.next()).await.unwrap();
    let Some(Ok(Message::Close(Some(frame)))) = told else { panic!("{told:?}") };
    assert_eq!(
        (u16::from(frame.code), frame.reason.as_str()),
        (4001, "EOF: another user has taken the stream over")
    );
    // The guest's side ends, so the user's connection ends with a close frame.
    socket = second;
    socket.send(Message::Text("bye".into())).await.unwrap();
    assert!(matches!(
        timeout(Duration::from_secs(5), socket.next()).await.unwrap(),
        Some(Ok(Message::Close(_)))
    ));

    let (code, body) = ask(dial().await.unwrap(), get(CONSOLE)).await.unwrap();
    assert_eq!((code, body.contains("not a websocket upgrade")), (StatusCode::BAD_REQUEST, true));
    let starting = CONSOLE.replace("web", "starting");
    assert_eq!(ask(dial().await.unwrap(), get(&starting)).await.unwrap().0, StatusCode::SERVICE_UNAVAILABLE);
    // The launcher does not have this stream, and the answer contains its message.
    let vnc =
        format!("wss://virt-handler{}", CONSOLE.replace("console", "vnc")).into_client_request().unwrap();
    let refused = tokio_tungstenite::client_async(vnc, dial().await.unwrap()).await.unwrap_err();
    assert!(refused.to_string().contains("503"), "{refused}");

    let qmp = CONSOLE.replace("console", "qmp");
    let answer = ask(dial().await.unwrap(), post(&qmp, r#"{"execute":"query-status"}"#)).await;
    assert_eq!(answer, Some((StatusCode::OK, r#"{"return":{"execute":"query-status"}}"#.to_owned())));
    let (code, body) = ask(dial().await.unwrap(), post(&qmp, r#"{"execute":"quit"}"#)).await.unwrap();
    assert_eq!(code, StatusCode::FORBIDDEN);
    assert!(body.contains("quit is not a command that only reads"), "{body}");
    assert_eq!(ask(dial().await.unwrap(), post(&qmp, "[1]")).await.unwrap().0, StatusCode::BAD_REQUEST);

    // Controls, and information about the guest.
    let put = |what: &str, body: &'static str| {
        let path = CONSOLE.replace("console", what);
        Request::put(path).header(header::HOST, "virt-handler").body(Full::from(body)).unwrap()
    };
    let pause = ask(dial().await.unwrap(), put("pause", "")).await;
    assert_eq!(pause, Some((StatusCode::ACCEPTED, String::new())));
    let (code, body) = ask(dial().await.unwrap(), put("softreboot", "")).await.unwrap();
    assert_eq!(code, StatusCode::CONFLICT);
    let wanted = r#"on virtualmachineinstance.kubevirt.io \"web\": VMI is not running"#;
    assert!(body.contains(wanted), "{body}");
    let freeze = ask(dial().await.unwrap(), put("freeze", r#"{"unfreezeTimeout":"1m30s"}"#)).await;
    assert_eq!(freeze.unwrap().0, StatusCode::ACCEPTED);
    let freeze = ask(dial().await.unwrap(), put("freeze", r#"{"unfreezeTimeout":"soon"}"#)).await;
    assert_eq!(freeze.unwrap().0, StatusCode::BAD_REQUEST);
    let (_, body) =
        ask(dial().await.unwrap(), get(&CONSOLE.replace("console", "guestosinfo"))).await.unwrap();
    assert!(body.contains("user9") && !body.contains("user10"), "{body}");
    let (_, body) = ask(dial().await.unwrap(), get(&CONSOLE.replace("console", "userlist"))).await.unwrap();
    assert!(body.contains("user11") && body.contains(r#""metadata":{}"#), "{body}");
    let screenshot = CONSOLE.replace("console", "vnc/screenshot?moveCursor=true");
    let (code, body) = ask(dial().await.unwrap(), get(&screenshot)).await.unwrap();
    assert_eq!((code, body.len()), (StatusCode::OK, 6 << 20));
}
