//! System calls that have no safe wrapper: the only place in this crate where unsafe code is allowed.
//!
//! Each function takes and returns owned or borrowed descriptors, so callers need not know about the raw
//! call.
#![allow(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

use std::ffi::{CStr, c_int};
use std::fs::File;
use std::io;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, FromRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::ioctl::ioctl_num_type;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};

/// The longest interface name, without the closing zero (`IFNAMSIZ - 1` of the kernel).
pub const INTERFACE_NAME_MAX: usize = libc::IFNAMSIZ - 1;

/// `ICMP6_FILTER` of the kernel's `linux/icmpv6.h`: which ICMPv6 types a raw socket does not receive.
const ICMP6_FILTER: c_int = 1;
/// From the kernel's `linux/mount.h`.
const FSOPEN_CLOEXEC: libc::c_uint = 1;
const FSMOUNT_CLOEXEC: libc::c_uint = 1;
const FSCONFIG_CMD_CREATE: libc::c_uint = 6;

/// Turns a descriptor of `/dev/net/tun` into the tap device `name` in the calling thread's network namespace.
///
/// The tap is created if it does not exist. It is not persistent and goes away when its last descriptor is
/// closed, so that a pod leaves nothing behind. Frames carry a virtio-net header (`IFF_VNET_HDR`). `owner`
/// may open it again. With `multi_queue`, each descriptor is a queue of its own; without it, there can be
/// only one descriptor.
pub fn attach_tap(tun: File, name: &str, owner: u32, multi_queue: bool) -> io::Result<OwnedFd> {
    if name.is_empty() || name.len() > INTERFACE_NAME_MAX || name.contains('\0') {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a name for an interface"));
    }
    set_tap(&tun, name, multi_queue)?;
    // SAFETY: TUNSETOWNER takes the user id by value.
    let result = unsafe { libc::ioctl(tun.as_raw_fd(), libc::TUNSETOWNER, libc::c_ulong::from(owner)) };
    check(result)?;
    Ok(OwnedFd::from(tun))
}

/// Makes frames on a descriptor of a macvtap carry a virtio-net header and nothing else.
pub fn set_macvtap(tap: &File, multi_queue: bool) -> io::Result<()> {
    // The descriptor already belongs to a device, so the kernel needs no name.
    set_tap(tap, "", multi_queue)
}

fn set_tap(tap: &File, name: &str, multi_queue: bool) -> io::Result<()> {
    // SAFETY: ifreq is plain data; all zeroes is a valid value of it.
    let mut request: libc::ifreq = unsafe { mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    let many = if multi_queue { libc::IFF_MULTI_QUEUE } else { 0 };
    let flags = libc::IFF_TAP | libc::IFF_NO_PI | libc::IFF_VNET_HDR | many;
    request.ifr_ifru.ifru_flags = libc::c_short::try_from(flags)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "flags do not fit"))?;
    // SAFETY: the descriptor is open for the whole call, and `request` is an initialised ifreq, as TUNSETIFF expects;
    // the kernel writes the name back within its bounds.
    let result = unsafe { libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF, &raw mut request) };
    check(result)
}

/// Makes a new mount of a file system of that kind that is attached nowhere. It goes away with its
/// descriptor. A mount of sysfs shows the network namespace of the calling thread.
pub fn mount_nowhere(kind: &CStr) -> io::Result<OwnedFd> {
    let descriptor = |result: libc::c_long| {
        let number = c_int::try_from(result).map_err(|_| io::Error::other("no descriptor"))?;
        check(number)?;
        // SAFETY: the kernel has just made it, and nothing else owns it.
        Ok::<_, io::Error>(unsafe { OwnedFd::from_raw_fd(number) })
    };
    // SAFETY: `kind` is a string with a zero at its end.
    let context = unsafe { libc::syscall(libc::SYS_fsopen, kind.as_ptr(), FSOPEN_CLOEXEC) };
    let context = descriptor(context)?;
    let none = std::ptr::null::<libc::c_char>();
    // SAFETY: the descriptor is open, and this command takes neither key nor value.
    let made =
        unsafe { libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CMD_CREATE, none, none, 0) };
    check(c_int::try_from(made).unwrap_or(-1))?;
    // SAFETY: the descriptor is open; the others are numbers.
    let mount = unsafe { libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), FSMOUNT_CLOEXEC, 0) };
    descriptor(mount)
}

/// Sends UDP datagrams over IPv4 without a checksum (`SO_NO_CHECK`).
///
/// A checksum that the network card would fill in is never filled in on the way to a tap, and DHCP clients
/// that read raw frames (old dhclient, udhcpc) drop the answer. A datagram without a checksum is valid by
/// definition.
pub fn send_without_checksum(socket: impl AsFd) -> io::Result<()> {
    set_option(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, &1_i32)
}

