//! Hardware acceleration.

use std::fs::{self, File};
use std::io;
use std::os::fd::OwnedFd;

/// The device of hardware acceleration.
pub(super) const DEVICE: &str = "/dev/kvm";

/// Opens the device of hardware acceleration. It may exist although the CPU does not support it (nested under
/// a hypervisor that does not pass it on). Guests would hang there, so the CPU is checked too.
pub(super) fn open() -> io::Result<OwnedFd> {
    let processor = fs::read_to_string("/proc/cpuinfo")?;
    if !has_virtualization(&processor) {
        return Err(io::Error::new(io::ErrorKind::Unsupported, "the processor has neither vmx nor svm"));
    }
    File::options().read(true).write(true).open(DEVICE).map(OwnedFd::from)
}

/// Whether a CPU, as described by `/proc/cpuinfo`, can run virtual machines.
fn has_virtualization(cpuinfo: &str) -> bool {
    let flags =
        cpuinfo.lines().find(|line| line.split(':').next().is_some_and(|name| name.trim() == "flags"));
    flags.is_some_and(|flags| flags.split_whitespace().any(|flag| flag == "vmx" || flag == "svm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn virtualization_is_read_from_the_flags_only() {
        assert!(has_virtualization("processor\t: 0\nflags\t\t: fpu vmx sse2\n"));
        assert!(has_virtualization("flags : svm"));
        assert!(!has_virtualization(
            "processor\t: 0\nflags\t\t: fpu sse2\nvmx flags\t: vnmi\nmodel name: vmx\n"
        ));
        assert!(!has_virtualization(""));
    }
}
