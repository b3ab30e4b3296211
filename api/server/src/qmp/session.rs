//! The logic of a stream, without I/O: lines of the user and of the launcher go in, lines come out. Pure.
//!
//! The launcher sends a greeting and negotiates like QEMU, so a user can use any QMP client. The user's ids
//! are kept here and replaced by numbers, so that each answer finds its command and its log line.

use std::collections::BTreeMap;

use barevirt_api::monitor::Class;
use serde_json::{Map, Value, json};

/// Most unanswered commands of one user; the next line is only read after an answer.
pub(super) const IN_FLIGHT: usize = 8;

/// A command from a user.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Command {
    pub(super) name: String,
    pub(super) arguments: Value,
    pub(super) oob: bool,
    pub(super) id: Option<Value>,
}

/// A command that was passed on.
#[derive(Debug, PartialEq)]
struct Pending {
    id: Option<Value>,
    name: String,
    class: Class,
    arguments: Vec<String>,
}

/// An answer to a command.
#[derive(Debug, PartialEq)]
pub(super) struct Answered {
    pub(super) name: String,
    pub(super) class: Class,
    pub(super) arguments: Vec<String>,
    /// `answered`, or the class of QEMU's error.
    pub(super) outcome: String,
}

/// The state of a stream.
#[derive(Debug, Default)]
pub(super) struct Session {
    last: u64,
    pending: BTreeMap<u64, Pending>,
}

/// Parses a user's line.
///
/// # Errors
/// The answer to a line that is not a command.
pub(super) fn read(mut asked: Map<String, Value>) -> Result<Command, Map<String, Value>> {
    let id = asked.remove("id");
    let refuse = |why: &str, id: &Option<Value>| Err(refusal(why, id.clone()));
    let (name, oob) = match (asked.remove("execute"), asked.remove("exec-oob")) {
        (Some(Value::String(name)), None) => (name, false),
        (None, Some(Value::String(name))) => (name, true),
        _ => return refuse("a command has its name in one of 'execute' and 'exec-oob'", &id),
    };
    let arguments = asked.remove("arguments").unwrap_or(Value::Null);
    if !arguments.is_null() && !arguments.is_object() {
        return refuse("the arguments of a command are an object", &id);
    }
    if let Some(key) = asked.keys().next() {
        let key: String = key.chars().take(100).collect();
        return refuse(&format!("a command has no {key:?}"), &id);
    }
    Ok(Command { name, arguments, oob, id })
}

/// An error in QEMU's form.
pub(super) fn refusal(why: &str, id: Option<Value>) -> Map<String, Value> {
    let mut answer = Map::new();
    answer.insert("error".to_owned(), json!({"class": "GenericError", "desc": why}));
    if let Some(id) = id {
        answer.insert("id".to_owned(), id);
    }
    answer
}

impl Session {
    /// Whether another command may be read.
    pub(super) fn has_room(&self) -> bool {
        self.pending.len() < IN_FLIGHT
    }

    /// The line for the launcher.
    pub(super) fn pass(&mut self, command: Command, class: Class) -> Map<String, Value> {
        let Command { name, arguments, oob, id } = command;
        self.last += 1;
        let mut line = Map::new();
        line.insert(if oob { "exec-oob" } else { "execute" }.to_owned(), json!(name));
        let names = arguments.as_object().into_iter().flat_map(Map::keys).cloned().collect();
        if !arguments.is_null() {
            line.insert("arguments".to_owned(), arguments);
        }
        line.insert("id".to_owned(), json!(self.last));
        self.pending.insert(self.last, Pending { id, name, class, arguments: names });
        line
    }

