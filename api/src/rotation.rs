//! Lifetimes of the installation's own certificates, and the times of their renewal.

use crate::duration;
use crate::v1::{CertConfig, KubeVirtSelfSignConfiguration, KubeVirtSpec};
use std::time::Duration;

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(24 * 3600);
/// Time until every pod has a changed secret or config map: the kubelet checks once a minute, for some pods a
/// little later.
pub const KUBELET: Duration = Duration::from_secs(120);
/// Shortest time between a certificate's renewal and its end: the new one has to reach the pods.
pub const LEAST_RENEWAL: Duration = KUBELET;
/// Shortest time between an authority's renewal and its end: first the new authority has to reach the pods,
/// then the certificates that it signed.
pub const LEAST_OVERLAP: Duration = Duration::from_secs(2 * KUBELET.as_secs());
/// Shortest time between a certificate's creation and its renewal.
pub const LEAST_USE: Duration = Duration::from_secs(2 * MINUTE.as_secs());

/// Lifetime of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Time from its creation to its end.
    pub duration: Duration,
    /// Time from its renewal to its end.
    pub renew_before: Duration,
}

/// `certificateRotateStrategy.selfSigned`, with defaults filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rotation {
    /// Lifetime of authorities.
    pub authority: Lifetime,
    /// Lifetime of the certificates that they sign.
    pub leaf: Lifetime,
}

impl Default for Rotation {
    fn default() -> Self {
        Rotation::from(&KubeVirtSelfSignConfiguration::default())
    }
}

impl Rotation {
    /// The lifetimes from the `KubeVirt` object. If one is out of range, all of them count as not given,
    /// because running components read this and cannot refuse it.
    pub fn of(spec: &KubeVirtSpec) -> Self {
        Rotation::possible(spec).unwrap_or_default()
    }

    /// The lifetimes from the `KubeVirt` object, unless one is out of range.
    pub fn possible(spec: &KubeVirtSpec) -> Option<Self> {
        let strategy = spec.certificate_rotate_strategy.clone().unwrap_or_default();
        let rotation = Rotation::from(&strategy.self_signed.unwrap_or_default());
        rotation.is_possible().then_some(rotation)
    }

    /// How long a new authority waits in the bundle before it signs: half of the time during which it and the
    /// former one are both trusted, but not longer than useful.
    pub fn settle(&self) -> Duration {
        (self.authority.renew_before / 2).min(5 * MINUTE)
    }

    fn is_possible(&self) -> bool {
        let fits = |life: Lifetime, least: Duration| {
            life.renew_before >= least
                && life.duration.checked_sub(life.renew_before).is_some_and(|used| used >= LEAST_USE)
        };
        fits(self.authority, LEAST_OVERLAP)
            && fits(self.leaf, LEAST_RENEWAL)
            && self.leaf.duration <= self.authority.duration
    }
}

/// The given values; the older fields win, as in KubeVirt. By default the renewal starts a fifth of the
/// lifetime before its end, but not later than the pods need.
impl From<&KubeVirtSelfSignConfiguration> for Rotation {
    fn from(given: &KubeVirtSelfSignConfiguration) -> Self {
        let read = |text: Option<&String>| text.and_then(|text| duration::parse(text));
        let life = |config: Option<&CertConfig>, older: [Option<&String>; 2], default, least: Duration| {
            let [duration, renewal] = older;
            let duration = duration.or(config.and_then(|config| config.duration.as_ref()));
            let renewal = renewal.or(config.and_then(|config| config.renew_before.as_ref()));
            let duration = read(duration).unwrap_or(default);
            Lifetime { duration, renew_before: read(renewal).unwrap_or_else(|| least.max(duration / 5)) }
        };
        let authority = [given.ca_rotate_interval.as_ref(), given.ca_overlap_interval.as_ref()];
        let leaf = [given.cert_rotate_interval.as_ref(), None];
        Rotation {
            authority: life(given.ca.as_ref(), authority, 7 * DAY, LEAST_OVERLAP),
            leaf: life(given.server.as_ref(), leaf, DAY, LEAST_RENEWAL),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    const HOUR: Duration = Duration::from_secs(3600);

    fn of(own: Value) -> [Duration; 4] {
        let spec = serde_json::from_value(json!({"certificateRotateStrategy": {"selfSigned": own}})).unwrap();
        let Rotation { authority, leaf } = Rotation::of(&spec);
        [authority.duration, authority.renew_before, leaf.duration, leaf.renew_before]
    }

    #[test]
    fn a_week_and_a_day_unless_said_otherwise() {
        let default = [7 * DAY, 7 * DAY / 5, DAY, DAY / 5];
        assert_eq!(of(json!({})), default);
        assert_eq!(Rotation::of(&KubeVirtSpec::default()), Rotation::default());
        assert_eq!(of(json!({"ca": {"duration": "100h"}})), [100 * HOUR, 20 * HOUR, DAY, DAY / 5]);
        assert_eq!(
            of(
                json!({"ca": {"duration": "20m", "renewBefore": "12m"}, "server": {"duration": "14m", "renewBefore": "10m"}})
            ),
            [20 * MINUTE, 12 * MINUTE, 14 * MINUTE, 10 * MINUTE]
        );
        assert_eq!(
            of(json!({"caRotateInterval": "48h", "caOverlapInterval": "24h", "certRotateInterval": "10h"})),
            [48 * HOUR, 24 * HOUR, 10 * HOUR, 2 * HOUR]
        );
        // A fifth of a short life is not enough.
        assert_eq!(
            of(json!({"ca": {"duration": "10m"}, "server": {"duration": "5m"}})),
            [10 * MINUTE, 4 * MINUTE, 5 * MINUTE, 2 * MINUTE]
        );
        // Impossible lifetimes count as not given.
        for impossible in [
            json!({"server": {"duration": "3m"}}),
            json!({"ca": {"duration": "1h", "renewBefore": "3m"}}),
            json!({"ca": {"duration": "1h"}}),
            json!({"ca": {"duration": "48h", "renewBefore": "49h"}}),
        ] {
            assert_eq!(of(impossible.clone()), default, "{impossible}");
        }
    }

    #[test]
    fn settling_is_bounded_by_the_overlap() {
        let with = |renew_before| Rotation {
            authority: Lifetime { duration: DAY, renew_before },
            ..Rotation::default()
        };
        assert_eq!(Rotation::default().settle(), 5 * MINUTE);
        assert_eq!(with(LEAST_OVERLAP).settle(), KUBELET);
        assert_eq!(with(8 * MINUTE).settle(), 4 * MINUTE);
    }
}
