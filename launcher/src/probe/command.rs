//! A command in the guest, run by its agent. Pure except for the agent's calls.
//!
//! The agent cannot end a command that it has started. So a command that did not end in time is remembered,
//! and is not started again before it has ended: a guest that hangs does not fill with such commands.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::time::Duration;

use barevirt_qmp::qapi::qga;
use barevirt_qmp::{Agent, Deadline, Error};
use tokio::time::{Instant, sleep, timeout_at};

use super::{Answer, LONGEST_OUTPUT};
use crate::guest_agent::answers::printable;

/// First delay between two queries of a command's state; doubled up to [`LONGEST_WAIT`].
const FIRST_WAIT: Duration = Duration::from_millis(20);
const LONGEST_WAIT: Duration = Duration::from_millis(500);
/// Most commands that are remembered: a pod has two probes.
const MOST: usize = 16;

/// Commands that were started and have not ended as far as known, with their process ids in the guest.
#[derive(Debug, Default)]
pub(super) struct Begun(RefCell<BTreeMap<Vec<String>, i64>>);

impl Begun {
    /// Runs a command until it ends, or until the deadline.
    pub(super) async fn run(&self, agent: &Agent, command: &[String], deadline: Instant) -> Answer {
        match timeout_at(deadline, self.try_run(agent, command, deadline)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => Answer::failure(printable(&error.to_string())),
            Err(_) => Answer::failure("the command has not ended in time"),
        }
    }

    async fn try_run(&self, agent: &Agent, command: &[String], deadline: Instant) -> Result<Answer, Error> {
        let former = self.0.borrow().get(command).copied();
        if let Some(pid) = former {
            match status(agent, pid, deadline).await {
                Ok(Ended::No) => {
                    return Ok(Answer::failure("the command that was begun before has not ended yet"));
                }
                // The result belongs to an earlier probe, or the agent no longer knows the command.
                Ok(Ended::With(_)) | Err(Error::Refused { .. }) => self.forget(command),
                Err(error) => return Err(error),
            }
        }
        if self.0.borrow().len() >= MOST {
            return Ok(Answer::failure("too many commands in the guest have not ended yet"));
        }
        let [program, arguments @ ..] = command else { return Ok(Answer::failure("there is no command")) };
        let exec = qga::guest_exec {
            path: program.clone(),
            arg: Some(arguments.to_vec()),
            capture_output: Some(qga::GuestExecCaptureOutput::flag(true)),
            env: None,
            input_data: None,
        };
        let pid = agent.execute(exec, within(deadline)).await?.pid;
        if pid <= 0 {
            return Ok(Answer::failure("the guest agent does not say which process it has begun"));
        }
        self.0.borrow_mut().insert(command.to_vec(), pid);
        let mut wait = FIRST_WAIT;
        loop {
            if let Ended::With(answer) = status(agent, pid, deadline).await? {
                self.forget(command);
                return Ok(answer);
            }
            sleep(wait).await;
            wait = (wait * 2).min(LONGEST_WAIT);
        }
    }

    fn forget(&self, command: &[String]) {
        self.0.borrow_mut().remove(command);
    }
}

enum Ended {
    No,
    With(Answer),
}

async fn status(agent: &Agent, pid: i64, deadline: Instant) -> Result<Ended, Error> {
    let answer = agent.execute(qga::guest_exec_status { pid }, within(deadline)).await?;
    Ok(if answer.exited { Ended::With(exit_answer(&answer)) } else { Ended::No })
}

fn within(deadline: Instant) -> Deadline {
    Deadline::after(deadline.saturating_duration_since(Instant::now()))
}

/// The result of a command that has ended: its exit code, or 128 plus the signal, as a shell counts.
fn exit_answer(answer: &qga::GuestExecStatus) -> Answer {
    let number = |number: Option<i64>| number.and_then(|number| i32::try_from(number).ok());
    let code =
        number(answer.exitcode).or_else(|| number(answer.signal).map(|signal| signal.saturating_add(128)));
    let text = |bytes: &Option<Vec<u8>>| {
        let bytes = bytes.as_deref().unwrap_or_default();
        let end = bytes.len().min(LONGEST_OUTPUT);
        String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
    };
    Answer { code: code.unwrap_or(1), output: text(&answer.out_data), error: text(&answer.err_data) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base64::Engine;
    use base64::engine::general_purpose::STANDARD;
    use serde_json::{Value, json};

    fn read(answer: Value) -> Result<Answer, serde_json::Error> {
        serde_json::from_value(answer).map(|answer| super::exit_answer(&answer))
    }

    fn exit_answer(answer: &Value) -> Answer {
        read(answer.clone()).unwrap()
    }

    #[test]
    fn an_exit_code_is_reported_with_its_output_truncated() {
        let long = STANDARD.encode("x".repeat(LONGEST_OUTPUT * 3));
        let answer =
            exit_answer(&json!({"exited": true, "exitcode": 3, "out-data": long, "err-data": "aGkK"}));
        assert_eq!((answer.code, answer.output.len(), answer.error.as_str()), (3, LONGEST_OUTPUT, "hi\n"));
        assert_eq!(exit_answer(&json!({"exited": true, "signal": 9})).code, 137);
        // A missing exit code does not count as success.
        assert_eq!(exit_answer(&json!({"exited": true})).code, 1);
        assert_eq!(exit_answer(&json!({"exited": true, "exitcode": 0, "out-data": ""})), Answer::success());
        // Invalid output makes the answer invalid, which is reported as the agent's failure.
        assert!(read(json!({"exited": true, "exitcode": 0, "out-data": "%"})).is_err());
    }
}
