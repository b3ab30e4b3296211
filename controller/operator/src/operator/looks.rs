//! Keeps objects correct outside the installation, which may have other owners: looks at them when one of them, or the
//! installation, comes or goes.

use super::cache::Cache;
use super::target::deciding;
use barevirt_component::changes::SELDOM;
use barevirt_component::error::chain;
use barevirt_component::request::Error;
use std::time::Duration;
use tracing::warn;

/// Pause before the next try after a failure.
const RETRY: Duration = Duration::from_secs(10);

/// Looks after each change that [`Cache::looks`] tells of, while there is an installation. `what` names the object in the
/// log.
pub(super) async fn follow<K>(cache: &Cache, what: &'static str, keep: impl Fn() -> K)
where
    K: Future<Output = Result<(), Error>>,
{
    let mut changed = cache.looks().listen();
    loop {
        let objects = cache.kubevirts().unwrap_or_default();
        let wanted = deciding(&objects).is_some_and(|object| object.metadata.deletion_timestamp.is_none());
        let mut pause = SELDOM;
        if wanted && let Err(error) = keep().await {
            warn!(error = %chain(&error), "{what} is not kept");
            pause = RETRY;
        }
        changed.wait(pause).await;
    }
}
