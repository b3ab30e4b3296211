//! The TLS settings, and a self-signed certificate to show until there is a better one.

use crate::certificates::{CertificateError, Pair, TlsPolicy};
use crate::installation::Installation;
use barevirt_api::settings::{Settings, Tls, TlsVersion};
use tokio::sync::watch;
use tracing::{info, warn};

/// Why no certificate could be made.
#[derive(Debug, thiserror::Error)]
pub enum SelfMadeError {
    /// The library could not make it.
    #[error("cannot make a certificate")]
    Make(#[from] rcgen::Error),
    /// The TLS library does not accept it.
    #[error("cannot use a certificate just made")]
    Use(#[from] CertificateError),
}

/// A self-signed certificate, which proves nothing. With it probes are answered from the start; they contain
/// no secrets.
///
/// # Errors
/// If a library refuses its own defaults.
pub fn self_made(name: &str) -> Result<Pair, SelfMadeError> {
    let made = rcgen::generate_simple_self_signed(vec![name.to_owned()])?;
    Ok(Pair::read(made.cert.pem().as_bytes(), made.signing_key.serialize_pem().as_bytes())?)
}

/// Follows `tlsConfiguration` in a task, for as long as the result has a receiver.
pub fn policy(installation: &Installation) -> watch::Receiver<TlsPolicy> {
    let (sender, receiver) = watch::channel(TlsPolicy::default());
    let installation = installation.clone();
    tokio::spawn(async move {
        let of = |settings: &Settings| settings.tls.clone();
        let take = |tls: &Tls| match policy_of(tls) {
            Ok(policy) => {
                let changed = sender.send_if_modified(|present| {
                    let changed = *present != policy;
                    *present = policy;
                    changed
                });
                if changed {
                    info!(?tls, "the TLS policy of the servers");
                }
            }
            // Admission and the settings know the same names, so this should not happen. A default must not
            // replace the requested setting.
            Err(error) => warn!(%error, "the TLS policy of the servers does not change"),
        };
        tokio::select! {
            () = installation.follow(of, take) => {}
            () = sender.closed() => {}
        }
    });
    receiver
}

fn policy_of(tls: &Tls) -> Result<TlsPolicy, crate::certificates::PolicyError> {
    let least = match tls.least {
        TlsVersion::V1_2 => "VersionTLS12",
        TlsVersion::V1_3 => "VersionTLS13",
    };
    TlsPolicy::new(Some(least), &tls.suites)
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::settings::TLS12_SUITES;

    #[test]
    fn every_suite_that_admission_lets_pass_can_be_had() {
        for suite in TLS12_SUITES {
            let tls = Tls { least: TlsVersion::V1_2, suites: vec![suite.to_owned()] };
            assert!(policy_of(&tls).is_ok_and(|policy| policy != TlsPolicy::default()), "{suite}");
        }
        assert_eq!(policy_of(&Tls::default()), Ok(TlsPolicy::default()));
        let newer = Tls { least: TlsVersion::V1_3, suites: vec![] };
        assert!(policy_of(&newer).is_ok_and(|policy| policy != TlsPolicy::default()));
    }

    #[test]
    fn a_certificate_of_our_own_making_can_be_shown() {
        assert_eq!(self_made("pod").unwrap().chain().len(), 1);
    }
}
