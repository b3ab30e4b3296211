//! The commands that users may call, from the schema of the guest's QEMU. Pure.

use std::collections::BTreeMap;

use barevirt_api::monitor::{self, Class};
use serde_json::Value;

/// Values of an enumeration shown at most.
const SHOWN: usize = 8;

/// One argument of a command.
#[derive(Debug, PartialEq, Eq)]
struct Argument {
    name: String,
    kind: String,
    optional: bool,
}

/// The commands, with the arguments that each takes.
#[derive(Debug, Default)]
pub(super) struct Schema(BTreeMap<String, (Class, Vec<Argument>)>);

impl Schema {
    /// Reads the answer to query-qmp-schema.
    pub(super) fn read(answer: &Value) -> Self {
        let entries: BTreeMap<&str, &Value> = answer
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|one| Some((one["name"].as_str()?, one)))
            .collect();
        let commands = entries.values().filter(|entry| entry["meta-type"] == "command");
        let open = commands.filter_map(|command| {
            let name = command["name"].as_str()?;
            let class = monitor::class(name)?;
            let members = entries.get(command["arg-type"].as_str()?)?["members"].as_array();
            let argument = |member: &Value| {
                Some(Argument {
                    name: member["name"].as_str()?.to_owned(),
                    kind: kind(&entries, member["type"].as_str()?),
                    optional: member.get("default").is_some(),
                })
            };
            let arguments = members.into_iter().flatten().filter_map(argument).collect();
            Some((name.to_owned(), (class, arguments)))
        });
        Self(open.collect())
    }

    /// Completions for the end of a line, and where they begin.
    pub(super) fn complete(&self, line: &str) -> (usize, Vec<String>) {
        let start = line.rfind(' ').map_or(0, |at| at + 1);
        let (before, word) = line.split_at(start);
        let mut before = before.split_whitespace();
        let offers: Vec<String> = match before.next() {
            None | Some("help") => {
                let own = ["help".to_owned(), "quit-shell".to_owned()];
                self.0.keys().cloned().chain(own).filter(|name| name.starts_with(word)).collect()
            }
            Some(command) => {
                let given: Vec<&str> = before.filter_map(|word| Some(word.split_once('=')?.0)).collect();
                let arguments = self.0.get(command).map(|(_, arguments)| arguments);
                let open = arguments.into_iter().flatten().filter(|one| !given.contains(&one.name.as_str()));
                open.filter(|one| one.name.starts_with(word)).map(|one| format!("{}=", one.name)).collect()
            }
        };
        (start, offers)
    }

    /// Help on one command, or on all.
    pub(super) fn help(&self, command: Option<&str>) -> String {
        let Some(command) = command else {
            let mut text = String::new();
            for class in [Class::Query, Class::Harmless, Class::Disruptive] {
                let names =
                    self.0.iter().filter(|(_, (own, _))| *own == class).map(|(name, _)| name.as_str());
                text += &format!("{}:\n  {}\n", class.word(), names.collect::<Vec<_>>().join(" "));
            }
            return text + "help COMMAND shows its arguments; quit-shell or ctrl-d leaves.";
        };
        let Some((class, arguments)) = self.0.get(command) else {
            return format!("{command} is not a command of this QEMU that users may run");
        };
        let mut text = format!("{command} ({})", class.word());
        for Argument { name, kind, optional } in arguments {
            text += &format!("\n  {name}={kind}{}", if *optional { "  (may be left out)" } else { "" });
        }
        text
    }
}

/// A type for people: the schema's own names are numbers.
fn kind(entries: &BTreeMap<&str, &Value>, name: &str) -> String {
    let Some(entry) = entries.get(name) else { return name.to_owned() };
    match entry["meta-type"].as_str().unwrap_or_default() {
        "builtin" => entry["json-type"].as_str().unwrap_or(name).to_owned(),
        "enum" => {
            let values: Vec<&str> =
                entry["values"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let more = if values.len() > SHOWN { "|..." } else { "" };
            format!("{}{more}", values[..values.len().min(SHOWN)].join("|"))
        }
        "array" => format!("[{}]", kind(entries, entry["element-type"].as_str().unwrap_or_default())),
        "alternate" => "one of several types".to_owned(),
        _ => "{object}".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn schema() -> Schema {
        Schema::read(&json!([
            {"name": "query-stats", "meta-type": "command", "arg-type": "1", "ret-type": "0"},
            {"name": "query-status", "meta-type": "command", "arg-type": "0", "ret-type": "0"},
            {"name": "quit", "meta-type": "command", "arg-type": "0", "ret-type": "0"},
            {"name": "getfd", "meta-type": "command", "arg-type": "0", "ret-type": "0"},
            {"name": "0", "meta-type": "object", "members": []},
            {"name": "1", "meta-type": "object", "members": [
                {"name": "target", "type": "2"}, {"name": "vcpus", "type": "[str]", "default": null}]},
            {"name": "2", "meta-type": "enum", "values": ["vm", "vcpu"]},
            {"name": "[str]", "meta-type": "array", "element-type": "str"},
            {"name": "str", "meta-type": "builtin", "json-type": "string"},
            {"name": "STOP", "meta-type": "event", "arg-type": "0"},
        ]))
    }

    #[test]
    fn commands_and_their_arguments_are_completed() {
        let schema = schema();
        assert_eq!(schema.complete("query-sta"), (0, vec!["query-stats".into(), "query-status".into()]));
        assert_eq!(schema.complete("help q").1.len(), 4);
        assert_eq!(schema.complete("query-stats "), (12, vec!["target=".into(), "vcpus=".into()]));
        assert_eq!(schema.complete("query-stats target=vm v"), (22, vec!["vcpus=".into()]));
        // Forbidden commands.
        assert!(schema.complete("getf").1.is_empty() && schema.complete("nothing ").1.is_empty());
    }

    #[test]
    fn help_is_of_this_qemu() {
        let help = schema().help(Some("query-stats"));
        assert_eq!(help, "query-stats (query)\n  target=vm|vcpu\n  vcpus=[string]  (may be left out)");
        let all = schema().help(None);
        assert!(all.contains("disruptive:\n  quit\n") && !all.contains("getfd"), "{all}");
        assert!(schema().help(Some("getfd")).contains("not a command"));
    }
}
