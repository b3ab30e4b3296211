//! A connection that carries nothing any more while QEMU writes to it, and holds the lock that its main loop needs.

use std::time::Instant;

use super::splice::Splice;
use super::*;

/// Bytes per second, so that the rest of the guest takes some seconds.
const SLOW: u64 = 64 << 10;

#[test]
fn a_switch_that_blocks_qemus_main_loop_is_cancelled_and_the_guest_goes_on() {
    local(async {
        let (ours, theirs, splice) = Splice::new(true);
        let mut pair = Pair::start().await;
        splice.slow_down(SLOW);
        // The longer the guest may be paused, the more is left to write at the switch.
        let limits = Limits { downtime: Duration::from_secs(10), ..limits() };
        pair.begin_over((ours, theirs), limits, [7, 7]).await;
        pair.source.reaches(State::Switching).await;
        splice.slow_down(0);
        // By then QEMU was told to go on, and has filled what the connection holds.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let begun = Instant::now();
        pair.source.order(MigrationOrder::Abort).await.unwrap();
        assert!(pair.source.reaches(State::Over).await.aborted);
        assert!(begun.elapsed() > Duration::from_secs(5), "QEMU's main loop was not blocked");
        pair.is_at_source().await;
    });
}
