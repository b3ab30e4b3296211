//! What to write and what to wait for, given what is wanted and what is there. Pure.
//!
//! ```text
//!   new, back   definitions, rights, basics | virt-api =ready=> virt-controller, virt-handler | webhooks, APIs | ready-made
//!   update      definitions, rights, basics | virt-handler =ready=> virt-controller =ready=> virt-api | webhooks, ...
//! ```
//!
//! virt-handler is replaced on one node first, in either order ([`canary`]).
//!
//! A component whose pods are still being replaced holds up other versions of the components after it, and nothing else:
//! what was edited is put right at once. A webhook that is not there yet waits for virt-api, since nothing
//! could be written while nobody answers it; and so does what virt-api is asked about. The webhook of the `KubeVirt` object
//! waits for the operator's own certificate only.
//!
//! What is not wanted any more is removed last, but never a definition: with it would go what people made.

use super::canary;
use super::kind::{Identity, Kind};
use super::rollout::Rollout;
use super::seen::{Mark, Seen};
use super::wanted::{Stage, Wanted};
use barevirt_api::webhooks::Configuration;
use std::collections::{BTreeMap, BTreeSet};

/// The state in which we left an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Which object.
    pub uid: String,
    /// What we applied.
    pub hash: String,
    /// Its state afterwards.
    pub mark: Mark,
}

/// In which order components are changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Nothing runs, or what runs is of the wanted version, or of a newer one: what the older one does not know is not let
    /// in any more before those who would have to do it are replaced.
    ApiFirst,
    /// An older version runs, or one that cannot be compared: what is new is let in when everybody knows it.
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

    /// Whether the components after this one wait until its pods are replaced.
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
    /// It is not there.
    Missing,
    /// It was not asked for like this before.
    Wanted,
    /// Somebody else wrote it.
    Edited,
    /// This process has not looked at it yet; most likely it is right.
    Unknown,
}

impl Why {
    /// For logs.
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
    /// Its place in the list of what is wanted.
    pub place: usize,
    /// Whether it is to be its canary first.
    pub canary: bool,
    /// Why.
    pub why: Why,
}

/// What to do now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// What to write, in order.
    pub write: Vec<Write>,
    /// What is waited for, for people.
    pub waiting: Vec<String>,
    /// Which components' pods are waited for.
    pub unready: Vec<Identity>,
    /// Whether all objects are there once this was written.
    pub complete: bool,
    /// What nobody wants any more; only when all else is done.
    pub remove: Vec<Identity>,
}

impl Plan {
    /// Whether nothing is left to be done or waited for, but for removing what is not wanted.
    pub fn is_ready(&self) -> bool {
        self.write.is_empty() && self.waiting.is_empty()
    }
}

/// Decides. `own` tells whether this operator answers about the `KubeVirt` object.
pub fn plan(
    wanted: &[Wanted],
    seen: &BTreeMap<Identity, Seen>,
    left: &BTreeMap<Identity, Left>,
    order: Order,
    own: bool,
) -> Plan {
    let mut plan = Plan { complete: true, ..Plan::default() };
    // A component that others wait for.
    let mut held = false;
    // virt-api answers.
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
                // None while it is not there at all.
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
                // It is of the wanted version, or was until somebody wrote to it: put right whatever else goes on.
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
    if plan.is_ready() {
        let names: BTreeSet<&Identity> = wanted.iter().map(|wanted| &wanted.identity).collect();
        plan.remove = seen
            .iter()
            .filter(|(identity, object)| {
                object.hash.is_some()
                    && !object.terminating
                    && identity.kind != Kind::CustomResourceDefinition
                    && !names.contains(identity)
            })
            .map(|(identity, _)| identity.clone())
            .collect();
    }
    plan
}

/// Whether it is this operator that is asked.
fn is_own(wanted: &Wanted) -> bool {
    wanted.identity.kind == Kind::ValidatingWebhookConfiguration
        && wanted.identity.name == Configuration::Operator.name()
}

/// Why the object has to be written; none where it is as it should be.
fn difference(hash: &String, object: Option<&Seen>, left: Option<&Left>) -> Option<Why> {
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
