//! Forwards an image to its pod over mutual TLS, piece by piece, without storing it.
//!
//! The pod accepts clients with a client certificate of ours; we send only to a server with exactly the
//! certificate of the pod's own key, which is for its claim. A pod that took over the address of another pod
//! gets nothing, and a pod that passes our connection on to another server of ours has no use of it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use barevirt_import_job::{UPLOAD, UPLOAD_ASYNC, UPLOAD_CHECKSUM, UPLOAD_ID, UPLOAD_REST};
use http::{Method, Request, Response, header};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::pod::Server;
use crate::answer::{self, Answer, Refusal};

/// Time limit for the connection, with TLS.
const CONNECTED: Duration = Duration::from_secs(10);
/// Longest time for sending and processing an image. The pod itself ends an upload that stops sending.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest answer text that is forwarded, in bytes, and the time limit for reading it.
const MOST_TEXT: usize = 4 << 10;
const TEXT_WITHIN: Duration = Duration::from_secs(10);

/// When an upload is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UploadMode {
    /// As soon as the claim is filled.
    Synchronous,
    /// As soon as the image has arrived.
    Asynchronous,
    /// As the upload was to be whose rest this is, or with the byte where the rest begins.
    Rest,
}

/// What a client says about its upload, for the pod.
const PASSED_ON: [&str; 3] = ["content-range", UPLOAD_ID, UPLOAD_CHECKSUM];

impl UploadMode {
    fn path(self) -> &'static str {
        match self {
            UploadMode::Synchronous => UPLOAD,
            UploadMode::Asynchronous => UPLOAD_ASYNC,
            UploadMode::Rest => UPLOAD_REST,
        }
    }
}

/// Sends a request's body to the pod, and returns its answer. The seat is held until the last byte is sent.
///
/// 503 if the pod cannot be reached or disappears in the meantime.
pub(super) async fn send(
    tls: &ClientConfig,
    server: &Server,
    mode: UploadMode,
    request: Request<Incoming>,
    seat: impl Send + 'static,
) -> Result<Answer, Refusal> {
    let lost =
        |why: &dyn std::fmt::Display| Refusal::unavailable(format!("cannot use the upload pod: {why}"));
    let stream = timeout(CONNECTED, connect(tls, server.address, &server.certificate)).await;
    let stream = stream.map_err(|_| lost(&"no connection in time"))?.map_err(|error| lost(&error))?;
    let (mut sender, connection) =
        http1::handshake(TokioIo::new(stream)).await.map_err(|error| lost(&error))?;
    tokio::spawn(async move {
        // An answer may come before the end of the image. The pod then still receives some more data, so it
        // is sent in the background.
        if let Ok(Err(error)) = timeout(LONGEST, connection).await {
            tracing::debug!(%error, "the connection to an upload pod ended");
        }
        drop(seat);
    });
    let mut passed = Request::builder().method(Method::POST).uri(mode.path()).header(header::HOST, "upload");
    for name in PASSED_ON {
        if let Some(value) = request.headers().get(name) {
            passed = passed.header(name, value);
        }
    }
    let passed = passed.body(request.into_body()).map_err(|error| Refusal::internal(error.to_string()))?;
    let response = timeout(LONGEST, sender.send_request(passed)).await;
    let response = response
        .map_err(|_| lost(&format!("no answer within {} h", LONGEST.as_secs() / 3600)))?
        .map_err(|error| lost(&error))?;
    Ok(pass(response).await)
}

async fn pass(response: Response<Incoming>) -> Answer {
    let status = response.status();
    let mut body = response.into_body();
    let mut text = Vec::new();
    let read = async {
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(&[][..], |data| data);
            text.extend_from_slice(&bytes[..bytes.len().min(MOST_TEXT - text.len())]);
            if text.len() == MOST_TEXT {
                return;
            }
        }
    };
    // The text received so far is used.
    let _ = timeout(TEXT_WITHIN, read).await;
    answer::typed(status, "text/plain; charset=utf-8", text)
}

async fn connect(
    tls: &ClientConfig,
    address: SocketAddr,
    certificate: &CertificateDer<'static>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(address).await?;
    let mut config = tls.clone();
    let algorithms = config.crypto_provider().signature_verification_algorithms;
    config.dangerous().set_certificate_verifier(Arc::new(ExactCertificate {
        certificate: certificate.clone(),
        algorithms,
    }));
    TlsConnector::from(Arc::new(config)).connect(ServerName::from(address.ip()), tcp).await
}

/// Accepts exactly this certificate and no other.
#[derive(Debug)]
struct ExactCertificate {
    certificate: CertificateDer<'static>,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for ExactCertificate {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        if *end_entity == self.certificate {
            return Ok(ServerCertVerified::assertion());
        }
        Err(TlsError::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

#[cfg(test)]
#[path = "proxy_tests.rs"]
mod tests;
