//! The shell: a line editor that knows this QEMU's commands, and events between the lines as they come.
//!
//! ```text
//!   thread: line editor --- typed ---> this task <--- stream ---> QEMU
//!               ^   ^---- next, please ----|
//!               +--- events, answers ------+
//! ```

use std::collections::BTreeMap;
use std::io::{IsTerminal, stdin};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::termios::{SetArg, tcgetattr, tcsetattr};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{CompletionType, Config, Context, Editor, ExternalPrinter, Helper};
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::schema::Schema;
use super::stream::{Lines, Monitor, QmpMessage};
use super::words;

/// After this time without an answer, the user reads that it takes long.
const SLOW_ANSWER: Duration = Duration::from_secs(5);

/// A result of the line editor.
enum Typed {
    Line(String),
    /// Ctrl-C: the line is forgotten.
    Nothing,
    End,
    Failed(String),
}

/// Completion for the line editor.
struct Assistant(Arc<Schema>);

impl Completer for Assistant {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(self.0.complete(line.get(..at).unwrap_or(line)))
    }
}

impl Hinter for Assistant {
    type Hint = String;
}

impl Highlighter for Assistant {}
impl Validator for Assistant {}
impl Helper for Assistant {}

/// Reads the user's lines, one at a time.
struct Keyboard {
    typed: mpsc::Receiver<Typed>,
    next: std::sync::mpsc::Sender<()>,
    printer: Option<Box<dyn FnMut(String) + Send>>,
}

impl Keyboard {
    fn new(schema: Arc<Schema>, prompt: String) -> anyhow::Result<Self> {
        let config = Config::builder().completion_type(CompletionType::List).build();
        let mut editor: Editor<Assistant, DefaultHistory> = Editor::with_config(config)?;
        editor.set_helper(Some(Assistant(schema)));
        // Without a terminal, lines are printed as they come.
        let printer = if stdin().is_terminal() {
            editor.create_external_printer().ok().map(|mut printer| -> Box<dyn FnMut(String) + Send> {
                Box::new(move |text| drop(printer.print(text)))
            })
        } else {
            None
        };
        let (tell, typed) = mpsc::channel(1);
        let (next, wanted) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let history = history();
            if let Some(path) = &history {
                // The first time there is no history.
                let _ = editor.load_history(path);
            }
            while wanted.recv().is_ok() {
                let typed = match editor.readline(prompt.as_str()) {
                    Ok(line) => {
                        // A line with a password is not saved.
                        if !line.contains("password") && !line.contains("secret") && !line.trim().is_empty() {
                            let _ = editor.add_history_entry(line.as_str());
                        }
                        Typed::Line(line)
                    }
                    Err(ReadlineError::Interrupted) => Typed::Nothing,
                    Err(ReadlineError::Eof) => Typed::End,
                    Err(error) => Typed::Failed(error.to_string()),
                };
                if let Some(path) = &history {
                    let _ = editor.save_history(path);
                }
                if tell.blocking_send(typed).is_err() {
                    return;
                }
            }
        });
        Ok(Self { typed, next, printer })
    }

    /// A new line may be typed.
    fn next(&self) {
        // Fails when the editor has ended, which is reported elsewhere.
        let _ = self.next.send(());
    }

    fn print(&mut self, text: &str) {
        match &mut self.printer {
            Some(print) => print(format!("{text}\n")),
            None => println!("{text}"),
        }
    }

    /// Prints something about the shell itself.
    fn tell(&mut self, text: &str) {
        match &mut self.printer {
            Some(print) => print(format!("{text}\n")),
            None => eprintln!("{text}"),
        }
    }
}

/// The file of the history.
fn history() -> Option<PathBuf> {
    let state = std::env::var_os("XDG_STATE_HOME").map(PathBuf::from);
    let state = state.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state")))?;
    let directory = state.join("virtctl");
    std::fs::create_dir_all(&directory).ok()?;
    Some(directory.join("qmp_history"))
}

