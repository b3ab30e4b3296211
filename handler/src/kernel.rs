//! Calls into the kernel that have no safe wrapper: the only place of this crate where unsafe code is allowed.
//!
//! Each function takes and gives owned or borrowed descriptors, so that nothing outside has to know that there was a
//! raw call.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

/// The longest interface name, without the closing zero (`IFNAMSIZ - 1` of the kernel).
pub const INTERFACE_NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// `ICMP6_FILTER` of the kernel's `linux/icmpv6.h`: which ICMPv6 types a raw socket is not given.
const ICMP6_FILTER: c_int = 1;

/// Turns a descriptor of `/dev/net/tun` into the tap device `name` of the calling thread's network namespace.
///
/// The tap is made when it is not there, and goes away when its last descriptor is closed: it is not persistent, so
/// that nothing is left behind by a pod. Frames carry a virtio-net header (`IFF_VNET_HDR`). `owner` may open it again.
pub fn attach_tap(tun: File, name: &str, owner: u32) -> io::Result<OwnedFd> {
    if name.is_empty() || name.len() > INTERFACE_NAME_MAX || name.contains('\0') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a name for an interface"));
    }
    // SAFETY: ifreq is plain data; all zeroes is a valid value of it.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR;
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "flags do not fit"))?;
    // SAFETY: the descriptor is open for the whole call, and `request` is an initialised ifreq, as TUNSETIFF expects;
    // the kernel writes the name back within its bounds.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    check(result)?;
    // SAFETY: TUNSETOWNER takes the user id by value.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOWNER, libc::c_ulong::from(owner)) };
    check(result)?;
    Ok(OwnedFd::from(tun))
}

/// Sends UDP datagrams over IPv4 without a checksum (`SO_NO_CHECK`).
///
/// A checksum that the network card is to fill in never gets filled in on the way to a tap, and DHCP clients that read
/// raw frames (old dhclient, udhcpc) drop the answer. Without one it is valid by definition.
pub fn send_without_checksum(socket: impl AsFd) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, &1_i32)
}

/// Lets a raw ICMPv6 socket receive messages of one type only.
pub fn receive_only_icmp6(socket: impl AsFd, kind: u8) -> io::Result<()> {
    let mut blocked = [u32::MAX; 8];
    blocked[usize::from(kind) / 32] &= !(1 << (kind % 32));
    set_option(socket, libc::IPPROTO_ICMPV6, ICMP6_FILTER, &blocked)
}

fn set_option<T: Copy>(socket: impl AsFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let length = libc::socklen_t::try_from(mem::size_of::<T>())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "option value too long"))?;
    // SAFETY: `value` points to `length` readable bytes of plain data for the whole call, and the descriptor is open.
    let result = unsafe {
        libc::setsockopt(socket.as_fd().as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), length)
    };
    check(result)
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
