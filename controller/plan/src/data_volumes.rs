//! The DataVolumes that a machine's templates ask for: their manifests, the permissions that a copy needs, and what their
//! status means while CDI fills them.
//!
//! ```text
//!   template --resolved--> specification --origin--> what is copied --questions--> may the machine's account copy it?
//!                               \--manifest--> DataVolume, which the machine owns
//! ```
//!
//! We create a DataVolume with our own rights, and CDI checks no other account. So we check that the machine's account may copy
//! the source. A DataSource is followed first, and the DataVolume names what was found and checked.

pub mod status;

use self::status::{FAILED, PENDING_POPULATION, SUCCEEDED, Status, WAIT_FOR_FIRST_CONSUMER};
use crate::owner::owner;
use barevirt_api::account::Account;
use barevirt_api::cdi::{self, DataVolumeSource, DataVolumeSpec};
use barevirt_api::names::{CREATED_BY_LABEL, STATUS_DATA_VOLUME_ERROR, STATUS_PROVISIONING};
use barevirt_api::syntax::quoted;
use barevirt_api::v1::{DataVolumeTemplateSpec, VirtualMachine};
use barevirt_api::validate::{is_dns_label, is_dns_subdomain};
use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::DynamicObject;
use kube::{Resource, ResourceExt};
use serde_json::Value;

/// Annotation on a DataVolume: a claim of its name that exists is taken over with its contents.
const CLAIM_ADOPTION_ANNOTATION: &str = "cdi.kubevirt.io/allowClaimAdoption";
/// Annotation on a machine, "false": its DataVolumes are made when it starts, not earlier.
const IMMEDIATE_ANNOTATION: &str = "kubevirt.io/immediate-data-volume-creation";
/// Phases in which an instance can have the claim: it is filled, or it waits for the instance's pod.
const READY: [&str; 3] = [SUCCEEDED, WAIT_FOR_FIRST_CONSUMER, PENDING_POPULATION];

/// Whether they are made before the machine is started.
pub fn are_immediate(vm: &VirtualMachine) -> bool {
    vm.annotations().get(IMMEDIATE_ANNOTATION).is_none_or(|value| value != "false")
}

/// An object's namespace and name. Both become part of a request's path, and users write them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl std::fmt::Display for Place {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}/{}", self.namespace, self.name)
    }
}

impl Place {
    pub(crate) fn new(kind: &str, namespace: &str, name: &str) -> Result<Self, String> {
        if is_dns_label(namespace) && is_dns_subdomain(name) {
            return Ok(Place { namespace: namespace.to_owned(), name: name.to_owned() });
        }
        // The message becomes part of a status, and what users write has no limit of its own.
        Err(format!("there is no {kind} {}/{}", quoted(namespace), quoted(name)))
    }
}

/// What is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A claim.
    Claim(Place),
    /// A VolumeSnapshot.
    Snapshot(Place),
}

/// The DataSource that a specification names instead of a source. `namespace` is the machine's.
///
/// # Errors
/// It is not a valid name.
pub fn data_source(spec: &DataVolumeSpec, namespace: &str) -> Result<Option<Place>, String> {
    let Some(reference) = &spec.source_ref else { return Ok(None) };
    let own = reference.namespace.as_deref().filter(|own| !own.is_empty());
    Place::new(cdi::DATA_SOURCE, own.unwrap_or(namespace), &reference.name).map(Some)
}

/// The specification with the full source in it instead of the DataSource. `found` is that DataSource as the API server has
/// it.
///
/// # Errors
/// The DataSource lacks a field.
pub fn resolved(
    spec: &DataVolumeSpec,
    namespace: &str,
    found: Option<&Value>,
) -> Result<DataVolumeSpec, String> {
    let mut spec = spec.clone();
    let mut beside = namespace.to_owned();
    if let Some(place) = data_source(&spec, namespace)? {
        let nothing =
            || format!("DataSource {}/{} stands for no claim and no snapshot", place.namespace, place.name);
        let found = found.ok_or_else(nothing)?;
        let said = cdi::stands_for(found);
        let mut source = DataVolumeSource::default();
        if said["pvc"].is_object() {
            source.pvc = serde_json::from_value(with_namespace(&said["pvc"])).ok();
        } else if said["snapshot"].is_object() {
            source.snapshot = serde_json::from_value(with_namespace(&said["snapshot"])).ok();
        }
        if source.pvc.is_none() && source.snapshot.is_none() {
            return Err(nothing());
        }
        spec.source_ref = None;
        spec.source = Some(source);
        beside = place.namespace;
    }
    if let Some(source) = &mut spec.source {
        let claims = source.pvc.as_mut().map(|source| &mut source.namespace);
        let snapshots = source.snapshot.as_mut().map(|source| &mut source.namespace);
        for namespace in claims.into_iter().chain(snapshots).filter(|namespace| namespace.is_empty()) {
            namespace.clone_from(&beside);
        }
    }
    Ok(spec)
}

