//! How a guest is sent, from the settings that apply to its migration. Pure.

use barevirt_api::quantity;
use barevirt_api::v1::{DowntimeTuningOptions, VmimConfigurationOptions};
use barevirt_protocol::v1::{DowntimeTuning, MigrationSend};

use super::compression::wants_compression;

/// KubeVirt's defaults.
const DOWNTIME_MS: i64 = 900;
const COMPLETION_SECONDS_PER_GIB: i64 = 150;
const PROGRESS_SECONDS: i64 = 150;
const INITIAL_DOWNTIME_MS: i64 = 150;
const DOWNTIME_STEPS: i32 = 7;
const START_AFTER_ITERATION: i64 = 3;
const COOLDOWN_SECONDS: i32 = 10;

/// What is possible with the target.
#[derive(Debug, Clone, Copy, Default)]
pub struct Offered {
    /// It can run the guest before all of its memory has arrived.
    pub post_copy: bool,
    /// It takes compressed memory.
    pub compression: bool,
}

/// The limits for the launcher, without the key. `memory` is the guest's, in bytes; the launcher knows how much of
/// which disks is copied.
#[must_use]
pub fn limits(settings: &VmimConfigurationOptions, memory: u64, offered: Offered) -> MigrationSend {
    let tuned = settings.experimental.as_ref().and_then(|trials| trials.downtime_tuning.as_ref());
    let per_gib = positive(settings.completion_timeout_per_gi_b, COMPLETION_SECONDS_PER_GIB);
    MigrationSend {
        key: Vec::new(),
        bandwidth: bandwidth(settings),
        downtime_ms: positive(settings.max_downtime_ms, DOWNTIME_MS),
        auto_converge: settings.allow_auto_converge.unwrap_or_default(),
        completion_timeout_seconds: per_gib.saturating_mul(memory.div_ceil(1 << 30).max(1)),
        completion_timeout_seconds_per_gib: per_gib,
        progress_timeout_seconds: positive(settings.progress_timeout, PROGRESS_SECONDS),
        may_pause: may_disrupt(settings),
        post_copy: offered.post_copy && wants_post_copy(settings),
        downtime_tuning: tuned.map(tuning),
        compression: offered.compression && wants_compression(settings),
    }
}

/// Bytes per second that the migration may use; 0 means no limit.
pub(super) fn bandwidth(settings: &VmimConfigurationOptions) -> u64 {
    let given = settings.bandwidth_per_migration.as_ref();
    given.and_then(|bandwidth| quantity::bytes(bandwidth).ok()).unwrap_or_default()
}

fn positive(value: Option<i64>, usual: i64) -> u64 {
    u64::try_from(value.unwrap_or(usual)).unwrap_or_default()
}

fn tuning(given: &DowntimeTuningOptions) -> DowntimeTuning {
    let DowntimeTuningOptions { cooldown_seconds, initial_ms, start_after_iteration, steps } = given;
    DowntimeTuning {
        initial_ms: positive(*initial_ms, INITIAL_DOWNTIME_MS),
        steps: u32::try_from(steps.unwrap_or(DOWNTIME_STEPS)).unwrap_or_default(),
        start_after_iteration: positive(*start_after_iteration, START_AFTER_ITERATION),
        cooldown_seconds: positive(cooldown_seconds.map(i64::from), i64::from(COOLDOWN_SECONDS)),
    }
}

/// Whether a migration that takes too long may disrupt the guest in order to complete.
fn may_disrupt(settings: &VmimConfigurationOptions) -> bool {
    settings.allow_workload_disruption.unwrap_or_else(|| settings.allow_post_copy.unwrap_or_default())
}

/// Whether the migration uses post-copy if the target supports it.
#[must_use]
pub fn wants_post_copy(settings: &VmimConfigurationOptions) -> bool {
    settings.allow_post_copy == Some(true) && may_disrupt(settings)
}

#[cfg(test)]
mod tests {
    use super::*;
    use barevirt_api::v1::ExperimentalMigrationOptions;
    use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

    const ALL: Offered = Offered { post_copy: true, compression: true };
    const NOTHING: Offered = Offered { post_copy: false, compression: false };

    #[test]
    fn default_migration_limits_are_kubevirts() {
        let usual = limits(&VmimConfigurationOptions::default(), 3 << 29, ALL);
        let wanted = MigrationSend {
            downtime_ms: 900,
            completion_timeout_seconds: 300,
            completion_timeout_seconds_per_gib: 150,
            progress_timeout_seconds: 150,
            ..MigrationSend::default()
        };
        assert_eq!(usual, wanted);
    }

    #[test]
    fn the_downtime_is_raised_as_the_policy_says() {
        let told = |downtime_tuning| {
            let trials = ExperimentalMigrationOptions {
                downtime_tuning: Some(downtime_tuning),
                ..ExperimentalMigrationOptions::default()
            };
            let settings = VmimConfigurationOptions {
                experimental: Some(trials),
                ..VmimConfigurationOptions::default()
            };
            limits(&settings, 1, NOTHING).downtime_tuning.unwrap()
        };
        let usual =
            DowntimeTuning { initial_ms: 150, steps: 7, start_after_iteration: 3, cooldown_seconds: 10 };
        assert_eq!(told(DowntimeTuningOptions::default()), usual);
        let given = DowntimeTuningOptions {
            cooldown_seconds: Some(5),
            initial_ms: Some(10),
            start_after_iteration: Some(1),
            steps: Some(2),
        };
        let wanted =
            DowntimeTuning { initial_ms: 10, steps: 2, start_after_iteration: 1, cooldown_seconds: 5 };
        assert_eq!(told(given), wanted);
    }

    #[test]
    fn memory_is_compressed_if_the_policy_says_so_and_the_target_can() {
        let compressed = |method: &str, offered| {
            let trials = ExperimentalMigrationOptions {
                compression: Some(method.to_owned()),
                ..ExperimentalMigrationOptions::default()
            };
            let settings = VmimConfigurationOptions {
                experimental: Some(trials),
                ..VmimConfigurationOptions::default()
            };
            limits(&settings, 1, offered).compression
        };
        assert!(compressed("zstd", ALL));
        assert!(!compressed("none", ALL) && !compressed("zstd", NOTHING));
    }

    #[test]
    fn configured_migration_limits_are_applied() {
        let settings = VmimConfigurationOptions {
            bandwidth_per_migration: Some(Quantity("64Mi".to_owned())),
            completion_timeout_per_gi_b: Some(10),
            progress_timeout: Some(20),
            max_downtime_ms: Some(5),
            allow_auto_converge: Some(true),
            allow_post_copy: Some(true),
            ..VmimConfigurationOptions::default()
        };
        let told = limits(&settings, 1, ALL);
        assert_eq!((told.bandwidth, told.downtime_ms, told.auto_converge), (64 << 20, 5, true));
        assert_eq!((told.completion_timeout_seconds, told.progress_timeout_seconds), (10, 20));
        assert_eq!(told.completion_timeout_seconds_per_gib, 10);
        assert!(told.may_pause && told.post_copy);
        // Without post-copy, the guest is paused instead.
        let told = limits(&settings, 1, NOTHING);
        assert!(told.may_pause && !told.post_copy);
        let kept = VmimConfigurationOptions { allow_workload_disruption: Some(false), ..settings };
        let told = limits(&kept, 1, ALL);
        assert!(!told.may_pause && !told.post_copy);
    }
}
