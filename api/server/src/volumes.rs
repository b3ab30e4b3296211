//! addvolume and removevolume: add a volume with its disk to a machine's template or to an instance, or
//! remove it.
//!
//! ```text
//!   of a machine    --> its template, whether it runs or not; virt-controller applies the change to a running instance
//!   of an instance  --> its specification, if no machine owns it (a machine would undo the change)
//! ```
//!
//! With the gate `HotplugVolumes`, an instance that a machine owns gets volumes of its own, too. An annotation has their
//! names, so that the machine leaves them alone.
//!
//! Patches test the values that they are based on: if two users call at once, the second call reads the
//! object again. The decision is pure and works on the lists as stored.

use barevirt_api::gates::Gates;
use barevirt_api::hotplug;
use barevirt_api::names::{self, EPHEMERAL_VOLUMES_ANNOTATION};
use barevirt_api::v1::{Disk, DiskTarget, VirtualMachine, VirtualMachineInstance};
use barevirt_api::validate::{Path, disk_cannot_be_plugged};
use hyper::body::Bytes;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams};
use kube::{Api, Client, Resource};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answer::{self, Answer, Refusal};
use crate::endpoints::{On, VolumeAction};
use crate::front_proxy::User;
use crate::machine::{self, LOOKS};

/// Bus of a disk that names none: `virtctl`'s default, and one of the two buses that support hotplug.
const BUS: &str = "scsi";

/// `AddVolumeOptions` and `RemoveVolumeOptions` in one: each call reads its own fields.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Options {
    name: String,
    disk: Option<Value>,
    volume_source: Option<Value>,
    dry_run: Vec<String>,
}

/// The requested change.
#[derive(Debug, Clone, PartialEq)]
enum VolumeChange {
    /// A volume and its disk, both with this name.
    Add { volume: Value, disk: Value },
    /// A volume with this name, or on a claim with this name.
    Remove(String),
}

/// Carries a call out. 202 means that the request was recorded, not that it is carried out.
///
/// # Errors
/// 400 without the gate and for incomplete options; 404 for an object that does not exist; 409 for an object
/// whose state does not allow the change; 422 with admission's message about the change.
pub async fn act(
    client: &Client,
    gates: &Gates,
    user: &User,
    action: VolumeAction,
    (on, namespace, name): (On, &str, &str),
    body: &Bytes,
) -> Result<Answer, Refusal> {
    if !gates.plugs_volumes() {
        let message = "Enable DeclarativeHotplugVolumes or HotplugVolumes feature gate to use this API.";
        return Err(Refusal::bad_request(message));
    }
    let options: Options = machine::given(body)?;
    let dry_run = machine::is_dry_run(&options.dry_run);
    let change = change(action, options)?;
    let kind = match on {
        On::Machine => ApiResource::erase::<VirtualMachine>(&()),
        On::Instance | On::Everyone | On::Cluster | On::Namespace => {
            ApiResource::erase::<VirtualMachineInstance>(&())
        }
    };
    let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, &kind);
    let params = PatchParams { dry_run, ..PatchParams::default() };
    let mut refused: Option<(Option<String>, Refusal)> = None;
    for _ in 0..LOOKS {
        let object = objects
            .get(name)
            .await
            .map_err(|error| Refusal::from_kube(&format!("get {}", kind.kind), error))?;
        let version = object.metadata.resource_version.clone();
        if let Some((seen, refusal)) = &refused
            && *seen == version
        {
            // No other client changed the object: the change itself is wrong.
            return Err(refusal.clone());
        }
        let operations = match on {
            On::Machine => of_machine(name, &object.data, &change)?,
            On::Instance | On::Everyone | On::Cluster | On::Namespace => {
                of_instance((namespace, name), &object, &change, gates)?
            }
        };
        let patch = serde_json::from_value(operations)
            .map(Patch::<()>::Json)
            .map_err(|error| Refusal::internal(format!("write patch: {error}")))?;
        match objects.patch(name, &params, &patch).await {
            Ok(_) => {
                let object = kind.plural.as_str();
                let action = action.subresource();
                tracing::info!(user = user.name, namespace, name, object, action, dry_run, "accepted");
                return Ok(answer::accepted());
            }
            Err(kube::Error::Api(status)) if status.code == 422 => {
                refused = Some((version, Refusal::invalid(status.message)));
            }
            Err(error) => {
                let what = format!("unable to patch {}", if on == On::Machine { "vm" } else { "vmi" });
                return Err(match error {
                    kube::Error::Api(status) => Refusal::internal(format!("{what}: {}", status.message)),
                    other => Refusal::internal(format!("{what}: {other}")),
                });
            }
        }
    }
    Err(refused.map_or_else(|| Refusal::internal("no look was taken"), |(_, refusal)| refusal))
}

