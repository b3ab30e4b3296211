//! What a storage class advises: the contents of its StorageProfile, and what claims take from it for the fields that they
//! leave open.
//!
//! ```text
//!   StorageClass --> StorageProfile of its name: spec.claimPropertySets, by users; else what is known of the provisioner
//!                                  \--> status.claimPropertySets --> claims of `storage` without access modes or volume mode
//! ```

use super::condition::{condition, merged};
use super::facts::LABEL;
use super::overhead;
use barevirt_api::cdi::{
    ClaimPropertySet, StorageProfile, StorageProfileSpec, StorageProfileStatus, StorageSpec, annotation,
};
use barevirt_api::quantity;
use k8s_openapi::api::core::v1::PersistentVolume;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use std::collections::BTreeMap;

/// Volume mode of a claim that takes the profile's.
const FROM_PROFILE: &str = "FromStorageProfile";
/// How claims are copied without CDI.
const COPY: &str = "copy";
/// The form in which images are kept without CDI.
const FORMAT: &str = "pvc";
/// Condition: whether it is known which claims the class can have.
const RECOGNIZED: &str = "Recognized";

const BLOCK: &str = "Block";
/// Volume mode of a claim with a file system.
pub(super) const FILES: &str = "Filesystem";
const ONE: &str = "ReadWriteOnce";
const MANY: &str = "ReadWriteMany";

/// Access mode and volume mode that go together, the best first.
type Known = &'static [(&'static str, &'static str)];

const ONE_FILES: Known = &[(ONE, FILES)];
const ONE_BLOCK: Known = &[(ONE, BLOCK)];
const MANY_FILES: Known = &[(MANY, FILES)];
const EITHER_FILES: Known = &[(MANY, FILES), (ONE, FILES)];
const ONE_EITHER: Known = &[(ONE, BLOCK), (ONE, FILES)];
const SHARED_BLOCK: Known = &[(MANY, BLOCK), (ONE, BLOCK), (ONE, FILES)];

/// CDI's table of common provisioners.
const PROVISIONERS: &[(&str, Known)] = &[
    ("kubevirt.io.hostpath-provisioner", ONE_FILES),
    ("kubevirt.io/hostpath-provisioner", ONE_FILES),
    ("k8s.io/minikube-hostpath", ONE_FILES),
    ("nfs.csi.k8s.io", MANY_FILES),
    ("k8s-sigs.io/nfs-subdir-external-provisioner", MANY_FILES),
    ("rbd.csi.ceph.com", SHARED_BLOCK),
    ("rook-ceph.rbd.csi.ceph.com", SHARED_BLOCK),
    ("cephfs.csi.ceph.com", EITHER_FILES),
    ("rook-ceph.cephfs.csi.ceph.com", EITHER_FILES),
    ("linstor.csi.linbit.com", SHARED_BLOCK),
    ("ebs.csi.aws.com", ONE_BLOCK),
    ("efs.csi.aws.com", EITHER_FILES),
    ("disk.csi.azure.com", ONE_BLOCK),
    ("file.csi.azure.com", MANY_FILES),
    ("pd.csi.storage.gke.io", ONE_EITHER),
    ("topolvm.io", ONE_EITHER),
    ("cinder.csi.openstack.org", ONE_EITHER),
    ("manila.csi.openstack.org", MANY_FILES),
    ("csi.vsphere.vmware.com", ONE_EITHER),
    ("driver.longhorn.io", ONE_BLOCK),
];

/// What a claim of `storage` takes where it leaves a field open, and how large it is at least.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// The class, where it is not Kubernetes' default class.
    pub class: Option<String>,
    /// The sets of its StorageProfile, the best first.
    pub sets: Vec<ClaimPropertySet>,
    /// The least size of a claim of the class, in bytes.
    pub least: u64,
    /// The share of a claim that is left to its file system, in thousandths.
    pub share: u16,
    /// The class, where neither anybody's word nor its volumes say what its claims can be.
    pub without_modes: Option<String>,
}

impl Default for Profile {
    fn default() -> Self {
        Self { class: None, sets: vec![], least: 0, share: overhead::USUAL, without_modes: None }
    }
}

