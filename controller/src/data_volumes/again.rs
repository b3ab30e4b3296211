//! When an object is reconciled again.

use barevirt_component::request::{Category, Error};
use kube::runtime::controller::Action;
use std::time::Duration;

/// For a DataVolume that is not filled, without an event: storage classes change, and they are not watched.
pub(super) const UNFILLED: Duration = Duration::from_secs(30);
/// After an error.
pub(super) const FAILED: Duration = Duration::from_secs(5);
/// After a conflicting write.
pub(super) const CHANGED: Duration = Duration::from_millis(500);
/// After a refused write.
pub(super) const REFUSED: Duration = Duration::from_secs(10);
/// How long one reconciliation may take.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// When to try again; `tell` is called where the error is worth a log line.
pub(super) fn after(error: &Error, tell: impl FnOnce()) -> Action {
    let pause = match error.category() {
        Category::Conflict | Category::Gone => return Action::requeue(CHANGED),
        // An event will report its end.
        Category::Ending => return Action::await_change(),
        Category::Refused => REFUSED,
        Category::Unavailable => FAILED,
    };
    tell();
    Action::requeue(pause)
}