/// Limits a raw ICMPv6 socket to messages of one type.
pub fn receive_only_icmp6(socket: impl AsFd, kind: u8) -> io::Result<()> {
    let mut blocked = [u32::MAX; 8];
    blocked[usize::from(kind) / 32] &= !(1 << (kind % 32));
    set_option(socket, libc::IPPROTO_ICMPV6, ICMP6_FILTER, &blocked)
}

/// Opens a packet socket on a link: it receives those frames from outside that `filter` accepts, and sends
/// frames out of the link.
///
/// The link may be a port of a bridge: the socket sees frames before the bridge does, and those that it sends
/// do not pass the bridge.
pub fn receive_frames(link: u32, filter: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    let all = u16::try_from(libc::ETH_P_ALL).unwrap_or_default().to_be();
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // Without a protocol it receives nothing until it is bound.
    // SAFETY: all arguments are numbers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, kind, 0) };
    check(socket)?;
    // SAFETY: the kernel has just made it, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    receive_only(&socket, filter)?;
    set_option(&socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1_i32)?;
    // SAFETY: sockaddr_ll is plain data; all zeroes is a valid value of it.
    let mut address: libc::sockaddr_ll = unsafe { mem::zeroed() };
    address.sll_family = u16::try_from(libc::AF_PACKET).unwrap_or_default();
    address.sll_protocol = all;
    address.sll_ifindex = i32::try_from(link).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let size = libc::socklen_t::try_from(mem::size_of::<libc::sockaddr_ll>())
        .map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the descriptor is open, and `address` is an initialised sockaddr_ll of this size.
    let result = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) };
    check(result)?;
    Ok(socket)
}

/// Limits a socket to what `filter` accepts.
pub fn receive_only(socket: impl AsFd, filter: &[libc::sock_filter]) -> io::Result<()> {
    let length = u16::try_from(filter.len()).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // The kernel copies the steps, and writes none of them.
    let program = libc::sock_fprog { len: length, filter: filter.as_ptr().cast_mut() };
    set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)
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

/// A descriptor of the process that has this id now.
pub fn process(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: both arguments are numbers.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(descriptor) {
        // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
        Ok(descriptor @ 0..) => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        Ok(_) => Err(io::Error::last_os_error()),
        Err(_) => Err(io::Error::from(io::ErrorKind::InvalidData)),
    }
}

/// A descriptor of the process that created the other end of a unix socket, or that listens there.
pub fn peer(socket: impl AsFd) -> io::Result<OwnedFd> {
    match getsockopt(&socket, PeerPidfd) {
        // Kernels before 6.5 give only its process id.
        Err(Errno::ENOPROTOOPT) => process(getsockopt(&socket, PeerCredentials)?.pid()),
        found => Ok(found?),
    }
}

/// Raises the amount of memory that a process and its children may lock to at least `bytes`.
pub fn allow_locked(pid: i32, bytes: u64) -> io::Result<()> {
    // SAFETY: rlimit64 is plain data; all zeroes is a valid value of it.
    let mut limit: libc::rlimit64 = unsafe { mem::zeroed() };
    // SAFETY: no new limit is given, and `limit` is written within its bounds.
    let result = unsafe { libc::prlimit64(pid, libc::RLIMIT_MEMLOCK, std::ptr::null(), &raw mut limit) };
    check(result)?;
    if limit.rlim_cur >= bytes {
        return Ok(());
    }
    limit.rlim_cur = bytes;
    limit.rlim_max = limit.rlim_max.max(bytes);
    // SAFETY: `limit` is an initialised rlimit64, and the old limit is not requested.
    let result =
        unsafe { libc::prlimit64(pid, libc::RLIMIT_MEMLOCK, &raw const limit, std::ptr::null_mut()) };
    check(result)
}

