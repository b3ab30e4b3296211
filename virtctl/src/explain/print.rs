//! Prints an explanation for people.

use std::fmt::Write as _;

use barevirt_machine::Part;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde_json::Value;
use std::collections::BTreeMap;

use super::arguments::Section;
use super::explained::{Explained, Outcome, ShownCause};
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
            let _ = writeln!(text, "  {}", refusal(cause));
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

/// A cause with its field once: most messages name it.
fn refusal(ShownCause { field, message, .. }: &ShownCause) -> String {
    if field.is_empty() {
        return format!("the manifest: {message}");
    }
    match place(field, message) {
        // KubeVirt's messages write some names with a capital letter.
        Some(at) => format!("{}{field}{}", &message[..at], &message[at + field.len()..]),
        None => format!("{field}: {message}"),
    }
}

/// Where a message names this field, and not one inside it; letters may differ in case.
fn place(field: &str, message: &str) -> Option<usize> {
    let (field, message) = (field.to_ascii_lowercase(), message.to_ascii_lowercase());
    let begins_with_a_letter = |text: &str| text.starts_with(char::is_alphanumeric);
    message.match_indices(&field).map(|(at, _)| at).find(|at| {
        let (before, after) = (&message[..*at], &message[at + field.len()..]);
        let is_longer = after.starts_with('[')
            || begins_with_a_letter(after)
            || after.strip_prefix('.').is_some_and(begins_with_a_letter);
        !is_longer && !before.ends_with(|last: char| last.is_alphanumeric() || last == '.')
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(field: &str, message: &str) -> String {
        refusal(&ShownCause { field: field.to_owned(), message: message.to_owned(), reason: String::new() })
    }

    #[test]
    fn a_refusal_names_its_field_once() {
        let field = "spec.domain.launchSecurity";
        let message = "spec.domain.launchSecurity is not supported yet";
        assert_eq!(shown(field, message), message);
        assert_eq!(shown("spec.runing", "unknown field spec.runing"), "unknown field spec.runing");
        assert_eq!(
            shown("spec.disks[1].name", "spec.disks[1].Name 'data' not found."),
            "spec.disks[1].name 'data' not found."
        );
        assert_eq!(shown("", "it has no kind"), "the manifest: it has no kind");
        assert_eq!(shown("spec.running", "must be given"), "spec.running: must be given");
    }

    #[test]
    fn a_longer_path_is_another_field() {
        for message in
            ["spec.volumes[0].name is empty", "spec.volumes[0][1]", "xspec.volumes[0]", "a.spec.volumes[0]"]
        {
            assert_eq!(shown("spec.volumes[0]", message), format!("spec.volumes[0]: {message}"));
        }
        assert_eq!(shown("spec.volumes[0]", "see spec.volumes[0]."), "see spec.volumes[0].");
        assert_eq!(shown("spec.cpu", "spec.cpus is not spec.cpu"), "spec.cpus is not spec.cpu");
    }
}