/// The requested change. An added disk has the volume's name, and its volume can be removed again.
fn change(action: VolumeAction, options: Options) -> Result<VolumeChange, Refusal> {
    let Options { name, disk, volume_source, dry_run: _ } = options;
    let requires = |kind: &str, what: &str| Err(Refusal::bad_request(format!("{kind} requires {what}")));
    if action == VolumeAction::Remove {
        return match name.as_str() {
            "" => requires("RemoveVolumeOptions", "name to be set"),
            _ => Ok(VolumeChange::Remove(name)),
        };
    }
    let kind = "AddVolumeOptions";
    if name.is_empty() {
        return requires(kind, "name to be set");
    }
    let Some(mut disk) = disk else { return requires(kind, "disk to not be nil") };
    let Some(mut source) = volume_source else { return requires(kind, "VolumeSource to not be nil") };
    let unreadable = |error: serde_json::Error| {
        Refusal::bad_request(format!("Can not unmarshal Request body to struct, error: {error}"))
    };
    let given: Vec<&str> =
        SOURCES.into_iter().map(|(member, _)| member).filter(|member| !source[member].is_null()).collect();
    match given[..] {
        [member] if source[member].is_object() => source[member]["hotpluggable"] = json!(true),
        [] => return requires(kind, "volumeSource.dataVolume or volumeSource.persistentVolumeClaim"),
        _ => return requires(kind, "one object in volumeSource: dataVolume or persistentVolumeClaim"),
    }
    let member = given[0];
    if !disk.is_object() {
        return requires(kind, "disk to be an object");
    }
    disk["name"] = json!(name);
    let mut disk: Disk = serde_json::from_value(disk).map_err(unreadable)?;
    if let Some(DiskTarget { bus, .. }) = &mut disk.disk {
        default_bus(bus);
    }
    if let Some(lun) = &mut disk.lun {
        default_bus(&mut lun.bus);
    }
    if let Some(cause) = disk_cannot_be_plugged(&Path::new("disk"), &disk, "AddVolume request") {
        return Err(Refusal::invalid(cause.message));
    }
    let volume = json!({"name": name, member: source[member]});
    Ok(VolumeChange::Add { volume, disk: serde_json::to_value(&disk).map_err(unreadable)? })
}

fn default_bus(bus: &mut Option<String>) {
    if bus.as_deref().is_none_or(str::is_empty) {
        *bus = Some(BUS.to_owned());
    }
}

/// Sources that can be hotplugged, and the member of each with the name of its claim or DataVolume.
const SOURCES: [(&str, &str); 2] = [("dataVolume", "name"), ("persistentVolumeClaim", "claimName")];

/// The change of a machine.
fn of_machine(name: &str, vm: &Value, change: &VolumeChange) -> Result<Value, Refusal> {
    patch("/spec/template/spec", &vm["spec"]["template"]["spec"], change)
        .map_err(|why| Refusal::conflict("virtualmachine", name, why))
}

/// The change of an instance alone.
fn of_instance(
    (namespace, name): (&str, &str),
    vmi: &DynamicObject,
    change: &VolumeChange,
    gates: &Gates,
) -> Result<Value, Refusal> {
    let conflict = |why: String| Refusal::conflict("virtualmachineinstance", name, why);
    let owner = vmi.metadata.owner_references.iter().flatten().find(|owner| owner.controller == Some(true));
    let is_machine = |kind: &str, version: &str| {
        kind == VirtualMachine::kind(&()) && version == VirtualMachine::api_version(&())
    };
    let is_owned = owner.is_some_and(|owner| is_machine(&owner.kind, &owner.api_version));
    if is_owned && !gates.plugs_ephemeral_volumes() {
        return Err(Refusal::bad_request(format!("VMI {namespace}/{name} is owned by a VM")));
    }
    if vmi.data["status"]["phase"] != names::PHASE_RUNNING {
        return Err(conflict("VMI is not running".to_owned()));
    }
    // The guest arrives on the target with the volumes that it had at the start of the migration.
    if is_on_its_way(&vmi.data["status"]["migrationState"]) {
        return Err(conflict("Cannot handle volume requests while VMI migration is in progress".to_owned()));
    }
    let mut operations = patch("/spec", &vmi.data["spec"], change).map_err(conflict)?;
    if is_owned && let Value::Array(operations) = &mut operations {
        operations.extend(note(&vmi.metadata, &vmi.data["spec"], change).map_err(conflict)?);
    }
    Ok(operations)
}

