//! A program that opens a port of this machine and prints its number. It runs until the value is dropped.

use crate::running::Running;
use anyhow::{Context, Result};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;

/// How long an answer may take.
const ANSWER: Duration = Duration::from_secs(20);

/// `kubectl port-forward` or `virtctl port-forward`.
pub struct Forward {
    _program: Running,
    /// Kept open to the end, since the program prints more, and dies if the pipe is closed.
    _output: BufReader<ChildStdout>,
    /// The port on 127.0.0.1.
    pub port: u16,
}

impl Forward {
    /// Starts it, and reads the port from its first line.
    pub fn start(command: &mut Command) -> Result<Self> {
        let mut program = Running(command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?);
        let mut output = BufReader::new(program.stdout.take().context("the program has no output")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let digits = line.split("127.0.0.1:").nth(1).and_then(|rest| rest.split(' ').next());
        let port = digits.and_then(|digits| digits.trim().parse().ok());
        let port = port.with_context(|| format!("{command:?} says {line:?}"))?;
        Ok(Self { _program: program, _output: output, port })
    }

    /// The answer of the web server behind the port, head and body.
    pub fn get(&self, path: &str) -> Result<String> {
        String::from_utf8(self.get_bytes(path)?).context("the answer is not text")
    }

    /// The same as bytes.
    pub fn get_bytes(&self, path: &str) -> Result<Vec<u8>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(ANSWER))?;
        stream.write_all(format!("GET {path} HTTP/1.0\r\n\r\n").as_bytes())?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }
}
