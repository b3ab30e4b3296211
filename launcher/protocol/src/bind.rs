//! Gives a listening socket its path.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use nix::fcntl::{OFlag, open};
use nix::sys::socket::{UnixAddr, bind};
use nix::sys::stat::Mode;

/// Binds a socket to a path of any length (the address of a socket can only hold 107 bytes), replacing a
/// socket left there.
pub(crate) fn bind_in_parent(socket: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = open(parent, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let through = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    bind(socket.as_raw_fd(), &UnixAddr::new(&through)?)?;
    Ok(())
}
