//! Volumes of a machine that move to other claims while its instance runs: the machine's `updateVolumesStrategy` is
//! `Migration`, and its template names another claim. Pure.
//!
//! ```text
//!   template names another claim ──> the instance has it in its spec, its status names both, VolumesChange is True
//!        │                                │
//!        │                                ├── a migration copies it ──> the handler there removes the former one
//!        │                                └── template names the former one again ──> the instance does, too
//!        ├── claim does not exist ──> VolumesChange is False and says so
//!        └── cannot be copied ──> needs a restart
//! ```
//!
//! Specification and status change in one patch, so that the instance never names a claim that neither pod has without
//! naming the claim with the contents. During a migration nothing changes. The order of the checks and their messages are
//! KubeVirt's, but for a DataVolume that is still being filled, which KubeVirt takes only if a populator fills it: here the
//! target's pod may be what the claim waits for, and the guest is handed over once the claim is filled.
//!
//! A volume that was plugged in moves in the same way. One that the guest does not have is unplugged and plugged in again
//! ([`hotplug`](crate::hotplug)).

pub mod turn;

use crate::{is_on_its_way, live_update, merge};
use barevirt_api::firmware::STATE_VOLUME;
use barevirt_api::hotplug;
use barevirt_api::names::{
    CONDITION_MANUAL_RECOVERY_REQUIRED, CONDITION_STORAGE_LIVE_MIGRATABLE, CONDITION_VOLUMES_CHANGE,
    OUTDATED_LAUNCHER_LABEL, is_final_phase,
};
use barevirt_api::v1::{
    Condition, PersistentVolumeClaimInfo, StorageMigratedVolumeInfo, VirtualMachine, VirtualMachineInstance,
    VirtualMachineInstanceSpec, VirtualMachineSpec, Volume, merge_condition,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// The strategy by which volumes move with their guest.
const MIGRATION: &str = "Migration";
/// Reason of `VolumesChange` when it is False; KubeVirt's.
const CANCELLED: &str = "VolumesChangeCancellation";
/// Reason of `VolumesChange` for volumes that are to move; KubeVirt's.
const MOVES: &str = "migrate volumes";
/// Reason of `VolumesChange` for claims that do not exist; KubeVirt's.
const MISSING: &str = "One of the destination volumes doesn't exist";
/// Message for another change of volumes that are to move already.
const ONLY_BACK: &str = "The volume can only be reverted to the previous version during the update";
/// Why a user has to choose the claims of a machine; KubeVirt's words.
pub const ENDED_WHILE_MOVING: &str = "VMI was removed or was final during the volume migration";

/// The claims of one volume, as they were found.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VolumeClaims {
    /// Its present claim.
    pub source: Option<PersistentVolumeClaimInfo>,
    /// The claim that it is to move to.
    pub destination: Option<PersistentVolumeClaimInfo>,
    /// Another user of that claim.
    pub user: Option<String>,
}

/// The next step for the volumes.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Move {
    /// Nothing.
    #[default]
    Nothing,
    /// It is done later: the claim does not exist yet, or the guest is migrating.
    Wait,
    /// A merge patch of the instance.
    Apply(Box<Value>),
    /// The guest is migrating with them, and is to stay: the migration must be aborted first.
    GiveUp,
    /// It is not possible, for this reason.
    Blocked(&'static str),
    /// It needs a restart, for this reason.
    Restart(String),
}

/// Whether the machine's volumes are to move with its guest.
pub fn is_asked(spec: &VirtualMachineSpec) -> bool {
    spec.update_volumes_strategy.as_deref() == Some(MIGRATION)
}

/// The claim of a volume whose writes are kept.
fn claim(volume: &Volume) -> Option<&str> {
    volume.claim().filter(|claim| !claim.is_ephemeral).map(|claim| claim.name)
}

/// Volumes of both specifications that have another claim in the template: their names, the present claim and the wanted
/// one.
pub fn changed<'a>(
    template: &'a VirtualMachineInstanceSpec,
    vmi: &'a VirtualMachineInstance,
) -> BTreeMap<&'a str, (&'a str, &'a str)> {
    let has = |name: &str| hotplug::plugged(vmi).iter().any(|plugged| plugged.volume == name);
    let both = template.volumes.iter().filter_map(|wanted| {
        let is = vmi.spec.volumes.iter().find(|is| is.name == wanted.name)?;
        if is.is_hotpluggable() && wanted.is_hotpluggable() && !has(&wanted.name) {
            return None;
        }
        let claims = (claim(is)?, claim(wanted)?);
        (claims.0 != claims.1).then_some((wanted.name.as_str(), claims))
    });
    both.collect()
}

