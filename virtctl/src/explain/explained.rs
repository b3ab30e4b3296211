//! What a manifest results in. Pure: each step uses the code of Barevirt's components.
//!
//! ```text
//!   manifest --(admission)--> machine --(start)--> instance --(admission)--> instance --+--> launcher pod
//!                                                                                       +--> QEMU's command line
//!            causes, if something is wrong: all of that step                            +--> memory and CPU
//! ```

use barevirt_api::defaults;
use barevirt_api::instancetype::expand::{self, Chosen, Lookup, Lookups};
use barevirt_api::instancetype::matcher::Family;
use barevirt_api::settings::{Binding, Settings};
use barevirt_api::sizing;
use barevirt_api::unknown;
use barevirt_api::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec, Volume};
use barevirt_api::valid::ValidVmi;
use barevirt_api::validate::{self, Cause, CauseKind, Path, Requester};
use barevirt_machine::{Accelerator, Bytes, Facts, Part, PlanError};
use barevirt_plan::config::Config;
use barevirt_plan::{pod, template};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::jiff::Timestamp;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::marked::{self, Mark};

/// Everything about one machine or instance.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explained {
    /// `VirtualMachine` or `VirtualMachineInstance`.
    pub(crate) kind: String,
    /// Its name.
    pub(crate) name: String,
    /// Its namespace; empty if the manifest gives none.
    pub(crate) namespace: String,
    /// What an API server would accept with a warning.
    pub(crate) warnings: Vec<String>,
    /// Why it would be refused, or could not start.
    pub(crate) causes: Vec<ShownCause>,
    /// The result, if nothing is wrong.
    #[serde(flatten)]
    pub(crate) outcome: Option<Outcome>,
}

/// One cause.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct ShownCause {
    pub(crate) field: String,
    pub(crate) message: String,
    pub(crate) reason: String,
}

/// What a valid manifest results in.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Outcome {
    /// The instance's specification, secrets taken out.
    pub(crate) spec: Value,
    /// Fields of the specification that the manifest does not give.
    #[serde(serialize_with = "marks")]
    pub(crate) filled_in: Vec<Mark>,
    /// The launcher pod.
    pub(crate) pod: Pod,
    /// QEMU's command line.
    pub(crate) command_line: Vec<Part>,
    /// Fields that are left out because this accelerator does not support them.
    pub(crate) left_out: Vec<String>,
    /// Assumptions about the node.
    pub(crate) assumptions: Vec<&'static str>,
    /// Memory and CPUs.
    pub(crate) resources: Resources,
}

/// How memory and CPUs are used.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Resources {
    /// The guest's memory in bytes.
    pub(crate) guest_memory: u64,
    /// The largest size that it may grow to, in bytes.
    pub(crate) max_guest_memory: Option<u64>,
    /// Virtual CPUs at the start.
    pub(crate) cpus: u32,
    /// The largest number of virtual CPUs.
    pub(crate) max_cpus: u32,
    /// Parts of the overhead.
    pub(crate) overhead_parts: Vec<Named>,
    /// The overhead: their sum, multiplied by the installation's ratio and rounded up to whole MiB.
    pub(crate) overhead: u64,
}

/// An amount of memory.
#[derive(Debug, Serialize)]
pub(crate) struct Named {
    pub(crate) name: &'static str,
    pub(crate) bytes: u64,
}

fn marks<S: serde::Serializer>(marks: &[Mark], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(marks.iter().map(|mark| json!({"field": mark.path, "from": mark.origin.word()})))
}

/// Facts that are not in the manifest.
pub(crate) struct ExplainContext {
    /// Image of the launcher, and the installation's settings.
    pub(crate) config: Config,
    /// The namespace of a manifest that gives none.
    pub(crate) namespace: Option<String>,
    /// The time.
    pub(crate) now: Timestamp,
}