/// The operations that record in the annotation which volumes the instance has, and its machine has not; an error says why
/// the machine has to be asked.
fn note(metadata: &ObjectMeta, spec: &Value, change: &VolumeChange) -> Result<Vec<Value>, String> {
    let mut names = hotplug::ephemeral(metadata);
    match change {
        VolumeChange::Add { volume, .. } => {
            names.insert(name_of(volume));
        }
        VolumeChange::Remove(wanted) => {
            let volumes = spec["volumes"].as_array().map(Vec::as_slice).unwrap_or_default();
            let name = found(volumes, wanted).map_or(wanted.as_str(), name_of);
            if !names.remove(name) {
                return Err(format!("Unable to remove volume [{name}] because it is a volume of the VM"));
            }
        }
    }
    let names = names.into_iter().collect::<Vec<_>>().join(",");
    let all = "/metadata/annotations";
    let Some(annotations) = &metadata.annotations else {
        let value = json!({ EPHEMERAL_VOLUMES_ANNOTATION: names });
        return Ok(vec![
            json!({"op": "test", "path": all, "value": null}),
            json!({"op": "add", "path": all, "value": value}),
        ]);
    };
    let path = format!("{all}/{}", EPHEMERAL_VOLUMES_ANNOTATION.replace('/', "~1"));
    let test = json!({"op": "test", "path": path, "value": annotations.get(EPHEMERAL_VOLUMES_ANNOTATION)});
    let change = if names.is_empty() {
        json!({"op": "remove", "path": path})
    } else {
        json!({"op": "add", "path": path, "value": names})
    };
    Ok(vec![test, change])
}

/// Whether handlers are carrying out a migration that has not ended.
fn is_on_its_way(state: &Value) -> bool {
    let begun = state["migrationUid"].as_str().is_some_and(|uid| !uid.is_empty());
    begun && !(state["completed"] == true && state["endTimestamp"].is_string())
}

/// The patch of a specification at this path; a conflict has KubeVirt's message.
fn patch(path: &str, spec: &Value, change: &VolumeChange) -> Result<Value, String> {
    let (mut volumes, mut disks) = (list(&spec["volumes"]), list(&spec["domain"]["devices"]["disks"]));
    match change {
        VolumeChange::Add { volume, disk } => {
            let (name, source) = (name_of(volume), source_of(volume).unwrap_or_default());
            if volumes.iter().any(|other| name_of(other) == name) {
                return Err(format!(
                    "Unable to add volume [{name}] because volume with that name already exists"
                ));
            }
            if volumes.iter().any(|other| source_of(other) == Some(source)) {
                return Err(format!("Unable to add volume source [{source}] because it already exists"));
            }
            volumes.push(volume.clone());
            disks.push(disk.clone());
        }
        VolumeChange::Remove(wanted) => {
            let Some(volume) = found(&volumes, wanted) else {
                return Err(format!("Unable to remove volume [{wanted}] because it does not exist"));
            };
            let name = name_of(volume).to_owned();
            if !SOURCES.into_iter().any(|(member, _)| volume[member]["hotpluggable"] == true) {
                return Err(format!("Unable to remove volume [{name}] because it is not hotpluggable"));
            }
            volumes.retain(|volume| name_of(volume) != name);
            disks.retain(|disk| name_of(disk) != name);
        }
    }
    let mut changes = Vec::new();
    let lists = [
        (format!("{path}/volumes"), &spec["volumes"], volumes),
        (format!("{path}/domain/devices/disks"), &spec["domain"]["devices"]["disks"], disks),
    ];
    for (path, before, _) in &lists {
        changes.push(json!({"op": "test", "path": path, "value": before}));
    }
    for (path, before, after) in lists {
        let op = if before.is_null() { "add" } else { "replace" };
        changes.push(json!({"op": op, "path": path, "value": after}));
    }
    Ok(Value::Array(changes))
}

/// The volume with this name, or else on a claim with this name.
fn found<'a>(volumes: &'a [Value], wanted: &str) -> Option<&'a Value> {
    let named = volumes.iter().find(|volume| name_of(volume) == wanted);
    named.or_else(|| volumes.iter().find(|volume| source_of(volume) == Some(wanted)))
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

fn name_of(item: &Value) -> &str {
    item["name"].as_str().unwrap_or_default()
}

/// Name of the DataVolume or claim of a volume.
fn source_of(volume: &Value) -> Option<&str> {
    SOURCES.into_iter().find_map(|(member, name)| volume[member][name].as_str())
}

#[cfg(test)]
#[path = "volumes_tests.rs"]
mod tests;
