//! System calls that return descriptors: the only unsafe code of this crate.
//!
//! Receiving uses `recvmsg` directly, because every descriptor that the kernel installed must be owned, and
//! so closed, even if the message is refused. If control data was truncated (no space, or this process has no
//! descriptors left), safer wrappers report an error and leak the descriptors that did arrive.
#![allow(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use tokio::io::unix::AsyncFd;

use crate::control;

/// Most descriptors in one message (SCM_MAX_FD). Space for all of them means that none is truncated.
const SCM_MAX_FD: usize = 253;

/// One received packet.
#[derive(Debug)]
pub(crate) struct Packet {
    /// Bytes written into the buffer.
    pub(crate) length: usize,
    /// Whether the packet was longer than the buffer.
    pub(crate) truncated: bool,
    /// Whether some descriptors could not be received.
    pub(crate) descriptors_lost: bool,
    /// The received descriptors, close-on-exec.
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Buffer for control data, aligned as the kernel's `cmsghdr`.
#[repr(C, align(8))]
struct Control([u8; CONTROL_BYTES]);

const CONTROL_BYTES: usize = 64 + SCM_MAX_FD * size_of::<RawFd>();

/// Receives one packet without blocking. A length of 0 without descriptors is the end of the stream.
pub(crate) fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Packet> {
    let mut data = Control([0; CONTROL_BYTES]);
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: msghdr is plain data for which all zeroes is a valid value.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = data.0.as_mut_ptr().cast();
    #[allow(clippy::cast_possible_truncation)] // size_t with glibc, socklen_t with musl; a few hundred bytes
    {
        header.msg_controllen = CONTROL_BYTES as _;
    }
    let flags = libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT;
    // SAFETY: the header points at a buffer and a control buffer that outlive the call, with their true lengths.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, flags) };
    let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;

    #[allow(clippy::unnecessary_cast)] // size_t with glibc, socklen_t with musl
    let filled = data.0.get(..header.msg_controllen as usize).unwrap_or(&data.0);
    // The kernel has just installed these descriptors for this process.
    let descriptors = control::descriptors(filled).into_iter().map(own).collect();
    Ok(Packet {
        length,
        truncated: header.msg_flags & libc::MSG_TRUNC != 0,
        descriptors_lost: header.msg_flags & libc::MSG_CTRUNC != 0,
        descriptors,
    })
}

/// Takes ownership of a descriptor that a system call has just given to this process.
pub(crate) fn own(raw: RawFd) -> OwnedFd {
    // SAFETY: callers pass each descriptor once, straight from a successful system call; nothing else owns it.
    unsafe { OwnedFd::from_raw_fd(raw) }
}

/// Registers a descriptor with the current runtime.
pub(crate) fn register(socket: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd names the same open descriptor for as long as it lives, and the AsyncFd owns it.
    unsafe { AsyncFd::register(socket) }.map_err(io::Error::from)
}

/// Waits until data can be read from a socket or a connection accepted, and returns the socket without
/// consuming anything.
///
/// # Errors
/// If it cannot be registered with the runtime.
pub async fn readable(socket: OwnedFd) -> io::Result<OwnedFd> {
    let socket = register(socket)?;
    drop(socket.readable().await?);
    Ok(socket.into_inner())
}