impl Profile {
    /// Of a class that is not Kubernetes' default class, where one is named here, with the StorageProfile that was found.
    /// `share` is that of the class.
    pub fn of(class: Option<String>, found: Option<StorageProfile>, share: u16) -> Self {
        let Some(found) = found else { return Self { class, share, ..Self::default() } };
        let least = found.annotations().get(annotation::LEAST_SIZE).cloned().map(Quantity);
        // A size that cannot be read counts as none, as with CDI.
        let least = least.and_then(|least| quantity::bytes(&least).ok()).unwrap_or_default();
        let sets = match found.spec.claim_property_sets {
            // A user's change counts at once, before the status has it.
            sets if !sets.is_empty() => sets,
            _ => found.status.map(|status| status.claim_property_sets).unwrap_or_default(),
        };
        Self { class, sets, least, share, ..Self::default() }
    }

    /// Of that class, which has no provisioner, where nothing else is advised: a claim of it can be what a volume of it is.
    /// As with CDI, a claim that leaves its access modes open is not made before there is a volume.
    #[must_use]
    pub fn of_volumes(self, class: &str, all: &[PersistentVolume]) -> Self {
        let mut sets: Vec<ClaimPropertySet> = vec![];
        let specs = all.iter().filter_map(|volume| volume.spec.as_ref());
        for spec in specs.filter(|spec| spec.storage_class_name.as_deref() == Some(class)) {
            let access_modes = spec.access_modes.clone().unwrap_or_default();
            let mode = spec.volume_mode.clone().unwrap_or_else(|| FILES.to_owned());
            let set = ClaimPropertySet { access_modes, volume_mode: Some(mode) };
            if !set.access_modes.is_empty() && !sets.contains(&set) {
                sets.push(set);
            }
        }
        let without_modes = sets.is_empty().then(|| class.to_owned());
        Self { sets, without_modes, ..self }
    }
}

/// Whether a claim names its volume mode itself.
pub(super) fn gives_mode(storage: &StorageSpec) -> bool {
    asked_mode(storage).is_some()
}

fn asked_mode(storage: &StorageSpec) -> Option<&str> {
    storage.volume_mode.as_deref().filter(|mode| !mode.is_empty() && *mode != FROM_PROFILE)
}

/// Access modes and volume mode of a claim.
pub(super) fn modes(storage: &StorageSpec, sets: &[ClaimPropertySet]) -> (Vec<String>, Option<String>) {
    let asked = asked_mode(storage);
    let set = match (asked, storage.access_modes.as_slice()) {
        (None, []) => sets.first(),
        // A claim with one of the two gets the matching other one, if there is one.
        (Some(mode), []) => sets.iter().find(|set| set.volume_mode.as_deref() == Some(mode)),
        (None, modes) => sets
            .iter()
            .find(|set| set.access_modes.iter().any(|mode| modes.contains(mode)))
            .or_else(|| sets.first()),
        (Some(_), _) => None,
    };
    let access_modes = match storage.access_modes.as_slice() {
        [] => set.map(|set| set.access_modes.clone()).filter(|modes| !modes.is_empty()),
        given => Some(given.to_vec()),
    };
    let mode = asked.or_else(|| set?.volume_mode.as_deref());
    // Kubernetes' default is not written.
    let mode = mode.filter(|mode| *mode == BLOCK).map(str::to_owned);
    (access_modes.unwrap_or_else(|| vec![ONE.to_owned()]), mode)
}

/// A step by which each class gets a profile with its status.
#[derive(Clone, Debug, PartialEq)]
pub enum ProfileStep {
    /// Make this one.
    Make(Box<StorageProfile>),
    /// Write the status of the one of that name.
    Write {
        /// Its name.
        name: String,
        /// The status.
        status: Box<StorageProfileStatus>,
    },
    /// Delete the one of that name: its class is gone.
    Remove {
        /// Its name.
        name: String,
        /// Its UID: no other one is meant.
        uid: String,
    },
}

/// The steps. The profiles were listed before the classes, so that no class of a listed profile is missing by mistake.
/// Profiles that people made for classes that do not exist yet stay.
pub fn profile_steps(profiles: &[StorageProfile], classes: &[StorageClass], now: &Time) -> Vec<ProfileStep> {
    let of_class = classes.iter().filter_map(|class| {
        let name = class.name_any();
        let Some(profile) = profiles.iter().find(|profile| profile.name_any() == name) else {
            return Some(ProfileStep::Make(Box::new(new(&name))));
        };
        let status = Box::new(status(profile, class, now)?);
        Some(ProfileStep::Write { name, status })
    });
    let is_left = |profile: &&StorageProfile| {
        let is_made_here = profile.labels().get(LABEL.0).is_some_and(|value| value == LABEL.1);
        let is_going = profile.metadata.deletion_timestamp.is_some();
        is_made_here && !is_going && !classes.iter().any(|class| class.name_any() == profile.name_any())
    };
    let left = profiles.iter().filter(is_left).filter_map(|profile| {
        Some(ProfileStep::Remove { name: profile.name_any(), uid: profile.metadata.uid.clone()? })
    });
    of_class.chain(left).collect()
}

