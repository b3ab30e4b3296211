//! Objects as YAML for `kubectl create -f -`, and any answer as `-o json|yaml`.

use anyhow::Context;
use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

/// Output formats of commands that print an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Json,
    Yaml,
}

impl Format {
    /// The object in that format, with a newline at its end.
    pub(crate) fn text(self, object: &impl Serialize) -> anyhow::Result<String> {
        match self {
            Self::Json => Ok(serde_json::to_string_pretty(object)? + "\n"),
            Self::Yaml => text(object),
        }
    }
}

/// The object as YAML, its members in alphabetical order, without nulls.
pub(crate) fn text(object: &impl Serialize) -> anyhow::Result<String> {
    let mut value = serde_json::to_value(object).context("write the object")?;
    prune(&mut value);
    let mut text = serde_saphyr::to_string(&value).context("write the object as YAML")?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

fn prune(value: &mut Value) {
    match value {
        Value::Object(members) => {
            members.retain(|_, member| !member.is_null());
            members.values_mut().for_each(prune);
        }
        Value::Array(elements) => elements.iter_mut().for_each(prune),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn printed_yaml_is_read_back() {
        let object = json!({
            "b": {"text": "#cloud-config\nuser: a\n", "nothing": null, "list": [{"c": null, "d": "0644"}]},
            "a": ["yes", "1", "", "a: b"],
        });
        let text = text(&object).unwrap();
        assert!(text.starts_with("a:"), "{text}");
        let read: Value = serde_saphyr::from_str(&text).unwrap();
        let wanted = json!({
            "b": {"text": "#cloud-config\nuser: a\n", "list": [{"d": "0644"}]},
            "a": ["yes", "1", "", "a: b"],
        });
        assert_eq!(read, wanted);
    }
}
