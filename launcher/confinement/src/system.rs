//! System calls of Landlock and seccomp that have no safe form, some of them between fork and exec: the only unsafe code of this
//! crate.
#![allow(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

use std::io::{self, IoSliceMut};
use std::mem;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use seccompiler::sock_filter;

/// Confines this thread to the rules. Neither allocates nor locks.
pub(crate) fn restrict_self(ruleset: &OwnedFd) -> io::Result<()> {
    const NO_FLAGS: libc::c_uint = 0;
    // SAFETY: the call takes a descriptor, which is open as long as it is borrowed, and no pointer.
    let refused = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), NO_FLAGS) };
    Errno::result(refused)?;
    Ok(())
}

/// What ends the wait for an answer, once somebody has seen the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listening {
    /// Only a signal that kills the caller, since Linux 5.19: each call is asked once.
    UntilKilled,
    /// Any signal: the call is asked again.
    UntilSignalled,
}

/// Filters the calls of this thread, and returns the listener for those that the filter lets another process answer. Neither
/// allocates nor locks.
pub(crate) fn listen(program: &[sock_filter], listening: Listening) -> io::Result<OwnedFd> {
    let len = libc::c_ushort::try_from(program.len()).map_err(|_| Errno::E2BIG)?;
    let filter = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    let wait = match listening {
        Listening::UntilKilled => libc::SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV,
        Listening::UntilSignalled => 0,
    };
    // SAFETY: the kernel copies the instructions, which have its layout, and changes nothing of them.
    let made = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_NEW_LISTENER | wait,
            &raw const filter,
        )
    };
    let listener = RawFd::try_from(Errno::result(made)?).map_err(|_| Errno::EBADF)?;
    // SAFETY: the kernel has just made this descriptor, and nothing else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(listener) })
}

/// One descriptor as control data (cmsg(3)).
#[repr(C)]
struct OneDescriptor {
    header: libc::cmsghdr,
    descriptor: RawFd,
}

