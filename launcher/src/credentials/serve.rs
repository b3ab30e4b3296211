//! Sets credentials in the guest through its agent, and again when a secret changes.
//!
//! This happens when the agent connects, when a mounted file has changed, every five minutes (a user of the
//! guest may have changed them), and after a failure. The result is reported like KubeVirt's.

use std::path::PathBuf;
use std::time::Duration;

use barevirt_api::v1::AccessCredential;
use barevirt_qmp::qapi::qga;
use barevirt_qmp::quiet::Quiet;
use barevirt_qmp::{Agent, Deadline, Error};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use super::{Kinds, WantedCredentials};
use crate::guest_agent::answers::printable;
use crate::guest_agent::{Facts, ping};
use crate::status::{Stage, Status};

/// How often the mounted files are read.
const LOOK: Duration = Duration::from_secs(5);
/// Delay after a failure.
const AGAIN: Duration = Duration::from_secs(15);
/// Interval if nothing has changed.
const ANEW: Duration = Duration::from_secs(300);
/// Time limit for each command of the agent.
const ANSWER: Duration = Duration::from_secs(15);

/// Message if the agent does not answer.
const OFFLINE: &str = "Guest agent is offline";

/// The state of the credentials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// They are in effect.
    pub synchronized: bool,
    /// Why they are not.
    pub message: String,
}

impl Outcome {
    fn failed(message: impl Into<String>) -> Self {
        Self { synchronized: false, message: message.into() }
    }
}

/// The last attempt.
#[derive(Clone, Copy)]
struct Done {
    digest: [u8; 32],
    worked: bool,
    at: Instant,
}

/// Whether it is time for the next attempt.
fn is_due(done: Option<Done>, digest: [u8; 32], now: Instant) -> bool {
    done.is_none_or(|done| {
        let wait = if done.worked { ANEW } else { AGAIN };
        done.digest != digest || now.duration_since(done.at) >= wait
    })
}

/// Serves until the VM has ended. Returns at once if no credentials are for the agent. `tell` gets each
/// result, even an unchanged one.
pub async fn serve(
    agent: Agent,
    credentials: Vec<AccessCredential>,
    secrets: PathBuf,
    mut status: watch::Receiver<Status>,
    guest: watch::Receiver<Option<Facts>>,
    tell: impl Fn(Outcome),
) {
    if !Kinds::of(&credentials).any() {
        return;
    }
    let mut done = None;
    // The guest decides when the agent connects and disconnects.
    let quiet = Quiet::new(1);
    loop {
        let (connected, running) = {
            let status = status.borrow_and_update();
            (status.agent_connected, status.stage == Stage::Running)
        };
        let frozen = guest.borrow().as_ref().is_some_and(|facts| facts.frozen);
        if !connected {
            done = None;
            tell(Outcome::failed(OFFLINE));
        } else if running && !frozen {
            match WantedCredentials::read(&credentials, &secrets) {
                Ok(wanted) if is_due(done, wanted.digest(), Instant::now()) => {
                    let outcome = apply(&agent, &wanted).await;
                    let worked = outcome.is_ok();
                    if worked
                        && done.is_none()
                        && let Some(left_out) = quiet.line()
                    {
                        let (users, passwords) = (wanted.keys.len(), wanted.passwords.len());
                        tracing::info!(users, passwords, left_out, "access credentials are in effect");
                    }
                    done = Some(Done { digest: wanted.digest(), worked, at: Instant::now() });
                    tell(match outcome {
                        Ok(()) => Outcome { synchronized: true, message: String::new() },
                        Err(message) => Outcome::failed(message),
                    });
                }
                Ok(_) => {}
                Err(error) => tell(Outcome::failed(error.to_string())),
            }
        }
        tokio::select! {
            changed = status.changed() => if changed.is_err() { return },
            () = sleep(LOOK), if connected => {}
            () = agent.ended() => return,
        }
    }
}

/// Sets the credentials of all users, even after a failure; returns the first failure as a message for users.
async fn apply(agent: &Agent, wanted: &WantedCredentials) -> Result<(), String> {
    ping(agent, ANSWER).await.map_err(|_| OFFLINE.to_owned())?;
    let mut first = Ok(());
    for (user, keys) in &wanted.keys {
        // All former keys are replaced.
        let add = qga::guest_ssh_add_authorized_keys {
            username: user.clone(),
            keys: keys.clone(),
            reset: Some(true),
        };
        let done = agent.execute(add, Deadline::after(ANSWER)).await.map(drop);
        let failed = |error: Error| {
            format!("Error encountered writing ssh pub key access credentials for user [{user}]: {error}")
        };
        first = first.and(done.map_err(failed));
    }
    for (user, password) in &wanted.passwords {
        let username = user.clone();
        let set =
            qga::guest_set_user_password { username, password: password.clone().into(), crypted: false };
        let done = agent.execute(set, Deadline::after(ANSWER)).await.map(drop);
        let failed = |error: Error| format!("Error encountered setting password for user [{user}]: {error}");
        first = first.and(done.map_err(failed));
    }
    // The guest decides the text of the agent's refusals.
    first.map_err(|message| printable(&message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn again_when_changed_when_failed_and_now_and_then() {
        let begun = Instant::now();
        let after = |seconds| begun + Duration::from_secs(seconds);
        let done = Done { digest: [1; 32], worked: true, at: begun };
        assert!(is_due(None, [1; 32], begun));
        assert!(!is_due(Some(done), [1; 32], after(299)));
        assert!(is_due(Some(done), [1; 32], after(300)));
        assert!(is_due(Some(done), [2; 32], after(1)));
        let failed = Done { worked: false, ..done };
        assert!(!is_due(Some(failed), [1; 32], after(14)));
        assert!(is_due(Some(failed), [1; 32], after(15)));
    }
}
