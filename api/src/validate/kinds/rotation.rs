//! Rules for `certificateRotateStrategy` of the `KubeVirt` object: KubeVirt's rules, and lifetimes that are
//! too short to work.

use crate::duration;
use crate::rotation::{LEAST_OVERLAP, LEAST_RENEWAL, LEAST_USE, Lifetime, Rotation};
use crate::syntax::quoted;
use crate::v1::KubeVirtSelfSignConfiguration;
use crate::validate::{Cause, CauseKind, Path};
use std::time::Duration;

/// Everything wrong with the strategy. A text that is not a duration counts as not given.
pub(super) fn rules(path: &Path, own: &KubeVirtSelfSignConfiguration, causes: &mut Vec<Cause>) {
    let KubeVirtSelfSignConfiguration {
        ca,
        server,
        ca_overlap_interval,
        ca_rotate_interval,
        cert_rotate_interval,
    } = own;
    let older = [ca_rotate_interval, cert_rotate_interval, ca_overlap_interval];
    if older.iter().any(|field| field.is_some()) && (ca.is_some() || server.is_some()) {
        causes.push(Cause::new(
            CauseKind::NotSupported,
            path,
            "caRotateInterval, certRotateInterval and caOverlapInterval are deprecated and conflict with CertConfig \
             defined rotation parameters",
        ));
    }
    let (ca, server) = (ca.clone().unwrap_or_default(), server.clone().unwrap_or_default());
    // Each value with the field that is in effect; the older fields win.
    let ca_duration = first(("caRotateInterval", ca_rotate_interval), ("ca.duration", &ca.duration));
    let ca_renewal = first(("caOverlapInterval", ca_overlap_interval), ("ca.renewBefore", &ca.renew_before));
    let duration = first(("certRotateInterval", cert_rotate_interval), ("server.duration", &server.duration));
    let renewal = ("server.renewBefore", server.renew_before.as_ref());
    for (name, text) in [ca_duration, ca_renewal, duration, renewal] {
        if let Some(text) = text.filter(|text| duration::parse(text).is_none()) {
            causes.push(Cause::invalid(&path.child(name), format!("{} is not a duration", quoted(text))));
        }
    }
    let rotation = Rotation::from(own);
    let before = causes.len();
    let rules = [
        (
            rotation.authority.duration < rotation.authority.renew_before && ca_renewal.1.is_some(),
            "CA RenewBefore cannot exceed Duration (spec.certificateRotationStrategy.selfSigned.ca.duration < \
             spec.certificateRotationStrategy.selfSigned.ca.renewBefore)",
        ),
        (
            rotation.leaf.duration < rotation.leaf.renew_before && renewal.1.is_some(),
            "Cert RenewBefore cannot exceed Duration (spec.certificateRotationStrategy.selfSigned.server.duration < \
             spec.certificateRotationStrategy.selfSigned.server.renewBefore)",
        ),
        (
            rotation.leaf.duration > rotation.authority.duration,
            "Certificate duration cannot exceed CA (spec.certificateRotationStrategy.selfSigned.server.duration > \
             spec.certificateRotationStrategy.selfSigned.ca.duration)",
        ),
    ];
    causes.extend(
        rules.into_iter().filter(|(broken, _)| *broken).map(|(_, message)| Cause::invalid(path, message)),
    );
    if causes.len() > before {
        return;
    }
    short(path, [ca_duration.0, ca_renewal.0], rotation.authority, LEAST_OVERLAP, causes);
    short(path, [duration.0, renewal.0], rotation.leaf, LEAST_RENEWAL, causes);
}

/// Lifetimes that KubeVirt accepts although certificates would end before their successors have reached the
/// pods.
fn short(path: &Path, fields: [&str; 2], life: Lifetime, least: Duration, causes: &mut Vec<Cause>) {
    let [duration, renewal] = fields.map(|field| path.child(field));
    let minutes = |time: Duration| time.as_secs() / 60;
    if life.renew_before < least {
        let message = format!(
            "{renewal} is less than {} minutes: a renewed certificate would come to the pods after the end of the former one",
            minutes(least)
        );
        causes.push(Cause::invalid(&renewal, message));
    } else if life.duration.saturating_sub(life.renew_before) < LEAST_USE {
        let message = format!(
            "{duration} leaves less than {} minutes between the making of a certificate and its renewal, {} s before its end",
            minutes(LEAST_USE),
            life.renew_before.as_secs()
        );
        causes.push(Cause::invalid(&duration, message));
    }
}

