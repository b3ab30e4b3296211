//! A user at a serial console: a program on a pty, whose output is read until an expected text appears.

use crate::command::{cluster_script, repository};
use crate::namespace::Namespace;
use crate::running::Running;
use crate::wait::{BOOT, RUNNING};
use anyhow::{Context, Result, bail};
use nix::pty::{Winsize, openpty};
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long to wait for the remaining output of a program that has ended.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// The output so far, and whether more can come.
#[derive(Default)]
struct Heard {
    text: String,
    ended: bool,
}

/// A program on a pty, most often `virtctl console`.
pub struct Console {
    child: Running,
    terminal: File,
    heard: Arc<(Mutex<Heard>, Condvar)>,
    /// Where the search for the next expected text begins.
    at: usize,
    commands: u32,
}

impl Console {
    /// `virtctl console VMI`.
    pub fn open(namespace: &Namespace, vmi: &str) -> Result<Self> {
        Self::start(cluster_script("virtctl.sh").args(["console", vmi, "-n", namespace.name()]))
    }

    /// The console of `vm`, which the manifest makes, once its guest has booted; logged in as root.
    pub fn boot(namespace: &Namespace, manifest: &Value) -> Result<Self> {
        namespace.apply(manifest)?;
        Self::booted(namespace, "vm")
    }

    /// The console of a guest that was made, once it has booted; logged in as root.
    pub fn booted(namespace: &Namespace, vmi: &str) -> Result<Self> {
        namespace.wait_phase(vmi, "Running", RUNNING)?;
        let mut console = Self::open(namespace, vmi)?;
        console.login(BOOT)?;
        Ok(console)
    }

