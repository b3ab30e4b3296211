//! `MigrationPolicy`.

use super::not_there;
use crate::gates::Gates;
use crate::migrations::{MigrationPolicy, MigrationPolicySpec};
use crate::quantity;
use crate::syntax::quoted;
use crate::v1::StallDetectorOptions;
use crate::validate::{Cause, Path};

const STALLS: &str = "MigrationStallDetection";
const DOWNTIME: &str = "MigrationDowntimeTuning";
/// One, and a thousandth of it, in thousandths of millionths.
const ONE: u64 = 1_000_000_000;
const THOUSANDTH: u64 = 1_000_000;

/// Everything wrong with a new one.
pub fn create(policy: &MigrationPolicy, gates: &Gates) -> Vec<Cause> {
    let mut causes = rules(None, &policy.spec, gates);
    causes.push(not_there("MigrationPolicy", "an instance cannot move to another node while it runs"));
    causes
}

/// Everything wrong with a change. What is left as it was passes, so that it can go.
pub fn update(old: &MigrationPolicy, new: &MigrationPolicy, gates: &Gates) -> Vec<Cause> {
    if old.spec == new.spec { Vec::new() } else { rules(Some(&old.spec), &new.spec, gates) }
}

fn rules(old: Option<&MigrationPolicySpec>, spec: &MigrationPolicySpec, gates: &Gates) -> Vec<Cause> {
    let path = Path::new("spec");
    let mut causes = Vec::new();
    if spec.completion_timeout_per_gi_b.is_some_and(i64::is_negative) {
        causes.push(Cause::invalid(&path.child("completionTimeoutPerGiB"), "must not be negative"));
    }
    if spec.bandwidth_per_migration.as_ref().is_some_and(quantity::is_negative) {
        causes.push(Cause::invalid(&path.child("bandwidthPerMigration"), "must not be negative"));
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
    if let Some(detector) = &options.stall_detector {
        factors(&path.child("stallDetector"), detector, &mut causes);
    }
    causes
}

/// The longest downtime is behind one of two gates, here and among the settings of the installation.
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

/// Where a number may lie.
struct Range {
    least: u64,
    /// The least itself does not count.
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
