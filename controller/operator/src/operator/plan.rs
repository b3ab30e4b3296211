//! Plans writes and waits from the wanted and the existing objects. Pure.
//!
//! ```text
//!   new, back   definitions, rights, basics | virt-api =ready=> virt-controller, virt-handler | webhooks, APIs | ready-made
//!   update      definitions, rights, basics | virt-handler =ready=> virt-controller =ready=> virt-api | webhooks, ...
//! ```
//!
//! virt-handler is replaced on one node first, in either order ([`canary`]).
//!
//! While pods of a component are being replaced, later components wait if their version changes; everything else goes on,
//! and edits are reverted at once. A missing webhook waits for virt-api, since nothing could be written while it has no
//! server; so do objects that virt-api has to validate. The webhook of the `KubeVirt` object waits only for the operator's
//! own certificate.
//!
//! Objects that are no longer wanted are removed last, but never a definition: its objects would be deleted with it. The rule for
//! copies does not wait ([`rule_of_copies`]).

use super::canary;
use super::kind::{Identity, Kind};
use super::observed::{Mark, ObservedObject};
use super::rollout::Rollout;
use super::rule_of_copies;
use super::wanted::{Stage, Wanted};
use barevirt_api::webhooks::Configuration;
use std::collections::{BTreeMap, BTreeSet};

/// The state in which we left an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// UID of the object.
    pub uid: String,
    /// Hash of the applied contents.
    pub hash: String,
    /// Its state afterwards.
    pub mark: Mark,
}

/// The order in which components are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing runs, or the running version is the wanted one or newer: virt-api first, so that it does not accept what the
    /// older components cannot handle.
    ApiFirst,
    /// An older version runs, or one that cannot be compared: virt-api last, so that it accepts new features only when all
    /// components know them.
    HandlerFirst,
}

impl Order {
    const API_FIRST: [Stage; 9] = [
        Stage::Definitions,
        Stage::Rights,
        Stage::Basics,
        Stage::Api,
        Stage::Controllers,
        Stage::Handler,
        Stage::Admission,
        Stage::ReadyMade,
        Stage::Monitoring,
    ];
    const HANDLER_FIRST: [Stage; 9] = [
        Stage::Definitions,
        Stage::Rights,
        Stage::Basics,
        Stage::Handler,
        Stage::Controllers,
        Stage::Api,
        Stage::Admission,
        Stage::ReadyMade,
        Stage::Monitoring,
    ];

    fn stages(self) -> [Stage; 9] {
        match self {
            Order::ApiFirst => Self::API_FIRST,
            Order::HandlerFirst => Self::HANDLER_FIRST,
        }
    }

    /// Whether later components wait until this stage's pods are replaced.
    fn holds(self, stage: Stage) -> bool {
        match self {
            Order::ApiFirst => stage == Stage::Api,
            Order::HandlerFirst => stage.has_pods(),
        }
    }
}

/// Why an object is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It does not exist.
    Missing,
    /// Its wanted contents have changed.
    Wanted,
    /// Another client wrote it.
    Edited,
    /// This process has not looked at it yet; most likely it is correct.
    Unknown,
}

impl Why {
    /// The reason for logs.
    pub fn name(self) -> &'static str {
        match self {
            Why::Missing => "missing",
            Why::Wanted => "wanted differently",
            Why::Edited => "edited",
            Why::Unknown => "not known",
        }
    }
}

/// An object to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Write {
    /// Its index in the list of wanted objects.
    pub place: usize,
    /// Whether its canary form is written.
    pub canary: bool,
    /// The reason.
    pub why: Why,
}

/// The plan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What to write, in order.
    pub write: Vec<Write>,
    /// What is waited for, as text.
    pub waiting: Vec<String>,
    /// Components whose pods are waited for.
    pub unready: Vec<Identity>,
    /// Whether all objects exist once the writes are done.
    pub complete: bool,
    /// Objects that are no longer wanted; removed only when all else is done.
    pub remove: Vec<Identity>,
}

impl Plan {
    /// Whether nothing is left to be done or waited for, except removals.
    pub fn is_ready(&self) -> bool {
        self.write.is_empty() && self.waiting.is_empty()
    }
}