/// The profile of the class of that name. Its status is written later.
fn new(name: &str) -> StorageProfile {
    let mut profile = StorageProfile::new(name, StorageProfileSpec::default());
    let label = |(label, value): (&str, &str)| (label.to_owned(), value.to_owned());
    profile.metadata.labels = Some(BTreeMap::from([LABEL, ("cdi.kubevirt.io", "")].map(label)));
    profile
}

/// The status of a class's profile, where it changes.
fn status(profile: &StorageProfile, class: &StorageClass, now: &Time) -> Option<StorageProfileStatus> {
    let old = profile.status.clone().unwrap_or_default();
    let known = PROVISIONERS.iter().find(|(name, _)| *name == class.provisioner);
    let set = |(access, volume): &(&str, &str)| ClaimPropertySet {
        access_modes: vec![(*access).to_owned()],
        volume_mode: Some((*volume).to_owned()),
    };
    let sets = match profile.spec.claim_property_sets.as_slice() {
        [] => known.into_iter().flat_map(|(_, sets)| *sets).map(set).collect(),
        said => said.to_vec(),
    };
    let recognized = match known {
        Some(_) => condition(RECOGNIZED, "True", "RecognizedProvisioner", "Provisioner is recognized"),
        None => condition(RECOGNIZED, "False", "UnrecognizedProvisioner", "Provisioner is not recognized"),
    };
    let new = StorageProfileStatus {
        claim_property_sets: sets,
        clone_strategy: Some(COPY.to_owned()),
        conditions: merged(old.conditions.clone(), recognized, now),
        data_import_cron_source_format: Some(FORMAT.to_owned()),
        provisioner: Some(class.provisioner.clone()),
        snapshot_class: profile.spec.snapshot_class.clone(),
        storage_class: Some(class.name_any()),
    };
    (new != old).then_some(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn storage(value: Value) -> StorageSpec {
        serde_json::from_value(value).unwrap()
    }

    fn now() -> Time {
        serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap()
    }

    fn sets(known: Known) -> Vec<ClaimPropertySet> {
        let set = |(access, volume): &(&str, &str)| json!({ "accessModes": [access], "volumeMode": volume });
        serde_json::from_value(Value::Array(known.iter().map(set).collect())).unwrap()
    }

    #[test]
    fn missing_claim_settings_come_from_the_storage_profile() {
        let shared = sets(SHARED_BLOCK);
        let got = |value: Value| {
            let (access, mode) = modes(&storage(value), &shared);
            (access.join(","), mode.unwrap_or_else(|| FILES.to_owned()))
        };
        let pair = |access: &str, mode: &str| (access.to_owned(), mode.to_owned());
        assert_eq!(got(json!({})), pair(MANY, BLOCK));
        assert_eq!(got(json!({ "volumeMode": FROM_PROFILE })), pair(MANY, BLOCK));
        assert_eq!(got(json!({ "volumeMode": FILES })), pair(ONE, FILES));
        assert_eq!(got(json!({ "accessModes": [ONE] })), pair(ONE, BLOCK));
        assert_eq!(got(json!({ "accessModes": ["ReadOnlyMany"] })), pair("ReadOnlyMany", BLOCK));
        assert_eq!(got(json!({ "accessModes": [MANY], "volumeMode": FILES })), pair(MANY, FILES));
        let none = |value: Value| modes(&storage(value), &[]);
        assert_eq!(none(json!({})), (vec![ONE.to_owned()], None));
        assert_eq!(none(json!({ "volumeMode": BLOCK })), (vec![ONE.to_owned()], Some(BLOCK.to_owned())));
    }

    #[test]
    fn a_claim_takes_what_people_say_before_what_is_known_of_its_class() {
        let found = |annotations: Value, spec: Known| {
            let mut found = StorageProfile::new("fast", StorageProfileSpec::default());
            found.metadata.annotations = serde_json::from_value(annotations).unwrap();
            found.spec.claim_property_sets = sets(spec);
            let claim_property_sets = sets(SHARED_BLOCK);
            found.status =
                Some(StorageProfileStatus { claim_property_sets, ..StorageProfileStatus::default() });
            Profile::of(Some("fast".to_owned()), Some(found), 100)
        };
        let known = found(json!({}), &[]);
        assert_eq!((known.class.as_deref(), known.sets, known.least), (Some("fast"), sets(SHARED_BLOCK), 0));
        assert_eq!(known.share, 100);
        assert_eq!(found(json!({}), ONE_FILES).sets, sets(ONE_FILES));
        let least = |size: &str| found(json!({ (annotation::LEAST_SIZE): size }), &[]).least;
        assert_eq!((least("4Gi"), least("much")), (4 << 30, 0));
        assert_eq!(Profile::of(None, None, 60), Profile::default());
    }

    #[test]
    fn a_class_without_a_provisioner_has_claims_like_its_volumes() {
        let volume = |class: &str, access: &[&str], mode: Value| -> PersistentVolume {
            let spec = json!({ "storageClassName": class, "accessModes": access, "volumeMode": mode });
            serde_json::from_value(json!({ "spec": spec })).unwrap()
        };
        let of = |all: &[PersistentVolume]| {
            let profile = Profile { least: 7, ..Profile::default() }.of_volumes("disks", all);
            assert_eq!(profile.least, 7);
            (profile.sets, profile.without_modes)
        };
        let disks = || volume("disks", &[ONE], json!(BLOCK));
        let all =
            [volume("other", &[MANY], json!(FILES)), disks(), disks(), volume("disks", &[ONE], json!(null))];
        assert_eq!(of(&all), (sets(ONE_EITHER), None));
        assert_eq!(of(&all[..1]), (vec![], Some("disks".to_owned())));
    }

    #[test]
    fn a_profile_says_what_people_say_or_what_is_known() {
        let class: StorageClass = serde_json::from_value(
            json!({ "metadata": { "name": "fast" }, "provisioner": "rook-ceph.rbd.csi.ceph.com" }),
        )
        .unwrap();
        let mut profile = StorageProfile::default();
        let known = status(&profile, &class, &now()).unwrap();
        assert_eq!(known.claim_property_sets, sets(SHARED_BLOCK));
        assert_eq!(known.storage_class.as_deref(), Some("fast"));
        let recognized = |status: &StorageProfileStatus| {
            (status.conditions[0].type_.clone(), status.conditions[0].status.clone())
        };
        assert_eq!(recognized(&known), ("Recognized".to_owned(), "True".to_owned()));
        profile.status = Some(known);
        let later: Time = serde_json::from_value(json!("2027-01-01T00:00:00Z")).unwrap();
        assert_eq!(status(&profile, &class, &later), None, "the status is written once");
        profile.spec.claim_property_sets = sets(ONE_FILES);
        assert_eq!(status(&profile, &class, &later).unwrap().claim_property_sets, sets(ONE_FILES));
        let other =
            serde_json::from_value(json!({ "metadata": { "name": "x" }, "provisioner": "y" })).unwrap();
        let unknown = status(&StorageProfile::default(), &other, &now()).unwrap();
        assert!(unknown.claim_property_sets.is_empty());
        assert_eq!(recognized(&unknown).1, "False");
    }

    #[test]
    fn profiles_are_created_and_deleted_with_their_classes() {
        let class = |name: &str| -> StorageClass {
            let class = json!({ "metadata": { "name": name }, "provisioner": "topolvm.io" });
            serde_json::from_value(class).unwrap()
        };
        let [ProfileStep::Make(made)] = &profile_steps(&[], &[class("fast")], &now())[..] else { panic!() };
        let mut made = *made.clone();
        assert_eq!((made.name_any().as_str(), made.labels()["cdi.kubevirt.io"].as_str()), ("fast", ""));
        made.metadata.uid = Some("p1".to_owned());
        let both = [class("fast"), class("slow")];
        let [ProfileStep::Write { name, status }, ProfileStep::Make(_)] =
            &profile_steps(&[made.clone()], &both, &now())[..]
        else {
            panic!()
        };
        assert_eq!((name.as_str(), status.storage_class.as_deref()), ("fast", Some("fast")));
        made.status = Some(*status.clone());
        assert_eq!(profile_steps(&[made.clone()], &[class("fast")], &now()), []);
        let removed = ProfileStep::Remove { name: "fast".to_owned(), uid: "p1".to_owned() };
        assert_eq!(profile_steps(&[made.clone()], &[], &now()), [removed]);
        made.metadata.labels = None;
        assert_eq!(profile_steps(&[made], &[], &now()), [], "somebody made it for a class to come");
    }
}
