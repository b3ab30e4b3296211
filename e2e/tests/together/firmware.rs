//! UEFI, kernel boot and TPM, and their persistent state.

use anyhow::{Context, Result, ensure};
use barevirt_e2e::wait::{BOOT, RUNNING, SOON};
use barevirt_e2e::{Console, Namespace, guest, in_namespace, in_no_namespace, tpm};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use std::time::Duration;

/// How long a command of the guest may take.
const COMMAND: Duration = Duration::from_secs(60);

/// Removes disks and network, so that the firmware has nothing to boot from, and soon stops looking.
pub(crate) fn without_disks(manifest: Value) -> Value {
    let mut manifest = without_network(manifest);
    let spec = guest::spec_of(&mut manifest);
    spec["domain"]["devices"]["disks"] = json!([]);
    spec["volumes"] = json!([]);
    manifest
}

fn without_network(mut manifest: Value) -> Value {
    let spec = guest::spec_of(&mut manifest);
    spec["domain"]["devices"]["autoattachPodInterface"] = json!(false);
    spec["domain"]["devices"]["interfaces"] = json!([]);
    spec["networks"] = json!([]);
    manifest
}

/// Boots a kernel in the small guest's image. UEFI needs Debian's, and with BIOS the small one boots much faster.
fn with_kernel(mut manifest: Value, [kernel, initrd]: [&str; 2]) -> Value {
    let domain = &mut guest::spec_of(&mut manifest)["domain"];
    // UEFI and the initial file system need memory at the same time.
    domain["memory"]["guest"] = json!("256Mi");
    domain["firmware"]["kernelBoot"] = json!({
        "kernelArgs": "console=ttyS0 quiet net.ifnames=0 no_timer_check from=the-image",
        "container": {
            "image": guest::tiny_image(), "kernelPath": kernel, "initrdPath": initrd,
        },
    });
    manifest
}

pub(crate) fn with_uefi(mut manifest: Value, efi: Value) -> Value {
    let domain = &mut guest::spec_of(&mut manifest)["domain"];
    if efi["secureBoot"] != json!(false) {
        domain["features"]["smm"] = json!({});
    }
    domain["firmware"]["bootloader"] = json!({ "efi": efi });
    manifest
}

/// The UEFI shell, which starts without secure boot and without a disk.
pub(crate) fn shell(namespace: &Namespace, name: &str) -> Result<Console> {
    namespace.wait_phase(name, "Running", RUNNING)?;
    let mut console = Console::open(namespace, name)?;
    prompt(&mut console)?;
    Ok(console)
}

/// Waits for the shell's prompt.
fn prompt(console: &mut Console) -> Result<()> {
    // The firmware waits five seconds for a key; a late key does no harm. A key makes a shell that started
    // earlier print its prompt again.
    for _ in 0..60 {
        if console.expect("Shell>", Duration::from_secs(2)).is_ok() {
            return Ok(());
        }
        console.send("\r")?;
    }
    console.expect("Shell>", SOON).map(drop)
}

/// Restarts the firmware from its shell, and waits for the next shell. The former one may take its time, and would swallow what
/// is typed too early.
pub(crate) fn restart_firmware(console: &mut Console) -> Result<()> {
    console.send("reset -w\r")?;
    console.expect("UEFI Interactive Shell", BOOT)?;
    prompt(console)
}

/// The variable of a test, as the shell's command names it.
fn variable(name: &str) -> String {
    format!("setvar {name} -guid 12345678-1234-1234-1234-123456789abc")
}

/// Stores a variable of one byte. That it can be read shows that it is stored: a prompt may be that of an earlier key.
pub(crate) fn store_variable(console: &mut Console, name: &str) -> Result<()> {
    console.send(&format!("{} -nv -bs =42\r", variable(name)))?;
    console.expect("Shell>", COMMAND)?;
    has_variable(console, name)
}

/// Reads it.
pub(crate) fn has_variable(console: &mut Console, name: &str) -> Result<()> {
    console.send(&format!("{}\r", variable(name)))?;
    console.expect(&format!("{name} - 0001 Bytes"), COMMAND).map(drop)
}

/// Claims with the state of a machine.
fn claims(namespace: &Namespace, of: &str) -> Result<Vec<Value>> {
    let is = |claim: &Value| claim["metadata"]["labels"]["persistent-state-for"] == of;
    Ok(namespace.list("persistentvolumeclaims")?.into_iter().filter(is).collect())
}

