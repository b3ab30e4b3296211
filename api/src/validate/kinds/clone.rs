//! `VirtualMachineClone`.

use super::gated;
use crate::clone::{VirtualMachineClone, VirtualMachineCloneSpec};
use crate::gates::Gates;
use crate::syntax::quoted;
use crate::validate::{Cause, Path, parse_mac};

const MACHINE: &str = "VirtualMachine";

/// Everything wrong with a new clone.
pub fn create(clone: &VirtualMachineClone, gates: &Gates) -> Vec<Cause> {
    let mut causes = rules(&clone.spec);
    causes.push(gated(
        gates,
        "Snapshot",
        "snapshot feature gate is not enabled",
        "VirtualMachineClone",
        "machines cannot be copied",
    ));
    causes
}

/// Everything wrong with a change of a clone. An unchanged specification passes, so that the object can be
/// deleted.
pub fn update(old: &VirtualMachineClone, new: &VirtualMachineClone) -> Vec<Cause> {
    if old.spec == new.spec { Vec::new() } else { rules(&new.spec) }
}

fn rules(spec: &VirtualMachineCloneSpec) -> Vec<Cause> {
    let mut causes = Vec::new();
    filters("spec.annotationFilters", &spec.annotation_filters, &mut causes);
    filters("spec.labelFilters", &spec.label_filters, &mut causes);
    if let Some(template) = &spec.template {
        filters("spec.template.annotationFilters", &template.annotation_filters, &mut causes);
        filters("spec.template.labelFilters", &template.label_filters, &mut causes);
    }
    source_and_target(spec, &mut causes);
    for (interface, mac) in &spec.new_mac_addresses {
        if !mac.is_empty() && parse_mac(mac).is_none() {
            causes.push(Cause::invalid(
                &Path::new("spec.newMacAddresses").child(&quoted(interface)),
                format!("interface {} has malformed MAC address ({}).", quoted(interface), quoted(mac)),
            ));
        }
    }
    for (index, patch) in spec.patches.iter().enumerate() {
        if serde_json::from_str::<serde::de::IgnoredAny>(patch).is_err() {
            let message = format!("patch is not valid JSON ({})", quoted(patch));
            causes.push(Cause::invalid(&Path::new("spec.patches").index(index), message));
        }
    }
    causes
}

/// A filter is a text with `!` at most at its start and `*` at most at its end.
fn filters(field: &str, filters: &[String], causes: &mut Vec<Cause>) {
    let path = Path::new(field);
    for filter in filters {
        let mut cannot = |name: &str, mark: char, rule: &str| {
            causes.push(Cause::invalid(
                &path,
                format!(
                    "{field} filter {} is invalid: cannot contain a {name} character ({mark}); FilterRules: {rule}",
                    quoted(filter)
                ),
            ));
        };
        if filter.chars().skip(1).any(|c| c == '!') {
            cannot("negation", '!', "NegationChar can be only used at the beginning of the filter");
        }
        if filter.chars().rev().skip(1).any(|c| c == '*') {
            cannot("wildcard", '*', "WildcardChar can be only at the end of the filter");
        }
        if filter == "!" {
            causes.push(Cause::invalid(&path, "a negation character is not a valid filter"));
        }
    }
}

fn source_and_target(spec: &VirtualMachineCloneSpec, causes: &mut Vec<Cause>) {
    let path = Path::new("spec");
    let source = &spec.source;
    if ![MACHINE, "VirtualMachineSnapshot"].contains(&source.kind.as_str()) {
        causes.push(Cause::invalid(&path.child("source.kind"), "Source kind is not supported"));
    }
    if spec.target.as_ref().is_some_and(|target| target.kind != MACHINE) {
        causes.push(Cause::invalid(&path.child("target.kind"), "Target kind is not supported"));
    }
    if source.api_group.as_deref().is_none_or(str::is_empty) {
        causes.push(Cause::invalid(&path.child("source.apiGroup"), "Source's APIGroup cannot be empty"));
    }
    if source.kind.is_empty() {
        causes.push(Cause::invalid(&path.child("source.kind"), "Source's Kind cannot be empty"));
    }
    if source.name.is_empty() {
        causes.push(Cause::invalid(&path.child("source.name"), "Source's name cannot be empty"));
    }
    if let Some(target) = &spec.target
        && [&source.kind, &target.kind].iter().all(|kind| *kind == MACHINE)
        && source.name == target.name
    {
        causes.push(Cause::invalid(
            &path.child("target.name"),
            "Target name cannot be equal to source name when both are VirtualMachines",
        ));
    }
}
