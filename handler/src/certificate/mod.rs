//! The handler's own certificate. It names the node, and its key never leaves the process.
//!
//! ```text
//!   key, made in memory --> CertificateSigningRequest --virt-operator: is it that node's handler?--> certificate --> Shown
//!        ^                                                                                              |
//!        +---- the last fifth of its life, or another authority signs from now on ----------------------+
//! ```
//!
//! While there is no valid certificate, the handler is not ready and says why (`/readyz`), because virt-api
//! would not trust it. Guests do not depend on the certificate.

mod request;

use std::sync::Arc;
use std::time::Duration;

use barevirt_component::certificates::{CertificateError, Pair, ParsedCertificate, Trusted};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::Timestamp;
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tracing::{info, warn};

use self::request::{Answer, Request};
use crate::FIELD_MANAGER;

/// Longest time that the API server may take to answer.
const API_DEADLINE: Duration = Duration::from_secs(30);
/// Pause between two polls of a request: for the first [`FREQUENT_POLLS`] polls, and after them.
const POLL: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];
/// Number of polls with the shorter pause.
const FREQUENT_POLLS: u32 = 30;
/// Pause before another request, after one has failed or was refused.
const AGAIN: Duration = Duration::from_secs(10);
/// Longest time between two checks whether the certificate has to be renewed.
const IDLE: Duration = Duration::from_secs(30);

/// Why there is no certificate, as text for users; `None` while a certificate is valid.
pub type NotReady = watch::Receiver<Option<String>>;

/// Why a request led to no certificate.
#[derive(Debug, Error)]
enum NoCertificate {
    #[error("no request can be made for this node: {0}")]
    Request(#[from] rcgen::Error),
    #[error("certificate request not written: {0}")]
    Create(String),
    #[error("certificate request {0} is gone")]
    Gone(String),
    #[error("certificate request {name} was refused: {why}")]
    Refused { name: String, why: String },
    #[error("the certificate of request {name} is not usable: {source}")]
    Unusable { name: String, source: CertificateError },
    #[error("the certificate of request {0} cannot be read")]
    Unreadable(String),
}

/// Obtains and renews the certificate of this node's handler.
pub struct OwnCertificate {
    node: String,
    shown: watch::Sender<Option<Arc<Pair>>>,
    not_ready: watch::Sender<Option<String>>,
    /// End of the current certificate, in seconds since 1970.
    ends: Option<i64>,
}

impl OwnCertificate {
    /// Starts without a certificate from the CA. Until there is one, `until_then` serves health checks.
    pub fn new(node: String, until_then: Option<Pair>) -> Self {
        OwnCertificate {
            node,
            shown: watch::Sender::new(until_then.map(Arc::new)),
            not_ready: watch::Sender::new(Some("no certificate was requested yet".to_owned())),
            ends: None,
        }
    }

    /// The certificate to present to clients.
    pub fn shown(&self) -> watch::Receiver<Option<Arc<Pair>>> {
        self.shown.subscribe()
    }

    /// Why there is no certificate.
    pub fn not_ready(&self) -> NotReady {
        self.not_ready.subscribe()
    }

    /// Requests a certificate and renews it, for as long as the process lives.
    pub async fn run(mut self, client: Client, mut trusted: Trusted) {
        let api: Api<CertificateSigningRequest> = Api::all(client);
        loop {
            match self.obtain(&api).await {
                Ok((pair, seen)) => {
                    info!(node = self.node, ends = seen.not_after, "certificate taken over");
                    self.ends = Some(seen.not_after);
                    self.shown.send_replace(Some(Arc::new(pair)));
                    self.not_ready.send_replace(None);
                    renewal(&seen, &mut trusted).await;
                }
                Err(error) => {
                    self.report_not_ready(error.to_string());
                    sleep(AGAIN).await;
                }
            }
        }
    }

    /// Makes one request and waits until it is answered.
    async fn obtain(
        &self,
        api: &Api<CertificateSigningRequest>,
    ) -> Result<(Pair, ParsedCertificate), NoCertificate> {
        let request = Request::new(&self.node)?;
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let created = match timeout(API_DEADLINE, api.create(&params, &request.object(&self.node))).await {
            Ok(Ok(created)) => created,
            Ok(Err(error)) => return Err(NoCertificate::Create(error.to_string())),
            Err(_) => return Err(NoCertificate::Create("no answer in time".to_owned())),
        };
        let name = created.name_any();
        info!(request = name, "requested a certificate");
        for poll in 0_u32.. {
            sleep(POLL[usize::from(poll >= FREQUENT_POLLS)]).await;
            let found = match timeout(API_DEADLINE, api.get_opt(&name)).await {
                Ok(Ok(found)) => found,
                Ok(Err(error)) => {
                    self.report_not_ready(format!("certificate request {name} not read: {error}"));
                    continue;
                }
                Err(_) => {
                    self.report_not_ready(format!("certificate request {name} not read in time"));
                    continue;
                }
            };
            match found.as_ref().map(request::answer) {
                None => break,
                Some(Answer::Issued(certificate)) => {
                    let pair = match request.with(&certificate) {
                        Ok(pair) => pair,
                        Err(source) => return Err(NoCertificate::Unusable { name, source }),
                    };
                    let seen = pair.chain().first().and_then(ParsedCertificate::read);
                    return seen.map(|seen| (pair, seen)).ok_or(NoCertificate::Unreadable(name));
                }
                Some(Answer::Refused(why)) => return Err(NoCertificate::Refused { name, why }),
                Some(Answer::None) => {
                    self.report_not_ready(format!(
                        "certificate request {name} waits for virt-operator, which signs it"
                    ));
                }
            }
        }
        Err(NoCertificate::Gone(name))
    }

    /// Publishes why there is no certificate, unless the previous certificate is still valid.
    fn report_not_ready(&self, why: String) {
        if self.ends.is_some_and(|ends| Timestamp::now().as_second() < ends) {
            return;
        }
        let why = if self.ends.is_some() { format!("the certificate has expired; {why}") } else { why };
        self.not_ready.send_if_modified(|told| {
            let news = told.as_ref() != Some(&why);
            if news {
                warn!(why, "there is no certificate");
                *told = Some(why);
            }
            news
        });
    }
}

/// Returns when the certificate has to be renewed.
async fn renewal(own: &ParsedCertificate, trusted: &mut Trusted) {
    let taken = Timestamp::now().as_second();
    let mut changed = false;
    loop {
        let newest = trusted
            .borrow_and_update()
            .as_ref()
            .and_then(|authorities| ParsedCertificate::read(authorities.certificates().last()?))
            .map(|authority| authority.key_id);
        let now = Timestamp::now().as_second();
        if request::is_due(own, newest.as_deref(), changed, now.saturating_sub(taken), now) {
            return;
        }
        let rest = u64::try_from(own.last_fifth().saturating_sub(now)).unwrap_or(0);
        tokio::select! {
            // The sender is gone, so from now on the time alone decides.
            news = trusted.changed() => match news {
                Ok(()) => changed = true,
                Err(_) => sleep(IDLE).await,
            },
            () = sleep(IDLE.min(Duration::from_secs(rest.max(1)))) => {}
        }
    }
}
