//! System calls by seccomp (seccomp(2)).
//!
//! Calls that a container runtime's own profile refuses are refused here as well: a pod may run without that
//! profile, and a process that gains privilege must not gain these calls. Refused calls return EPERM, or
//! ENOSYS if callers have a fallback for kernels without the call.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// Which system calls are allowed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Calls {
    /// All except calls that change the system, inspect other processes, make namespaces, or reach rarely
    /// used parts of the kernel. QEMU, swtpm and the launcher all have this filter: a right that a launcher
    /// gives up is not available to its children.
    #[default]
    Usual,
    /// The same, but no socket can be connected, and only unix sockets be made: for a process that gets all its connections.
    Connected,
    /// As [`Connected`](Self::Connected), but the parent answers each attempt to connect, with a connection or a refusal, and may
    /// have a hand in what the process listens on and accepts ([`SocketCalls`](crate::SocketCalls)).
    Answered,
    /// As [`Usual`](Self::Usual), but the calls that make a sandbox of namespaces succeed without an effect: for a
    /// program that ends without its sandbox. Other measures must give the protection of these namespaces.
    AsIfSandboxed,
    /// Only the calls that open files, send them over a socket and wait.
    HandOver,
}

/// Calls that no process of a guest needs.
const REFUSED: &[libc::c_long] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    libc::SYS_perf_event_open,
    // Namespaces and mounts.
    libc::SYS_unshare,
    libc::SYS_setns,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_open_by_handle_at,
    libc::SYS_fanotify_init,
    // The kernel itself.
    libc::SYS_bpf,
    libc::SYS_userfaultfd,
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_syslog,
    libc::SYS_sethostname,
    libc::SYS_setdomainname,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
];

/// The calls that make such a sandbox: namespaces, mounts and a new root.
const SANDBOX: &[libc::c_long] =
    &[libc::SYS_unshare, libc::SYS_mount, libc::SYS_umount2, libc::SYS_pivot_root];

/// io_uring would run operations that a filter does not see; the flags of clone3 are in memory, which a
/// filter cannot read. All callers here fall back to an older call.
const ABSENT: &[libc::c_long] =
    &[libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_clone3];

/// A new namespace of any kind.
const NAMESPACES: [libc::c_int; 7] = [
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWNS,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWCGROUP,
];

/// The calls of `container-disk serve`, with either C library.
const HAND_OVER: &[libc::c_long] = &[
    // Files.
    libc::SYS_open,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_stat,
    libc::SYS_lstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fcntl,
    libc::SYS_lseek,
    libc::SYS_getdents64,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_writev,
    // The launcher, and SIGTERM.
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_recvmsg,
    libc::SYS_recvfrom,
    libc::SYS_signalfd4,
    libc::SYS_poll,
    libc::SYS_nanosleep,
    libc::SYS_clock_nanosleep,
    libc::SYS_clock_gettime,
    libc::SYS_restart_syscall,
    // The C library: memory, signals, the exit, and a panic's message.
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_getpid,
    libc::SYS_gettid,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_tkill,
    libc::SYS_exit,
    libc::SYS_exit_group,
];

/// The instruction that returns an action: BPF_RET and BPF_K.
const RETURN: u16 = 0x06;

/// The filters; a call must pass all of them.
pub(crate) fn filters(calls: Calls) -> Result<Vec<BpfProgram>, BackendError> {
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    if calls == Calls::HandOver {
        return Ok(vec![filter(all(HAND_OVER), refuse, SeccompAction::Allow)?]);
    }
    let mut refused = all(REFUSED);
    let in_namespace = |flag: libc::c_int| {
        let flag = u64::from(flag.unsigned_abs());
        let condition =
            SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)?;
        SeccompRule::new(vec![condition])
    };
    refused.insert(libc::SYS_clone, NAMESPACES.map(in_namespace).into_iter().collect::<Result<_, _>>()?);
    let absent = SeccompAction::Errno(libc::ENOSYS.unsigned_abs());
    if calls == Calls::Connected {
        refused.extend(all(&[libc::SYS_connect]));
    }
    if matches!(calls, Calls::Connected | Calls::Answered) {
        refused.insert(libc::SYS_socket, not_local(calls)?);
    }
    let mut filters = vec![
        filter(refused, SeccompAction::Allow, refuse)?,
        filter(all(ABSENT), SeccompAction::Allow, absent)?,
    ];
    if calls == Calls::AsIfSandboxed {
        // If several filters refuse a call, the last one determines the errno; 0 means success.
        filters.push(filter(all(SANDBOX), SeccompAction::Allow, SeccompAction::Errno(0))?);
    }
    Ok(filters)
}

/// The filter by which the holder of its listener answers `connect`, `listen`, `accept` and `accept4`.
pub(crate) fn asking() -> Result<BpfProgram, BackendError> {
    let asked = all(&[libc::SYS_connect, libc::SYS_listen, libc::SYS_accept, libc::SYS_accept4]);
    let mut program = filter(asked, SeccompAction::Allow, SeccompAction::Trace(0))?;
    // The crate has no name for this action.
    for instruction in &mut program {
        if instruction.code == RETURN && instruction.k == libc::SECCOMP_RET_TRACE {
            instruction.k = libc::SECCOMP_RET_USER_NOTIF;
        }
    }
    Ok(program)
}

/// The filter that takes its place where there can be no listener.
pub(crate) fn refusing() -> Result<BpfProgram, BackendError> {
    let refuse = SeccompAction::Errno(libc::EPERM.unsigned_abs());
    filter(all(&[libc::SYS_connect]), SeccompAction::Allow, refuse)
}

type Rules = BTreeMap<libc::c_long, Vec<SeccompRule>>;

/// Rules for calls with any arguments.
fn all(calls: &[libc::c_long]) -> Rules {
    calls.iter().map(|call| (*call, Vec::new())).collect()
}

/// Rules for all sockets but unix sockets. TCP also connects by sending (`MSG_FASTOPEN`), which neither a filter of `connect` nor
/// Landlock sees, and UDP needs no connection. QEMU may listen for the kernel's events of devices: libusb does not begin without.
///
/// A rule about the flags of `sendmsg` would do for TCP. But a call whose arguments a filter reads runs through all filters each time,
/// and QEMU sends its memory in 65,000 such calls a gibibyte: a migration took three hundredths longer.
fn not_local(calls: Calls) -> Result<Vec<SeccompRule>, BackendError> {
    let argument = |index, operator, value: libc::c_int| {
        SeccompCondition::new(index, SeccompCmpArgLen::Dword, operator, value.unsigned_abs().into())
    };
    let (family, protocol) = (0, 2);
    let not_unix = argument(family, SeccompCmpOp::Ne, libc::AF_UNIX)?;
    if calls != Calls::Answered {
        return Ok(vec![SeccompRule::new(vec![not_unix])?]);
    }
    let not_netlink = argument(family, SeccompCmpOp::Ne, libc::AF_NETLINK)?;
    let netlink = argument(family, SeccompCmpOp::Eq, libc::AF_NETLINK)?;
    let no_events = argument(protocol, SeccompCmpOp::Ne, libc::NETLINK_KOBJECT_UEVENT)?;
    Ok(vec![SeccompRule::new(vec![not_unix, not_netlink])?, SeccompRule::new(vec![netlink, no_events])?])
}

fn filter(listed: Rules, others: SeccompAction, these: SeccompAction) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(listed, others, these, std::env::consts::ARCH.try_into()?)?.try_into()
}
