//! `virt-launcher probe`, which the kubelet runs. It is a short synchronous program.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Answer, LONGEST_LINE, Question};

/// Time that this program needs in addition to the guest's; less than the second that the kubelet adds.
const MARGIN: Duration = Duration::from_millis(800);

/// Ask the guest agent whether it answers, or make it run a command; exits with 0 on success.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Seconds for the answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    timeout_seconds: u32,

    /// Succeed as well for a guest that is paused, does not run yet, or moves to another node.
    #[arg(long)]
    alive: bool,

    /// The launcher's socket.
    #[arg(long, value_name = "SOCKET", default_value = "/var/run/kubevirt-private/probe.sock")]
    socket: PathBuf,

    /// A program in the guest, and its arguments. Without one, checks whether the agent answers.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Asks, prints the result, and returns the exit code.
#[must_use]
pub fn run(args: Args) -> u8 {
    let Args { timeout_seconds, alive, socket, command } = args;
    let timeout = Duration::from_secs(u64::from(timeout_seconds.max(1)));
    let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    match ask(&socket, &Question { command, timeout_ms, alive }, timeout + MARGIN) {
        Ok(Answer { code, output, error }) => {
            // The reader may be gone.
            let _ = io::stdout().write_all(output.as_bytes());
            if !error.is_empty() {
                let _ = writeln!(io::stderr(), "{error}");
            }
            // A code that does not fit counts as a failure.
            if code == 0 { 0 } else { u8::try_from(code).unwrap_or(1).max(1) }
        }
        // A launcher makes the socket when it starts its guest, or begins to wait for one from another node.
        Err(error) if alive && error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => {
            let _ = writeln!(io::stderr(), "the launcher cannot be queried: {error}");
            1
        }
    }
}

fn ask(socket: &Path, question: &Question, within: Duration) -> io::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(within))?;
    stream.set_write_timeout(Some(within))?;
    let mut line = serde_json::to_vec(question)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(LONGEST_LINE as u64)).read_until(b'\n', &mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}
