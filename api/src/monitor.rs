//! QEMU's monitor for users: the class of each command, and which commands are forbidden.
//!
//! The table is data, `monitor/commands.txt`, with a decision for every command that QEMU 10.0 and 11.1 have.
//! A command that is not in the table is forbidden, so a new QEMU cannot add an unreviewed command. virt-api
//! checks whether the user may give commands of the class ([`Class::subresource`]), the launcher refuses
//! forbidden commands a second time, and virtctl completes the allowed ones.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde_json::Value;

const TABLE: &str = include_str!("monitor/commands.txt");

/// What a command does to a guest, which decides who may give it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// Only reads.
    Query,
    /// Changes nothing that the guest notices, or shows information that not every user may see.
    Harmless,
    /// The guest, its devices or its disks notice it.
    Disruptive,
}

impl Class {
    /// The name in logs.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Query => "query",
            Self::Harmless => "harmless",
            Self::Disruptive => "disruptive",
        }
    }

    /// Subresource of instances for which a user needs the verb `create`.
    pub const fn subresource(self) -> &'static str {
        match self {
            Self::Query => "qmp",
            Self::Harmless => "qmp/harmless",
            Self::Disruptive => "qmp/disruptive",
        }
    }
}

/// Why a command is forbidden.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Forbidden {
    /// The table has no decision on it.
    #[error("QMP command {0:?} is unknown here, and unknown commands are not allowed for any user")]
    Unknown(String),
    /// It reaches beyond the guest.
    #[error("QMP command {command:?} is not allowed for any user: it reaches {reach}")]
    Command {
        /// Its name.
        command: String,
        /// What it reaches.
        reach: &'static str,
    },
    /// It reaches beyond the guest with this argument.
    #[error(
        "QMP command {command:?} is not allowed for any user with argument {argument:?}: it reaches {reach}"
    )]
    Argument {
        /// Its name.
        command: String,
        /// The argument, with its value if only that value is refused.
        argument: String,
        /// What it reaches.
        reach: &'static str,
    },
}

/// A line of the table.
#[derive(Debug, Clone, Copy)]
enum Decision {
    Open { class: Class, without: Option<(&'static str, &'static str)> },
    Shut { reach: &'static str },
}

static DECISIONS: LazyLock<BTreeMap<&'static str, Decision>> = LazyLock::new(|| {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    // A line that cannot be parsed leaves its command unknown and so forbidden. A test parses all lines.
    lines.filter_map(|line| decision(&line.split_whitespace().collect::<Vec<_>>())).collect()
});

fn decision(words: &[&'static str]) -> Option<(&'static str, Decision)> {
    let open = |class, without| Decision::Open { class, without };
    let class = |word| match word {
        "query" => Some(Class::Query),
        "harmless" => Some(Class::Harmless),
        "disruptive" => Some(Class::Disruptive),
        _ => None,
    };
    match *words {
        [name, "forbidden", reach] => Some((name, Decision::Shut { reach: describe(reach)? })),
        [name, word] => Some((name, open(class(word)?, None))),
        [name, word, "without", argument, reach] => {
            Some((name, open(class(word)?, Some((argument, describe(reach)?)))))
        }
        _ => None,
    }
}

/// Description of the table's word, for users.
fn describe(reach: &str) -> Option<&'static str> {
    Some(match reach {
        "files" => "files outside the guest",
        "descriptors" => "descriptors of QEMU's process",
        "processes" => "other processes",
        "network" => "the network beside the guest's own",
        "monitors" => "the launcher's own monitor",
        "anything" => "anything QEMU can do",
        _ => return None,
    })
}

/// The class of a command with its arguments.
///
/// # Errors
/// Why it is forbidden.
pub fn judge(command: &str, arguments: &Value) -> Result<Class, Forbidden> {
    let shut = |reach| Forbidden::Command { command: command.to_owned(), reach };
    match DECISIONS.get(command) {
        None => Err(Forbidden::Unknown(command.chars().take(100).collect())),
        Some(Decision::Shut { reach }) => Err(shut(reach)),
        Some(Decision::Open { class, without: None }) => Ok(*class),
        Some(Decision::Open { class, without: Some((argument, reach)) }) => {
            let (name, value) =
                argument.split_once('=').map_or((*argument, None), |(name, value)| (name, Some(value)));
            if has(arguments, name, value) {
                let argument = (*argument).to_owned();
                return Err(Forbidden::Argument { command: command.to_owned(), argument, reach });
            }
            Ok(*class)
        }
    }
}