/// Sends a descriptor. Neither allocates nor locks.
pub(crate) fn send(over: &OwnedFd, descriptor: &OwnedFd) -> io::Result<()> {
    let mut byte = [0_u8];
    let mut part = libc::iovec { iov_base: byte.as_mut_ptr().cast(), iov_len: byte.len() };
    // SAFETY: both structures consist of numbers and pointers, for which zeroes are valid.
    let (header, mut message): (libc::cmsghdr, libc::msghdr) = unsafe { (mem::zeroed(), mem::zeroed()) };
    let mut control = OneDescriptor { header, descriptor: descriptor.as_raw_fd() };
    // The header's 16 bytes and the descriptor's 4; the C libraries disagree about the type.
    control.header.cmsg_len = 20;
    control.header.cmsg_level = libc::SOL_SOCKET;
    control.header.cmsg_type = libc::SCM_RIGHTS;
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = 20;
    // SAFETY: everything that the message points to lives until the call has returned, and has the given sizes.
    let sent = unsafe { libc::sendmsg(over.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
    Errno::result(sent)?;
    Ok(())
}

/// The descriptor that was sent, if one was.
pub(crate) fn receive(from: &OwnedFd) -> Option<OwnedFd> {
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let mut control = nix::cmsg_space!(RawFd);
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_CMSG_CLOEXEC;
    let message = recvmsg::<()>(from.as_raw_fd(), &mut parts, Some(control.as_mut_slice()), flags).ok()?;
    let descriptor = message.cmsgs().ok()?.find_map(|message| match message {
        ControlMessageOwned::ScmRights(descriptors) => descriptors.first().copied(),
        _ => None,
    })?;
    // SAFETY: the kernel has just made this descriptor, and nothing else has it.
    Some(unsafe { OwnedFd::from_raw_fd(descriptor) })
}

/// Waits for a call; `false` once no process has the filter any more.
pub(crate) fn wait(listener: &OwnedFd) -> io::Result<bool> {
    const FOR_EVER: libc::c_int = -1;
    let mut polled = libc::pollfd { fd: listener.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    loop {
        // SAFETY: the kernel writes to this one structure while the call lasts.
        match Errno::result(unsafe { libc::poll(&raw mut polled, 1, FOR_EVER) }) {
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
            Ok(_) => return Ok(polled.revents & libc::POLLIN != 0),
        }
    }
}

/// A call that waits for its answer.
pub(crate) struct Call {
    id: u64,
    /// The number of the system call.
    pub(crate) number: libc::c_long,
    /// The caller's number of its socket.
    pub(crate) socket: u32,
}

/// The call that [`wait`] has seen; `None` if its caller has ended since.
pub(crate) fn take(listener: &OwnedFd) -> io::Result<Option<Call>> {
    // SAFETY: the structure consists of numbers, for which zeroes are valid.
    let mut asked: libc::seccomp_notif = unsafe { mem::zeroed() };
    // SAFETY: the kernel writes to this structure, which the request expects.
    let taken = unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_RECV, &raw mut asked) };
    match Errno::result(taken) {
        // The call takes an int, so the kernel reads the lower half of the argument.
        Ok(_) => {
            let socket = u32::try_from(asked.data.args[0] & u64::from(u32::MAX)).unwrap_or(u32::MAX);
            Ok(Some(Call { id: asked.id, number: asked.data.nr.into(), socket }))
        }
        Err(Errno::ENOENT | Errno::EINTR) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// How a caller gets a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Given {
    /// In the place of its socket. The call still waits for its answer.
    InPlace,
    /// As the answer.
    Returned,
}

/// Gives the caller a copy of the descriptor.
pub(crate) fn give(listener: &OwnedFd, call: &Call, descriptor: &OwnedFd, given: Given) -> Result<(), Errno> {
    let (flags, newfd) = match given {
        Given::InPlace => (libc::SECCOMP_ADDFD_FLAG_SETFD, call.socket),
        Given::Returned => (libc::SECCOMP_ADDFD_FLAG_SEND, 0),
    };
    add(listener, call.id, descriptor, flags, newfd)
}

fn add(
    listener: &OwnedFd,
    id: u64,
    descriptor: &OwnedFd,
    flags: libc::c_ulong,
    newfd: u32,
) -> Result<(), Errno> {
    let mut added = libc::seccomp_notif_addfd {
        id,
        flags: u32::try_from(flags).map_err(|_| Errno::EINVAL)?,
        srcfd: descriptor.as_raw_fd().cast_unsigned(),
        newfd,
        newfd_flags: libc::O_CLOEXEC.cast_unsigned(),
    };
    loop {
        // SAFETY: the kernel reads this structure, which the request expects.
        let placed =
            unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_ADDFD, &raw mut added) };
        match Errno::result(placed) {
            // A signal came before the descriptor was given.
            Err(Errno::EINTR) => {}
            placed => return placed.map(drop),
        }
    }
}

/// Whether the kernel gives callers descriptors in both ways, which it does since Linux 5.14. It then says that no call has this id;
/// an older one does not know the request, or the flag.
pub(crate) fn can_give(listener: &OwnedFd) -> bool {
    const NOBODY: u64 = 0;
    let both = libc::SECCOMP_ADDFD_FLAG_SETFD | libc::SECCOMP_ADDFD_FLAG_SEND;
    add(listener, NOBODY, listener, both, 0) == Err(Errno::ENOENT)
}

/// Lets the call return: with the error, or as if it had been made.
pub(crate) fn answer(listener: &OwnedFd, call: &Call, error: Option<Errno>) -> io::Result<()> {
    let error = error.map_or(0, |error| -(error as i32));
    send_answer(listener, libc::seccomp_notif_resp { id: call.id, val: 0, error, flags: 0 })
}

/// Leaves the call to the kernel.
pub(crate) fn leave(listener: &OwnedFd, call: &Call) -> io::Result<()> {
    let flags = u32::try_from(libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE).map_err(|_| Errno::EINVAL)?;
    send_answer(listener, libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags })
}

fn send_answer(listener: &OwnedFd, mut answer: libc::seccomp_notif_resp) -> io::Result<()> {
    loop {
        // SAFETY: the kernel reads this structure, which the request expects.
        let sent =
            unsafe { libc::ioctl(listener.as_raw_fd(), libc::SECCOMP_IOCTL_NOTIF_SEND, &raw mut answer) };
        match Errno::result(sent) {
            Err(Errno::EINTR) => {}
            // The caller has ended, or has had its answer.
            Ok(_) | Err(Errno::ENOENT | Errno::EINPROGRESS) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
