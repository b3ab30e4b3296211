//! What runs between fork and exec, and a question that only the system call itself answers: the only unsafe code of this crate.
#![allow(unsafe_code)]

use std::io;

use nix::errno::Errno;

/// Makes the child die with this process, however that ends, and not start at all when it has ended already.
///
/// The death signal is bound to the thread that forks: the launcher has one.
pub(super) fn die_with_this_process(command: &mut tokio::process::Command) {
    let parent = nix::unistd::getpid();
    let before_exec = move || -> io::Result<()> {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
        if nix::unistd::getppid() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
    };
    // SAFETY: between fork and exec the closure makes two system calls, and neither allocates, locks nor touches
    // memory of the parent.
    unsafe {
        command.pre_exec(before_exec);
    }
}

/// Whether memory may be bound to a NUMA node. The container runtime's own filter of system calls answers for the kernel, so it
/// is tried: with no memory at all.
#[must_use]
pub fn may_bind_memory() -> bool {
    const NOTHING: libc::c_long = 0;
    // SAFETY: the call is given a range of no bytes, no node mask and the default policy: it reads and changes nothing.
    unsafe { libc::syscall(libc::SYS_mbind, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING) == 0 }
}
