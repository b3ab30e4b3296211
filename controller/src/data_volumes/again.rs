//! When something is looked at again.

use barevirt_component::request::{Category, Error};
use kube::runtime::controller::Action;
use std::time::Duration;

/// When a DataVolume is looked at again that is not filled, should nothing happen: classes change, and nobody watches them.
pub(super) const UNFILLED: Duration = Duration::from_secs(30);
/// After a failure.
pub(super) const FAILED: Duration = Duration::from_secs(5);
/// After something that was changed at the same time.
pub(super) const CHANGED: Duration = Duration::from_millis(500);
/// After something was refused.
pub(super) const REFUSED: Duration = Duration::from_secs(10);
/// How long one reconciliation may take.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);

/// When to try again; `tell`, where it is worth a line.
pub(super) fn after(error: &Error, tell: impl FnOnce()) -> Action {
    let pause = match error.category() {
        Category::Conflict | Category::Gone => return Action::requeue(CHANGED),
        // Its end comes as an event.
        Category::Ending => return Action::await_change(),
        Category::Refused => REFUSED,
        Category::Unavailable => FAILED,
    };
    tell();
    Action::requeue(pause)
}