/// An assumption for machines with DataVolume templates.
const DATA_VOLUMES_FIRST: &str =
    "DataVolumes of the templates are made before, and filled by CDI or Barevirt";

/// An assumption for a manifest that leaves its name to the API server.
const EXAMPLE_NAME: &str =
    "the name is an example: the API server generates it, and UUID and hardware addresses follow from it";

type Causes = Vec<Cause>;

/// Explains a manifest. `lookups` finds the objects that a machine names.
pub(crate) fn explain(
    manifest: &Value,
    context: &ExplainContext,
    lookups: impl FnOnce(&VirtualMachine) -> Lookups,
) -> Explained {
    let example = named(manifest);
    let manifest = example.as_ref().unwrap_or(manifest);
    let kind = manifest["kind"].as_str().unwrap_or_default().to_owned();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut explained = Explained {
        name: text(&manifest["metadata"]["name"]),
        namespace: text(&manifest["metadata"]["namespace"]),
        warnings: Vec::new(),
        causes: Vec::new(),
        outcome: None,
        kind,
    };
    let outcome = if explained.kind == "VirtualMachine" {
        read(manifest).and_then(|(vm, unknown): (VirtualMachine, _)| {
            let (kept, unknown): (Causes, Causes) = unknown.into_iter().partition(is_kept);
            explained.warnings = validate::vm_warnings(&vm);
            let kept = kept.iter().map(|cause| format!("{}: it has no effect", cause.message));
            explained.warnings.extend(kept);
            together(unknown, machine(vm, context, lookups))
        })
    } else {
        read(manifest).and_then(|(vmi, unknown): (VirtualMachineInstance, _)| {
            explained.warnings = validate::spec_warnings(&Path::new("spec"), &vmi.spec);
            let given = vmi.spec.clone();
            let admitted = instance(in_namespace(vmi, context), context);
            together(unknown, admitted.and_then(|vmi| outcome(vmi, &given, None, &context.config)))
        })
    };
    match outcome {
        Ok(mut outcome) => {
            outcome.assumptions.extend(example.is_some().then_some(EXAMPLE_NAME));
            explained.outcome = Some(outcome);
        }
        Err(causes) => explained.causes = causes.into_iter().map(shown_cause).collect(),
    }
    explained
}

/// The manifest with a name such as the API server generates, where it gives only the beginning.
fn named(manifest: &Value) -> Option<Value> {
    let given = |field: &str| manifest["metadata"][field].as_str().filter(|text| !text.is_empty());
    let beginning = given("generateName").filter(|_| given("name").is_none())?;
    let name = format!("{beginning}xxxxx");
    let mut named = manifest.clone();
    named["metadata"]["name"] = json!(name);
    Some(named)
}

/// Adds the causes of the other checks to those of unknown fields.
fn together<T>(mut unknown: Causes, rest: Result<T, Causes>) -> Result<T, Causes> {
    match rest {
        Ok(rest) if unknown.is_empty() => Ok(rest),
        Ok(_) => Err(unknown),
        Err(causes) => {
            unknown.extend(causes);
            Err(unknown)
        }
    }
}

/// A cause in the printed form.
pub(super) fn shown_cause(cause: Cause) -> ShownCause {
    let cause = cause.advised();
    ShownCause { reason: cause.kind.reason().to_owned(), field: cause.field, message: cause.message }
}

/// The decoded object, and a cause for each unknown field.
fn read<T: DeserializeOwned + Serialize>(manifest: &Value) -> Result<(T, Causes), Causes> {
    let object: T = validate::read(manifest).map_err(|cause| vec![cause])?;
    let again = serde_json::to_value(&object).unwrap_or_default();
    let cause = |field: &String| Cause::invalid(&Path::new(field), format!("unknown field {field}"));
    let unknown = unknown::fields(manifest, &again).iter().map(cause).collect();
    Ok((object, unknown))
}

