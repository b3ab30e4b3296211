//! The user's terminal as the guest's console.
//!
//! Standard input and output are reopened through `/proc`, so that setting them to non-blocking does not
//! affect other processes that share them, such as the shell.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;

use nix::sys::termios::{SetArg, Termios, cfmakeraw, tcgetattr, tcsetattr};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe;

/// ctrl-].
const LEAVE: u8 = 0x1d;

/// Why the console was left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// The user pressed ctrl-].
    ByPerson,
    /// The guest closed the console.
    ByGuest,
}

/// A terminal in raw mode, which is restored when this is dropped.
struct Raw {
    terminal: File,
    before: Termios,
}

impl Raw {
    fn enter() -> io::Result<Option<Self>> {
        let stdin = io::stdin();
        if !stdin.is_terminal() {
            return Ok(None);
        }
        let terminal = File::from(stdin.as_fd().try_clone_to_owned()?);
        let before = tcgetattr(&terminal)?;
        let mut raw = before.clone();
        cfmakeraw(&mut raw);
        tcsetattr(&terminal, SetArg::TCSANOW, &raw)?;
        Ok(Some(Self { terminal, before }))
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, SetArg::TCSANOW, &self.before);
    }
}

/// Connects the terminal to the console until either side ends it. Without a terminal, piped input is sent to
/// the guest.
///
/// # Errors
/// If the terminal fails.
pub async fn attach(console: UnixStream) -> io::Result<Left> {
    let raw = Raw::enter()?;
    let input = reopen("/proc/self/fd/0", OpenOptions::new().read(true))
        .and_then(pipe::Receiver::from_file_unchecked);
    let mut output = Output::open()?;
    let (mut from_guest, mut to_guest) = console.into_split();
    // A file or a missing input cannot be polled: then there is no input.
    let mut input = input.ok();
    let mut typed = vec![0; 1024];
    let mut said = vec![0; 8192];
    let left = loop {
        tokio::select! {
            count = read(&mut input, &mut typed) => match count? {
                0 => input = None,
                count => {
                    let bytes = &typed[..count];
                    let stop = if raw.is_some() { bytes.iter().position(|byte| *byte == LEAVE) } else { None };
                    // The reading side notices the guest's end.
                    let _ = to_guest.write_all(&bytes[..stop.unwrap_or(count)]).await;
                    if stop.is_some() {
                        break Left::ByPerson;
                    }
                }
            },
            count = from_guest.read(&mut said) => match count {
                Ok(count @ 1..) => output.write(&said[..count]).await?,
                Ok(0) | Err(_) => break Left::ByGuest,
            },
        }
    };
    drop(raw);
    Ok(left)
}

async fn read(input: &mut Option<pipe::Receiver>, into: &mut [u8]) -> io::Result<usize> {
    match input {
        Some(input) => input.read(into).await,
        None => std::future::pending().await,
    }
}

fn reopen(path: &str, how: &mut OpenOptions) -> io::Result<File> {
    how.custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_CLOEXEC).open(path)
}

/// The target of the guest's output.
enum Output {
    /// A terminal or pipe, which may have to be polled.
    Waited(pipe::Sender),
    /// A file, which never blocks.
    Direct(io::Stdout),
}

impl Output {
    fn open() -> io::Result<Self> {
        let stdout = io::stdout();
        if stdout.is_terminal() {
            let again = reopen("/proc/self/fd/1", OpenOptions::new().write(true));
            if let Ok(sender) = again.and_then(pipe::Sender::from_file_unchecked) {
                return Ok(Self::Waited(sender));
            }
        }
        Ok(Self::Direct(stdout))
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Waited(sender) => sender.write_all(bytes).await,
            Self::Direct(stdout) => {
                stdout.write_all(bytes)?;
                stdout.flush()
            }
        }
    }
}