/// The older field if it is given, else the newer one.
fn first<'a>(
    older: (&'static str, &'a Option<String>),
    newer: (&'static str, &'a Option<String>),
) -> (&'static str, Option<&'a String>) {
    match older {
        (name, Some(text)) => (name, Some(text)),
        (_, None) => (newer.0, newer.1.as_ref()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn causes(own: Value) -> Vec<String> {
        let own = serde_json::from_value(own).unwrap();
        let mut causes = vec![];
        rules(&Path::new("selfSigned"), &own, &mut causes);
        causes.iter().map(|cause| format!("{}: {}", cause.field, cause.message)).collect()
    }

    #[test]
    fn valid_rotations_are_accepted() {
        for own in [
            json!({}),
            json!({"ca": {"duration": "24h", "renewBefore": "16h"}, "server": {"duration": "12h", "renewBefore": "10h"}}),
            json!({"ca": {"duration": "20m", "renewBefore": "12m"}, "server": {"duration": "14m", "renewBefore": "10m"}}),
            json!({"caRotateInterval": "48h", "caOverlapInterval": "24h", "certRotateInterval": "10h"}),
            // The shortest possible lifetimes.
            json!({"ca": {"duration": "6m"}, "server": {"duration": "4m", "renewBefore": "2m"}}),
        ] {
            assert_eq!(causes(own.clone()), [""; 0], "{own}");
            let spec =
                serde_json::from_value(json!({"certificateRotateStrategy": {"selfSigned": own}})).unwrap();
            let own = serde_json::from_value(own).unwrap();
            assert_eq!(Rotation::of(&spec), Rotation::from(&own), "what is taken is in force");
        }
    }

    #[test]
    fn invalid_rotations_are_refused() {
        for (own, words) in [
            (json!({"ca": {"duration": "x"}}), vec!["selfSigned.ca.duration: x is not a duration"]),
            (
                json!({"certRotateInterval": "-1h"}),
                vec!["selfSigned.certRotateInterval: -1h is not a duration"],
            ),
            (json!({"caRotateInterval": "48h", "server": {}}), vec!["are deprecated and conflict"]),
            (
                json!({"ca": {"duration": "48h", "renewBefore": "49h"}}),
                vec!["CA RenewBefore cannot exceed Duration"],
            ),
            (
                json!({"server": {"duration": "2h", "renewBefore": "3h"}}),
                vec!["Cert RenewBefore cannot exceed"],
            ),
            (json!({"server": {"duration": "200h"}}), vec!["Certificate duration cannot exceed CA"]),
            (json!({"ca": {"duration": "23h"}}), vec!["Certificate duration cannot exceed CA"]),
            (
                json!({"ca": {"duration": "48h", "renewBefore": "239s"}, "server": {"renewBefore": "119s"}}),
                vec![
                    "selfSigned.ca.renewBefore: selfSigned.ca.renewBefore is less than 4 minutes",
                    "selfSigned.server.renewBefore: selfSigned.server.renewBefore is less than 2 minutes",
                ],
            ),
            (
                json!({"ca": {"duration": "48h", "renewBefore": "48h"}, "server": {"duration": "3m"}}),
                vec!["selfSigned.ca.duration leaves less", "selfSigned.server.duration leaves less"],
            ),
        ] {
            let causes = causes(own.clone());
            assert_eq!(causes.len(), words.len(), "{own}: {causes:?}");
            for (cause, words) in causes.iter().zip(words) {
                assert!(cause.contains(words), "{own}: {cause}");
            }
            let spec =
                serde_json::from_value(json!({"certificateRotateStrategy": {"selfSigned": own}})).unwrap();
            // If the only fault is a conflict, the remaining values can be used.
            if !causes[0].contains("deprecated") && !causes[0].contains("not a duration") {
                assert_eq!(Rotation::of(&spec), Rotation::default(), "what is refused is never in force");
            }
        }
    }
}
