//! Plans the certificates from those that exist. Pure.
//!
//! ```text
//!              due                    in the bundle, and every reader has it
//!   authority ------> next is made -------------------------------------> next is the authority
//!      |                 |                                                    |
//!      +--signs leaves   +--is trusted, signs nothing                         +--signs all leaves again
//! ```
//!
//! So at every moment there is an authority that all readers trust, and no renewal waits until another authority is known. A
//! former authority stays in the bundle until everything that it signed is replaced.

use super::issue::{Leaf, made, seconds};
use barevirt_api::rotation::{KUBELET, Lifetime, Rotation};
use barevirt_component::certificates::ParsedCertificate;
use std::collections::BTreeMap;

/// How many former authorities are trusted. Each has signed for at least as long as it waited, so everything that the third
/// last one signed is replaced.
const FORMER: usize = 2;

/// The stored certificates.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// The authority, if its secret contains a usable one.
    pub(super) authority: Option<ParsedCertificate>,
    /// Since when it signs, if it was a successor.
    pub(super) since: Option<i64>,
    /// Its successor, if its secret contains a usable one.
    pub(super) next: Option<ParsedCertificate>,
    /// Authorities in the bundle.
    pub(super) bundle: Vec<ParsedCertificate>,
    /// Key identifiers of the authorities that the API server trusts when it calls us.
    pub(super) published: Vec<Vec<u8>>,
    /// The readable leaf certificates.
    pub(super) leaves: BTreeMap<Leaf, ParsedCertificate>,
}

/// The change of the authority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Change {
    /// It stays.
    #[default]
    None,
    /// A new one replaces it at once: there is none, or it has expired.
    New,
    /// A successor is made.
    Next,
    /// The successor replaces it.
    Promote,
}

/// The planned changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Plan {
    /// Done first; then the plan is made again.
    pub(super) change: Change,
    /// The bundle's new contents, if they change: PEM texts, the signing authority last.
    pub(super) bundle: Option<Vec<String>>,
    /// Leaves to issue, after the bundle is written.
    pub(super) issue: Vec<Leaf>,
    /// When work is due again, seconds since 1970.
    pub(super) due: Option<i64>,
}

impl Plan {
    fn of(change: Change) -> Self {
        Plan { change, ..Plan::default() }
    }

    /// Whether nothing is to be done now.
    #[cfg(test)]
    fn is_quiet(&self) -> bool {
        self.change == Change::None && self.bundle.is_none() && self.issue.is_empty()
    }
}

/// Plans the changes; `now` is in seconds since 1970.
pub(super) fn plan(observed: &Observed, rotation: &Rotation, namespace: &str, now: i64) -> Plan {
    let settle = seconds(rotation.settle());
    let valid = |seen: &&ParsedCertificate| seen.is_valid(now);
    let next = observed.next.as_ref().filter(valid);
    let Some(authority) = observed.authority.as_ref().filter(valid) else {
        // An authority that not all readers know yet is better than none.
        return Plan::of(if next.is_some() { Change::Promote } else { Change::New });
    };
    let settled_at = |seen: &ParsedCertificate| made(seen).saturating_add(settle);
    match next {
        Some(next) => {
            let known = knows(&observed.bundle, next) && observed.published.contains(&next.key_id);
            if known && now >= promoted_at(next, authority, settle) {
                return Plan::of(Change::Promote);
            }
        }
        None if due(authority, rotation.authority) <= now => return Plan::of(Change::Next),
        None => {}
    }

    // Everything that the former one signed is replaced by then, even if lifetimes were changed meanwhile.
    let replaced = rotation.authority.renew_before.saturating_sub(rotation.settle()).max(2 * KUBELET);
    let since = observed.since.unwrap_or_else(|| settled_at(authority));
    let known = [Some(authority), next].into_iter().flatten();
    let mut former: Vec<&ParsedCertificate> = observed
        .bundle
        .iter()
        .filter(|old| old.is_valid(now) && known.clone().all(|known| known.key_id != old.key_id))
        .collect();
    former.sort_by_key(|old| made(old));
    let last = former.last().map(|last| last.key_id.clone());
    // Authorities before the last one had stopped signing when the present one was made.
    let forgotten = |old: &ParsedCertificate| {
        let ceased = if last.as_ref() == Some(&old.key_id) { since } else { made(authority) };
        ceased.saturating_add(seconds(replaced))
    };
    former.retain(|old| now < forgotten(old));
    former.drain(..former.len().saturating_sub(FORMER));
    let wanted = former.iter().copied().chain(next).chain([authority]);
    let wanted: Vec<String> = wanted.map(|seen| seen.pem.clone()).collect();
    let changed = !observed.bundle.iter().map(|seen| &seen.pem).eq(&wanted);

    // The authority has settled, unless its former secret was lost.
    let settled = observed.since.is_some()
        || now >= settled_at(authority)
        || observed.bundle.iter().all(|known| known.key_id == authority.key_id);
    let issue: Vec<Leaf> = Leaf::ALL
        .into_iter()
        .filter(|leaf| match observed.leaves.get(leaf) {
            Some(seen) if seen.is_valid(now) && leaf.profile(namespace).is_of(seen) => {
                let trusted = observed
                    .bundle
                    .iter()
                    .any(|trusted| trusted.is_valid(now) && trusted.key_id == seen.issuer_key_id);
                let renew = due(seen, rotation.leaf) <= now || seen.issuer_key_id != authority.key_id;
                !trusted || renew && settled
            }
            Some(_) | None => true,
        })
        .collect();

    let leaves = observed.leaves.values().map(|seen| due(seen, rotation.leaf));
    let ends = former.iter().map(|old| old.not_after.min(forgotten(old)));
    let of_authority =
        next.map_or_else(|| due(authority, rotation.authority), |next| promoted_at(next, authority, settle));
    let times = leaves.chain(ends).chain([of_authority, settled_at(authority)]);
    Plan {
        change: Change::None,
        due: times.filter(|time| *time > now).min(),
        bundle: changed.then_some(wanted),
        issue,
    }
}

/// When a successor signs: once it has settled, and early enough that its certificates are everywhere before the present one
/// ends, which may have been made for another overlap.
fn promoted_at(next: &ParsedCertificate, authority: &ParsedCertificate, settle: i64) -> i64 {
    let kubelet = seconds(KUBELET);
    let in_time = authority.not_after.saturating_sub(kubelet);
    made(next).saturating_add(settle).min(in_time.max(made(next).saturating_add(kubelet)))
}

fn knows(bundle: &[ParsedCertificate], authority: &ParsedCertificate) -> bool {
    bundle.iter().any(|known| known.key_id == authority.key_id)
}

/// When a certificate is to be renewed; in the past if its lifetime is not the wanted one.
fn due(seen: &ParsedCertificate, life: Lifetime) -> i64 {
    if seen.not_after.saturating_sub(made(seen)) == seconds(life.duration) {
        seen.not_after.saturating_sub(seconds(life.renew_before))
    } else {
        i64::MIN
    }
}

#[cfg(test)]
mod tests;