fn check(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// `/dev/kvm`, for queries about the kernel's capabilities.
#[derive(Debug)]
pub struct Kvm(File);

/// The kernel's ioctl type for KVM, `KVMIO`.
const KVMIO: u8 = 0xae;
/// `KVM_CREATE_VM`.
const KVM_CREATE_VM: ioctl_num_type = nix::request_code_none!(KVMIO, 0x01);
/// `KVM_GET_MSR_INDEX_LIST`. The list begins with its length.
const KVM_GET_MSR_INDEX_LIST: ioctl_num_type =
    nix::request_code_readwrite!(KVMIO, 0x02, mem::size_of::<u32>());
/// `KVM_CHECK_EXTENSION`.
const KVM_CHECK_EXTENSION: ioctl_num_type = nix::request_code_none!(KVMIO, 0x03);
/// `KVM_CREATE_VCPU`.
const KVM_CREATE_VCPU: ioctl_num_type = nix::request_code_none!(KVMIO, 0x41);
/// `KVM_GET_TSC_KHZ`.
const KVM_GET_TSC_KHZ: ioctl_num_type = nix::request_code_none!(KVMIO, 0xa3);
/// The argument of calls that have none.
const NONE: libc::c_ulong = 0;
/// More registers than any kernel lists.
const REGISTERS_MAX: usize = 4096;

impl Kvm {
    /// Opens the device.
    pub fn open(path: &std::path::Path) -> io::Result<Self> {
        File::options().read(true).write(true).open(path).map(Kvm)
    }

    /// Whether the kernel has an extension, by the number of its `KVM_CAP_` constant.
    pub fn has_extension(&self, number: c_int) -> bool {
        // SAFETY: the descriptor is open, and the argument is a number.
        let result =
            unsafe { libc::ioctl(self.0.as_raw_fd(), KVM_CHECK_EXTENSION, libc::c_long::from(number)) };
        result > 0
    }

    /// Model-specific registers that the kernel provides to guests.
    pub fn registers(&self) -> io::Result<Vec<u32>> {
        // The length, followed by space for that many numbers.
        let mut list = vec![0_u32; 1 + REGISTERS_MAX];
        if let Some(length) = list.first_mut() {
            *length = u32::try_from(REGISTERS_MAX).unwrap_or(u32::MAX);
        }
        // SAFETY: the list is as long as its first member says; the kernel writes no more than that.
        let result = unsafe { libc::ioctl(self.0.as_raw_fd(), KVM_GET_MSR_INDEX_LIST, list.as_mut_ptr()) };
        check(result)?;
        let length = list.first().map_or(0, |length| usize::try_from(*length).unwrap_or(0));
        Ok(list.into_iter().skip(1).take(length).collect())
    }

    /// Frequency of the time stamp counter that a guest would see. Only a virtual CPU reports it, so a
    /// temporary one is created.
    pub fn tsc_kilohertz(&self) -> io::Result<u32> {
        let make = |at: &dyn AsRawFd, what: ioctl_num_type| -> io::Result<OwnedFd> {
            // SAFETY: the descriptor is open, and the argument is a number: an ordinary machine, its first CPU.
            let made = unsafe { libc::ioctl(at.as_raw_fd(), what, NONE) };
            check(made)?;
            // SAFETY: the kernel has just made this descriptor, and nothing else owns it.
            Ok(unsafe { OwnedFd::from_raw_fd(made) })
        };
        let machine = make(&self.0, KVM_CREATE_VM)?;
        let cpu = make(&machine, KVM_CREATE_VCPU)?;
        // SAFETY: the descriptor is open; there is no argument.
        let frequency = unsafe { libc::ioctl(cpu.as_raw_fd(), KVM_GET_TSC_KHZ, NONE) };
        check(frequency)?;
        u32::try_from(frequency).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
    }
}

/// Gives a thread the scheduling policy `SCHED_FIFO` with this priority: it keeps its CPU until it waits.
pub fn first_in_first_out(thread: i32, priority: i32) -> io::Result<()> {
    // The kernel's `struct sched_param` is this one number. The call does not use the C library, because
    // musl's function only returns ENOSYS.
    let param: libc::c_int = priority;
    // SAFETY: the kernel reads one structure of this size, which lives until the call returns.
    let result =
        unsafe { libc::syscall(libc::SYS_sched_setscheduler, thread, libc::SCHED_FIFO, &raw const param) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_may_lock_as_much_as_it_is_allowed() {
        // Raising the hard limit needs a privilege that tests do not have.
        let mut child =
            std::process::Command::new("sh").args(["-c", "ulimit -S -l 64; exec sleep 60"]).spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let limit = || {
            let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap();
            let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory")).unwrap();
            line.split_whitespace().next().unwrap().to_owned()
        };
        let begun = std::time::Instant::now();
        while limit() != "65536" && begun.elapsed() < std::time::Duration::from_secs(20) {
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        let before = limit();
        let done = [allow_locked(pid, 128 << 10), allow_locked(pid, 96 << 10)];
        let after = limit();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(before, "65536");
        assert!(done.iter().all(Result::is_ok), "{done:?}");
        assert_eq!(after, "131072", "it is raised, and never lowered");
    }
}