/// A DataSource may leave out the namespace.
fn with_namespace(source: &Value) -> Value {
    let mut source = source.clone();
    if source["namespace"].is_null() {
        source["namespace"] = Value::String(String::new());
    }
    source
}

/// The source of a resolved specification.
///
/// # Errors
/// It is not a valid name.
pub fn origin(spec: &DataVolumeSpec) -> Result<Option<Origin>, String> {
    let Some(source) = &spec.source else { return Ok(None) };
    if let Some(claim) = &source.pvc {
        return Place::new("claim", &claim.namespace, &claim.name).map(|place| Some(Origin::Claim(place)));
    }
    let Some(one) = &source.snapshot else { return Ok(None) };
    Place::new("VolumeSnapshot", &one.namespace, &one.name).map(|place| Some(Origin::Snapshot(place)))
}

impl Origin {
    /// Namespace and name of the source.
    pub fn place(&self) -> &Place {
        match self {
            Origin::Claim(place) | Origin::Snapshot(place) => place,
        }
    }
}

/// The user name of a machine's account.
pub fn account(vm: &VirtualMachine) -> String {
    Account::of(vm).name
}

/// The permissions that the machine's account needs for a copy: all of at least one of these lists. CDI's rules; a copy
/// within a namespace needs none.
pub fn questions(vm: &VirtualMachine, origin: &Origin) -> Vec<Vec<SubjectAccessReview>> {
    let own = vm.namespace().unwrap_or_default();
    let place = origin.place();
    if place.namespace == own {
        return vec![];
    }
    let Account { name, groups } = Account::of(vm);
    let create = |group: &str, resource: &str, subresource: Option<&str>| SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(name.clone()),
            groups: Some(groups.clone()),
            resource_attributes: Some(ResourceAttributes {
                group: Some(group.to_owned()),
                resource: Some(resource.to_owned()),
                subresource: subresource.map(str::to_owned),
                verb: Some("create".to_owned()),
                namespace: Some(place.namespace.clone()),
                name: Some(place.name.clone()),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let explicit = vec![create(cdi::GROUP, "datavolumes", Some("source"))];
    let implicit = match origin {
        Origin::Claim(_) => vec![create("", "pods", None)],
        Origin::Snapshot(_) => vec![create("", "pods", None), create("", "pvcs", None)],
    };
    vec![explicit, implicit]
}

/// The DataVolume of a template. All that the template has is passed on; `spec` is its resolved specification.
pub fn manifest(
    vm: &VirtualMachine,
    template: &DataVolumeTemplateSpec,
    mut spec: DataVolumeSpec,
) -> DynamicObject {
    let given = template.metadata.clone().unwrap_or_default();
    let mut labels = given.labels.unwrap_or_default();
    labels.insert(CREATED_BY_LABEL.to_owned(), vm.metadata.uid.clone().unwrap_or_default());
    let mut annotations = given.annotations.unwrap_or_default();
    annotations.insert(CLAIM_ADOPTION_ANNOTATION.to_owned(), "true".to_owned());
    if spec.priority_class_name.as_deref().unwrap_or_default().is_empty() {
        spec.priority_class_name.clone_from(&vm.spec.template.spec.priority_class_name);
    }
    let metadata = ObjectMeta {
        name: given.name,
        namespace: vm.metadata.namespace.clone(),
        labels: Some(labels),
        annotations: Some(annotations),
        finalizers: given.finalizers,
        owner_references: Some(vec![owner(vm)]),
        ..ObjectMeta::default()
    };
    // Our types always have a JSON form: their maps have only string keys.
    let data = serde_json::json!({ "spec": serde_json::to_value(spec).unwrap_or_default() });
    let mut object = DynamicObject::new("", &cdi::resource(cdi::DATA_VOLUME)).data(data);
    object.metadata = metadata;
    object
}

/// The state of a DataVolume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataVolumeState {
    /// Its name.
    pub name: String,
    /// Its phase; empty before CDI has seen it.
    pub phase: String,
    /// Whether its claim is bound.
    pub is_bound: bool,
    /// Whether the pod that fills it has stopped with an error.
    pub has_stopped: bool,
    /// That the quota leaves no space for its claim, in the quota's words.
    pub over_quota: Option<String>,
    /// Whether no object owns it as its controller.
    pub is_nobodys: bool,
    /// Whether it is being deleted, or will be.
    pub is_going: bool,
}

impl DataVolumeState {
    /// The state of that DataVolume for `vm`. A DataVolume of a deleted machine of the same name is deleted with that
    /// machine.
    pub fn of(object: &DynamicObject, vm: &VirtualMachine) -> Self {
        let owner = object.owner_references().iter().find(|owner| owner.controller == Some(true));
        let is_former = owner.is_some_and(|owner| {
            let (kind, name) = (VirtualMachine::kind(&()), vm.metadata.name.as_ref());
            owner.kind == kind && Some(&owner.name) == name && Some(&owner.uid) != vm.metadata.uid.as_ref()
        });
        let status = Status::of(&object.data);
        let bound = status.condition("Bound");
        let over_quota = bound
            .filter(|bound| bound["status"] != "True" && bound["reason"] == "ErrExceededQuota")
            .map(|bound| bound["message"].as_str().unwrap_or_default().to_owned());
        DataVolumeState {
            name: object.name_any(),
            phase: status.phase().to_owned(),
            is_bound: bound.is_some_and(|bound| bound["status"] == "True"),
            has_stopped: status.stopped().is_some(),
            over_quota,
            is_nobodys: owner.is_none(),
            is_going: is_former || object.metadata.deletion_timestamp.is_some(),
        }
    }

    /// Whether CDI has given up.
    pub fn has_failed(&self) -> bool {
        self.phase == FAILED
    }

    fn is_ready(&self) -> bool {
        !self.is_going && READY.contains(&self.phase.as_str())
    }

    fn is_filled(&self) -> bool {
        !self.is_going && !self.is_nobodys && self.phase == SUCCEEDED
    }

    /// Whether it is being filled, and waits for nothing else.
    fn is_being_filled(&self) -> bool {
        match self.phase.as_str() {
            SUCCEEDED | PENDING_POPULATION => self.is_going,
            WAIT_FOR_FIRST_CONSUMER => self.is_going || self.is_bound,
            _ => true,
        }
    }
}

/// What is to be done for templates. Numbers are positions in the list of templates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Templates whose DataVolume is to be made.
    pub make: Vec<usize>,
    /// Names of DataVolumes that have no owner: the machine adopts them.
    pub adopt: Vec<String>,
}

