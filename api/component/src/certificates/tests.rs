//! Real handshakes between a server and a client that follow their certificates.

use super::*;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    date_time_ymd,
};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_rustls::client::TlsStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    // All have the same name, so only their keys distinguish them.
    params.distinguished_name.push(DnType::CommonName, "ours");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Certificate and key, as PEM.
fn leaf(
    by: &Authority,
    usage: ExtendedKeyUsagePurpose,
    change: impl FnOnce(&mut CertificateParams),
) -> [String; 2] {
    let mut params = CertificateParams::new(vec!["server".to_owned()]).unwrap();
    params.extended_key_usages = vec![usage];
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    [params.signed_by(&key, by).unwrap().pem(), key.serialize_pem()]
}

fn server_leaf(by: &Authority) -> [String; 2] {
    leaf(by, ExtendedKeyUsagePurpose::ServerAuth, |_| {})
}

fn client_leaf(by: &Authority) -> [String; 2] {
    leaf(by, ExtendedKeyUsagePurpose::ClientAuth, |_| {})
}

fn write(directory: &Path, [certificate, key]: &[String; 2]) {
    std::fs::write(directory.join("tls.crt"), certificate).unwrap();
    std::fs::write(directory.join("tls.key"), key).unwrap();
}

/// The same for a pair that does not change.
fn fixed([certificate, key]: &[String; 2]) -> Shown {
    let pair = Pair::read(certificate.as_bytes(), key.as_bytes()).unwrap();
    watch::Sender::new(Some(Arc::new(pair))).subscribe()
}

fn believing(authorities: &[&Authority]) -> Trusted {
    let bundle: String = authorities.iter().map(|authority| authority.pem()).collect();
    watch::Sender::new(Some(Arc::new(Authorities::read(bundle.as_bytes()).unwrap()))).subscribe()
}

fn usual() -> watch::Receiver<TlsPolicy> {
    watch::Sender::new(TlsPolicy::default()).subscribe()
}

