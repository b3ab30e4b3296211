//! Plans a replica set. Pure: the same observation gives the same plan.

use crate::generated;
use crate::ownership;
use barevirt_api::names::{CONDITION_READY, is_final_phase};
use barevirt_api::v1::{Condition, VirtualMachineInstance, VirtualMachineInstanceReplicaSet};
use barevirt_api::validate::kinds::selector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::{Resource, ResourceExt};
use std::collections::{BTreeMap, HashSet};

/// Instances that are created or deleted at once; the rest follows with the next look. KubeVirt has 250.
pub(super) const BURST: usize = 50;

/// The part of an instance that concerns a replica set.
#[derive(Clone, Debug, PartialEq)]
pub struct Member {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The version that was seen.
    pub resource_version: Option<String>,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// All of its owners.
    pub owners: Vec<OwnerReference>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Whether it is being deleted.
    pub deleting: bool,
    /// Whether it has ended, or will end soon because its pod is being deleted.
    pub finished: bool,
    /// Whether it is ready.
    pub ready: bool,
}

impl Member {
    /// `pod_leaves`: its launcher pod is being deleted.
    pub fn new(vmi: &VirtualMachineInstance, pod_leaves: bool) -> Self {
        let conditions = vmi.status.as_ref().map(|status| status.conditions.as_slice());
        Member {
            name: vmi.name_any(),
            uid: vmi.uid().unwrap_or_default(),
            resource_version: vmi.resource_version(),
            labels: vmi.labels().clone(),
            owners: vmi.owner_references().to_vec(),
            created: vmi.metadata.creation_timestamp.as_ref().map(|time| time.0),
            deleting: vmi.metadata.deletion_timestamp.is_some(),
            finished: is_final_phase(crate::vmi::phase(vmi)) || pod_leaves,
            ready: Condition::is_set(conditions.unwrap_or_default(), CONDITION_READY),
        }
    }

    fn controller(&self) -> Option<&OwnerReference> {
        self.owners.iter().find(|owner| owner.controller == Some(true))
    }

    fn is_active(&self) -> bool {
        !self.deleting && !self.finished
    }
}

/// Everything that a plan depends on.
#[derive(Clone, Debug)]
pub struct Observed {
    /// The set.
    pub set: VirtualMachineInstanceReplicaSet,
    /// Its instances, and those of its namespace without a controller.
    pub members: Vec<Member>,
}

impl Observed {
    /// The instances that count as the set's: its own, and those that it is about to adopt.
    fn owned(&self) -> Vec<&Member> {
        self.members
            .iter()
            .filter(|member| match member.controller() {
                Some(owner) => self.is_ours(owner) && (self.selects(member) || member.deleting),
                None => !member.deleting && self.adopts() && self.selects(member),
            })
            .collect()
    }

    /// Owned instances that have not ended and are not being deleted.
    pub(super) fn active(&self) -> Vec<&Member> {
        self.owned().into_iter().filter(|member| member.is_active()).collect()
    }

    /// How many are ready.
    pub(super) fn ready(&self) -> usize {
        self.active().iter().filter(|member| member.ready).count()
    }

    fn is_ours(&self, owner: &OwnerReference) -> bool {
        Some(&owner.uid) == self.set.metadata.uid.as_ref()
    }

    /// A set that is being deleted adopts nothing.
    fn adopts(&self) -> bool {
        self.set.metadata.deletion_timestamp.is_none()
    }

    fn selects(&self, member: &Member) -> bool {
        selector::matches(&self.set.spec.selector, Some(&member.labels)) == Ok(true)
    }

    /// Whether the set selects the instances that it makes. Admission requires that, but sets may be older than the rule.
    fn is_sane(&self) -> bool {
        let labels = self.set.spec.template.metadata.as_ref().and_then(|metadata| metadata.labels.as_ref());
        selector::matches(&self.set.spec.selector, labels) == Ok(true)
            && labels.is_some_and(|labels| !labels.is_empty())
    }
}