/// Plans the next writes. `own`: this operator can answer about the `KubeVirt` object.
pub fn plan(
    wanted: &[Wanted],
    seen: &BTreeMap<Identity, ObservedObject>,
    left: &BTreeMap<Identity, Left>,
    order: Order,
    own: bool,
) -> Plan {
    let mut plan = Plan { complete: true, ..Plan::default() };
    // An earlier component holds up later ones.
    let mut held = false;
    // virt-api can answer.
    let mut answered = true;
    for stage in order.stages() {
        for (place, wanted) in wanted.iter().enumerate().filter(|(_, wanted)| wanted.stage == stage) {
            let object = seen.get(&wanted.identity);
            let terminating = object.is_some_and(|object| object.terminating);
            let canary = canary::is_due(wanted, object);
            let hash = canary.map_or(&wanted.hash, |canary| &canary.hash);
            let write = |why| Write { place, canary: canary.is_some(), why };
            let why = difference(hash, object, left.get(&wanted.identity));
            let rollout = object.and_then(|object| object.rollout.as_ref());
            if stage == Stage::Api {
                // False while it does not exist.
                answered &= !terminating
                    && rollout.is_some_and(|rollout| match rollout {
                        Rollout::Done => true,
                        Rollout::Going { serves, .. } => *serves,
                    });
            }
            if terminating {
                plan.waiting.push(format!("{}: it is being deleted", wanted.identity));
                plan.complete = false;
                held |= order.holds(stage);
                continue;
            }
            let asks = matches!(stage, Stage::Admission | Stage::ReadyMade);
            match why {
                Some(Why::Missing | Why::Wanted) if stage.has_pods() && held => {
                    plan.complete = false;
                    plan.waiting.push(format!("{}: it comes later", wanted.identity));
                }
                Some(Why::Missing) if asks && !(if is_own(wanted) { own } else { answered }) => {
                    plan.complete = false;
                    plan.waiting.push(format!("{}: it comes later", wanted.identity));
                }
                Some(why @ (Why::Missing | Why::Wanted)) => {
                    plan.write.push(write(why));
                    held |= order.holds(stage);
                }
                // It has the wanted version, or had it before another client wrote to it: corrected in any case.
                None | Some(Why::Edited | Why::Unknown) => {
                    plan.write.extend(why.map(write));
                    if let Some(Rollout::Going { why, .. }) = rollout {
                        let first = if canary.is_some() { "one pod first: " } else { "" };
                        plan.waiting.push(format!("{}: {first}{why}", wanted.identity));
                        plan.unready.push(wanted.identity.clone());
                        held |= order.holds(stage);
                    }
                }
            }
        }
    }
    let names: BTreeSet<&Identity> = wanted.iter().map(|wanted| &wanted.identity).collect();
    let is_ready = plan.is_ready();
    plan.remove = seen
        .iter()
        .filter(|(identity, object)| {
            object.hash.is_some()
                && !object.terminating
                && identity.kind != Kind::CustomResourceDefinition
                && !names.contains(identity)
                // No component of ours relies on that rule, and CDI's users wait for its end.
                && (is_ready || rule_of_copies::is_part(identity))
        })
        .map(|(identity, _)| identity.clone())
        .collect();
    plan
}

/// Whether it is the webhook of this operator.
fn is_own(wanted: &Wanted) -> bool {
    wanted.identity.kind == Kind::ValidatingWebhookConfiguration
        && wanted.identity.name == Configuration::Operator.name()
}

/// Why the object has to be written; `None` where it is correct.
fn difference(hash: &String, object: Option<&ObservedObject>, left: Option<&Left>) -> Option<Why> {
    let Some(object) = object else { return Some(Why::Missing) };
    if object.hash.as_ref() != Some(hash) {
        return Some(Why::Wanted);
    }
    match left {
        Some(left) if left.uid == object.uid && left.hash == *hash => {
            (left.mark != object.mark).then_some(Why::Edited)
        }
        _ => Some(Why::Unknown),
    }
}

#[cfg(test)]
mod killed;
#[cfg(test)]
mod tests;
