//! The accelerator of this machine: KVM or emulation.

use std::fs;

/// Whether the processor has the virtualisation instructions that guests of any kind need.
///
/// `/dev/kvm` alone does not prove it: if the kernel itself runs in a virtual machine, the device may exist
/// without these instructions, and a guest's boot loader then gets stuck in real mode.
#[must_use]
pub fn processor_virtualises() -> bool {
    fs::read_to_string("/proc/cpuinfo").is_ok_and(|info| flags_virtualise(&info))
}

fn flags_virtualise(info: &str) -> bool {
    let flags = info.lines().find(|line| line.starts_with("flags"));
    flags.is_some_and(|line| line.split_ascii_whitespace().any(|flag| flag == "vmx" || flag == "svm"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_of_the_first_processor_decide() {
        assert!(flags_virtualise("processor\t: 0\nflags\t\t: fpu vmx sse\n"));
        assert!(flags_virtualise("flags\t\t: fpu svm\n"));
        assert!(!flags_virtualise("flags\t\t: fpu hypervisor vmxoff\n"));
        assert!(!flags_virtualise("vmx flags\t: vnmi\n"));
        assert!(!flags_virtualise(""));
    }
}
