//! YAML of a specification that marks which values were filled in, and leaves out secrets.

use std::fmt::Write as _;

use barevirt_api::v1::VirtualMachineInstanceSpec;
use serde_json::Value;

/// The origin of a value that is not in the manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A default.
    Default,
    /// The instance type or the preference.
    Chosen,
}

impl Origin {
    /// The word for it.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Default => "default",
            Self::Chosen => "instance type or preference",
        }
    }
}

/// A field that the manifest does not give.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mark {
    /// Its path.
    pub(crate) path: String,
    /// Where it comes from.
    pub(crate) origin: Origin,
}

/// Fields of `whole` that are not in `given`. A subtree that is new as a whole is one entry. `alone` is the result of the manifest
/// without an instance type and a preference.
pub(crate) fn marks(whole: &Value, given: &Value, alone: &Value) -> Vec<Mark> {
    let mut marks = Vec::new();
    compare("spec", whole, Some(given), Some(alone), &mut marks);
    marks
}

fn compare(path: &str, whole: &Value, given: Option<&Value>, alone: Option<&Value>, marks: &mut Vec<Mark>) {
    if given == Some(whole) {
        return;
    }
    match (whole, given) {
        (Value::Object(members), Some(Value::Object(given))) => {
            for (name, member) in members {
                let alone = alone.and_then(|alone| alone.get(name));
                compare(&format!("{path}.{name}"), member, given.get(name), alone, marks);
            }
        }
        (Value::Array(items), Some(given @ Value::Array(_))) => {
            for (index, item) in items.iter().enumerate() {
                let alone = alone.and_then(|alone| twin(item, index, alone));
                compare(&format!("{path}[{index}]"), item, twin(item, index, given), alone, marks);
            }
        }
        _ => {
            let origin = if alone == Some(whole) { Origin::Default } else { Origin::Chosen };
            marks.push(Mark { path: path.to_owned(), origin });
        }
    }
}

/// The same element in another list: by its name, if it has one.
fn twin<'a>(item: &Value, index: usize, list: &'a Value) -> Option<&'a Value> {
    let list = list.as_array()?;
    match item.get("name") {
        Some(name) => list.iter().find(|other| other.get("name") == Some(name)),
        None => list.get(index),
    }
}

/// Removes possible secrets: the data for cloud-init.
pub(crate) fn redact(spec: &mut VirtualMachineInstanceSpec) {
    let hide = |field: &mut Option<String>| {
        if let Some(text) = field.as_mut().filter(|text| !text.is_empty()) {
            *text = format!("<redacted: {} bytes>", text.len());
        }
    };
    for volume in &mut spec.volumes {
        if let Some(source) = &mut volume.cloud_init_no_cloud {
            hide(&mut source.user_data);
            hide(&mut source.user_data_base64);
            hide(&mut source.network_data);
            hide(&mut source.network_data_base64);
        }
        if let Some(source) = &mut volume.cloud_init_config_drive {
            hide(&mut source.user_data);
            hide(&mut source.user_data_base64);
            hide(&mut source.network_data);
            hide(&mut source.network_data_base64);
        }
    }
}

/// The value as YAML below `root`, marks at the end of their lines.
pub(crate) fn yaml(value: &Value, root: &str, marks: &[Mark]) -> String {
    let mut text = String::new();
    write_members(&mut text, value, root, 0, marks, false);
    text
}

fn note(path: &str, marks: &[Mark]) -> String {
    let mark = marks.iter().find(|mark| mark.path == path);
    mark.map(|mark| format!("  # {}", mark.origin.word())).unwrap_or_default()
}

/// Members of an object or elements of a list; `inline`: the first follows `- ` on the same line.
fn write_members(text: &mut String, value: &Value, path: &str, depth: usize, marks: &[Mark], inline: bool) {
    let indent = "  ".repeat(depth);
    match value {
        Value::Object(members) => {
            for (index, (name, member)) in members.iter().enumerate() {
                let path = format!("{path}.{name}");
                if !(inline && index == 0) {
                    text.push_str(&indent);
                }
                text.push_str(&word(name));
                text.push(':');
                write_value(text, member, &path, depth, marks);
            }
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let path = format!("{path}[{index}]");
                text.push_str(&indent);
                text.push('-');
                match item {
                    Value::Object(members) if !members.is_empty() => {
                        let note = note(&path, marks);
                        if !note.is_empty() {
                            let _ = write!(text, "{note}\n{indent} ");
                        }
                        text.push(' ');
                        write_members(text, item, &path, depth + 1, marks, true);
                    }
                    _ => write_value(text, item, &path, depth + 1, marks),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            let _ = writeln!(text, "{indent}{}", scalar(value));
        }
    }
}

/// Writes the value after a colon or a dash.
fn write_value(text: &mut String, value: &Value, path: &str, depth: usize, marks: &[Mark]) {
    let note = note(path, marks);
    match value {
        Value::Object(members) if !members.is_empty() => {
            let _ = writeln!(text, "{note}");
            write_members(text, value, path, depth + 1, marks, false);
        }
        Value::Array(items) if !items.is_empty() => {
            let _ = writeln!(text, "{note}");
            write_members(text, value, path, depth, marks, false);
        }
        Value::Object(_) => {
            let _ = writeln!(text, " {{}}{note}");
        }
        Value::Array(_) => {
            let _ = writeln!(text, " []{note}");
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            let _ = writeln!(text, " {}{note}", scalar(value));
        }
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) => word(text),
        other => other.to_string(),
    }
}

/// A text as YAML: unchanged if it can only be read as a text, else as JSON.
fn word(text: &str) -> String {
    const OTHER: [&str; 8] = ["true", "false", "null", "yes", "no", "on", "off", "y"];
    let plain = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '/')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
        && !OTHER.contains(&text.to_ascii_lowercase().as_str())
        && text.len() > 1;
    if plain || (text.len() == 1 && text.chars().all(|c| c.is_ascii_alphabetic() && !"nNyY".contains(c))) {
        text.to_owned()
    } else {
        Value::from(text).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn defaults_are_marked_and_the_yaml_is_equivalent() {
        let given = json!({"a": {"b": 1}, "list": [{"name": "x", "v": 1}]});
        let alone =
            json!({"a": {"b": 1, "c": true}, "list": [{"name": "x", "v": 1}], "new": {"d": ["0644"]}});
        let whole = json!({"a": {"b": 1, "c": true, "e": "no"}, "list": [{"name": "w", "q": {}}, {"name": "x", "v": 1}],
            "new": {"d": ["0644"]}, "text": "a: b\n#c", "nested": [[1, "two words"]]});
        let marks = marks(&whole, &given, &alone);
        let of = |origin: Origin| -> Vec<&str> {
            marks.iter().filter(|mark| mark.origin == origin).map(|mark| mark.path.as_str()).collect()
        };
        assert_eq!(of(Origin::Default), ["spec.a.c", "spec.new"]);
        assert_eq!(of(Origin::Chosen), ["spec.a.e", "spec.list[0]", "spec.nested", "spec.text"]);
        let text = yaml(&whole, "spec", &marks);
        assert!(text.contains("  c: true  # default\n"), "{text}");
        assert!(text.contains("-  # instance type or preference\n  name: w\n"), "{text}");
        let read: Value = serde_saphyr::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        assert_eq!(read, whole, "{text}");
    }
}