fn restart(namespace: &Namespace, name: &str) -> Result<()> {
    let uid = |vmi: &Value| vmi["metadata"]["uid"].clone();
    let before = uid(&namespace.need("vmi", name)?);
    namespace.virtctl(&["restart", name])?;
    namespace
        .wait("vmi", name, "to be another, and Running", RUNNING, |vmi| {
            uid(vmi) != before && vmi["status"]["phase"] == "Running"
        })
        .map(drop)
}

#[test]
fn a_kernel_of_an_image_boots_by_bios_and_by_uefi() {
    in_namespace("kernelboot", |namespace| {
        let plain = with_kernel(guest::instance("bios"), ["/boot/small", "/boot/small-initrd"]);
        namespace.apply(&without_disks(plain))?;
        let signed = with_kernel(guest::instance("uefi"), ["/boot/vmlinuz", "/boot/initrd"]);
        namespace.apply(&with_uefi(without_disks(signed), json!({ "secureBoot": false })))?;
        for (name, is_uefi) in [("bios", false), ("uefi", true)] {
            namespace.wait_phase(name, "Running", RUNNING)?;
            let mut console = Console::open(namespace, name)?;
            console.login(BOOT)?;
            console.ok("grep -q from=the-image /proc/cmdline", COMMAND)?;
            let (_, code) = console.run("[ -d /sys/firmware/efi ]", COMMAND)?;
            ensure!((code == 0) == is_uefi, "{name}: /sys/firmware/efi is there: {}", code == 0);
            console.leave()?;
        }
        let pod = namespace.launcher("bios")?;
        let volumes = pod["spec"]["volumes"].as_array().context("no volumes")?;
        ensure!(volumes.iter().any(|volume| volume["image"]["reference"] == guest::tiny_image()));
        Ok(())
    });
}

#[test]
fn a_kernel_that_is_not_in_the_image_is_named() {
    in_namespace("nokernel", |namespace| {
        let missing = with_kernel(guest::instance("vmi"), ["/boot/nothing", "/boot/initrd"]);
        namespace.apply(&without_disks(missing))?;
        namespace.wait_phase("vmi", "Failed", RUNNING)?;
        let told = namespace.wait_event("vmi", "Stopped")?;
        ensure!(told.contains("/boot/nothing"), "the event does not name the file: {told}");
        Ok(())
    });
}

/// An ACPI table MSDM: the header, and a licence of four bytes. QEMU leaves a correct checksum as it is.
pub(crate) fn table() -> Vec<u8> {
    let mut table = b"MSDM\x28\0\0\0\x01\0VENDORLICENCES\x01\0\0\0MADE\x01\0\0\0\x11\x22\x33\x44".to_vec();
    table[9] = table.iter().fold(0_u8, |sum, byte| sum.wrapping_sub(*byte));
    table
}

/// Gives a guest the table of a secret, which is made with those bytes.
pub(crate) fn with_table(namespace: &Namespace, mut manifest: Value, table: &[u8]) -> Result<Value> {
    namespace.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "licence" },
        "data": { "msdm.bin": STANDARD.encode(table) },
    }))?;
    let spec = guest::spec_of(&mut manifest);
    guest::push(&mut spec["volumes"], json!({ "name": "key", "secret": { "secretName": "licence" } }));
    spec["domain"]["firmware"]["acpi"]["msdmNameRef"] = json!("key");
    Ok(manifest)
}

/// `features` has a guest with a correct one.
#[test]
fn a_secret_that_is_no_table_is_named() {
    in_namespace("acpitable", |namespace| {
        namespace.apply(&with_table(namespace, guest::instance("wrong"), b"no table")?)?;
        let failed = namespace.wait_phase("wrong", "Failed", RUNNING)?;
        let message = failed["status"]["conditions"].to_string();
        let expected = "spec.domain.firmware.acpi.msdmNameRef: msdm.bin of volume key is not an ACPI table MSDM: it has 8 bytes";
        ensure!(message.contains(expected), "{message}");
        Ok(())
    });
}

