//! One client of the monitor for users.

use std::future::Future;
use std::io;
use std::pin::Pin;

use barevirt_api::monitor::{self, Class, Forbidden};
use barevirt_qmp::codec::{Decoder, Line, encode};
use barevirt_qmp::{Deadline, Error, Events};
use futures::StreamExt;
use futures::stream::{FuturesOrdered, FuturesUnordered};
use serde_json::{Map, Value, json};
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{Guest, IN_FLIGHT, MAX_LINE, WRITE_TIMEOUT};
use crate::lifecycle::Refused;
use crate::standstill;

/// Why a client's session ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum Ended {
    #[error("it closed its connection")]
    ByClient,
    #[error("the session with QEMU ended")]
    ByQemu,
    #[error("it does not read what it is sent")]
    TooSlow,
    #[error("its connection failed: {0}")]
    Io(#[from] io::Error),
}

type Answer = Pin<Box<dyn Future<Output = Map<String, Value>>>>;

/// The request of a client's line.
#[derive(Debug, PartialEq)]
enum Ask {
    /// It is answered here.
    Answer(Map<String, Value>),
    /// It is answered here, and the session is open from now on.
    Open(Map<String, Value>),
    /// It is passed on.
    Execute { name: String, arguments: Value, oob: bool, id: Option<Value> },
}

pub(super) async fn serve(guest: Guest, stream: UnixStream) -> Ended {
    let mut events = guest.qmp.events();
    match converse(&guest, &stream, &mut events).await {
        Ok(ended) | Err(ended) => ended,
    }
}

