//! The system call of Landlock between fork and exec: the only unsafe code of this crate.
#![allow(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

use nix::errno::Errno;

/// Confines this thread to the rules. Neither allocates nor locks.
pub(crate) fn restrict_self(ruleset: &OwnedFd) -> io::Result<()> {
    const NO_FLAGS: libc::c_uint = 0;
    // SAFETY: the call takes a descriptor, which is open as long as it is borrowed, and no pointer.
    let refused = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), NO_FLAGS) };
    Errno::result(refused)?;
    Ok(())
}