/// Whether claims have to be looked up.
pub fn concerns(vm: &VirtualMachine, vmi: &VirtualMachineInstance) -> bool {
    is_asked(&vm.spec) && !changed(&vm.spec.template.spec, vmi).is_empty()
}

/// Copies the claims of volumes that are moving or have moved with the guest: they need no restart. Other changes of such a
/// volume still do.
pub(crate) fn take_over(
    then: &mut VirtualMachineSpec,
    now: &VirtualMachineSpec,
    vmi: &VirtualMachineInstance,
) {
    for was in &mut then.template.spec.volumes {
        let find = |volumes: &'_ [Volume]| volumes.iter().find(|is| is.name == was.name).cloned();
        let (Some(is), Some(has)) = (find(&now.template.spec.volumes), find(&vmi.spec.volumes)) else {
            continue;
        };
        let alike = |volume: &Volume| Some((volume.claim()?.is_read_only, volume.is_hotpluggable()));
        let both = claim(was).is_some() && claim(&is).is_some() && alike(was) == alike(&is);
        if both && !is.is_hotpluggable() && claim(&has).is_some() {
            *was = if is_asked(now) || claim(&has) == claim(&is) { is } else { has };
        }
    }
}

/// Plans the change. `claims` has the result for each volume in [`changed`].
pub fn plan(
    vm: &VirtualMachine,
    vmi: &VirtualMachineInstance,
    claims: &BTreeMap<String, VolumeClaims>,
    now: &Time,
) -> Move {
    let template = &vm.spec.template.spec;
    let changed = changed(template, vmi);
    if !live_update::is_running(vmi) {
        return Move::Nothing;
    }
    if changed.is_empty() {
        return forget_missing(vmi);
    }
    let moved = vmi.status.as_ref().map(|status| status.migrated_volumes.as_slice()).unwrap_or_default();
    if moved.iter().any(|moved| changed.contains_key(moved.volume_name.as_str())) {
        let goes_back = |moved: &StorageMigratedVolumeInfo| {
            let to = changed.get(moved.volume_name.as_str()).map(|(_, to)| *to);
            to.is_some() && source(moved) == to
        };
        return if !moved.iter().all(goes_back) || moved.len() != changed.len() {
            Move::Blocked(ONLY_BACK)
        } else if is_on_its_way(vmi) {
            Move::GiveUp
        } else {
            apply(vmi, |next| {
                let status = next.status.get_or_insert_default();
                status.migrated_volumes.clear();
                let condition = Condition::new(CONDITION_VOLUMES_CHANGE, false, CANCELLED, "");
                merge_condition(&mut status.conditions, condition, now);
                exchange(&mut next.spec, template, &changed.keys().copied().collect());
            })
        };
    }
    if !is_asked(&vm.spec) {
        return Move::Nothing;
    }
    if !moved.is_empty() || is_on_its_way(vmi) {
        return Move::Wait;
    }
    match judge(template, vmi, &changed, claims) {
        Err(Obstacle::Missing(why)) => apply(vmi, |next| {
            let told = format!("{MISSING}: {why}");
            let condition = Condition::new(CONDITION_VOLUMES_CHANGE, false, "", told);
            merge_condition(&mut next.status.get_or_insert_default().conditions, condition, now);
        }),
        Err(Obstacle::Restart(why)) => Move::Restart(why),
        Ok(infos) => apply(vmi, |next| {
            let status = next.status.get_or_insert_default();
            status.migrated_volumes = infos;
            let condition = Condition::new(CONDITION_VOLUMES_CHANGE, true, "", MOVES);
            merge_condition(&mut status.conditions, condition, now);
            exchange(&mut next.spec, template, &changed.keys().copied().collect());
        }),
    }
}

/// Withdraws the condition about a missing claim that is no longer wanted.
fn forget_missing(vmi: &VirtualMachineInstance) -> Move {
    let conditions = vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let told = Condition::find(conditions, CONDITION_VOLUMES_CHANGE).and_then(|told| told.message.as_deref());
    if told.is_none_or(|told| !told.starts_with(MISSING)) {
        return Move::Nothing;
    }
    apply(vmi, |next| {
        Condition::remove(&mut next.status.get_or_insert_default().conditions, CONDITION_VOLUMES_CHANGE);
    })
}

