//! Keeps a launcher small beside its QEMU. Its start has used most of the program, and each request uses a
//! little more; pages that were used once stay in memory until they are unmapped.

use std::sync::Mutex;
use std::time::Duration;

use barevirt_protocol::pace::Bucket;
use tokio::runtime::Builder;
use tokio::time::{Instant, sleep};

use crate::process::AsInFile;

/// How many unmappings may follow each other. To answer a handler, or to ask QEMU how a migration goes, the thread works in a few
/// short pieces and waits between them. Without the pages of the earlier pieces, fewer are there at the same time.
const MOST: u32 = 4;

/// Average time from one unmapping to the next. Frequently used pages cost some thirty page faults each time, so a busy launcher
/// uses less than a thousandth of a CPU for this.
const PAUSE: Duration = Duration::from_millis(100);

/// How long pages may stay that were used when no more unmappings were allowed.
const REST: Duration = Duration::from_secs(1);

/// Makes the runtime unmap the program's unused pages whenever its thread has nothing left to do.
pub fn unmap_when_idle(runtime: &mut Builder) {
    let pages = match AsInFile::find() {
        Ok(pages) => pages,
        Err(error) => return tracing::debug!(%error, "unused parts of the program stay in memory"),
    };
    let pace = Mutex::new(Some(pace(Instant::now())));
    runtime.on_thread_park(move || {
        let Ok(mut pace) = pace.lock() else { return };
        if !pace.as_mut().is_some_and(|pace| pace.take(Instant::now())) {
            return;
        }
        if let Err(error) = pages.unmap() {
            tracing::debug!(%error, "unused parts of the program stay in memory");
            *pace = None;
        }
    });
}

/// One unmapping may come at once, and several in a row only later: they would delay the start of the guest.
fn pace(begun: Instant) -> Bucket {
    let mut pace = Bucket::new(MOST, PAUSE);
    for _ in 1..MOST {
        pace.take(begun);
    }
    pace
}

/// Wakes the thread again and again, so that it also unmaps what was used shortly after an unmapping. Never ends.
pub async fn wake() {
    loop {
        sleep(REST).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_pieces_of_work_are_unmapped_one_by_one_but_not_at_the_start() {
        let begun = Instant::now();
        let mut pace = pace(begun);
        assert_eq!([(); 2].map(|()| pace.take(begun)), [true, false]);
        let later = begun + PAUSE * MOST;
        assert_eq!([(); 5].map(|()| pace.take(later)), [true, true, true, true, false]);
    }
}
