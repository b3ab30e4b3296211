//! Code between fork and exec, and two system calls that have no safe form: the only unsafe code of this
//! crate.
#![allow(unsafe_code)]
#![warn(clippy::undocumented_unsafe_blocks)]

use std::ops::Range;
use std::{fs, io};

use barevirt_confinement::Domain;
use nix::errno::Errno;

/// Makes the child die with this process, in whichever way this process ends, and not start at all if it has
/// already ended.
///
/// The death signal is bound to the thread that forks: the launcher has one.
pub(super) fn die_with_this_process(command: &mut tokio::process::Command) {
    let parent = nix::unistd::getpid();
    let before_exec = move || -> io::Result<()> {
        nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?;
        if nix::unistd::getppid() == parent { Ok(()) } else { Err(Errno::ESRCH.into()) }
    };
    // SAFETY: between fork and exec the closure makes two system calls; it neither allocates, locks nor
    // touches memory of the parent.
    unsafe {
        command.pre_exec(before_exec);
    }
}

/// Confines the child before its program begins.
pub(super) fn confine(command: &mut tokio::process::Command, domain: Domain) {
    let before_exec = move || domain.enter_in_child();
    // SAFETY: between fork and exec the closure makes a few system calls with values that were prepared
    // before; it neither allocates, locks nor touches memory of the parent.
    unsafe {
        command.pre_exec(before_exec);
    }
}

/// Whether memory may be bound to a NUMA node. The container runtime's seccomp filter may forbid the call, so
/// it is tried without any memory.
#[must_use]
pub fn may_bind_memory() -> bool {
    const NOTHING: libc::c_long = 0;
    // SAFETY: the call is given a range of no bytes, no node mask and the default policy: it reads and changes nothing.
    unsafe { libc::syscall(libc::SYS_mbind, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING, NOTHING) == 0 }
}

/// Address ranges in which this process has mapped its program unchanged: code and constants that were never
/// written to.
#[derive(Debug)]
pub struct AsInFile(Vec<Range<usize>>);

impl AsInFile {
    /// The ranges of this process. They stay valid during its life: a static program maps nothing of its file
    /// later, and writes to no read-only range.
    ///
    /// # Errors
    /// If the kernel does not list the mappings.
    pub fn find() -> io::Result<Self> {
        let program = fs::read_link("/proc/self/exe")?;
        let maps = fs::read_to_string("/proc/self/smaps")?;
        Ok(Self(as_in_file(&maps, program.to_str().unwrap_or_default())))
    }

    /// Unmaps these pages. Most of them were only used once, at the start; a page that is used again is
    /// mapped again from the page cache, sixteen pages at a time. This halves the memory of a launcher beside
    /// its QEMU.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn unmap(&self) -> io::Result<()> {
        for Range { start, end } in &self.0 {
            // SAFETY: the range is a private mapping of a file that may not be written to and never was:
            // every page has the content of the file, and is read from the file again when it is touched.
            let refused =
                unsafe { libc::madvise(*start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
            Errno::result(refused)?;
        }
        Ok(())
    }
}

/// Parses the ranges from the text of `/proc/PID/smaps` (proc_pid_smaps(5)). A mapping with an anonymous page
/// was written to, such as data that the loader relocated before it became read-only.
fn as_in_file(smaps: &str, program: &str) -> Vec<Range<usize>> {
    let mut found: Vec<Range<usize>> = Vec::new();
    let mut present = None;
    for line in smaps.lines() {
        if let Some(range) = range(line) {
            let mut words = line.split_ascii_whitespace().skip(1);
            let (permissions, path) = (words.next().unwrap_or_default(), words.nth(3));
            let unwritable = ["r-xp", "r--p"].contains(&permissions);
            present = Some(range).filter(|_| unwritable && path == Some(program));
        } else if line.starts_with("Anonymous:") && line.split_ascii_whitespace().nth(1) == Some("0") {
            found.extend(present.take());
        }
    }
    found
}

/// The address range at the start of a line, if it is the first line of a mapping.
fn range(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_ascii_whitespace().next()?.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    Some(address(start)?..address(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f39eca00000-7f39ecacc000 r--p 00000000 fe:00 123    /usr/bin/virt-launcher
Size:                816 kB
Anonymous:             0 kB
VmFlags: rd mr mw me sd
7f39ecacc000-7f39ed14f000 r-xp 000cc000 fe:00 123    /usr/bin/virt-launcher
Size:               6668 kB
Anonymous:             0 kB
7f39ed14f000-7f39ed450000 r--p 0074f000 fe:00 123    /usr/bin/virt-launcher
Anonymous:             8 kB
7f39ed450000-7f39ed4c0000 rw-p 00a50000 fe:00 123    /usr/bin/virt-launcher
Anonymous:             0 kB
7f39ed4c0000-7f39ed550000 r-xp 000cc000 fe:00 123    /usr/lib/libc.so.6
Anonymous:             0 kB
7f39ed560000-7f39ed562000 r-xp 00000000 00:00 0      [vdso]
Anonymous:             0 kB
55555f0f3000-55555f0f6000 r--p 00000000 00:00 0
Anonymous:             0 kB
";

    #[test]
    fn only_what_was_never_written_to_is_as_in_the_file() {
        assert_eq!(
            as_in_file(SMAPS, "/usr/bin/virt-launcher"),
            [0x7f39_eca0_0000..0x7f39_ecac_c000, 0x7f39_ecac_c000..0x7f39_ed14_f000]
        );
        assert!(as_in_file("", "/usr/bin/virt-launcher").is_empty());
    }

    #[test]
    fn the_program_goes_on_after_it_was_unmapped() {
        let pages = AsInFile::find().unwrap();
        assert!(!pages.0.is_empty());
        pages.unmap().unwrap();
        assert_eq!(AsInFile::find().unwrap().0, pages.0);
    }
}