/// Runs until the user leaves or the guest ends.
pub(super) async fn run(mut monitor: Monitor<'_>) -> anyhow::Result<()> {
    // A line editor that is stopped in the middle of a line does not restore the terminal.
    let terminal = tcgetattr(stdin()).ok();
    let ended = converse(&mut monitor).await;
    if let Some(settings) = terminal {
        let _ = tcsetattr(stdin(), SetArg::TCSANOW, &settings);
    }
    ended
}

/// The commands of this QEMU.
async fn schema(lines: &mut Lines) -> anyhow::Result<Arc<Schema>> {
    lines.say(&json!({"execute": "query-qmp-schema", "id": 0})).await?;
    loop {
        match lines.hear().await?.context("the stream ended before the shell began")? {
            QmpMessage::Event(_) => {}
            QmpMessage::Answer(answer) => return Ok(Arc::new(Schema::read(&answer["return"]))),
        }
    }
}

async fn converse(monitor: &mut Monitor<'_>) -> anyhow::Result<()> {
    let vmi = monitor.vmi();
    let schema = schema(&mut monitor.lines).await?;
    let mut keyboard = Keyboard::new(schema.clone(), format!("{vmi}> "))?;
    if stdin().is_terminal() {
        println!("QEMU's monitor of {vmi}: help lists commands, tab completes, ctrl-d leaves.");
    }
    let mut waiting: BTreeMap<u64, String> = BTreeMap::new();
    let (mut last, mut late) = (0_u64, None);
    keyboard.next();
    loop {
        let deadline = late.unwrap_or_else(|| Instant::now() + SLOW_ANSWER);
        tokio::select! {
            message = monitor.lines.hear() => match message {
                ended @ (Ok(None) | Err(_)) => {
                    let Some(node) = again(monitor, &mut keyboard).await? else {
                        ended?;
                        keyboard.tell("The stream has ended: the guest is gone, or its launcher.");
                        return Ok(());
                    };
                    keyboard.tell(&moved(vmi, &node, std::mem::take(&mut waiting).values()));
                    if late.take().is_some() {
                        keyboard.next();
                    }
                }
                Ok(Some(QmpMessage::Event(event))) => keyboard.print(&event.to_string()),
                Ok(Some(QmpMessage::Answer(answer))) => {
                    keyboard.print(&shown(&answer)?);
                    let id = answer["id"].as_u64().unwrap_or_default();
                    // A user who has read that it takes long has the prompt already.
                    let known = waiting.remove(&id).is_some();
                    if known && id == last && late.take().is_some() {
                        keyboard.next();
                    }
                }
            },
            typed = keyboard.typed.recv() => match typed {
                None | Some(Typed::End) => return Ok(()),
                Some(Typed::Failed(why)) => anyhow::bail!("read a line: {why}"),
                Some(Typed::Nothing) => keyboard.next(),
                Some(Typed::Line(line)) => match understand(&line, &schema) {
                    Asked::Leave => return Ok(()),
                    Asked::Show(text) => {
                        if !text.is_empty() {
                            println!("{text}");
                        }
                        keyboard.next();
                    }
                    Asked::Execute(mut command) => {
                        last += 1;
                        waiting.insert(last, command["execute"].as_str().unwrap_or_default().to_owned());
                        command["id"] = json!(last);
                        late = Some(Instant::now() + SLOW_ANSWER);
                        // If the stream has ended, that is heard above.
                        if let Err(error) = monitor.lines.say(&command).await {
                            keyboard.tell(&format!("{error:#}"));
                        }
                    }
                },
            },
            () = sleep_until(deadline), if late.is_some() => {
                late = None;
                let command = waiting.get(&last).map(String::as_str).unwrap_or_default();
                keyboard.print(&format!("{command} takes long; its answer is shown when it comes."));
                keyboard.next();
            }
        }
    }
}

