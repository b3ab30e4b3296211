//! `virt-launcher run` with UEFI firmware and a TPM, both Debian's, without a disk and without a network to
//! boot from.
//!
//! Needs QEMU, and Debian's packages ovmf and swtpm.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod support;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use support::is_alive;

/// With emulation, on a busy machine.
const BOOT: Duration = Duration::from_secs(300);

struct Machine {
    launcher: Child,
    log: PathBuf,
}

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = self.launcher.kill();
        let _ = self.launcher.wait();
    }
}

impl Machine {
    /// Starts a machine with these fields of `spec.domain`; its state is kept in the directory.
    fn start(directory: &Path, domain: &str) -> Self {
        let manifest = directory.join("vmi.yaml");
        let text = format!(
            "apiVersion: kubevirt.io/v1\nkind: VirtualMachineInstance\nmetadata: {{ name: test }}\nspec:\n  \
             terminationGracePeriodSeconds: 0\n  domain:\n    memory: {{ guest: 128Mi }}\n{domain}"
        );
        std::fs::write(&manifest, text).unwrap();
        let log = directory.join("serial.log");
        let _ = std::fs::remove_file(&log);
        let launcher = Command::new(env!("CARGO_BIN_EXE_virt-launcher"))
            .arg("run")
            .arg(manifest)
            .args(["--tcg", "--state"])
            .arg(directory)
            .arg("--serial-log")
            .arg(&log)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Self { launcher, log }
    }

    fn says(&self, text: &str) {
        let begun = Instant::now();
        loop {
            let said = std::fs::read(&self.log).unwrap_or_default();
            let said = String::from_utf8_lossy(&said);
            if said.contains(text) {
                return;
            }
            assert!(begun.elapsed() < BOOT, "no {text:?} on the serial port, but {said:?}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Process ids of the launcher's children with this name.
    fn children(&self, name: &str) -> Vec<u32> {
        let pid = self.launcher.id();
        let list = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        let is = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|comm| comm.trim() == name)
        };
        list.split_whitespace().map(|pid| pid.parse().unwrap()).filter(is).collect()
    }

    fn stop(mut self) {
        for _ in 0..2 {
            kill(Pid::from_raw(self.launcher.id().cast_signed()), Signal::SIGTERM).unwrap();
        }
        self.launcher.wait().unwrap();
    }
}

#[test]
fn uefi_without_secure_boot_has_a_shell_and_keeps_its_variables() {
    let directory = tempfile::tempdir().unwrap();
    let uefi = "    firmware: { bootloader: { efi: { secureBoot: false, persistent: true } } }\n    devices: { autoattachPodInterface: false }\n";
    let machine = Machine::start(directory.path(), uefi);
    machine.says("UEFI Interactive Shell");
    machine.stop();
    let kept = directory.path().join("nvram/OVMF_VARS_4M.fd");
    let variables = std::fs::read(&kept).unwrap();
    assert_ne!(variables, std::fs::read("/usr/share/OVMF/OVMF_VARS_4M.fd").unwrap());
    let file = std::fs::metadata(&kept).unwrap();
    let machine = Machine::start(directory.path(), uefi);
    machine.says("UEFI Interactive Shell");
    machine.stop();
    use std::os::unix::fs::MetadataExt;
    assert_eq!(std::fs::metadata(&kept).unwrap().ino(), file.ino(), "a second start takes the same file");
}

#[test]
fn secure_boot_starts_nothing_that_is_not_signed() {
    let directory = tempfile::tempdir().unwrap();
    let secure = "    features: { smm: {} }\n    firmware: { bootloader: { efi: {} } }\n    devices: { autoattachPodInterface: false }\n";
    let machine = Machine::start(directory.path(), secure);
    // With keys in its variables, the firmware offers no shell.
    machine.says("No bootable option");
    machine.stop();
}

#[test]
fn a_tpm_is_a_process_of_its_own_with_its_system_calls_filtered_and_ends_with_qemu() {
    let directory = tempfile::tempdir().unwrap();
    let tpm = "    firmware: { bootloader: { efi: { secureBoot: false } } }\n    devices: { autoattachPodInterface: false, tpm: { persistent: true } }\n";
    let machine = Machine::start(directory.path(), tpm);
    machine.says("BdsDxe");
    let [swtpm] = machine.children("swtpm")[..] else { panic!("no swtpm beside QEMU") };
    let status = std::fs::read_to_string(format!("/proc/{swtpm}/status")).unwrap();
    assert!(status.contains("Seccomp:\t2"), "{status}");
    machine.stop();
    assert!(!is_alive(swtpm));
    assert!(directory.path().join("tpm/tpm2-00.permall").is_file());
}

#[test]
fn a_guest_outlives_its_tpm() {
    let directory = tempfile::tempdir().unwrap();
    let tpm = "    firmware: { bootloader: { efi: { secureBoot: false } } }\n    devices: { autoattachPodInterface: false, tpm: {} }\n";
    let machine = Machine::start(directory.path(), tpm);
    machine.says("BdsDxe");
    let [swtpm] = machine.children("swtpm")[..] else { panic!("no swtpm beside QEMU") };
    kill(Pid::from_raw(swtpm.cast_signed()), Signal::SIGKILL).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert!(!is_alive(swtpm));
    assert_eq!(machine.children("qemu-system-x86").len(), 1);
    machine.stop();
}
