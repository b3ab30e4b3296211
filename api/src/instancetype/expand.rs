//! A machine with its instance type and preference applied, for validation, for clients and for the start.

use super::matcher::{Family, Matcher};
use super::{CpuInstancetype, MemoryInstancetype, VirtualMachineInstancetypeSpec, apply};
use crate::cause::{Cause, Path};
use crate::defaults;
use crate::names::{
    CLUSTER_INSTANCETYPE_ANNOTATION, CLUSTER_PREFERENCE_ANNOTATION, INSTANCETYPE_ANNOTATION,
    PREFERENCE_ANNOTATION,
};
use crate::preference::{self, VirtualMachinePreferenceSpec, requirements};
use crate::settings::{Binding, GuestDefaults};
use crate::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// The objects that a machine's matchers name.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Chosen {
    /// The instance type, if the machine names one.
    pub instancetype: Option<VirtualMachineInstancetypeSpec>,
    /// The preference, if the machine names one.
    pub preference: Option<VirtualMachinePreferenceSpec>,
}

/// The result of looking up an instance type or a preference.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Lookup<T> {
    /// The machine names none.
    #[default]
    None,
    /// The object.
    Found(T),
    /// It could not be read, for this reason.
    Missing(String),
}

impl<T> Lookup<T> {
    /// The object, or the reason why it could not be read.
    ///
    /// # Errors
    /// The reason.
    pub fn into_result(self) -> Result<Option<T>, String> {
        match self {
            Self::None => Ok(None),
            Self::Found(found) => Ok(Some(found)),
            Self::Missing(why) => Err(why),
        }
    }
}

/// The results of looking up both.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Lookups {
    /// For the instance type.
    pub instancetype: Lookup<VirtualMachineInstancetypeSpec>,
    /// For the preference.
    pub preference: Lookup<VirtualMachinePreferenceSpec>,
}

/// Applies what a preference sets in the machine itself, before other defaults are filled in there.
pub fn prefer(vm: &mut VirtualMachine, lookups: &Lookups) {
    if let Lookup::Found(preference) = &lookups.preference {
        preference::apply::to_machine(preference, vm);
    }
}

/// The machine as it is validated: with its instance type and preference applied and no other change.
///
/// A missing instance type or preference is no reason to refuse, as in KubeVirt: the machine reports it in a
/// condition and starts as soon as the object exists.
///
/// # Errors
/// Everything wrong with the matchers, else all conflicts of the instance type and preference, else a cause
/// for each unmet requirement.
pub fn admit(
    old: Option<&VirtualMachine>,
    new: VirtualMachine,
    lookups: &Lookups,
    binding: Binding,
) -> Result<VirtualMachine, Vec<Cause>> {
    if new.metadata.deletion_timestamp.is_some() {
        return Ok(new);
    }
    let mut causes = Vec::new();
    for family in Family::ALL {
        let Some(matcher) = family.matcher(&new) else { continue };
        causes.extend(matcher.causes());
        causes.extend(old.and_then(|old| family.matcher(old)).and_then(|old| matcher.change(&old)));
    }
    if !causes.is_empty() {
        return Err(causes);
    }

    let chosen = Chosen {
        instancetype: lookups.instancetype.clone().into_result().unwrap_or_else(|_| Some(stand_in())),
        preference: lookups.preference.clone().into_result().unwrap_or_default(),
    };
    let expanded = template(&new, &chosen, binding)?;
    if let Some(preference) = &chosen.preference {
        let mut spec = expanded.spec.template.spec.clone();
        defaults::spec(&mut spec);
        let unmet = requirements::check(chosen.instancetype.as_ref(), preference, &spec);
        if !unmet.is_empty() {
            return Err(unmet);
        }
    }
    Ok(expanded)
}

/// A minimal instance type in place of a missing one, so that the rest of a machine can be validated.
fn stand_in() -> VirtualMachineInstancetypeSpec {
    VirtualMachineInstancetypeSpec {
        cpu: CpuInstancetype { guest: 1, ..Default::default() },
        memory: MemoryInstancetype { guest: Quantity("1Gi".to_owned()), ..Default::default() },
        ..Default::default()
    }
}

/// The machine with its template expanded and nothing else changed.
///
/// # Errors
/// A cause for each conflict and each value that cannot be used.
fn template(vm: &VirtualMachine, chosen: &Chosen, binding: Binding) -> Result<VirtualMachine, Vec<Cause>> {
    let mut vm = vm.clone();
    if *chosen == Chosen::default() {
        return Ok(vm);
    }
    let template = &mut vm.spec.template;
    let mut annotations =
        template.metadata.as_ref().and_then(|metadata| metadata.annotations.clone()).unwrap_or_default();
    specification(&Path::new("spec.template.spec"), chosen, binding, &mut template.spec, &mut annotations)?;
    if !annotations.is_empty() {
        template.metadata.get_or_insert_default().annotations = Some(annotations);
    }
    Ok(vm)
}

