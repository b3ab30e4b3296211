//! Connects a connection from another node to a socket of QEMU. QEMU accepts clients of its disks, and a new
//! connection in post-copy, only on a listening socket, and it listens on no network address. The kernel copies the bytes, which both QEMUs encrypt; each direction has a thread.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::sys::socket::{self, shutdown};
use nix::unistd::pipe;

/// Bytes copied at a time: the size of a pipe.
const CHUNK: usize = 64 << 10;
/// Stack of a thread that copies bytes.
const STACK: usize = 64 << 10;

/// Connects a connection from the source to the socket on which QEMU listens.
///
/// # Errors
/// If QEMU does not listen, or no descriptors or threads are left.
pub async fn lead(socket: &Path, outside: OwnedFd) -> io::Result<()> {
    relay(outside, tokio::net::UnixStream::connect(socket).await?.into_std()?)
}

/// Copies bytes in both directions until either end closes.
///
/// # Errors
/// If no descriptors or threads are left.
pub fn relay(outside: OwnedFd, qemu: UnixStream) -> io::Result<()> {
    let qemu = OwnedFd::from(qemu);
    // The connection may be set to non-blocking, but the threads wait for data.
    for end in [&outside, &qemu] {
        let flags = OFlag::from_bits_truncate(fcntl(end, FcntlArg::F_GETFL)?);
        fcntl(end, FcntlArg::F_SETFL(flags.difference(OFlag::O_NONBLOCK)))?;
    }
    let ways = [(outside.try_clone()?, qemu.try_clone()?), (qemu, outside)];
    for (from, to) in ways {
        thread::Builder::new().name("relay".to_owned()).stack_size(STACK).spawn(move || {
            if let Err(error) = one_way(&from, &to) {
                tracing::debug!(%error, "a connection broke off");
            }
            // The other end learns that no more data follow, and the other direction ends with it.
            let _ = shutdown(to.as_raw_fd(), socket::Shutdown::Both);
            let _ = shutdown(from.as_raw_fd(), socket::Shutdown::Both);
        })?;
    }
    Ok(())
}

fn one_way(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    let (out, into) = pipe()?;
    loop {
        let mut count = moved(from, &into, CHUNK)?;
        if count == 0 {
            return Ok(());
        }
        while count > 0 {
            count -= moved(&out, to, count)?;
        }
    }
}

fn moved(from: &impl AsFd, to: &impl AsFd, most: usize) -> io::Result<usize> {
    loop {
        match splice(from, None, to, None, most, SpliceFFlags::SPLICE_F_MOVE) {
            Err(Errno::EINTR) => {}
            moved => return Ok(moved?),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::Shutdown;

    use super::*;

    #[test]
    fn bytes_go_both_ways_and_an_end_is_an_end() {
        let (mut far, outside) = UnixStream::pair().unwrap();
        let (inside, mut qemu) = UnixStream::pair().unwrap();
        // Non-blocking, like connections made by an async runtime.
        outside.set_nonblocking(true).unwrap();
        inside.set_nonblocking(true).unwrap();
        relay(outside.into(), inside).unwrap();
        let block = vec![7; 1 << 20];
        let sent = block.clone();
        let writer = thread::spawn(move || {
            far.write_all(&sent).unwrap();
            far
        });
        let mut got = vec![0; 1 << 20];
        qemu.read_exact(&mut got).unwrap();
        assert_eq!(got, block);
        let mut far = writer.join().unwrap();
        qemu.write_all(b"back").unwrap();
        let mut word = [0; 4];
        far.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"back");
        far.shutdown(Shutdown::Both).unwrap();
        assert_eq!(qemu.read(&mut word).unwrap(), 0);
    }
}