/// The loader, GRUB and the kernel of the small guest's disk are Debian's signed ones.
#[test]
fn secure_boot_starts_what_is_signed_and_nothing_that_was_changed() {
    in_namespace("secureboot", |namespace| {
        let mut vmi = with_uefi(without_network(guest::instance("vmi")), json!({}));
        vmi["spec"]["domain"]["memory"]["guest"] = json!("256Mi");
        namespace.apply(&vmi)?;
        namespace.wait_phase("vmi", "Running", RUNNING)?;
        let mut console = Console::open(namespace, "vmi")?;
        console.login(BOOT)?;
        console.ok("mount -t efivarfs efivarfs /sys/firmware/efi/efivars", COMMAND)?;
        let secure = console.ok(
            "tail -c 1 /sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c | od -A n -t u1",
            COMMAND,
        )?;
        ensure!(secure.trim() == "1", "SecureBoot is {secure:?}");

        // One byte of the second loader; the disk stays as it is over a reset.
        console.ok("mount -t vfat /dev/vda2 /mnt", COMMAND)?;
        console.ok(
            "printf x | dd of=/mnt/EFI/BOOT/grubx64.efi bs=1 seek=500000 conv=notrunc && umount /mnt && sync",
            COMMAND,
        )?;
        namespace.virtctl(&["reset", "vmi"])?;
        console.expect("Security Violation", BOOT).map(drop)
    });
}

#[test]
fn secure_boot_without_system_management_mode_is_refused() {
    in_no_namespace(|namespace| {
        let mut manifest = with_uefi(guest::instance("vmi"), json!({}));
        manifest["spec"]["domain"]["features"] = json!({});
        let refusal = namespace.refusal(&manifest)?;
        ensure!(refusal.contains("SecureBoot requires SMM"), "{refusal}");
        Ok(())
    });
}

#[test]
fn variables_of_uefi_are_kept_over_a_restart_and_go_with_the_machine() {
    in_namespace("variables", |namespace| {
        let efi = json!({ "secureBoot": false, "persistent": true });
        namespace.apply(&with_uefi(without_disks(guest::machine("vm", "Always")), efi))?;
        let mut console = shell(namespace, "vm")?;
        store_variable(&mut console, "kept")?;
        console.leave()?;

        let found = claims(namespace, "vm")?;
        ensure!(found.len() == 1, "{} claims", found.len());
        let claim = found[0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        ensure!(claim.starts_with("persistent-state-for-vm-"), "{claim}");
        ensure!(found[0]["metadata"]["ownerReferences"][0]["kind"] == "VirtualMachine");
        let vmi = namespace.need("vmi", "vm")?;
        let volumes = vmi["status"]["volumeStatus"].as_array().cloned().unwrap_or_default();
        let noted = volumes.iter().any(|volume| {
            volume["name"] == "persistent-state-for-this-vm"
                && volume["persistentVolumeClaimInfo"]["claimName"] == claim
        });
        ensure!(noted, "{volumes:?}");

        restart(namespace, "vm")?;
        let mut console = shell(namespace, "vm")?;
        has_variable(&mut console, "kept")?;
        console.leave()?;
        ensure!(claims(namespace, "vm")?.len() == 1, "a restart takes the same claim");

        namespace.delete("vm", "vm")?;
        namespace.wait_gone("persistentvolumeclaims", &claim, RUNNING)
    });
}

#[test]
fn a_persistent_tpm_keeps_what_it_holds_over_a_restart() {
    in_namespace("tpm", |namespace| {
        tpm::start_machine(namespace, json!({ "persistent": true }))?;
        restart(namespace, "vm")?;
        tpm::ensure_kept(namespace, BOOT)?;
        // A machine without persistent state has no claim.
        let claim = claims(namespace, "vm")?.first().context("no claim")?["metadata"]["name"].clone();
        let without = json!({"spec": {"template": {"spec": {"domain": {"devices": {"tpm": null}}}}}});
        namespace.merge("vm", "vm", &without)?;
        restart(namespace, "vm")?;
        namespace.wait_gone("persistentvolumeclaims", claim.as_str().unwrap_or_default(), RUNNING)
    });
}

#[test]
fn the_claim_of_an_ownerless_instance_is_deleted_with_it() {
    in_namespace("nobodys", |namespace| {
        namespace.enforce("restricted")?;
        let mut vmi = guest::without_system(guest::instance("vmi"));
        vmi["spec"]["domain"]["devices"]["tpm"] = json!({ "persistent": true });
        namespace.apply(&vmi)?;
        namespace.wait_phase("vmi", "Running", RUNNING)?;
        let found = claims(namespace, "vmi")?;
        ensure!(
            found.len() == 1
                && found[0]["metadata"]["ownerReferences"][0]["kind"] == "VirtualMachineInstance"
        );
        let claim = found[0]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        namespace.delete("vmi", "vmi")?;
        namespace.wait_gone("persistentvolumeclaims", &claim, RUNNING)
    });
}
