//! Which servers virt-api accepts as the handler of a node: real handshakes, with certificates like
//! virt-operator's and with others.

use super::*;
use crate::tls::{Certificates, Files};
use barevirt_component::certificates::{
    Authorities, Clients, Pair, ParsedCertificate, Server, TlsPolicy, install_provider,
};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    date_time_ymd,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

type Authority = CertifiedIssuer<'static, KeyPair>;

fn authority() -> Authority {
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "kubevirt.io");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Certificate and key, as PEM.
fn leaf(
    by: &Authority,
    common_name: &str,
    host: &str,
    usage: ExtendedKeyUsagePurpose,
    change: impl FnOnce(&mut CertificateParams),
) -> [String; 2] {
    let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
    params.distinguished_name.push(DnType::CommonName, common_name);
    params.extended_key_usages = vec![usage];
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    [params.signed_by(&key, by).unwrap().pem(), key.serialize_pem()]
}

/// One connection to a server that shows this certificate and asks for a client certificate of ours; returns
/// the server's answer if it is trusted.
async fn asked(certificates: &Certificates, ours: &Authority, shown: &[String; 2]) -> Option<String> {
    let pair = Pair::read(shown[0].as_bytes(), shown[1].as_bytes()).unwrap();
    let trusted = Authorities::read(ours.pem().as_bytes()).unwrap();
    let server = Server::follow(
        watch::Sender::new(Some(Arc::new(pair))).subscribe(),
        Clients::SignedBy(watch::Sender::new(Some(Arc::new(trusted))).subscribe()),
        watch::Sender::new(TlsPolicy::default()).subscribe(),
        &[],
    );
    server.ready().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (tcp, _) = listener.accept().await.unwrap();
        let Ok(mut tls) = TlsAcceptor::from(server.current().unwrap()).accept(tcp).await else { return };
        // The server answers with the name of the client.
        let chain = tls.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let seen =
            chain.first().and_then(ParsedCertificate::read).map_or_else(String::new, |seen| seen.common_name);
        tls.write_all(seen.as_bytes()).await.unwrap();
        tls.shutdown().await.unwrap();
    });
    let tcp = TcpStream::connect(address).await.unwrap();
    let mut tls = session(certificates.to_handlers().unwrap(), "home", tcp).await.ok()?;
    let mut said = String::new();
    tls.read_to_string(&mut said).await.ok()?;
    Some(said)
}

#[tokio::test]
async fn only_the_handler_of_that_node_is_believed() {
    use ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    install_provider();
    let (ours, another) = (authority(), authority());
    let directory = tempfile::tempdir().unwrap();
    let files = ["serving", "client", "ca"].map(|name| directory.path().join(name));
    files.iter().for_each(|path| std::fs::create_dir(path).unwrap());
    let [serving, client, ca] = files;
    let own = leaf(&ours, "kubevirt.io:system:client:virt-handler", "none", ClientAuth, |_| {});
    let server = leaf(&ours, "virt-api", "virt-api.kubevirt.svc", ServerAuth, |_| {});
    for (directory, [certificate, key]) in [(&client, &own), (&serving, &server)] {
        std::fs::write(directory.join("tls.crt"), certificate).unwrap();
        std::fs::write(directory.join("tls.key"), key).unwrap();
    }
    std::fs::write(ca.join("ca-bundle"), ours.pem()).unwrap();
    let policy = watch::Sender::new(TlsPolicy::default());
    let certificates = Certificates::follow(&Files { serving, client, ca }, &policy.subscribe());
    certificates.ready().await;

    let handler = |node: &str| leaf(&ours, "virt-handler", &handler_host(node), ServerAuth, |_| {});
    let home = handler_host("home");
    let expired = |params: &mut CertificateParams| {
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
    };
    let early = |params: &mut CertificateParams| params.not_before = date_time_ymd(2100, 1, 1);
    for (who, shown, believed) in [
        ("the node's handler", handler("home"), true),
        ("another node's", handler("away"), false),
        ("that of a node beneath", handler("other.home"), false),
        ("a handler of no node", leaf(&ours, "virt-handler", "virt-handler", ServerAuth, |_| {}), false),
        ("one for clients", leaf(&ours, "virt-handler", &home, ClientAuth, |_| {}), false),
        ("virt-api itself", server.clone(), false),
        ("virt-api's own to handlers", own.clone(), false),
        (
            "virt-controller",
            leaf(&ours, "virt-controller", "virt-controller.kubevirt.svc", ServerAuth, |_| {}),
            false,
        ),
        ("a stale one", leaf(&ours, "virt-handler", &home, ServerAuth, expired), false),
        ("one of tomorrow", leaf(&ours, "virt-handler", &home, ServerAuth, early), false),
        ("another authority's", leaf(&another, "virt-handler", &home, ServerAuth, |_| {}), false),
    ] {
        let said = asked(&certificates, &ours, &shown).await;
        assert_eq!(said.is_some(), believed, "{who}: {said:?}");
        // The server has seen the client's certificate.
        assert!(said.is_none_or(|said| said == "kubevirt.io:system:client:virt-handler"), "{who}");
    }
}
