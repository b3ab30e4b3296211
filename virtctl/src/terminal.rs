//! Puts the terminal in raw mode for a guest, so that every key reaches it, and restores it.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

use nix::sys::termios::{self, SetArg, Termios};

/// Standard input without line editing, until dropped. Does nothing if it is not a terminal.
pub(crate) struct RawTerminal {
    before: Option<Termios>,
}

impl RawTerminal {
    pub(crate) fn new() -> io::Result<Self> {
        let input = io::stdin();
        if !input.is_terminal() {
            return Ok(Self { before: None });
        }
        let before = termios::tcgetattr(input.as_fd())?;
        let mut raw = before.clone();
        termios::cfmakeraw(&mut raw);
        termios::tcsetattr(input.as_fd(), SetArg::TCSANOW, &raw)?;
        Ok(Self { before: Some(before) })
    }
}

impl Drop for RawTerminal {
    fn drop(&mut self) {
        if let Some(before) = &self.before
            && let Err(error) = termios::tcsetattr(io::stdin().as_fd(), SetArg::TCSANOW, before)
        {
            eprintln!("terminal not restored (`reset` does it): {error}");
        }
    }
}