    /// Any program, in the repository's root.
    pub fn start(command: &mut Command) -> Result<Self> {
        let size = Winsize { ws_row: 24, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(Some(&size), None).context("open a pty")?;
        let child = command
            .current_dir(repository())
            .stdin(Stdio::from(pty.slave.try_clone()?))
            .stdout(Stdio::from(pty.slave.try_clone()?))
            .stderr(Stdio::from(pty.slave))
            .spawn()
            .with_context(|| format!("{command:?} cannot be started"))?;
        // The command keeps its ends of the pty open until these are replaced, and then the end of the
        // program would not be noticed.
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let terminal = File::from(pty.master);
        let heard = Arc::default();
        let console = Self {
            child: Running(child),
            terminal: terminal.try_clone()?,
            heard: Arc::clone(&heard),
            at: 0,
            commands: 0,
        };
        thread::spawn(move || listen(terminal, &heard));
        Ok(console)
    }

    /// Waits for a text; returns the output before it, since the last expected text.
    pub fn expect(&mut self, wanted: &str, within: Duration) -> Result<String> {
        self.expect_one(&[wanted], within).map(|(_, before)| before)
    }

    /// Waits for the first of several texts.
    pub fn expect_one<'w>(&mut self, wanted: &[&'w str], within: Duration) -> Result<(&'w str, String)> {
        let deadline = Instant::now() + within;
        let (lock, changed) = &*self.heard;
        let mut heard = lock.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let news = heard.text.get(self.at..).unwrap_or_default();
            let found = wanted.iter().filter_map(|text| news.find(text).map(|at| (at, *text))).min();
            if let Some((at, text)) = found {
                let before = news.get(..at).unwrap_or_default().to_owned();
                self.at += at + text.len();
                return Ok((text, before));
            }
            let rest = deadline.saturating_duration_since(Instant::now());
            if heard.ended || rest.is_zero() {
                let why = if heard.ended { "the console ended" } else { "it did not come in time" };
                let end: String = news.chars().rev().take(2000).collect();
                let end: String = end.chars().rev().collect();
                bail!("expected {wanted:?} on the console, but {why}; it said: {end}");
            }
            let waited = changed.wait_timeout(heard, rest).unwrap_or_else(PoisonError::into_inner);
            heard = waited.0;
        }
    }

    /// Whether the program has ended, and all its output is read.
    fn has_ended(&self) -> bool {
        self.heard.0.lock().unwrap_or_else(PoisonError::into_inner).ended
    }

    /// The whole output so far.
    pub fn output(&self) -> String {
        self.heard.0.lock().unwrap_or_else(PoisonError::into_inner).text.clone()
    }

    /// Types these keys.
    pub fn send(&mut self, keys: &str) -> Result<()> {
        self.terminal.write_all(keys.as_bytes()).context("nobody reads what is typed on the console")
    }

    /// Waits for the small guest's prompt and logs in as root.
    pub fn login(&mut self, within: Duration) -> Result<()> {
        self.login_as("root", None, within)
    }

    /// Waits for a guest's prompt and logs in. A key makes a guest that booted earlier print its prompt
    /// again.
    pub fn login_as(&mut self, user: &str, password: Option<&str>, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        // Short at first: a guest that booted earlier prints nothing without a key.
        let mut pause = Duration::from_millis(500);
        loop {
            match self.expect_one(&["login: ", ":~# ", ":~$ "], pause) {
                Ok(("login: ", _)) => break,
                Ok(_) => return Ok(()),
                // Nothing reads the keys of an ended program, and a pty that is full blocks the next one forever.
                Err(error) if self.has_ended() || Instant::now() > deadline => {
                    return Err(error.context("no login prompt"));
                }
                Err(_) => {
                    self.send("\n")?;
                    pause = (pause * 2).min(Duration::from_secs(4));
                }
            }
        }
        self.send(&format!("{user}\n"))?;
        if let Some(password) = password {
            self.expect("assword: ", Duration::from_secs(30))?;
            self.send(&format!("{password}\n"))?;
        }
        self.expect_one(&[":~# ", ":~$ "], Duration::from_secs(60)).map(drop)
    }

    /// Runs a command line in the guest's shell; its output and exit code.
    pub fn run(&mut self, line: &str, within: Duration) -> Result<(String, i32)> {
        self.commands += 1;
        let number = self.commands;
        // The shell echoes the line. The quotes prevent the marks from being found in the echo.
        self.send(&format!("echo '<''{number}>'; {line}; echo '</''{number}:'$?'>'\n"))?;
        self.expect(&format!("<{number}>"), within)?;
        let output = self.expect(&format!("</{number}:"), within)?;
        let code = self.expect(">", within)?;
        Ok((output.trim().replace('\r', ""), code.trim().parse().context("no exit code")?))
    }

    /// Runs a command line that has to succeed; returns its output.
    pub fn ok(&mut self, line: &str, within: Duration) -> Result<String> {
        match self.run(line, within)? {
            (output, 0) => Ok(output),
            (output, code) => bail!("{line:?} failed in the guest with {code}: {output}"),
        }
    }

    /// Leaves with ctrl-] and returns the program's exit code.
    pub fn leave(mut self) -> Result<i32> {
        self.send("\x1d")?;
        self.wait(Duration::from_secs(15))
    }

    /// The program's exit code, once it has ended by itself and all its output was read.
    pub fn wait(&mut self, within: Duration) -> Result<i32> {
        let code = crate::command::wait_for_exit(&mut self.child, within)?;
        let heard = self.heard.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Processes that it has left running may keep the terminal open.
        let last = self.heard.1.wait_timeout_while(heard, LAST_WORDS, |heard| !heard.ended);
        drop(last.unwrap_or_else(PoisonError::into_inner));
        code.context("the console's program does not end")
    }

    /// Process id of the program.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

fn listen(mut terminal: File, heard: &(Mutex<Heard>, Condvar)) {
    let mut bytes = [0; 4096];
    loop {
        // A pty whose other end is closed answers with an error.
        let count = terminal.read(&mut bytes).unwrap_or(0);
        let mut guard = heard.0.lock().unwrap_or_else(PoisonError::into_inner);
        guard.text.push_str(&String::from_utf8_lossy(&bytes[..count]));
        guard.ended = count == 0;
        heard.1.notify_all();
        if count == 0 {
            return;
        }
    }
}