/// The DataVolumes of a machine's templates, in the order of the templates; `None` for those that do not exist. Empty where
/// they were not looked up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataVolumes(pub Vec<Option<DataVolumeState>>);

impl DataVolumes {
    fn existing(&self) -> impl Iterator<Item = &DataVolumeState> {
        self.0.iter().flatten()
    }

    /// What is to be done before the machine goes on. `starts`: its instance is made next.
    pub fn work(&self, vm: &VirtualMachine, starts: bool) -> Option<Work> {
        let missing =
            self.0.iter().enumerate().filter(|(_, volume)| volume.is_none()).map(|(index, _)| index);
        let make = if starts || are_immediate(vm) { missing.collect() } else { vec![] };
        let free = self.existing().filter(|volume| volume.is_nobodys && !volume.is_going);
        let work = Work { make, adopt: free.map(|volume| volume.name.clone()).collect() };
        (work != Work::default()).then_some(work)
    }

    /// The first DataVolume whose claim exceeds a quota.
    pub fn over_quota(&self) -> Option<(&DataVolumeState, &str)> {
        self.existing()
            .filter(|volume| volume.phase == "Pending")
            .find_map(|volume| Some((volume, volume.over_quota.as_deref()?)))
    }

    /// The DataVolumes that CDI has given up.
    pub fn failed(&self) -> impl Iterator<Item = &DataVolumeState> {
        self.existing().filter(|volume| volume.has_failed())
    }

    /// Whether an instance can have them all.
    pub fn are_ready(&self) -> bool {
        self.0.iter().all(|volume| volume.as_ref().is_some_and(DataVolumeState::is_ready))
    }

    /// Whether their states are final.
    pub fn are_filled(&self) -> bool {
        self.0.iter().all(|volume| volume.as_ref().is_some_and(DataVolumeState::is_filled))
    }

    /// The machine's printable status, where the DataVolumes decide it.
    pub fn status(&self) -> Option<&'static str> {
        if self.existing().any(|volume| volume.has_failed() || volume.has_stopped) {
            return Some(STATUS_DATA_VOLUME_ERROR);
        }
        self.existing().any(DataVolumeState::is_being_filled).then_some(STATUS_PROVISIONING)
    }

    /// Whether one waits for its first consumer.
    pub fn wait_for_binding(&self) -> bool {
        self.existing().any(|volume| volume.is_ready() && volume.phase != SUCCEEDED && !volume.is_bound)
    }
}

#[cfg(test)]
mod tests;
