//! Keeps a launcher small beside its QEMU. Its start has used most of the program, and each request uses a
//! little more; pages that were used once stay in memory until they are unmapped.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::time::sleep;

use crate::process::AsInFile;

/// Shortest time from one unmapping to the next. Frequently used pages cost some thirty page faults each time, so a busy launcher
/// uses less than a thousandth of a CPU for this.
const PAUSE: Duration = Duration::from_millis(100);

/// How long pages may stay that were used within [`PAUSE`] of the last unmapping.
const REST: Duration = Duration::from_secs(1);

/// Makes the runtime unmap the program's unused pages whenever its thread has nothing left to do.
pub fn unmap_when_idle(runtime: &mut Builder) {
    let pages = match AsInFile::find() {
        Ok(pages) => pages,
        Err(error) => return tracing::debug!(%error, "unused parts of the program stay in memory"),
    };
    let next = Mutex::new(Some(Instant::now()));
    runtime.on_thread_park(move || {
        let Ok(mut next) = next.lock() else { return };
        let now = Instant::now();
        if next.is_none_or(|next| now < next) {
            return;
        }
        *next = match pages.unmap() {
            Ok(()) => Some(now + PAUSE),
            Err(error) => {
                tracing::debug!(%error, "unused parts of the program stay in memory");
                None
            }
        };
    });
}

/// Wakes the thread again and again, so that it also unmaps what was used shortly after an unmapping. Never ends.
pub async fn wake() {
    loop {
        sleep(REST).await;
    }
}