/// The class of a command whose arguments are not known yet; `None` if it is forbidden.
pub fn class(command: &str) -> Option<Class> {
    judge(command, &Value::Null).ok()
}

/// Every allowed command with its class, in alphabetical order.
pub fn open() -> impl Iterator<Item = (&'static str, Class)> {
    DECISIONS.iter().filter_map(|(name, decision)| match decision {
        Decision::Open { class, .. } => Some((*name, *class)),
        Decision::Shut { .. } => None,
    })
}

/// Whether the table has a decision on a command, even if it refuses it.
pub fn decided(command: &str) -> bool {
    DECISIONS.contains_key(command)
}

/// Whether the arguments have one of this name, at any depth.
fn has(arguments: &Value, name: &str, value: Option<&str>) -> bool {
    match arguments {
        Value::Object(members) => members.iter().any(|(key, member)| {
            (key == name && value.is_none_or(|value| member.as_str() == Some(value)))
                || has(member, name, value)
        }),
        Value::Array(items) => items.iter().any(|item| has(item, name, value)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::collections::BTreeSet;

    fn names(list: &'static str) -> BTreeSet<&'static str> {
        list.lines().filter(|line| !line.starts_with('#')).collect()
    }

    #[test]
    fn every_command_of_both_versions_is_decided_once_and_no_other_is() {
        let mut known = names(include_str!("monitor/qemu-10.0.txt"));
        known.extend(names(include_str!("monitor/qemu-11.1.txt")));
        let lines: Vec<&str> = TABLE.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(DECISIONS.len(), lines.len(), "a line does not read, or a command is there twice");
        assert_eq!(DECISIONS.keys().copied().collect::<BTreeSet<_>>(), known);
    }

    #[test]
    fn commands_that_reach_beyond_the_guest_are_refused_for_all_users() {
        for command in [
            "human-monitor-command",
            "getfd",
            "add-fd",
            "blockdev-add",
            "chardev-add",
            "object-add",
            "netdev_add",
            "device_add",
            "migrate",
            "screendump",
            "dump-guest-memory",
            "pmemsave",
            "memsave",
            "transaction",
            "qom-set",
            "no-such-command",
            "",
        ] {
            let refused = judge(command, &json!({})).unwrap_err().to_string();
            assert!(refused.contains(&format!("{command:?} is ")), "{refused}");
            assert!(open().all(|(name, _)| name != command));
        }
    }

    #[test]
    fn an_argument_makes_the_difference_at_any_depth() {
        assert_eq!(judge("block-stream", &json!({"device": "disk"})), Ok(Class::Disruptive));
        let refused = judge("block-stream", &json!({"device": "disk", "backing-file": "/x"})).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "QMP command \"block-stream\" is not allowed for any user with argument \"backing-file\": it reaches files outside the guest"
        );
        let yank = |kind| json!({"instances": [{"type": kind, "id": "x", "node-name": "x"}]});
        assert_eq!(judge("yank", &yank("block-node")), Ok(Class::Disruptive));
        assert!(judge("yank", &yank("chardev")).is_err());
    }

    #[test]
    fn classes_are_as_the_brief_of_each_role_has_them() {
        assert_eq!(class("query-status"), Some(Class::Query));
        assert_eq!(class("qom-get"), Some(Class::Harmless));
        for command in ["quit", "stop", "system_reset", "device_del"] {
            assert_eq!(class(command), Some(Class::Disruptive));
        }
        // A command that only reads has a name that says so, or is listed here.
        for (name, class) in open().filter(|(_, class)| *class == Class::Query) {
            let looks =
                ["query-", "x-query-", "qom-list", "list", "x-debug-", "request-ebpf", "-get-", "-stats"];
            let looks = looks.iter().any(|part| name.contains(part)) || name == "qmp_capabilities";
            assert!(looks, "{name} {class:?}");
        }
    }
}
