//! Differences between the command line of a running QEMU and the planned one.
//!
//! Options are matched by their subject: an id, a node name, a property. Descriptor numbers differ from start
//! to start and are ignored, and the network's MTU is known only on the node.

use std::collections::BTreeSet;

use barevirt_plan::fields::{Change, changed};
use serde_json::{Map, Value};

/// Replaces a possible secret; the launcher writes it.
const REMOVED: &str = "(removed)";

/// The settings that differ between both command lines.
pub(super) fn differing(planned: &[String], running: &[String]) -> Vec<Change> {
    let (mut planned, mut running) = (options(planned), options(running));
    let option = |about: &str| about.split(' ').next().unwrap_or_default().to_owned();
    let removed = running.iter().filter(|(_, value)| value.as_str() == Some(REMOVED));
    let secret: BTreeSet<String> = removed.map(|(about, _)| option(about)).collect();
    // Redacted values are not compared, so the output does not show whether they are present.
    for options in [&mut planned, &mut running] {
        options.retain(|about, _| !secret.contains(&option(about)));
    }
    changed("", &Value::Object(planned), &Value::Object(running))
}

/// Settings by their subject.
fn options(words: &[String]) -> Map<String, Value> {
    let mut options = Map::new();
    let mut words = words.iter().skip_while(|word| !word.starts_with('-')).peekable();
    while let Some(option) = words.next() {
        let value = words.next_if(|word| !word.starts_with('-')).map_or("", String::as_str);
        // Descriptors show up in the options that use them.
        if option == "-add-fd" {
            continue;
        }
        let settings = comparable(settings(value));
        let about = match about(&settings) {
            Some(about) => format!("{option} {about}"),
            None => option.clone(),
        };
        let mut name = about.clone();
        let mut further = 2;
        while options.contains_key(&name) {
            name = format!("{about} #{further}");
            further += 1;
        }
        options.insert(name, settings);
    }
    options
}

/// The value of an option: QEMU takes JSON, `key=value,...`, and words.
fn settings(text: &str) -> Value {
    if let Ok(Value::Object(object)) = serde_json::from_str(text) {
        return Value::Object(object);
    }
    if !text.contains('=') {
        return text.into();
    }
    let pair = |part: &str| match part.split_once('=') {
        Some((key, value)) => (key.to_owned(), value.into()),
        None => ("type".to_owned(), part.into()),
    };
    Value::Object(text.split(',').map(pair).collect())
}

fn about(settings: &Value) -> Option<String> {
    let object = settings.as_object()?;
    let named = ["id", "node-name", "chardev"].iter().find_map(|key| object.get(*key)?.as_str());
    // `-global DRIVER.PROPERTY=VALUE`.
    let property = || object.keys().next().filter(|key| object.len() == 1 && key.contains('.'));
    named.or_else(|| property().map(String::as_str)).map(str::to_owned)
}

/// Without values that the plan cannot know.
fn comparable(settings: Value) -> Value {
    let Value::Object(mut object) = settings else { return settings };
    object.remove("host_mtu");
    for (key, value) in &mut object {
        let set = value.as_str().is_some_and(|text| text.starts_with("/dev/fdset/"));
        if set || ["fd", "fds", "vhostfd", "vhostfds"].contains(&key.as_str()) {
            *value = "a descriptor".into();
        }
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    fn differences(planned: &str, running: &str) -> Vec<String> {
        let changes = differing(&words(planned), &words(running));
        let mut told: Vec<_> =
            changes.iter().map(|Change { path, from, to }| format!("{path}: {from} -> {to}")).collect();
        told.sort();
        told
    }

    #[test]
    fn numbers_of_descriptors_and_the_order_are_no_difference() {
        let planned = r#"-S -add-fd fd=3,set=1 -m size=64M -netdev {"id":"net0","fds":"3:4"} -blockdev {"node-name":"a","filename":"/dev/fdset/1"} -device {"id":"nic"}"#;
        let running = r#"/usr/bin/qemu -m size=64M -blockdev {"node-name":"a","filename":"/dev/fdset/7"} -S -netdev {"id":"net0","fds":"13:14"} -device {"id":"nic","host_mtu":1500}"#;
        assert_eq!(differences(planned, running), Vec::<String>::new());
    }

    #[test]
    fn differences_are_listed_by_option_and_setting() {
        let planned = r#"-smp cpus=2,cores=1 -device {"driver":"x","id":"a","bootindex":1} -global A.b=1 -global A.c=1"#;
        let running = r#"qemu -smp cpus=1,cores=1 -device {"driver":"x","id":"a"} -device {"driver":"y","id":"b"} -global A.b=2 -global A.c=1"#;
        assert_eq!(
            differences(planned, running),
            [
                ".-device a.bootindex: 1 -> null",
                ".-device b: null -> {\"driver\":\"y\",\"id\":\"b\"}",
                ".-global A.b.A.b: \"1\" -> \"2\"",
                ".-smp.cpus: \"2\" -> \"1\"",
            ]
        );
    }

    #[test]
    fn removed_secrets_are_not_compared() {
        assert_eq!(differences("-append quiet -m 64", "qemu -append (removed) -m 64"), Vec::<String>::new());
        assert_eq!(differences("-fw_cfg name=a,string=s", "qemu -fw_cfg (removed)"), Vec::<String>::new());
    }

    #[test]
    fn options_without_names_are_numbered() {
        let two = options(&words("-smbios type=1 -smbios type=3"));
        let names: Vec<&String> = two.keys().collect();
        assert_eq!(names, ["-smbios", "-smbios #2"]);
        assert_eq!(settings("socket,id=a"), json!({"type": "socket", "id": "a"}));
    }
}
