//! Servers whose certificate an authority of their own has signed.

use crate::server::{Request, file};
use crate::world::{World, contents, http};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use virt_importer::failure::Failure;
use virt_importer::trust;

/// An authority that signs certificates of servers.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate.
    pub(crate) pem: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    /// A server with that file, for a host of that name.
    pub(crate) fn server(&self, host: &str, body: Vec<u8>) -> SocketAddr {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap().der().clone();
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key);
        let config = Arc::new(config.unwrap());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let stream = StreamOwned::new(ServerConnection::new(config.clone()).unwrap(), stream);
                // A client that does not trust the certificate ends the connection.
                let _ = serve(stream, &body);
            }
        });
        address
    }
}

fn serve(mut stream: impl Read + Write, body: &[u8]) -> std::io::Result<()> {
    let mut head = vec![];
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    stream.write_all(&file(&Request::default(), body).bytes)?;
    stream.flush()
}

/// Imports from a server of 127.0.0.1 while these files are the config map with certificates.
async fn import(address: SocketAddr, files: &[(&str, &str)], settings: &str) -> Result<World, Failure> {
    let directory = tempfile::tempdir().unwrap();
    // As the kubelet keeps it: the files are links into a directory whose name begins with dots.
    let versions = directory.path().join("..2026_11_26");
    std::fs::create_dir(&versions).unwrap();
    for (name, text) in files {
        std::fs::write(versions.join(name), text).unwrap();
        std::os::unix::fs::symlink(versions.join(name), directory.path().join(name)).unwrap();
    }
    let mut world = World::new();
    world.importer.web.tls = Arc::new(trust::tls(Path::new("/nothing"), directory.path(), settings)?);
    world.run(http(format!("https://{address}/disk"))).await?;
    Ok(world)
}

#[tokio::test(flavor = "multi_thread")]
async fn an_authority_of_the_config_map_or_of_the_settings_is_trusted() {
    let (authority, other, contents) = (Authority::new(), Authority::new(), contents(1 << 20));
    let address = authority.server("127.0.0.1", contents.clone());
    let bundle = format!("{}{}", other.pem, authority.pem);
    for (files, settings) in [
        (&[("ca.crt", &*authority.pem)][..], ""),
        (&[("a.pem", &*other.pem), ("b.pem", &*authority.pem)], ""),
        (&[("ca-bundle.crt", &*bundle)], ""),
        (&[], &*authority.pem),
        (&[("ca.crt", &*other.pem)], &*bundle),
    ] {
        import(address, files, settings).await.unwrap().has(&contents);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_a_trusted_authority_is_a_permanent_failure() {
    let (authority, other) = (Authority::new(), Authority::new());
    let address = authority.server("127.0.0.1", contents(1 << 20));
    let misnamed = authority.server("images.example", contents(1 << 20));
    for (address, files, why) in [
        (address, &[][..], "with TLS: "),
        (address, &[("ca.crt", &*other.pem)], "with TLS: "),
        (misnamed, &[("ca.crt", &*authority.pem)], "with TLS: "),
        (
            address,
            &[("ca.crt", "no certificate")],
            "key ca.crt of the config map with certificates cannot be used",
        ),
    ] {
        let Err(failure) = import(address, files, "").await else { panic!("{why} is not refused") };
        assert!(failure.is_final() && failure.to_string().contains(why), "{why}: {failure}");
    }
}