/// The patch of the instance, where anything changes.
fn apply(vmi: &VirtualMachineInstance, edit: impl FnOnce(&mut VirtualMachineInstance)) -> Move {
    let mut next = vmi.clone();
    edit(&mut next);
    // Our types always have a JSON form: their maps have only string keys.
    let json = |vmi: &VirtualMachineInstance| serde_json::to_value(vmi).unwrap_or_default();
    merge::difference(&json(vmi), &json(&next)).map_or(Move::Wait, |patch| Move::Apply(Box::new(patch)))
}

fn exchange(
    spec: &mut VirtualMachineInstanceSpec,
    template: &VirtualMachineInstanceSpec,
    names: &BTreeSet<&str>,
) {
    for volume in spec.volumes.iter_mut().filter(|volume| names.contains(volume.name.as_str())) {
        if let Some(wanted) = template.volumes.iter().find(|wanted| wanted.name == volume.name) {
            volume.clone_from(wanted);
        }
    }
}

fn source(moved: &StorageMigratedVolumeInfo) -> Option<&str> {
    moved.source_pvc_info.as_ref()?.claim_name.as_deref()
}

/// Why volumes do not move.
enum Obstacle {
    /// The claim does not exist yet.
    Missing(String),
    /// They cannot move, for this reason.
    Restart(String),
}

/// The migrated volumes for the status, or why they cannot move.
fn judge(
    template: &VirtualMachineInstanceSpec,
    vmi: &VirtualMachineInstance,
    changed: &BTreeMap<&str, (&str, &str)>,
    claims: &BTreeMap<String, VolumeClaims>,
) -> Result<Vec<StorageMigratedVolumeInfo>, Obstacle> {
    let devices = &vmi.spec.domain.devices;
    let mut invalid: BTreeMap<(u8, &str), Vec<&str>> = BTreeMap::new();
    let mut infos = Vec::new();
    for volume in &template.volumes {
        let name = volume.name.as_str();
        let Some((from, to)) = changed.get(name) else { continue };
        let disk = devices.disks.iter().find(|disk| disk.name == name);
        let claims = claims.get(name).cloned().unwrap_or_default();
        let plugged = vmi.spec.volumes.iter().find(|is| is.name == name).is_some_and(Volume::is_hotpluggable);
        let reads = volume.claim().is_some_and(|claim| claim.is_read_only);
        let kind = if devices.filesystems.iter().any(|filesystem| filesystem.name == name) {
            Some((1, "filesystems"))
        } else if plugged != volume.is_hotpluggable() {
            Some((0, "hotplugged"))
        } else if disk.is_some_and(|disk| disk.shareable == Some(true)) {
            Some((2, "shareable"))
        } else if disk.is_some_and(|disk| disk.lun.is_some()) {
            Some((3, "luns"))
        } else if reads || disk.is_some_and(|disk| disk.is_readonly()) {
            Some((4, "read-only"))
        } else {
            None
        };
        if let Some(kind) = kind {
            invalid.entry(kind).or_default().push(name);
            continue;
        }
        if plugged && is_outdated(vmi) {
            return Err(Obstacle::Restart(format!(
                "cannot migrate the VM. Its launcher is of an older version, which cannot move the plugged volume {name}: \
                 migrate the VM first"
            )));
        }
        let Some(destination) = &claims.destination else {
            let kind = if volume.data_volume.is_some() { "datavolume" } else { "pvc" };
            return Err(Obstacle::Missing(format!("the {kind} {to} doesn't exist")));
        };
        let also = vmi.spec.volumes.iter().chain(&template.volumes);
        let also = also.filter(|other| other.name != name).find(|other| claim(other) == Some(to));
        let user = also.map(|other| format!("volume {}", other.name)).or(claims.user);
        if let Some(user) = user {
            return Err(Obstacle::Restart(format!(
                "cannot migrate the VM. The claim {to} of volume {name} is used by {user}"
            )));
        }
        let unknown = || PersistentVolumeClaimInfo {
            claim_name: Some((*from).to_owned()),
            ..PersistentVolumeClaimInfo::default()
        };
        infos.push(StorageMigratedVolumeInfo {
            volume_name: name.to_owned(),
            source_pvc_info: Some(claims.source.unwrap_or_else(unknown)),
            destination_pvc_info: Some(destination.clone()),
        });
    }
    if !invalid.is_empty() {
        let told = invalid.into_iter().map(|((_, kind), names)| format!(" {kind}: [{}]", names.join(" ")));
        let told = told.collect::<String>();
        return Err(Obstacle::Restart(format!("invalid volumes to update with migration:{told}")));
    }
    others(vmi, changed).map_or(Ok(infos), |why| Err(Obstacle::Restart(why)))
}