/// Whether the API server stores an unknown field: the metadata of templates may have any.
fn is_kept(unknown: &Cause) -> bool {
    let path = unknown.field.strip_prefix("spec.").unwrap_or_default();
    let of_volume = path.strip_prefix("dataVolumeTemplates[").and_then(|rest| rest.split_once("]."));
    let template = of_volume.map(|(_, rest)| rest).or_else(|| path.strip_prefix("template."));
    template.is_some_and(|rest| rest.starts_with("metadata."))
}

fn in_namespace(mut vmi: VirtualMachineInstance, context: &ExplainContext) -> VirtualMachineInstance {
    vmi.metadata.namespace = vmi.metadata.namespace.or_else(|| context.namespace.clone());
    vmi
}

/// The instance after the webhooks for instances.
fn instance(
    mut vmi: VirtualMachineInstance,
    context: &ExplainContext,
) -> Result<VirtualMachineInstance, Causes> {
    let settings = &context.config.settings;
    defaults::admit_vmi(&mut vmi, &settings.guest, &Time(context.now));
    let causes = validate::vmi_create(&vmi, Requester::User, &settings.gates);
    if causes.is_empty() { Ok(vmi) } else { Err(causes) }
}

fn machine(
    mut vm: VirtualMachine,
    context: &ExplainContext,
    lookups: impl FnOnce(&VirtualMachine) -> Lookups,
) -> Result<Outcome, Causes> {
    vm.metadata.namespace = vm.metadata.namespace.or_else(|| context.namespace.clone());
    let given = vm.spec.template.spec.clone();
    let lookups = lookups(&vm);
    let started = started(vm.clone(), &lookups, context)?;
    let has_templates = !vm.spec.data_volume_templates.is_empty();
    // Comparing with the machine without them shows which values they set.
    vm.spec.instancetype = None;
    vm.spec.preference = None;
    let mut alone = vm;
    defaults::admit_vm(&mut alone, &context.config.settings.guest);
    let mut alone = template::instance(&alone);
    defaults::admit_vmi(&mut alone, &context.config.settings.guest, &Time(context.now));
    let mut outcome = outcome(started, &given, Some(&alone.spec), &context.config)?;
    if has_templates {
        outcome.assumptions.push(DATA_VOLUMES_FIRST);
    }
    Ok(outcome)
}

/// The instance that a machine starts, as the webhooks and the controller make it.
pub(crate) fn started(
    mut vm: VirtualMachine,
    lookups: &Lookups,
    context: &ExplainContext,
) -> Result<VirtualMachineInstance, Causes> {
    let Settings { guest, gates, .. } = &context.config.settings;
    expand::prefer(&mut vm, lookups);
    defaults::admit_vm(&mut vm, guest);
    let admitted = expand::admit(None, vm.clone(), lookups, guest.binding)?;
    let mut causes = validate::vm(&admitted, Requester::User, gates);
    // Admission accepts a machine whose instance type does not exist; the machine starts only once it exists.
    causes.extend(missing(&lookups.instancetype, Family::Instancetype));
    causes.extend(missing(&lookups.preference, Family::Preference));
    if !causes.is_empty() {
        return Err(causes);
    }
    let chosen = Chosen {
        instancetype: lookups.instancetype.clone().into_result().unwrap_or_default(),
        preference: lookups.preference.clone().into_result().unwrap_or_default(),
    };
    let vmi = template::instance(&vm);
    instance(expand::instance(&vm, &chosen, Binding::default(), vmi)?, context)
}

fn missing<T>(lookup: &Lookup<T>, family: Family) -> Option<Cause> {
    match lookup {
        Lookup::Missing(why) => Some(Cause::not_found(&family.path(), why.clone())),
        Lookup::None | Lookup::Found(_) => None,
    }
}