    /// The user's line for one of the launcher's lines, and the command that it answers. Nothing for an
    /// answer without a command.
    pub(super) fn hear(
        &mut self,
        mut said: Map<String, Value>,
    ) -> Option<(Map<String, Value>, Option<Answered>)> {
        if !said.contains_key("return") && !said.contains_key("error") {
            return Some((said, None));
        }
        let Pending { id, name, class, arguments } =
            self.pending.remove(&said.remove("id").and_then(|id| id.as_u64())?)?;
        let outcome =
            said.get("error").map_or("answered", |error| error["class"].as_str().unwrap_or("error"));
        let outcome = outcome.chars().take(100).collect();
        if let Some(id) = id {
            said.insert("id".to_owned(), id);
        }
        Some((said, Some(Answered { name, class, arguments, outcome })))
    }

    /// The commands that were passed on and not answered.
    pub(super) fn unanswered(self) -> impl Iterator<Item = Answered> {
        self.pending.into_values().map(|pending| Answered {
            name: pending.name,
            class: pending.class,
            arguments: pending.arguments,
            outcome: "not answered".to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn object(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn every_answer_finds_its_command_and_its_id() {
        let mut session = Session::default();
        let first = read(object(json!({"execute": "query-status", "id": {"a": 1}}))).unwrap();
        let second = json!({"exec-oob": "yank", "arguments": {"instances": []}});
        let second = read(object(second)).unwrap();
        assert_eq!(
            Value::Object(session.pass(first, Class::Query)),
            json!({"execute": "query-status", "id": 1})
        );
        let line = json!({"exec-oob": "yank", "arguments": {"instances": []}, "id": 2});
        assert_eq!(Value::Object(session.pass(second, Class::Disruptive)), line);
        let event = json!({"event": "STOP", "timestamp": {}});
        assert_eq!(session.hear(object(event.clone())), Some((object(event), None)));
        let (line, answered) =
            session.hear(object(json!({"error": {"class": "GenericError", "desc": "x"}, "id": 2}))).unwrap();
        assert!(!line.contains_key("id"));
        let answered = answered.unwrap();
        assert_eq!((answered.name.as_str(), answered.outcome.as_str()), ("yank", "GenericError"));
        assert_eq!(answered.arguments, ["instances"]);
        // A command is only answered once, and an answer without a command is dropped.
        for stray in [json!({"return": {}, "id": 2}), json!({"return": {}, "id": "x"}), json!({"return": {}})]
        {
            assert_eq!(session.hear(object(stray)), None);
        }
        let (line, _) = session.hear(object(json!({"return": {"x": 1}, "id": 1}))).unwrap();
        assert_eq!(Value::Object(line), json!({"return": {"x": 1}, "id": {"a": 1}}));
        assert!(session.unanswered().next().is_none());
    }

    #[test]
    fn nonsense_is_answered_with_its_id() {
        for line in [
            json!({"id": 7}),
            json!({"execute": 1, "id": 7}),
            json!({"execute": "a", "exec-oob": "b", "id": 7}),
            json!({"execute": "a", "arguments": [], "id": 7}),
            json!({"execute": "a", "control": {}, "id": 7}),
        ] {
            assert_eq!(read(object(line.clone())).unwrap_err()["id"], 7, "{line}");
        }
    }

    proptest! {
        /// In any order of lines, the pending commands are those that were passed on and not answered, and
        /// never more than the limit.
        #[test]
        fn no_command_is_lost_and_none_is_answered_twice(
            steps in proptest::collection::vec((any::<bool>(), 0_u64..30), 0..200)
        ) {
            let mut session = Session::default();
            let (mut passed, mut answered) = (0_usize, 0_usize);
            for (ask, id) in steps {
                if ask && session.has_room() {
                    let command = Command { name: "x".into(), arguments: Value::Null, oob: false, id: None };
                    session.pass(command, Class::Query);
                    passed += 1;
                } else if let Some((_, Some(_))) = session.hear(object(json!({"return": 0, "id": id}))) {
                    answered += 1;
                }
                prop_assert_eq!(session.pending.len(), passed - answered);
                prop_assert!(session.pending.len() <= IN_FLIGHT);
            }
        }
    }
}
