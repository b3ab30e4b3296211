//! Prints an explanation for people.

use std::fmt::Write as _;

use barevirt_machine::Part;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;
use std::collections::BTreeMap;

use super::arguments::Section;
use super::explained::{Explained, Outcome};
use super::marked;

/// All of it, or the requested sections.
pub(super) fn text(explained: &Explained, show: &[Section]) -> String {
    let Explained { kind, name, namespace, warnings, causes, outcome } = explained;
    let space = if namespace.is_empty() { String::new() } else { format!("{namespace}/") };
    let mut text = format!("{kind} {space}{name}\n");
    for warning in warnings {
        let _ = writeln!(text, "Warning: {warning}");
    }
    if !causes.is_empty() {
        let _ = writeln!(text, "\nRefused:");
        for cause in causes {
            let field = if cause.field.is_empty() { "the manifest" } else { &cause.field };
            let _ = writeln!(text, "  {field}: {}", cause.message);
        }
    }
    let Some(outcome) = outcome else { return text };
    for section in [Section::Spec, Section::Pod, Section::Qemu, Section::Resources] {
        if show.is_empty() || show.contains(&section) {
            text.push('\n');
            self::section(&mut text, outcome, section);
        }
    }
    text
}

fn section(text: &mut String, outcome: &Outcome, section: Section) {
    match section {
        Section::Spec => {
            text.push_str("Specification of the instance; what the manifest does not give is marked:\n");
            indent(text, &marked::yaml(&outcome.spec, "spec", &outcome.filled_in));
        }
        Section::Pod => {
            text.push_str("Launcher pod:\n");
            let pod = serde_json::to_value(&outcome.pod).unwrap_or_default();
            indent(text, &marked::yaml(&pod, "", &[]));
        }
        Section::Qemu => command_line(text, outcome),
        Section::Resources => resources(text, outcome),
        // Printed with the VM that runs.
        Section::Changes => {}
    }
}

fn indent(text: &mut String, block: &str) {
    for line in block.lines() {
        let _ = writeln!(text, "  {line}");
    }
}

fn command_line(text: &mut String, outcome: &Outcome) {
    text.push_str("QEMU's command line, and the fields that it comes from:\n");
    for Part { what, fields, arguments } in &outcome.command_line {
        let from = if fields.is_empty() { "every machine".to_owned() } else { fields.join(", ") };
        let _ = writeln!(text, "  {what}  <- {from}");
        let mut words = arguments.iter().peekable();
        while let Some(option) = words.next() {
            let _ = write!(text, "    {option}");
            while let Some(value) = words.next_if(|word| !word.starts_with('-')) {
                let _ = write!(text, " {}", quoted(value));
            }
            text.push('\n');
        }
    }
    for field in &outcome.left_out {
        let _ = writeln!(text, "  Left out, since emulation does not have it: {field}");
    }
    for assumption in &outcome.assumptions {
        let _ = writeln!(text, "  Assumed: {assumption}.");
    }
}

fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=,./:+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

fn resources(text: &mut String, outcome: &Outcome) {
    let resources = &outcome.resources;
    text.push_str("Memory and CPUs:\n");
    let mut row = |name: &str, bytes: u64| {
        let _ = writeln!(text, "  {name:<24}{:>12}", mib(bytes));
    };
    row("guest memory", resources.guest_memory);
    for part in &resources.overhead_parts {
        row(&format!("  {}", part.name), part.bytes);
    }
    row("overhead, rounded up", resources.overhead);
    if let Some(max) = resources.max_guest_memory {
        row("guest memory, at most", max);
    }
    let _ = writeln!(text, "  {:<24}{:>12}", "virtual CPUs", resources.cpus);
    if resources.max_cpus > resources.cpus {
        let _ = writeln!(text, "  {:<24}{:>12}", "virtual CPUs, at most", resources.max_cpus);
    }
    let containers = outcome
        .pod
        .spec
        .iter()
        .flat_map(|spec| spec.containers.iter().chain(spec.init_containers.iter().flatten()));
    for container in containers {
        let Some(given) = &container.resources else { continue };
        let _ = writeln!(text, "  container {}", container.name);
        for (what, list) in [("requests", &given.requests), ("limits", &given.limits)] {
            if let Some(list) = list.as_ref().filter(|list| !list.is_empty()) {
                let _ = writeln!(text, "    {what:<10}{}", amounts(list));
            }
        }
    }
}

fn amounts(list: &BTreeMap<String, Quantity>) -> String {
    let amount = |(name, Quantity(amount)): (&String, &Quantity)| format!("{name} {amount}");
    list.iter().map(amount).collect::<Vec<_>>().join(", ")
}

/// Bytes in MiB, with one decimal if it is not a whole number.
fn mib(bytes: u64) -> String {
    let tenths = bytes * 10 / (1 << 20);
    match tenths % 10 {
        0 => format!("{} MiB", tenths / 10),
        rest => format!("{}.{rest} MiB", tenths / 10),
    }
}

/// A value of a change, short.
pub(crate) fn short(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        other => other.to_string(),
    }
}
