//! Limits on sizes: long lists and texts are refused before they reach pods, watchers and command lines.

use super::{Cause, Path};
use crate::syntax::quoted;
use serde::Serialize;
use serde_json::Value;

/// Most elements of the lists of devices and of their sources: the API's limit.
const DEVICES: usize = 256;
/// Lists with this limit, by the end of their path.
const DEVICE_LISTS: [&str; 14] = [
    ".accessCredentials",
    ".dataVolumeTemplates",
    ".devices.disks",
    ".devices.filesystems",
    ".devices.gpus",
    ".devices.hostDevices",
    ".devices.inputs",
    ".devices.interfaces",
    ".devices.panicDevices",
    ".domain.cpu.features",
    ".networks",
    ".resourceClaims",
    ".utilityVolumes",
    ".volumes",
];
/// Most elements of any other list or map.
const ELEMENTS: usize = 1024;
/// Longest text, in bytes. Texts with a lower limit have their own rule.
const TEXT: usize = 32 << 10;

/// A cause for each list, map and text in an object of ours that is too long.
pub(super) fn validate(path: &Path, object: &impl Serialize, causes: &mut Vec<Cause>) {
    // The check for fields without effect refuses an object that has no JSON form.
    if let Ok(value) = serde_json::to_value(object) {
        check(path, &value, causes);
    }
}

fn check(path: &Path, value: &Value, causes: &mut Vec<Cause>) {
    let too_many = |count: usize, most: usize| {
        (count > most)
            .then(|| Cause::invalid(path, format!("{path} list exceeds the {most} element limit in length")))
    };
    match value {
        Value::String(text) if text.len() > TEXT => {
            causes.push(Cause::invalid(path, format!("{path} is longer than {TEXT} bytes")));
        }
        Value::Array(items) => {
            let field = path.to_string();
            let limited = DEVICE_LISTS.iter().any(|list| field.ends_with(list));
            causes.extend(too_many(items.len(), if limited { DEVICES } else { ELEMENTS }));
            // Elements beyond the limit are one mistake together, not one each.
            for (index, item) in items.iter().enumerate().take(ELEMENTS) {
                check(&path.index(index), item, causes);
            }
        }
        Value::Object(members) => {
            causes.extend(too_many(members.len(), ELEMENTS));
            for (name, member) in members.iter().take(ELEMENTS) {
                check(&path.child(&quoted(name)), member, causes);
            }
        }
        _ => {}
    }
}
