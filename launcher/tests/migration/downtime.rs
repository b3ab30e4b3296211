//! A downtime that is raised while memory is sent.

use virt_launcher::migration::DowntimeTuning;

use super::*;

#[test]
fn a_guest_that_writes_faster_than_is_sent_moves_once_a_longer_downtime_is_allowed() {
    local(async {
        let directory = tempfile::tempdir().unwrap();
        counter::writing_disk(directory.path());
        let mut pair = Pair::start_in(directory).await;
        let (initial, cooldown) = (Duration::from_millis(1), Duration::from_secs(1));
        let tuning = DowntimeTuning { initial, steps: 1, start_after: 1, cooldown };
        // All of the memory fits into the longest downtime.
        let longest = Limits { bandwidth: Some(64 << 10), downtime: Duration::from_secs(2000), ..limits() };
        let limits = Limits { auto_converge: false, tuning: Some(tuning), ..longest };
        pair.begin(limits, [7, 7]).await;
        pair.source.reaches(State::Sent).await;
        pair.target.order(MigrationOrder::Go { hold: false }).await.unwrap();
        pair.target.until("running", |status| status.stage == Stage::Running).await;
        pair.target.count().await;
    });
}