/// A step on the cluster.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Become the owner of the instance.
    Adopt(Member),
    /// Release the instance.
    Release(Member),
    /// Create the instance.
    Create(Box<VirtualMachineInstance>),
    /// Delete a surplus instance.
    Delete(Member),
    /// Delete an instance that has ended.
    Clear(Member),
}

/// Independent actions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Carried out concurrently.
    pub actions: Vec<Action>,
}

/// Plans the next actions.
pub fn plan(observed: &Observed) -> Plan {
    if !observed.is_sane() || !observed.adopts() {
        return Plan::default();
    }
    let mut actions: Vec<Action> =
        observed.members.iter().filter_map(|member| claim(observed, member)).collect();
    // First it is settled which instances count.
    if !actions.is_empty() || observed.set.spec.paused == Some(true) {
        return Plan { actions };
    }
    let mut active = observed.active();
    let wanted = usize::try_from(observed.set.spec.replicas.unwrap_or(1)).unwrap_or(0);
    if active.len() < wanted {
        let missing = (wanted - active.len()).min(BURST);
        actions.extend(
            names(observed).take(missing).map(|name| Action::Create(Box::new(instance(observed, name)))),
        );
    } else {
        // The most dispensable first: instances that are not ready, then the youngest; names last, so that the order is
        // stable.
        active.sort_by_key(|member| (member.ready, std::cmp::Reverse(member.created), member.name.clone()));
        let surplus = (active.len() - wanted).min(BURST);
        actions.extend(active.into_iter().take(surplus).cloned().map(Action::Delete));
    }
    let finished = observed.owned().into_iter().filter(|member| member.finished && !member.deleting);
    actions.extend(finished.take(BURST).cloned().map(Action::Clear));
    Plan { actions }
}

fn claim(observed: &Observed, member: &Member) -> Option<Action> {
    if member.deleting {
        return None;
    }
    match member.controller() {
        None => observed.selects(member).then(|| Action::Adopt(member.clone())),
        Some(owner) if observed.is_ours(owner) && !observed.selects(member) => {
            Some(Action::Release(member.clone()))
        }
        Some(_) => None,
    }
}

/// Prefix of the names of a set's instances: the template's name, otherwise the set's own.
pub(super) fn beginning(set: &VirtualMachineInstanceReplicaSet) -> String {
    let template = set.spec.template.metadata.as_ref();
    let given = |text: Option<&String>| text.filter(|text| !text.is_empty()).cloned();
    let mut beginning = template
        .and_then(|metadata| given(metadata.name.as_ref()).or_else(|| given(metadata.generate_name.as_ref())))
        .unwrap_or_else(|| set.name_any());
    if !beginning.ends_with('-') {
        beginning.push('-');
    }
    beginning
}

/// Names that no instance of the set has. A name that another object has is found when the instance is created.
fn names(observed: &Observed) -> impl Iterator<Item = String> {
    let mut taken: HashSet<String> = observed.members.iter().map(|member| member.name.clone()).collect();
    let beginning = beginning(&observed.set);
    let uid = observed.set.uid().unwrap_or_default();
    (0u32..)
        .map(move |number| generated::name(&beginning, &format!("{uid}/{number}")))
        .filter(move |name| taken.insert(name.clone()))
}

fn instance(observed: &Observed, name: String) -> VirtualMachineInstance {
    let set = &observed.set;
    let template = set.spec.template.metadata.clone().unwrap_or_default();
    VirtualMachineInstance {
        metadata: ObjectMeta {
            name: Some(name),
            namespace: set.namespace(),
            labels: template.labels,
            annotations: template.annotations,
            owner_references: Some(vec![ownership::owner(set)]),
            ..ObjectMeta::default()
        },
        spec: set.spec.template.spec.clone(),
        status: None,
    }
}

/// Whether the set is the controller in an object's metadata.
pub(super) fn owns(set: &VirtualMachineInstanceReplicaSet, metadata: &ObjectMeta) -> bool {
    ownership::is_controlled_by(metadata, set.meta())
}
