//! The certificates in the leading process: when it looks at them, and which bundle all callers have.

use super::publish::{Publisher, Round, RoundError};
use super::signer;
use barevirt_api::rotation::Rotation;
use barevirt_api::v1::KubeVirtSpec;
use barevirt_component::certificates::Seal;
use barevirt_component::changes::{Changes, Listener, SELDOM};
use barevirt_component::request::Error;
use kube::Client;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Keeps the certificates. Its memory can be lost.
///
/// It looks when something is due, and when a watch reports that another client has changed or removed something: KubeVirt's
/// tools expect a new certificate within ten seconds after they have deleted one.
pub struct Keeper {
    client: Client,
    publisher: Publisher,
    rotation: watch::Sender<Rotation>,
    /// Changes of secrets and bundle.
    changes: Changes,
    changed: Listener,
    looked: Option<(Instant, Round)>,
    /// The bundle that all callers of our servers have; empty while that is not known.
    published: String,
    /// Whether objects of former versions were removed.
    cleared: bool,
}

impl Keeper {
    /// A keeper for the components in this namespace.
    pub fn new(client: Client, namespace: &str) -> Self {
        let changes = Changes::default();
        Keeper {
            publisher: Publisher::new(client.clone(), namespace),
            client,
            rotation: watch::Sender::new(Rotation::default()),
            changed: changes.listen(),
            changes,
            looked: None,
            published: String::new(),
            cleared: false,
        }
    }

    /// Answers handlers' requests until the future is dropped.
    pub fn signer(&self) -> impl Future<Output = ()> + use<> {
        signer::run(self.client.clone(), self.publisher.clone(), self.rotation.subscribe())
    }

    /// Watches secrets and bundle until the future is dropped.
    pub fn watch(&self) -> impl Future<Output = ()> + use<> {
        let (publisher, changes) = (self.publisher.clone(), self.changes.clone());
        async move { publisher.watch(&changes).await }
    }

    /// Hears of changes of secrets and bundle: a look is due after one.
    pub fn listen(&self) -> Listener {
        self.changes.listen()
    }

    /// Takes over the lifetimes of certificates; invalid ones leave the last valid ones in force.
    pub fn follow(&mut self, spec: &KubeVirtSpec) {
        let Some(rotation) = Rotation::possible(spec) else { return };
        let changed =
            self.rotation.send_if_modified(|present| std::mem::replace(present, rotation) != rotation);
        if changed {
            self.looked = None;
        }
    }

    /// The bundle of trusted authorities, PEM, after a look if one is due.
    pub async fn bundle(&mut self) -> Result<String, RoundError> {
        if self.changed.has_heard() {
            self.looked = None;
        }
        if let Some((looked, round)) = &self.looked
            && looked.elapsed() < pause(round)
        {
            return Ok(round.bundle.clone());
        }
        let rotation = *self.rotation.borrow();
        let round = self.publisher.round(&rotation, &self.published).await?;
        let bundle = round.bundle.clone();
        self.looked = Some((Instant::now(), round));
        Ok(bundle)
    }

    /// The seal by which virt-api recognises the API server, as of the last look.
    pub fn seal(&self) -> Option<Seal> {
        self.looked.as_ref().and_then(|(_, round)| round.seal.clone())
    }

    /// The pause without any work, if no other client writes.
    pub fn pause(&self) -> Duration {
        let rest = self.looked.as_ref().map(|(looked, round)| pause(round).saturating_sub(looked.elapsed()));
        rest.unwrap_or_default()
    }

    /// Records that all webhook configurations and API services contain this bundle. An authority that they do not know does
    /// not sign.
    pub fn note_published(&mut self, bundle: &str) {
        if self.published != bundle {
            bundle.clone_into(&mut self.published);
            // Work that waited for this may begin now.
            self.looked = None;
        }
    }

    /// Removes secrets of former versions, which nothing uses any more.
    pub async fn clear(&mut self) -> Result<(), Error> {
        if !self.cleared {
            self.publisher.remove_former().await?;
            self.cleared = true;
        }
        Ok(())
    }

    /// Forgets what was known.
    pub fn forget(&mut self) {
        self.looked = None;
        self.published.clear();
    }

    /// Removes all certificates.
    pub async fn remove(&mut self) -> Result<(), Error> {
        self.forget();
        self.publisher.remove().await
    }
}

/// The time until the next work, plus a little: due times are whole seconds.
fn pause(round: &Round) -> Duration {
    round.pause.map_or(SELDOM, |pause| SELDOM.min(pause + Duration::from_millis(100)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_due_when_something_is_and_else_seldom() {
        let round = |pause| Round { bundle: String::new(), seal: None, pause };
        assert_eq!(pause(&round(None)), SELDOM);
        assert_eq!(pause(&round(Some(Duration::from_secs(3600)))), SELDOM);
        assert_eq!(pause(&round(Some(Duration::from_secs(2)))), Duration::from_millis(2100));
    }
}
