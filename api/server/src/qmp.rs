//! QMP for users: one command by POST, or a stream of commands and events by websocket.
//!
//! ```text
//!   line -> read -> class of the command -> access review of that class -> handler -> launcher -> QEMU
//!             |              |                        |                                  |
//!             +--------------+------ refused ---------+----------------------------------+--> one line in the log
//! ```
//!
//! The launcher never gets a user's bytes: each command is parsed and encoded again, and the launcher checks
//! for forbidden commands a second time. First the path itself is reviewed (verb `create` or `get` of
//! `virtualmachineinstances/qmp`); a command that is not a query also needs `create` of the subresource of
//! its class.

mod audit;
mod gate;
mod session;
mod stream;

use std::time::Duration;

use barevirt_component::query;
use http::{Method, Request, StatusCode};
use hyper::body::{Bytes, Incoming};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use self::audit::AuditEntry;
use self::gate::Gate;
use crate::answer::{Answer, Refusal};
use crate::front_proxy::User;
use crate::instance;
use crate::route::Called;
use crate::state::State;
use crate::to_handler::{self, Exchange, Handler};

/// Time limit for QEMU if the call gives none.
const USUAL: Duration = Duration::from_secs(10);
/// The longest time limit of a call: the aggregator waits for a minute.
const LONGEST: u64 = 50;
/// Extra time for the transport, and for detecting that QEMU does not answer.
const MARGIN: Duration = Duration::from_secs(5);

/// A QMP command from a user.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Command {
    execute: String,
    #[serde(default)]
    arguments: Option<Map<String, Value>>,
}

/// One command, and QEMU's `return` or `error`.
///
/// # Errors
/// 400 for a body that is not a command, 403 for a command that this user may not give, 504 if QEMU does not
/// answer, and other errors of the handler.
pub async fn call(
    state: &State,
    user: &User,
    called: &Called,
    query: Option<&str>,
    body: Bytes,
) -> Result<Answer, Refusal> {
    let mut gate = Gate::new(state, user, called);
    let command = read(&body);
    let mut entry = AuditEntry::new("call");
    if let Ok(Command { execute, arguments }) = &command {
        entry.command(execute, arguments.as_ref());
    }
    let answer = match command {
        Ok(command) => pass(state, &mut gate, &mut entry, command, query).await,
        Err(refusal) => Err(refusal),
    };
    let outcome = match &answer {
        Ok(answer) if answer.status() == StatusCode::OK => "answered".to_owned(),
        Ok(answer) => answer.status().as_u16().to_string(),
        Err(refusal) => refusal.code.as_u16().to_string(),
    };
    entry.write(&gate, &outcome);
    answer
}

fn read(body: &[u8]) -> Result<Command, Refusal> {
    serde_json::from_slice(body).map_err(|error| {
        Refusal::bad_request(format!(
            "the body is not a QMP command {{\"execute\": NAME, \"arguments\": {{}}}}: {error}"
        ))
    })
}

async fn pass(
    state: &State,
    gate: &mut Gate,
    entry: &mut AuditEntry,
    command: Command,
    query: Option<&str>,
) -> Result<Answer, Refusal> {
    let Command { execute, arguments } = command;
    let arguments = arguments.map_or(Value::Null, Value::Object);
    let timeout = timeout(query)?;
    let class = gate.admit(&execute, &arguments).await?;
    entry.class = Some(class);
    let handler = reach(state, gate).await?;
    let mut command = json!({ "execute": execute });
    if !arguments.is_null() {
        command["arguments"] = arguments;
    }
    let path = format!(
        "{}/qmp?timeoutSeconds={}",
        instance::handler_path(&gate.namespace, &gate.name),
        timeout.as_secs()
    );
    let body = Bytes::from(command.to_string());
    let exchange = Exchange { method: Method::POST, path: &path, body, within: timeout + MARGIN };
    let answer = to_handler::call(&state.certificates, &handler, exchange).await;
    // The command may be carried out even without an answer.
    audit::record_event(gate, class, &execute);
    answer
}

/// `timeoutSeconds` of a query: whole seconds.
fn timeout(query: Option<&str>) -> Result<Duration, Refusal> {
    let Some(text) = query::values(query, "timeoutSeconds").next() else { return Ok(USUAL) };
    let seconds = text.parse().ok().filter(|seconds| (1..=LONGEST).contains(seconds));
    let seconds = seconds.ok_or_else(|| {
        Refusal::bad_request(format!(
            "timeoutSeconds: \"{text}\" is not a number of seconds from 1 to {LONGEST}"
        ))
    })?;
    Ok(Duration::from_secs(seconds))
}

/// The handler of the instance's node.
async fn reach(state: &State, gate: &mut Gate) -> Result<Handler, Refusal> {
    let vmi = instance::get(&state.client.0, &gate.namespace, &gate.name).await?;
    gate.uid = vmi.metadata.uid.clone().unwrap_or_default();
    instance::handler_of(&state.client.0, &state.namespace, vmi).await
}

/// A stream of commands and events in QMP's form.
///
/// # Errors
/// As for [`call`] before the stream is open; in the stream, refusals are QMP errors.
pub async fn stream(
    state: &State,
    user: &User,
    called: &Called,
    request: Request<Incoming>,
) -> Result<Answer, Refusal> {
    let mut gate = Gate::new(state, user, called);
    let handler = reach(state, &mut gate).await?;
    stream::open(state, gate, &handler, request).await
}

/// The launcher's information about its QEMU, for a debug bundle: see docs/qmp.md.
///
/// # Errors
/// 404; 409 if the instance does not run; and the handler's errors.
pub async fn debug(state: &State, user: &User, called: &Called) -> Result<Answer, Refusal> {
    let mut gate = Gate::new(state, user, called);
    let handler = reach(state, &mut gate).await?;
    let path = format!("{}/debug", instance::handler_path(&gate.namespace, &gate.name));
    let exchange =
        Exchange { method: Method::GET, path: &path, body: Bytes::new(), within: to_handler::ANSWER_WITHIN };
    let answer = to_handler::call(&state.certificates, &handler, exchange).await?;
    tracing::info!(user = user.name, namespace = gate.namespace, name = gate.name, "debug report");
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_qmp_command_is_refused() {
        for body in [
            "",
            "[]",
            "{}",
            r#"{"execute":1}"#,
            r#"{"execute":"query-status","id":1}"#,
            r#"{"execute":"query-status","arguments":[]}"#,
        ] {
            assert_eq!(read(body.as_bytes()).unwrap_err().code, 400, "{body}");
        }
        assert!(read(br#"{"execute":"query-status","arguments":{}}"#).is_ok());
    }

    #[test]
    fn the_time_a_call_may_take_is_bounded() {
        assert_eq!(timeout(None).unwrap(), USUAL);
        assert_eq!(timeout(Some("a=b&timeoutSeconds=3")).unwrap(), Duration::from_secs(3));
        for bad in ["timeoutSeconds=0", "timeoutSeconds=51", "timeoutSeconds=x", "timeoutSeconds="] {
            assert!(timeout(Some(bad)).unwrap_err().message.starts_with("timeoutSeconds: "), "{bad}");
        }
    }
}
