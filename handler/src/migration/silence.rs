//! How long a connection between two QEMUs may be silent. A handler sets this on its end before a QEMU gets it.

use std::io;
use std::os::fd::AsFd;

use nix::sys::socket::{setsockopt, sockopt};

/// How long sent bytes may stay without an answer, in milliseconds. The kernel's own limit is some fifteen minutes, in which a
/// write blocks: QEMU then answers no command, not even the one that cancels the migration, and a guest waits for its writes to
/// disks that are copied. With this limit the write has failed when the source's launcher gives up a switch, which is not before
/// ten seconds.
///
/// It also ends a connection whose peer answers and takes no byte for that long. Such a target keeps the guest waiting as well.
const UNANSWERED_MS: u32 = 10_000;
/// How long nothing may come before the kernel asks the peer for a sign of life, in seconds.
///
/// With a limit for unanswered bytes the kernel ends an idle connection when that limit has passed and the peer was asked at
/// least once. It asks twice in this time, so that the loss of one packet is no end.
const IDLE_SECONDS: u32 = 5;
/// Time between two such questions, in seconds.
const INTERVAL_SECONDS: u32 = 3;
/// Number of questions.
const QUESTIONS: u32 = 2;

/// Makes the kernel end a connection whose peer is silent.
///
/// # Errors
/// If it is no TCP connection.
pub fn end_by_silence(connection: &impl AsFd) -> io::Result<()> {
    setsockopt(connection, sockopt::TcpUserTimeout, &UNANSWERED_MS)?;
    setsockopt(connection, sockopt::KeepAlive, &true)?;
    setsockopt(connection, sockopt::TcpKeepIdle, &IDLE_SECONDS)?;
    setsockopt(connection, sockopt::TcpKeepInterval, &INTERVAL_SECONDS)?;
    setsockopt(connection, sockopt::TcpKeepCount, &QUESTIONS)?;
    Ok(())
}