/// The machine as the calls that expand it return it: with the installation's defaults, and without
/// references to instance types or preferences.
///
/// # Errors
/// A cause for each conflict and each value that cannot be used.
pub fn on_its_own(
    vm: &VirtualMachine,
    chosen: &Chosen,
    guest: &GuestDefaults,
) -> Result<VirtualMachine, Vec<Cause>> {
    if vm.spec.instancetype.is_none() && vm.spec.preference.is_none() {
        return Ok(vm.clone());
    }
    let mut vm = written_out(vm, chosen, guest.binding)?;
    defaults::chosen(&mut vm.spec.template.spec, guest);
    Ok(vm)
}

/// The machine with all values of its instance type and preference in its template, and without references to them. Fields
/// that neither of them sets stay empty: the next start fills them in.
///
/// # Errors
/// A cause for each conflict and each value that cannot be used.
pub fn written_out(
    vm: &VirtualMachine,
    chosen: &Chosen,
    binding: Binding,
) -> Result<VirtualMachine, Vec<Cause>> {
    let mut vm = template(vm, chosen, binding)?;
    vm.spec.instancetype = None;
    vm.spec.preference = None;
    if let Some(status) = &mut vm.status {
        status.instancetype_ref = None;
        status.preference_ref = None;
    }
    Ok(vm)
}

/// The instance that a machine starts; its annotations name the instance type and preference.
///
/// # Errors
/// A cause for each conflict and each value that cannot be used.
pub fn instance(
    vm: &VirtualMachine,
    chosen: &Chosen,
    binding: Binding,
    mut vmi: VirtualMachineInstance,
) -> Result<VirtualMachineInstance, Vec<Cause>> {
    let annotations = vmi.metadata.annotations.get_or_insert_default();
    for family in Family::ALL {
        let Some(Matcher { name: Some(name), kind, .. }) = family.matcher(vm) else { continue };
        if let Some(scope) = family.scope(kind) {
            annotations.insert(annotation(family, scope).to_owned(), name.to_owned());
        }
    }
    specification(&Path::new("spec"), chosen, binding, &mut vmi.spec, annotations)?;
    Ok(vmi)
}

fn annotation(family: Family, scope: super::matcher::Scope) -> &'static str {
    use super::matcher::Scope;
    match (family, scope) {
        (Family::Instancetype, Scope::Namespaced) => INSTANCETYPE_ANNOTATION,
        (Family::Instancetype, Scope::Cluster) => CLUSTER_INSTANCETYPE_ANNOTATION,
        (Family::Preference, Scope::Namespaced) => PREFERENCE_ANNOTATION,
        (Family::Preference, Scope::Cluster) => CLUSTER_PREFERENCE_ANNOTATION,
    }
}

/// Applies the instance type and the preference to a specification. Default devices are added first, so that
/// the preference chooses their bus and model.
fn specification(
    path: &Path,
    chosen: &Chosen,
    binding: Binding,
    spec: &mut VirtualMachineInstanceSpec,
    annotations: &mut BTreeMap<String, String>,
) -> Result<(), Vec<Cause>> {
    let Chosen { instancetype, preference } = chosen;
    if let Some(preference) = preference {
        preference::apply::autoattach(preference, spec);
    }
    defaults::devices(spec, binding);
    if let Some(instancetype) = instancetype {
        apply::apply(path, instancetype, preference.as_ref(), spec, annotations)?;
    }
    if let Some(preference) = preference {
        preference::apply::apply(preference, spec, annotations);
    }
    Ok(())
}

/// The causes in one sentence, as KubeVirt's calls answer: all conflicts together, then the rest.
pub fn sentence(causes: &[Cause]) -> String {
    let (conflicts, others): (Vec<&Cause>, Vec<&Cause>) =
        causes.iter().partition(|cause| cause.message.ends_with(super::apply::CONFLICT));
    let fields: Vec<&str> = conflicts.iter().map(|cause| cause.field.as_str()).collect();
    let together =
        (!fields.is_empty()).then(|| format!("VM field(s) {} {}", fields.join(", "), super::apply::CONFLICT));
    let sentences: Vec<String> = together.into_iter().chain(others.iter().map(ToString::to_string)).collect();
    sentences.join(", ")
}

#[cfg(test)]
mod tests;