/// Waits for the monitor of a guest that has moved, while ctrl-d still leaves; returns the guest's node, or nothing.
async fn again(monitor: &mut Monitor<'_>, keyboard: &mut Keyboard) -> anyhow::Result<Option<String>> {
    let mut found = pin!(monitor.again());
    loop {
        tokio::select! {
            found = found.as_mut() => return Ok(found),
            typed = keyboard.typed.recv() => match typed {
                None | Some(Typed::End) => return Ok(None),
                Some(Typed::Failed(why)) => anyhow::bail!("read a line: {why}"),
                Some(Typed::Nothing) => keyboard.next(),
                Some(Typed::Line(_)) => {
                    keyboard.tell("The monitor is not connected: the line was not sent.");
                    keyboard.next();
                }
            },
        }
    }
}

/// Tells of a move, and of the commands whose answers it has cost. Pure.
fn moved<'a>(vmi: &str, node: &str, unanswered: impl Iterator<Item = &'a String>) -> String {
    let lost: Vec<&str> = unanswered.map(String::as_str).collect();
    let lost =
        if lost.is_empty() { String::new() } else { format!(" No answer came to {}.", lost.join(", ")) };
    format!("{vmi} has moved to node {node}, and its monitor is connected again.{lost}")
}

fn shown(answer: &Value) -> anyhow::Result<String> {
    Ok(match answer.get("error") {
        Some(error) => words::error(error),
        None => serde_json::to_string_pretty(&answer["return"])?,
    })
}

/// The request of a line.
#[derive(Debug, PartialEq)]
enum Asked {
    Leave,
    Show(String),
    Execute(Value),
}

/// Pure: `COMMAND key=value...`, a whole QMP line as JSON, or a command of the shell itself.
fn understand(line: &str, schema: &Schema) -> Asked {
    let line = line.trim();
    if line.starts_with('{') {
        return match serde_json::from_str(line) {
            Ok(Value::Object(command)) => Asked::Execute(Value::Object(command)),
            Ok(_) | Err(_) => Asked::Show("this is not JSON".to_owned()),
        };
    }
    let typed = match words::split(line) {
        Ok(typed) => typed,
        Err(error) => return Asked::Show(error.to_string()),
    };
    match typed.as_slice() {
        [] => Asked::Show(String::new()),
        [word] if word == "quit-shell" => Asked::Leave,
        [word] if word == "help" => Asked::Show(schema.help(None)),
        [word, command] if word == "help" => Asked::Show(schema.help(Some(command))),
        [command, arguments @ ..] => match words::arguments(arguments) {
            Ok(Value::Null) => Asked::Execute(json!({ "execute": command })),
            Ok(arguments) => Asked::Execute(json!({ "execute": command, "arguments": arguments })),
            Err(error) => Asked::Show(format!("{error:#}")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_names_the_commands_that_got_no_answer() {
        let told = moved("vm", "b", std::iter::empty());
        assert_eq!(told, "vm has moved to node b, and its monitor is connected again.");
        let told = moved("vm", "b", ["query-block".to_owned(), "stop".to_owned()].iter());
        assert!(told.ends_with("again. No answer came to query-block, stop."), "{told}");
    }

    #[test]
    fn a_line_is_a_command_json_or_a_word_of_the_shell() {
        let schema = Schema::default();
        let understood = |line: &str| understand(line, &schema);
        assert_eq!(understood("quit-shell"), Asked::Leave);
        assert_eq!(understood("  "), Asked::Show(String::new()));
        assert_eq!(understood("query-status"), Asked::Execute(json!({"execute": "query-status"})));
        let wanted = json!({"execute": "query-stats", "arguments": {"target": "vm"}});
        assert_eq!(understood("query-stats target=vm"), Asked::Execute(wanted.clone()));
        assert_eq!(understood(&wanted.to_string()), Asked::Execute(wanted));
        for bad in ["{", "query-stats vm", "query-stats a=\"x"] {
            assert!(matches!(understood(bad), Asked::Show(why) if !why.is_empty()), "{bad}");
        }
    }
}