/// Whether the launcher is of another version than the installation. Such a launcher would unplug a volume on another claim.
fn is_outdated(vmi: &VirtualMachineInstance) -> bool {
    vmi.metadata.labels.as_ref().is_some_and(|labels| labels.contains_key(OUTDATED_LAUNCHER_LABEL))
}

/// Another reason that keeps the guest on its node.
fn others(vmi: &VirtualMachineInstance, changed: &BTreeMap<&str, (&str, &str)>) -> Option<String> {
    let status = vmi.status.as_ref()?;
    let storage = Condition::find(&status.conditions, CONDITION_STORAGE_LIVE_MIGRATABLE);
    if let Some(told) = storage.filter(|told| told.status == "False") {
        let why = told.message.as_deref().unwrap_or_default();
        return Some(format!("cannot migrate the volumes as the VMI isn't migratable: {why}"));
    }
    // State of firmware and TPM moves by itself, to a claim of the target's.
    let mut disks = status.volume_status.iter().filter(|told| told.name != STATE_VOLUME);
    let stays = disks.find(|told| {
        let volume = vmi.spec.volumes.iter().find(|volume| volume.name == told.name);
        let is_kept = volume.is_none_or(|volume| claim(volume).is_some());
        let info = told.persistent_volume_claim_info.as_ref().filter(|_| is_kept);
        let shared = |mode: &String| ["ReadOnlyMany", "ReadWriteMany"].contains(&mode.as_str());
        info.is_some_and(|info| !info.access_modes.iter().any(shared))
            && !changed.contains_key(told.name.as_str())
    })?;
    let name = &stays.name;
    Some(format!("cannot migrate the VM. The volume {name} is RWO and not included in the migration volumes"))
}

/// Volumes that were moving, according to the machine or its instance.
fn on_their_way<'a>(
    vm: &'a VirtualMachine,
    vmi: Option<&'a VirtualMachineInstance>,
) -> &'a [StorageMigratedVolumeInfo] {
    let told = vmi.and_then(|vmi| vmi.status.as_ref()).map(|status| status.migrated_volumes.as_slice());
    let kept = || {
        let state = vm.status.as_ref()?.volume_update_state.as_ref()?.volume_migration_state.as_ref()?;
        Some(state.migrated_volumes.as_slice())
    };
    told.filter(|told| !told.is_empty()).or_else(kept).unwrap_or_default()
}

/// What a machine's status keeps of the volumes that are moving or moved last; nothing once they are back at the former
/// claims, or are no longer to move with their guest.
pub fn kept(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> Vec<StorageMigratedVolumeInfo> {
    let moves =
        vmi.is_some_and(|vmi| vmi.status.as_ref().is_some_and(|status| !status.migrated_volumes.is_empty()));
    let on_their_way = on_their_way(vm, vmi);
    let alive = vmi.is_some_and(|vmi| !is_final_phase(crate::phase(vmi)));
    if (moves && alive) || (is_asked(&vm.spec) && !are_back(vm, on_their_way)) {
        on_their_way.to_vec()
    } else {
        Vec::new()
    }
}

/// Whether the machine names the former claims again.
fn are_back(vm: &VirtualMachine, moved: &[StorageMigratedVolumeInfo]) -> bool {
    moved.iter().all(|moved| {
        let volume = vm.spec.template.spec.volumes.iter().find(|volume| volume.name == moved.volume_name);
        volume.is_none_or(|volume| claim(volume) == source(moved))
    })
}

/// Whether the guest ended while its volumes were moving, so that the claims which the machine names do not have its
/// contents: a user has to name the former ones, or change the strategy.
pub fn needs_recovery(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>) -> bool {
    let moved = on_their_way(vm, vmi);
    if moved.is_empty() || !is_asked(&vm.spec) || are_back(vm, moved) {
        return false;
    }
    let conditions = vm.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let known = Condition::is_set(conditions, CONDITION_MANUAL_RECOVERY_REQUIRED);
    match vmi {
        Some(vmi) if !is_final_phase(crate::phase(vmi)) => false,
        Some(vmi) => known || vmi.status.as_ref().is_some_and(|status| !status.migrated_volumes.is_empty()),
        None => known || Condition::is_set(conditions, CONDITION_VOLUMES_CHANGE),
    }
}

#[cfg(test)]
mod tests;