/// A server that echoes what it receives, and its address.
async fn echo(server: Arc<Server>) -> SocketAddr {
    server.ready().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = TlsAcceptor::from(server.current().unwrap());
            tokio::spawn(async move {
                let Ok(tls) = acceptor.accept(tcp).await else { return };
                let (mut from, mut to) = tokio::io::split(tls);
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    address
}

async fn said_again(stream: &mut TlsStream<TcpStream>) -> std::io::Result<()> {
    stream.write_all(b"hello").await?;
    let mut heard = [0; 5];
    stream.read_exact(&mut heard).await?;
    assert_eq!(&heard, b"hello");
    Ok(())
}

/// A connection over which data was echoed. With TLS 1.3 a refusal only arrives after the client's handshake.
async fn dial(address: SocketAddr, config: Arc<ClientConfig>) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(address).await?;
    let name = ServerName::try_from("server").unwrap();
    let mut stream = TlsConnector::from(config).connect(name, tcp).await?;
    said_again(&mut stream).await?;
    Ok(stream)
}

async fn configured(client: &Client) -> Arc<ClientConfig> {
    client.ready().await;
    client.current().unwrap()
}

async fn caller(shown: &[String; 2], believed: &[&Authority]) -> Arc<ClientConfig> {
    configured(&Client::follow(fixed(shown), believing(believed), usual())).await
}

/// Waits for the condition, for as long as two reads of the files take.
async fn becomes(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is_so().await {
            sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(timeout(3 * files::LOOK, wait).await.is_ok(), "{what}");
}

#[tokio::test]
async fn a_server_takes_over_what_changed_and_open_connections_stay() {
    install_provider();
    let directory = tempfile::tempdir().unwrap();
    let (former, next) = (authority(), authority());
    let server = Server::follow(files::pair(directory.path()), Clients::Everybody, usual(), &[]);
    assert!(server.current().is_none());
    write(directory.path(), &server_leaf(&former));
    let address = echo(server).await;
    let knows_former = caller(&client_leaf(&former), &[&former]).await;
    let knows_next = caller(&client_leaf(&former), &[&next]).await;
    let mut open = dial(address, Arc::clone(&knows_former)).await.unwrap();
    assert!(dial(address, Arc::clone(&knows_next)).await.is_err());

    // Half-written files: first a certificate whose key is not there yet, then no certificate at all.
    let [certificate, key] = server_leaf(&next);
    for half in [certificate.as_str(), "half"] {
        std::fs::write(directory.path().join("tls.crt"), half).unwrap();
        sleep(files::LOOK * 3 / 2).await;
        dial(address, Arc::clone(&knows_former)).await.unwrap();
    }
    write(directory.path(), &[certificate, key]);
    becomes("the new certificate is shown", async || dial(address, Arc::clone(&knows_next)).await.is_ok())
        .await;
    assert!(dial(address, knows_former).await.is_err());
    said_again(&mut open).await.unwrap();
    // If the certificate is deleted, it stays in effect.
    std::fs::remove_file(directory.path().join("tls.crt")).unwrap();
    sleep(files::LOOK * 3 / 2).await;
    dial(address, knows_next).await.unwrap();
}

#[tokio::test]
async fn a_server_shows_its_own_certificate_until_the_files_exist() {
    install_provider();
    let directory = tempfile::tempdir().unwrap();
    let (own, ours) = (authority(), authority());
    let [certificate, key] = server_leaf(&own);
    let until_then = Pair::read(certificate.as_bytes(), key.as_bytes()).unwrap();
    let shown = files::pair_or(directory.path(), until_then);
    let address = echo(Server::follow(shown, Clients::Everybody, usual(), &[])).await;
    dial(address, caller(&client_leaf(&ours), &[&own]).await).await.unwrap();
    write(directory.path(), &server_leaf(&ours));
    let knows_ours = caller(&client_leaf(&ours), &[&ours]).await;
    becomes("the files are shown", async || dial(address, Arc::clone(&knows_ours)).await.is_ok()).await;
}

#[tokio::test]
async fn bundles_are_followed_on_both_sides() {
    install_provider();
    let directory = tempfile::tempdir().unwrap();
    let bundle = directory.path().join("ca-bundle");
    let (former, next) = (authority(), authority());
    std::fs::write(&bundle, former.pem()).unwrap();
    let clients = Clients::SignedBy(files::authorities(&bundle));
    let address = echo(Server::follow(fixed(&server_leaf(&next)), clients, usual(), &[])).await;
    let client = Client::follow(fixed(&client_leaf(&next)), files::authorities(&bundle), usual());
    configured(&client).await;
    // Neither side trusts the other yet.
    assert!(dial(address, client.current().unwrap()).await.is_err());
    assert!(dial(address, caller(&client_leaf(&next), &[&next]).await).await.is_err());
    dial(address, caller(&client_leaf(&former), &[&next]).await).await.unwrap();
    // Half of a bundle is not used.
    let whole = format!("{}{}", former.pem(), next.pem());
    std::fs::write(&bundle, &whole[..whole.len() - 100]).unwrap();
    sleep(files::LOOK * 3 / 2).await;
    dial(address, caller(&client_leaf(&former), &[&next]).await).await.unwrap();
    std::fs::write(&bundle, whole).unwrap();
    becomes("both believe the new authority", async || {
        dial(address, client.current().unwrap()).await.is_ok()
    })
    .await;
}

#[tokio::test]
async fn the_policy_is_followed() {
    install_provider();
    let ours = authority();
    let policy = watch::Sender::new(TlsPolicy::default());
    let shown = fixed(&server_leaf(&ours));
    let address = echo(Server::follow(shown, Clients::Everybody, policy.subscribe(), &[])).await;
    let mut older = (*caller(&client_leaf(&ours), &[&ours]).await).clone();
    let newer = Arc::new(older.clone());
    let roots = believing(&[&ours]).borrow().clone().unwrap().roots();
    older = ClientConfig::builder_with_protocol_versions(&[&rustls::version::TLS12])
        .with_root_certificates(roots)
        .with_no_client_auth();
    let older = Arc::new(older);
    dial(address, Arc::clone(&older)).await.unwrap();
    policy.send_replace(TlsPolicy::new(Some("VersionTLS13"), &[]).unwrap());
    becomes("TLS 1.2 is refused", async || dial(address, Arc::clone(&older)).await.is_err()).await;
    dial(address, newer).await.unwrap();
}

/// Which clients a server with our authority accepts, and which servers a caller trusts.
#[tokio::test]
async fn stale_and_wrong_certificates_are_refused() {
    install_provider();
    let (ours, another) = (authority(), authority());
    let expired = |params: &mut CertificateParams| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    };
    let early = |params: &mut CertificateParams| params.not_before = date_time_ymd(2100, 1, 1);
    let renamed = |params: &mut CertificateParams| {
        params.subject_alt_names = vec![rcgen::SanType::DnsName("other".try_into().unwrap())];
    };
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};

    let clients = Clients::SignedBy(believing(&[&ours]));
    let address = echo(Server::follow(fixed(&server_leaf(&ours)), clients, usual(), &[])).await;
    for (what, shown, welcome) in [
        ("a client's", client_leaf(&ours), true),
        ("a server's", server_leaf(&ours), false),
        ("an expired one", leaf(&ours, ClientAuth, expired), false),
        ("one of tomorrow", leaf(&ours, ClientAuth, early), false),
        ("another authority's", client_leaf(&another), false),
    ] {
        let result = dial(address, caller(&shown, &[&ours]).await).await;
        assert_eq!(result.is_ok(), welcome, "{what}: {result:?}");
    }

    let clients = Clients::Servers(believing(&[&ours]));
    let address = echo(Server::follow(fixed(&server_leaf(&ours)), clients, usual(), &[])).await;
    for (what, shown, welcome) in [
        ("a server's", server_leaf(&ours), true),
        ("a client's", client_leaf(&ours), false),
        ("an expired one", leaf(&ours, ServerAuth, expired), false),
        ("another authority's", server_leaf(&another), false),
    ] {
        let result = dial(address, caller(&shown, &[&ours]).await).await;
        assert_eq!(result.is_ok(), welcome, "{what}: {result:?}");
        // Each refused client gets the same alert of the protocol.
        let said = result.err().map(|error| error.to_string()).unwrap_or_default();
        assert_eq!(said.contains("alert: UnknownCA"), !welcome, "{what}: {said}");
    }
    let provider = rustls::crypto::CryptoProvider::get_default().unwrap();
    let nothing = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(believing(&[&ours]).borrow().as_ref().unwrap().roots())
        .with_no_client_auth();
    assert!(dial(address, Arc::new(nothing)).await.is_err(), "a client without a certificate is served");

    for (what, shown, believed) in [
        ("a server's", server_leaf(&ours), true),
        ("a client's", client_leaf(&ours), false),
        ("an expired one", leaf(&ours, ServerAuth, expired), false),
        ("one of tomorrow", leaf(&ours, ServerAuth, early), false),
        ("another authority's", server_leaf(&another), false),
        ("one of another name", leaf(&ours, ServerAuth, renamed), false),
    ] {
        let address = echo(Server::follow(fixed(&shown), Clients::Everybody, usual(), &[])).await;
        let result = dial(address, caller(&client_leaf(&ours), &[&ours]).await).await;
        assert_eq!(result.is_ok(), believed, "{what}: {result:?}");
    }
}

/// A certificate that expires while its holder is connected must not be used again through a resumed session.
#[tokio::test]
async fn no_session_is_resumed() {
    install_provider();
    let ours = authority();
    let clients = Clients::SignedBy(believing(&[&ours]));
    let address = echo(Server::follow(fixed(&server_leaf(&ours)), clients, usual(), &[])).await;
    let mut config = (*caller(&client_leaf(&ours), &[&ours]).await).clone();
    config.resumption = rustls::client::Resumption::in_memory_sessions(8);
    let config = Arc::new(config);
    for _ in 0..3 {
        let stream = dial(address, Arc::clone(&config)).await.unwrap();
        assert_eq!(stream.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Full));
    }
}
