//! Changes of what a task keeps correct: the task looks when something has changed, and else hardly ever.
//!
//! ```text
//!   a watch: an object has changed, or the watch has failed --+
//!   settings have changed ------------------------------------+--> Changes --> Listener --> the next look
//! ```
//!
//! A change only says that it is time to look. A look reads from the API server, so no stale cache decides anything. Changes
//! during a look lead to one more look. While a watch fails, each of its tries leads to a look, so nothing is missed
//! for long.

use crate::error::chain;
use futures::{Stream, StreamExt};
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tracing::warn;

/// Pause before a look without a change.
pub const SELDOM: Duration = Duration::from_secs(600);

/// Tells of changes; all clones have the same listeners.
#[derive(Clone, Debug)]
pub struct Changes(Arc<watch::Sender<()>>);

impl Default for Changes {
    fn default() -> Self {
        Changes(Arc::new(watch::Sender::new(())))
    }
}

impl Changes {
    /// Tells all listeners of a change.
    pub fn tell(&self) {
        self.0.send_replace(());
    }

    /// A listener for all changes from now on.
    pub fn listen(&self) -> Listener {
        Listener { heard: self.0.subscribe(), _told: self.clone() }
    }

    /// Tells of each change that a watch reports, and of each of its failures, until the future is dropped. `what` names the
    /// objects in the log.
    pub async fn follow<K>(
        &self,
        events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send,
        what: &str,
    ) {
        let mut events = pin!(events.default_backoff());
        while let Some(event) = events.next().await {
            match event {
                // The end of the list tells of all of it.
                Ok(Event::Init | Event::InitApply(_)) => {}
                Ok(Event::InitDone | Event::Apply(_) | Event::Delete(_)) => self.tell(),
                Err(error) => {
                    warn!(error = %chain(&error), "the watch of {what} is interrupted");
                    self.tell();
                }
            }
        }
    }
}

/// Hears of changes.
#[derive(Debug)]
pub struct Listener {
    heard: watch::Receiver<()>,
    /// The sender lives as long as its listeners.
    _told: Changes,
}

impl Listener {
    /// Returns after a change that was not heard of yet, or after that time.
    pub async fn wait(&mut self, at_most: Duration) {
        // Both results end the pause, and there is always a sender.
        let _ = tokio::time::timeout(at_most, self.heard.changed()).await;
    }

    /// Whether there was a change that was not heard of yet.
    pub fn has_heard(&mut self) -> bool {
        self.heard.borrow_and_update().has_changed()
    }
}

/// Watches only the object of this name. A right that is granted by name suffices for such a watch.
pub fn named(name: &str) -> watcher::Config {
    watcher::Config::default().fields(&format!("metadata.name={name}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::api::core::v1::ConfigMap;
    use tokio::time::Instant;

    #[tokio::test(start_paused = true)]
    async fn a_change_ends_the_pause_also_if_it_came_before() {
        let changes = Changes::default();
        changes.tell();
        let mut listener = changes.listen();
        let waits = async |listener: &mut Listener| {
            let begun = Instant::now();
            listener.wait(SELDOM).await;
            begun.elapsed() >= SELDOM
        };
        assert!(waits(&mut listener).await, "the first look sees what was before it");
        changes.tell();
        changes.clone().tell();
        assert!(!waits(&mut listener).await);
        assert!(waits(&mut listener).await, "one look sees both changes");
        let teller = changes.clone();
        tokio::spawn(async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            teller.tell();
        });
        assert!(!waits(&mut listener).await);
    }

    #[test]
    fn each_listener_hears_of_a_change_once() {
        let changes = Changes::default();
        let (mut one, mut other) = (changes.listen(), changes.listen());
        assert!(!one.has_heard());
        changes.tell();
        assert!(one.has_heard() && !one.has_heard() && other.has_heard());
        drop(changes);
        assert!(!one.has_heard());
    }

    #[tokio::test(start_paused = true)]
    async fn a_watch_tells_of_changes_and_of_failures() {
        let map = ConfigMap::default;
        for (event, tells) in [
            (Ok(Event::Init), false),
            (Ok(Event::InitApply(map())), false),
            (Ok(Event::InitDone), true),
            (Ok(Event::Apply(map())), true),
            (Ok(Event::Delete(map())), true),
            (Err(watcher::Error::NoResourceVersion), true),
        ] {
            let changes = Changes::default();
            let mut listener = changes.listen();
            let shown = format!("{event:?}");
            changes.follow(futures::stream::iter([event]), "config maps").await;
            assert_eq!(listener.has_heard(), tells, "{shown}");
        }
    }
}
