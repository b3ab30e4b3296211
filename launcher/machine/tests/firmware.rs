//! Exact command lines of machines that need more than the BIOS.

#![allow(clippy::unwrap_used, clippy::expect_used)] // A test fails by panicking, helpers of tests too.

mod common;

use barevirt_api::valid::ValidVmi;
use barevirt_machine::*;
use common::{facts, valid};

fn manifest(text: &str) -> ValidVmi {
    valid(serde_saphyr::from_str(text).expect("a readable manifest"))
}

/// The options that firmware, kernel and TPM affect, one per line.
fn options(vmi: &ValidVmi, firmware: FirmwareFacts) -> String {
    const SHOWN: [&str; 8] =
        ["-machine", "-blockdev", "-global", "-kernel", "-initrd", "-append", "-acpitable", "-tpmdev"];
    let argv = argv(&plan(vmi, &Facts { firmware, ..facts(vmi) }).unwrap());
    let pairs = argv.windows(2).filter(|pair| SHOWN.contains(&pair[0].as_str()) || pair[1].contains("tpm0"));
    pairs.map(|pair| pair.join(" ")).collect::<Vec<_>>().join("\n")
}

fn flash() -> FirmwareFacts {
    let code = FileSource::Path("/usr/share/OVMF/code.fd".to_owned());
    FirmwareFacts { flash: Some(Flash { code, variables: FileSource::FdSet(2) }), ..FirmwareFacts::default() }
}

#[test]
fn uefi() {
    insta::assert_snapshot!(options(&manifest(include_str!("manifests/uefi.yaml")), flash()));
}

#[test]
fn secure_boot() {
    insta::assert_snapshot!(options(&manifest(include_str!("manifests/secure-boot.yaml")), flash()));
}

#[test]
fn kernel_boot_and_tpm() {
    let firmware = FirmwareFacts {
        kernel: Some("/proc/self/fd/14".to_owned()),
        initrd: Some("/proc/self/fd/15".to_owned()),
        tpm: Some(Fd(16)),
        acpi_tables: vec!["/proc/self/fd/17".to_owned()],
        ..FirmwareFacts::default()
    };
    insta::assert_snapshot!(options(&manifest(include_str!("manifests/kernel-boot.yaml")), firmware));
}

#[test]
fn ignition_reads_its_data_from_the_machine() {
    let vmi = manifest(include_str!("manifests/uefi.yaml"));
    let firmware = FirmwareFacts { ignition: Some("/proc/self/fd/18".to_owned()), ..flash() };
    let argv = argv(&plan(&vmi, &Facts { firmware, ..facts(&vmi) }).unwrap());
    let pair = argv.windows(2).find(|pair| pair[0] == "-fw_cfg").unwrap();
    assert_eq!(pair[1], "name=opt/com.coreos/config,file=/proc/self/fd/18");
}

#[test]
fn missing_firmware_is_named() {
    for (text, expected) in [
        (
            include_str!("manifests/uefi.yaml"),
            "spec.domain.firmware.bootloader.efi: the firmware has not been prepared",
        ),
        (
            include_str!("manifests/kernel-boot.yaml"),
            "spec.domain.firmware.kernelBoot.container.kernelPath: the file has not been prepared",
        ),
    ] {
        let vmi = manifest(text);
        assert_eq!(plan(&vmi, &facts(&vmi)).unwrap_err().to_string(), expected);
    }
}