/// What an admitted instance results in.
pub(crate) fn outcome(
    vmi: VirtualMachineInstance,
    given: &VirtualMachineInstanceSpec,
    alone: Option<&VirtualMachineInstanceSpec>,
    config: &Config,
) -> Result<Outcome, Causes> {
    let vmi = ValidVmi::new(vmi)?;
    let settings = &config.settings;
    let accelerator = if settings.use_emulation {
        Accelerator::Tcg { buffer: Bytes(sizing::TCG_BUFFER_BYTES) }
    } else {
        Accelerator::Kvm { device: Some(1) }
    };
    let facts = Facts {
        free_page_reporting: !settings.pods.without_free_page_reporting,
        ..barevirt_machine::expected(&vmi, accelerator, settings.smbios.clone())
    };
    let machine = barevirt_machine::plan(&vmi, &facts).map_err(|error| vec![unplanned(&error)])?;
    let mut pod = pod::build(&vmi, config);
    if vmi.uid().is_empty() {
        // The name depends on the UID, which does not exist yet.
        pod.metadata.name = None;
        for owner in pod.metadata.owner_references.iter_mut().flatten() {
            "<uid>".clone_into(&mut owner.uid);
        }
    }
    if barevirt_api::firmware::needs_state(vmi.spec()) {
        pod::state::add(&mut pod, "<claim>");
    }
    let (mut spec, mut given) = (vmi.spec().clone(), given.clone());
    let mut alone = alone.cloned();
    for spec in [&mut spec, &mut given].into_iter().chain(&mut alone) {
        marked::redact(spec);
    }
    let value = |spec: &VirtualMachineInstanceSpec| serde_json::to_value(spec).unwrap_or_default();
    let spec = value(&spec);
    let alone = alone.as_ref().map_or_else(|| spec.clone(), value);
    Ok(Outcome {
        filled_in: marked::marks(&spec, &value(&given), &alone),
        spec,
        pod,
        command_line: barevirt_machine::parts(&machine),
        left_out: machine.left_out,
        assumptions: assumptions(&vmi, &facts),
        resources: resources(&vmi, settings),
    })
}

fn unplanned(error: &PlanError) -> Cause {
    Cause::new(CauseKind::NotSupported, &Path::new(error.field()), error.to_string())
}

fn resources(vmi: &ValidVmi, settings: &Settings) -> Resources {
    let parts = sizing::overhead_parts(vmi, settings);
    Resources {
        guest_memory: vmi.guest_memory(),
        max_guest_memory: vmi.max_guest_memory(),
        cpus: vmi.topology().vcpus(),
        max_cpus: vmi.topology().max_vcpus(),
        overhead_parts: parts.into_iter().map(|(name, bytes)| Named { name, bytes }).collect(),
        overhead: sizing::overhead_bytes(vmi, settings),
    }
}

/// Values that are known only on a node and at a start.
fn assumptions(vmi: &ValidVmi, facts: &Facts) -> Vec<&'static str> {
    let mut list = vec!["numbers of descriptors are given at the start"];
    let kvm = matches!(facts.accelerator, Accelerator::Kvm { .. });
    if !facts.volumes.is_empty() && vmi.volumes().iter().any(|volume| volume.container_disk.is_some()) {
        list.push("container disks are assumed to be qcow2; the launcher checks");
    }
    if vmi.volumes().iter().any(Volume::is_hotpluggable) {
        list.push("hotpluggable volumes are added once the guest runs, and are in neither the pod nor this command line");
    }
    if kvm && vmi.cpu_model() == "host-model" {
        list.push("host-model: the launcher names the CPU features of its node one by one");
    } else if facts.host_cpu.is_some() {
        list.push("the node's CPU is assumed to have what the manifest asks for");
    }
    if !facts.interfaces.is_empty() {
        list.push("host_mtu is the network's, which only the node knows");
    }
    if vmi.spec().domain.clock.is_some() {
        list.push("a clock that does not show UTC is set to the time of the start");
    }
    list
}

#[cfg(test)]
mod shapes;
#[cfg(test)]
mod tests;
