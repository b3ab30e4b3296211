//! `MigrationPolicy`.

use super::not_there;
use crate::gates::Gates;
use crate::migratable::SERVED;
use crate::migrations::{MigrationPolicy, MigrationPolicySpec};
use crate::quantity;
use crate::syntax::{is_label_key, is_label_value, quoted};
use crate::v1::{DowntimeTuningOptions, StallDetectorOptions};
use crate::validate::{Cause, Path, supported};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::ops::RangeInclusive;

const STALLS: &str = "MigrationStallDetection";
const DOWNTIME: &str = "MigrationDowntimeTuning";
/// Largest number of seconds or of migrations: the limit of 32 bits, so that sums never overflow.
const LARGEST: i64 = u32::MAX as i64;
/// Milliseconds of `maxDowntimeMs`: KubeVirt's range, and QEMU's.
const DOWNTIMES: RangeInclusive<i64> = 1..=2_000_000;
/// Values of `experimental.compression`.
const COMPRESSIONS: [&str; 2] = ["none", "zstd"];
/// One, and a thousandth of it, in billionths.
const ONE: u64 = 1_000_000_000;
const THOUSANDTH: u64 = 1_000_000;

/// Everything wrong with a new policy.
pub fn create(policy: &MigrationPolicy, gates: &Gates) -> Vec<Cause> {
    create_when(policy, gates, SERVED)
}

/// The same, for a version that serves migrations or for one that does not.
pub(super) fn create_when(policy: &MigrationPolicy, gates: &Gates, served: bool) -> Vec<Cause> {
    let mut causes = rules(None, &policy.spec, gates);
    if served {
        supported::migration_policy(&Path::new("spec"), &policy.spec, gates, &mut causes);
    } else {
        causes.push(not_there("MigrationPolicy", "an instance cannot move to another node while it runs"));
    }
    causes
}

/// Everything wrong with a change of a policy. An unchanged specification passes, so that the object can be
/// deleted.
pub fn update(old: &MigrationPolicy, new: &MigrationPolicy, gates: &Gates) -> Vec<Cause> {
    update_when(old, new, gates, SERVED)
}

/// The same, for a version that serves migrations or for one that does not.
pub(super) fn update_when(
    old: &MigrationPolicy,
    new: &MigrationPolicy,
    gates: &Gates,
    served: bool,
) -> Vec<Cause> {
    if old.spec == new.spec {
        return Vec::new();
    }
    let mut causes = rules(Some(&old.spec), &new.spec, gates);
    if served {
        supported::migration_policy(&Path::new("spec"), &new.spec, gates, &mut causes);
    }
    causes
}

fn rules(old: Option<&MigrationPolicySpec>, spec: &MigrationPolicySpec, gates: &Gates) -> Vec<Cause> {
    let path = Path::new("spec");
    let mut causes = Vec::new();
    amounts(
        &path,
        &[("completionTimeoutPerGiB", spec.completion_timeout_per_gi_b)],
        spec.max_downtime_ms,
        spec.bandwidth_per_migration.as_ref(),
        &mut causes,
    );
    for (name, labels) in [
        ("namespaceSelector", &spec.selectors.namespace_selector),
        ("virtualMachineInstanceSelector", &spec.selectors.virtual_machine_instance_selector),
    ] {
        let field = path.child("selectors").child(name);
        for (key, value) in labels {
            if !is_label_key(key) || !is_label_value(value) {
                let message = format!("{}: {} is not a label", quoted(key), quoted(value));
                causes.push(Cause::invalid(&field, message));
            }
        }
    }
    let changed = spec.max_downtime_ms != old.and_then(|old| old.max_downtime_ms);
    if spec.max_downtime_ms.is_some() && changed {
        max_downtime(&path.child("maxDowntimeMs"), gates, &mut causes);
    }
    let Some(options) = &spec.experimental else { return causes };
    let before = old.and_then(|old| old.experimental.as_ref());
    let path = path.child("experimental");
    let mut behind = |gate: &str, name: &str, changed: bool| {
        if changed && !gates.is_on(gate) {
            causes.push(Cause::invalid(
                &path.child(name),
                format!("experimental.{name} cannot be modified without enabling the {gate} feature gate"),
            ));
        }
    };
    if options.downtime_tuning.is_some() {
        let changed = options.downtime_tuning.as_ref() != before.and_then(|old| old.downtime_tuning.as_ref());
        behind(DOWNTIME, "downtimeTuning", changed);
    }
    if options.stall_detector.is_some() {
        let changed = options.stall_detector.as_ref() != before.and_then(|old| old.stall_detector.as_ref());
        behind(STALLS, "stallDetector", changed);
    }
    if options.stall_detector.is_some() && options.downtime_tuning.is_some() {
        causes.push(Cause::invalid(
            &path,
            "experimental.stallDetector and experimental.downtimeTuning are mutually exclusive; the stall detection path \
             manages its own downtime schedule",
        ));
    }
    if let Some(given) = options.compression.as_deref()
        && !COMPRESSIONS.contains(&given)
    {
        let [none, zstd] = COMPRESSIONS;
        let given = quoted(given);
        let message = format!("Unsupported value: {given:?}: supported values: {none:?}, {zstd:?}");
        causes.push(Cause::invalid(&path.child("compression"), message));
    }
    if let Some(given) = &options.downtime_tuning {
        tuning(&path.child("downtimeTuning"), given, &mut causes);
    }
    if let Some(detector) = &options.stall_detector {
        factors(&path.child("stallDetector"), detector, &mut causes);
    }
    causes
}

