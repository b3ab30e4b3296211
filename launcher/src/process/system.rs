//! What runs between fork and exec, and two system calls that have no safe form: the only unsafe code of this crate.
#![allow(unsafe_code)]

use std::{fs, io};

use barevirt_confinement::Domain;
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

/// Confines the child, from before its program begins.
pub(super) fn confine(command: &mut tokio::process::Command, domain: Domain) {
    let before_exec = move || domain.enter_in_child();
    // SAFETY: between fork and exec the closure makes a few system calls with what was made ready before, and neither
    // allocates, locks nor touches memory of the parent.
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

/// Unmaps the pages of this program's code. Most of it has run once, at the start; what runs again is mapped again, page by
/// page, from the page cache. It halves the memory of a launcher beside its QEMU. Gives how many bytes of code there are.
///
/// # Errors
/// When the kernel does not tell what is mapped, or refuses.
pub fn unmap_code() -> io::Result<usize> {
    let mut unmapped = 0;
    let program = fs::read_link("/proc/self/exe")?;
    let maps = fs::read_to_string("/proc/self/maps")?;
    for (start, end) in maps.lines().filter_map(|line| code_of(line, program.to_str()?)) {
        // SAFETY: the range is a private mapping of a file that may be run and not be written: every page of it is what the
        // file holds, and is read from there again when it is touched.
        let refused = unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
        Errno::result(refused)?;
        unmapped += end - start;
    }
    Ok(unmapped)
}

/// The addresses of a line of `/proc/PID/maps` (proc_pid_maps(5)) with code of `program`: none for what was ever written,
/// such as data that the loader relocated.
fn code_of(line: &str, program: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (start, end) = words.next()?.split_once('-')?;
    let (permissions, path) = (words.next()?, words.nth(3)?);
    let address = |text| usize::from_str_radix(text, 16).ok();
    (permissions == "r-xp" && path == program).then_some((address(start)?, address(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_is_what_may_be_run_of_the_program() {
        let of = |line| code_of(line, "/usr/bin/virt-launcher");
        assert_eq!(
            of("7f39ecacc000-7f39ed14f000 r-xp 000cc000 fe:00 123    /usr/bin/virt-launcher"),
            Some((0x7f39_ecac_c000, 0x7f39_ed14_f000))
        );
        for other in [
            "7f39ed14f000-7f39ed450000 r--p 0074f000 fe:00 123    /usr/bin/virt-launcher",
            "7f39ed450000-7f39ed4c0000 rw-p 00a50000 fe:00 123    /usr/bin/virt-launcher",
            "7f39ecacc000-7f39ed14f000 r-xp 000cc000 fe:00 123    /usr/lib/libc.so.6",
            "7f39ed560000-7f39ed562000 r-xp 00000000 00:00 0      [vdso]",
            "55555f0f3000-55555f0f6000 rw-p 00000000 00:00 0",
            "",
        ] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn code_goes_on_after_it_was_unmapped() {
        let code = unmap_code().unwrap();
        assert!(code > 0);
        assert_eq!(unmap_code().unwrap(), code);
    }
}
