//! The meaning of a line from the other side. Pure.

use qapi::Command;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::error::Error;
use crate::event::Event;

/// A message from the other side.
#[derive(Debug, Clone, PartialEq)]
pub enum Incoming {
    /// The first message of a monitor.
    Greeting(Greeting),
    /// An event.
    Event(Event),
    /// The answer to a command.
    Reply {
        /// The id of the command; `None` if the other side could not read the command at all, and from guest
        /// agents before QEMU 3.1.
        id: Option<u64>,
        /// The result.
        outcome: Result<Value, Refusal>,
    },
    /// An object that is none of these.
    Unknown(Map<String, Value>),
}

/// Longest part of an error text that is kept, in bytes: a guest decides the text of its agent, which goes
/// into the log and into statuses.
const LONGEST_REFUSAL: usize = 1024;

/// An `error` answer.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Refusal {
    /// Error class, e.g. `GenericError`.
    #[serde(default)]
    pub class: String,
    /// Text for users.
    #[serde(default)]
    pub desc: String,
}

/// A monitor's first message, about itself.
#[derive(Debug, Clone, PartialEq)]
pub struct Greeting {
    /// The whole object below `QMP`, as sent.
    pub raw: Value,
}

impl Greeting {
    /// QEMU's version, e.g. `10.0.2`; empty if it is missing.
    #[must_use]
    pub fn version(&self) -> String {
        let qemu = &self.raw["version"]["qemu"];
        let part = |name: &str| qemu[name].as_u64();
        match (part("major"), part("minor"), part("micro")) {
            (Some(major), Some(minor), Some(micro)) => format!("{major}.{minor}.{micro}"),
            _ => String::new(),
        }
    }

    /// Whether out-of-band execution is offered.
    #[must_use]
    pub fn offers_oob(&self) -> bool {
        self.raw["capabilities"].as_array().is_some_and(|offered| offered.iter().any(|one| one == "oob"))
    }
}

/// Classifies one object.
#[must_use]
pub fn classify(mut object: Map<String, Value>) -> Incoming {
    if let Some(name) = object.get("event").and_then(Value::as_str) {
        let name = name.to_owned();
        return Incoming::Event(Event::new(name, object));
    }
    let id = object.get("id").and_then(Value::as_u64);
    if let Some(value) = object.remove("return") {
        return Incoming::Reply { id, outcome: Ok(value) };
    }
    if let Some(error) = object.get("error") {
        let mut refusal: Refusal = serde_json::from_value(error.clone())
            .unwrap_or_else(|_| Refusal { class: String::new(), desc: error.to_string() });
        for text in [&mut refusal.class, &mut refusal.desc] {
            text.truncate(text.floor_char_boundary(LONGEST_REFUSAL));
        }
        return Incoming::Reply { id, outcome: Err(refusal) };
    }
    match object.remove("QMP") {
        Some(raw) => Incoming::Greeting(Greeting { raw }),
        None => Incoming::Unknown(object),
    }
}

/// How a command is to be executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Band {
    /// In order with other commands.
    In,
    /// At once, even if the main loop is stuck. Few commands allow this.
    Out,
}

/// A command as a message. `arguments` is left out when it is null or an empty object.
#[must_use]
pub fn command(name: &str, arguments: Value, id: u64, band: Band) -> Map<String, Value> {
    let verb = match band {
        Band::In => "execute",
        Band::Out => "exec-oob",
    };
    let mut message = Map::new();
    message.insert(verb.to_owned(), Value::from(name));
    if !arguments.is_null() && arguments.as_object().is_none_or(|fields| !fields.is_empty()) {
        message.insert("arguments".to_owned(), arguments);
    }
    message.insert("id".to_owned(), Value::from(id));
    message
}

/// The arguments of a typed command.
pub(crate) fn arguments<C: Command>(command: &C) -> Result<Value, Error> {
    serde_json::to_value(command).map_err(|source| Error::Arguments { command: C::NAME.to_owned(), source })
}

/// Decodes an answer by its type.
pub(crate) fn read<T: DeserializeOwned>(command: &str, answer: Value) -> Result<T, Error> {
    serde_json::from_value(answer).map_err(|source| Error::Answer { command: command.to_owned(), source })
}

/// Decodes a list by the type of its entries. An entry that the schema does not know is left out; the others
/// are kept.
pub(crate) fn read_list<T: DeserializeOwned>(command: &str, answer: Value) -> Result<Vec<T>, Error> {
    let entries: Vec<Value> = read(command, answer)?;
    let entry = |entry| {
        let read = serde_json::from_value(entry);
        read.inspect_err(|error| tracing::debug!(command, %error, "entry of an answer is not known")).ok()
    };
    Ok(entries.into_iter().filter_map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sorted(value: &Value) -> Incoming {
        classify(value.as_object().unwrap().clone())
    }

    #[test]
    fn replies_carry_their_id_and_outcome() {
        assert_eq!(
            sorted(&json!({"return": {"a": 1}, "id": 7})),
            Incoming::Reply { id: Some(7), outcome: Ok(json!({"a": 1})) }
        );
        let refusal = Refusal { class: "NewClass".into(), desc: "no".into() };
        assert_eq!(
            sorted(&json!({"error": {"class": "NewClass", "desc": "no"}, "id": "x"})),
            Incoming::Reply { id: None, outcome: Err(refusal) }
        );
        let long = "ä".repeat(100_000);
        let Incoming::Reply { outcome: Err(cut), .. } =
            sorted(&json!({"error": {"class": long, "desc": long}}))
        else {
            panic!("no refusal");
        };
        assert_eq!((cut.class.len(), cut.desc.len()), (LONGEST_REFUSAL, LONGEST_REFUSAL));
        let odd = Refusal { class: String::new(), desc: "3".into() };
        assert_eq!(sorted(&json!({"error": 3})), Incoming::Reply { id: None, outcome: Err(odd) });
    }

    #[test]
    fn the_greeting_has_version_and_capabilities() {
        let Incoming::Greeting(greeting) = sorted(&json!({"QMP": {
            "version": {"qemu": {"major": 10, "minor": 0, "micro": 2}, "package": ""},
            "capabilities": ["later", "oob"]}}))
        else {
            panic!("no greeting");
        };
        assert_eq!(greeting.version(), "10.0.2");
        assert!(greeting.offers_oob());
        let bare = Greeting { raw: json!(3) };
        assert_eq!((bare.version(), bare.offers_oob()), (String::new(), false));
    }

    #[test]
    fn other_objects_are_data() {
        assert!(matches!(sorted(&json!({"hello": 1})), Incoming::Unknown(_)));
        assert!(matches!(sorted(&json!({"event": 1})), Incoming::Unknown(_)));
    }

    #[test]
    fn commands_leave_out_empty_arguments() {
        let sent = Value::Object(command("stop", json!({}), 3, Band::In));
        assert_eq!(sent, json!({"execute": "stop", "id": 3}));
        let sent = Value::Object(command("yank", json!({"instances": []}), 4, Band::Out));
        assert_eq!(sent, json!({"exec-oob": "yank", "arguments": {"instances": []}, "id": 4}));
    }
}