/// Times and numbers, each with its field, the longest downtime and the bandwidth; in policies and in the
/// settings of the installation.
pub(super) fn amounts(
    path: &Path,
    numbers: &[(&str, Option<i64>)],
    downtime: Option<i64>,
    bandwidth: Option<&Quantity>,
    causes: &mut Vec<Cause>,
) {
    if downtime.is_some_and(|downtime| !DOWNTIMES.contains(&downtime)) {
        let (least, most) = (DOWNTIMES.start(), DOWNTIMES.end());
        causes.push(Cause::invalid(&path.child("maxDowntimeMs"), format!("must be from {least} to {most}")));
    }
    for (name, number) in numbers {
        let field = path.child(name);
        if number.is_some_and(i64::is_negative) {
            causes.push(Cause::invalid(&field, "must not be negative"));
        } else if number.is_some_and(|number| number > LARGEST) {
            causes.push(Cause::invalid(&field, format!("must be at most {LARGEST}")));
        }
    }
    let field = path.child("bandwidthPerMigration");
    let Some(bandwidth) = bandwidth else { return };
    if quantity::is_negative(bandwidth) {
        causes.push(Cause::invalid(&field, "must not be negative"));
    } else if quantity::bytes(bandwidth).is_err() {
        causes.push(Cause::invalid(&field, format!("{} is not an amount of bytes", quoted(&bandwidth.0))));
    }
}

/// The longest downtime is behind one of two gates, in policies and in the settings of the installation.
pub(super) fn max_downtime(field: &Path, gates: &Gates, causes: &mut Vec<Cause>) {
    if !gates.is_on(STALLS) && !gates.is_on(DOWNTIME) {
        causes.push(Cause::invalid(
            field,
            format!(
                "maxDowntimeMs cannot be modified without enabling the {STALLS} or {DOWNTIME} feature gate"
            ),
        ));
    }
}

/// Numbers of the steps in which the downtime is raised.
fn tuning(path: &Path, given: &DowntimeTuningOptions, causes: &mut Vec<Cause>) {
    let DowntimeTuningOptions { cooldown_seconds, initial_ms, start_after_iteration, steps } = given;
    for (name, number) in [
        ("cooldownSeconds", cooldown_seconds.map(i64::from)),
        ("initialMs", *initial_ms),
        ("startAfterIteration", *start_after_iteration),
        ("steps", steps.map(i64::from)),
    ] {
        if number.is_some_and(|number| number < 1) {
            causes.push(Cause::invalid(&path.child(name), "must be greater than or equal to 1"));
        }
    }
}

/// Range of a number.
struct Range {
    least: u64,
    /// Whether the lower bound itself is excluded.
    above: bool,
    most: Option<u64>,
}

const SHARE: Range = Range { least: 0, above: false, most: Some(1) };
const MULTIPLE: Range = Range { least: 1, above: false, most: None };

/// Numbers with up to three decimals.
fn factors(path: &Path, detector: &StallDetectorOptions, causes: &mut Vec<Cause>) {
    let all = [
        ("ewmaAlpha", &detector.ewma_alpha, Range { above: true, ..SHARE }),
        ("precopyPossibleFactor", &detector.precopy_possible_factor, MULTIPLE),
        ("patienceWindowDecayFactor", &detector.patience_window_decay_factor, SHARE),
        ("completionTimeoutFactor", &detector.completion_timeout_factor, MULTIPLE),
    ];
    for (name, value, Range { least, above, most }) in all {
        let Some(value) = value else { continue };
        let field = path.child(name);
        let given = quoted(&value.0);
        let wrong = match quantity::nanos(value) {
            Err(quantity::QuantityError::Negative(_)) => {
                Some(format!("invalid scalar {given:?}: must not be negative"))
            }
            Err(error) => Some(format!("invalid scalar {given:?}: {error}")),
            Ok(nanos) if nanos % THOUSANDTH != 0 => {
                Some(format!("invalid scalar {given:?}: must have at most 3 decimal places"))
            }
            Ok(nanos) if above && nanos <= least * ONE => Some(format!("must be greater than {least}")),
            Ok(nanos) if nanos < least * ONE => Some(format!("must be greater than or equal to {least}")),
            Ok(nanos) => most
                .filter(|most| nanos > most * ONE)
                .map(|most| format!("must be less than or equal to {most}")),
        };
        causes.extend(wrong.map(|message| Cause::invalid(&field, message)));
    }
}