async fn converse(guest: &Guest, stream: &UnixStream, events: &mut Events) -> Result<Ended, Ended> {
    let mut decoder = Decoder::for_commands(MAX_LINE);
    let mut open = false;
    // In-band answers keep the order of their commands, as QEMU keeps it.
    let mut in_band: FuturesOrdered<Answer> = FuturesOrdered::new();
    let mut out_of_band: FuturesUnordered<Answer> = FuturesUnordered::new();
    let mut chunk = vec![0; 4096];
    say(stream, &object(json!({"QMP": guest.qmp.greeting().raw}))).await?;
    loop {
        while in_band.len() + out_of_band.len() < IN_FLIGHT
            && let Some(line) = decoder.take()
        {
            match understand(line, open) {
                Ask::Answer(answer) => say(stream, &answer).await?,
                Ask::Open(answer) => {
                    open = true;
                    say(stream, &answer).await?;
                }
                Ask::Execute { name, arguments, oob, id } => {
                    tracing::info!(command = name, oob, "users' monitor");
                    let answer = Box::pin(execute(guest.clone(), name, arguments, oob, id));
                    if oob { out_of_band.push(answer) } else { in_band.push_back(answer) }
                }
            }
        }
        let room = in_band.len() + out_of_band.len() < IN_FLIGHT;
        tokio::select! {
            // An event comes before the answer to the command that caused it.
            biased;
            event = events.next() => match event {
                Some(Ok(event)) if open => say(stream, event.raw()).await?,
                Some(Ok(_)) => {}
                Some(Err(_)) => return Err(Ended::TooSlow),
                None => return Ok(Ended::ByQemu),
            },
            Some(answer) = out_of_band.next() => say(stream, &answer).await?,
            Some(answer) = in_band.next() => say(stream, &answer).await?,
            ready = stream.readable(), if room => {
                ready?;
                match stream.try_read(&mut chunk) {
                    Ok(0) => return Ok(Ended::ByClient),
                    Ok(count) => decoder.push(&chunk[..count]),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
    }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

fn refusal(class: &str, desc: &str, id: Option<Value>) -> Map<String, Value> {
    with_id(object(json!({"error": {"class": class, "desc": desc}})), id)
}

fn with_id(mut answer: Map<String, Value>, id: Option<Value>) -> Map<String, Value> {
    if let Some(id) = id {
        answer.insert("id".to_owned(), id);
    }
    answer
}

/// Maps a line to a request, given whether the client has negotiated. Pure.
fn understand(line: Line, open: bool) -> Ask {
    let mut asked = match line {
        Line::Object(asked) => asked,
        Line::Garbage { .. } => return Ask::Answer(refusal("GenericError", "JSON parse error", None)),
        Line::TooLong { .. } => return Ask::Answer(refusal("GenericError", "the line is too long", None)),
    };
    let id = asked.remove("id");
    let (verb, oob) = match (asked.remove("execute"), asked.remove("exec-oob")) {
        (Some(verb), None) => (verb, false),
        (None, Some(verb)) => (verb, true),
        _ => {
            let desc = "a command has one of 'execute' and 'exec-oob'";
            return Ask::Answer(refusal("GenericError", desc, id));
        }
    };
    let Value::String(name) = verb else {
        return Ask::Answer(refusal("GenericError", "the name of a command is a string", id));
    };
    let arguments = asked.remove("arguments").unwrap_or(Value::Null);
    if !arguments.is_null() && !arguments.is_object() {
        return Ask::Answer(refusal("GenericError", "the arguments of a command are an object", id));
    }
    if let Some(key) = asked.keys().next() {
        let key: String = key.chars().take(100).collect();
        return Ask::Answer(refusal("GenericError", &format!("a command has no {key:?}"), id));
    }
    match (name.as_str(), open) {
        ("qmp_capabilities", false) => Ask::Open(with_id(object(json!({"return": {}})), id)),
        ("qmp_capabilities", true) => {
            Ask::Answer(refusal("CommandNotFound", "capabilities were negotiated already", id))
        }
        (_, false) => Ask::Answer(refusal("CommandNotFound", "negotiate with 'qmp_capabilities' first", id)),
        (_, true) => match monitor::judge(&name, &arguments) {
            Ok(_) => Ask::Execute { name, arguments, oob, id },
            Err(forbidden) => {
                tracing::warn!(%forbidden, "users' monitor");
                Ask::Answer(refusal(class_of(&forbidden), &forbidden.to_string(), id))
            }
        },
    }
}

/// QEMU's error class for an unknown command, or for any other refusal.
pub(crate) fn class_of(forbidden: &Forbidden) -> &'static str {
    match forbidden {
        Forbidden::Unknown(_) => "CommandNotFound",
        Forbidden::Command { .. } | Forbidden::Argument { .. } => "GenericError",
    }
}

/// The commands with their arguments that a client's bytes have passed on, after negotiation. Pure.
pub(super) fn passed_on(bytes: &[u8]) -> Vec<(String, Value)> {
    let mut decoder = Decoder::for_commands(MAX_LINE);
    decoder.push(bytes);
    let mut passed = Vec::new();
    let mut open = false;
    while let Some(line) = decoder.take() {
        match understand(line, open) {
            Ask::Answer(_) => {}
            Ask::Open(_) => open = true,
            Ask::Execute { name, arguments, .. } => passed.push((name, arguments)),
        }
    }
    passed
}

async fn execute(
    guest: Guest,
    name: String,
    arguments: Value,
    oob: bool,
    id: Option<Value>,
) -> Map<String, Value> {
    if guest.is_closed() && monitor::judge(&name, &arguments) != Ok(Class::Query) {
        return refusal("GenericError", &Refused::Migrating.to_string(), id);
    }
    let deadline = Deadline::after(guest.command_timeout);
    let answer = if oob {
        guest.qmp.execute_raw_oob(&name, arguments, deadline).await
    } else {
        guest.qmp.execute_raw(&name, arguments, deadline).await
    };
    if let Err(Error::Deadline { .. }) = answer {
        let seen = standstill::look(&guest.qmp, guest.pid()).await;
        return refusal("GenericError", &seen.explain(&name, guest.command_timeout), id);
    }
    answer_of(answer, id)
}

/// An answer in QEMU's form.
pub(crate) fn answer_of(answer: Result<Value, Error>, id: Option<Value>) -> Map<String, Value> {
    match answer {
        Ok(value) => with_id(object(json!({"return": value})), id),
        Err(Error::Refused { class, desc, .. }) => refusal(&class, &desc, id),
        Err(error) => refusal("GenericError", &error.to_string(), id),
    }
}

async fn say(stream: &UnixStream, message: &Map<String, Value>) -> Result<(), Ended> {
    let line = encode(message);
    let writing = async {
        let mut rest = line.as_slice();
        while !rest.is_empty() {
            stream.writable().await?;
            match stream.try_write(rest) {
                Ok(count) => rest = &rest[count..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    };
    timeout(WRITE_TIMEOUT, writing).await.map_err(|_| Ended::TooSlow)?.map_err(Ended::Io)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn asked(line: &Value, open: bool) -> Ask {
        understand(Line::Object(object(line.clone())), open)
    }

    #[test]
    fn negotiation_comes_first_and_once() {
        let Ask::Open(answer) = asked(&json!({"execute": "qmp_capabilities", "id": {"a": 1}}), false) else {
            panic!("not open")
        };
        assert_eq!(Value::Object(answer), json!({"return": {}, "id": {"a": 1}}));
        for (line, open) in [("query-status", false), ("qmp_capabilities", true)] {
            let Ask::Answer(answer) = asked(&json!({"execute": line, "id": 3}), open) else {
                panic!("{line} passed on")
            };
            assert_eq!((&answer["error"]["class"], &answer["id"]), (&json!("CommandNotFound"), &json!(3)));
        }
    }

    #[test]
    fn commands_are_passed_on_with_their_id_kept() {
        let line = json!({"exec-oob": "yank", "arguments": {"instances": []}, "id": "x"});
        let expected = Ask::Execute {
            name: "yank".into(),
            arguments: json!({"instances": []}),
            oob: true,
            id: Some(json!("x")),
        };
        assert_eq!(asked(&line, true), expected);
    }

    #[test]
    fn commands_that_reach_beyond_the_guest_are_not_passed_on() {
        let lines = [
            json!({"execute": "getfd", "arguments": {"fdname": "x"}, "id": 1}),
            json!({"execute": "screendump", "arguments": {"filename": "/tmp/x"}, "id": 1}),
            json!({"exec-oob": "yank", "arguments": {"instances": [{"type": "chardev", "id": "monitor"}]}, "id": 1}),
            json!({"execute": "query-status", "arguments": [], "id": 1}),
            json!({"execute": "query-status", "control": {}, "id": 1}),
        ];
        for line in lines {
            let Ask::Answer(answer) = asked(&line, true) else { panic!("{line} is passed on") };
            assert_eq!(
                (&answer["error"]["class"], &answer["id"]),
                (&json!("GenericError"), &json!(1)),
                "{line}"
            );
        }
        let Ask::Answer(answer) = asked(&json!({"execute": "no-such"}), true) else { panic!("passed on") };
        assert_eq!(answer["error"]["class"], "CommandNotFound");
    }

    /// Bytes that often follow the protocol far enough to be accepted.
    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        let words: [&'static [u8]; 14] = [
            b"{\"execute\":",
            b"{\"exec-oob\":",
            b"\"qmp_capabilities\"",
            b"\"query-status\"",
            b"\"quit\"",
            b"\"screendump\"",
            b"\"block-stream\"",
            b"\"yank\"",
            b",\"arguments\":",
            b"{\"backing-file\":\"/x\"}",
            b"{\"instances\":[{\"type\":\"chardev\"}]}",
            b"}\n",
            b"\n",
            b",\"id\":1",
        ];
        let any_byte = any::<u8>().prop_map(|byte| vec![byte]);
        let piece = prop_oneof![9 => proptest::sample::select(words.to_vec()).prop_map(<[u8]>::to_vec), 1 => any_byte];
        let begun = b"{\"execute\":\"qmp_capabilities\"}\n".to_vec();
        proptest::collection::vec(piece, 0..60)
            .prop_map(move |pieces| [begun.clone(), pieces.concat()].concat())
    }

    proptest! {
        /// For any input, no forbidden command is passed on to QEMU.
        #[test]
        fn no_bytes_reach_what_is_forbidden(bytes in bytes()) {
            for (name, arguments) in passed_on(&bytes) {
                prop_assert!(monitor::judge(&name, &arguments).is_ok(), "{} {}", name, arguments);
                prop_assert!(arguments.is_null() || arguments.is_object());
            }
        }
    }

    #[test]
    fn the_bytes_of_that_test_do_get_somewhere() {
        let passed = passed_on(
            b"{\"execute\":\"quit\"}\n{\"execute\":\"qmp_capabilities\"}\n{\"execute\":\"quit\",\"id\":1}\n",
        );
        assert_eq!(passed, [("quit".to_owned(), Value::Null)]);
    }

    #[test]
    fn invalid_lines_are_answered_with_an_error() {
        let lines = [
            Line::Garbage { length: 1, start: "x".into() },
            Line::TooLong { length: 9 },
            Line::Object(object(json!({"execute": "a", "exec-oob": "b"}))),
            Line::Object(object(json!({"execute": 3}))),
            Line::Object(Map::new()),
        ];
        for line in lines {
            assert!(matches!(understand(line, true), Ask::Answer(answer) if answer.contains_key("error")));
        }
    }
}
