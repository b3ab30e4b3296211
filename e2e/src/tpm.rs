//! A guest with a TPM, and the one thing that tests store in it.

use crate::console::Console;
use crate::guest;
use crate::namespace::Namespace;
use crate::wait::{BOOT, RUNNING};
use anyhow::{Result, ensure};
use serde_json::Value;
use std::time::Duration;

/// How long a command of the guest may take.
const COMMAND: Duration = Duration::from_secs(60);
/// `TPM2_NV_DefineSpace` of the index 0x01500001, by the owner.
const DEFINE: &str = r"\200\002\000\000\000\055\000\000\001\052\100\000\000\001\000\000\000\011\100\000\000\011\000\000\000\000\000\000\000\000\016\001\120\000\001\000\013\000\006\000\006\000\000\000\010";
/// `TPM2_NV_ReadPublic` of the same.
const READ: &str = r"\200\001\000\000\000\016\000\000\001\151\001\120\000\001";

/// Starts the machine `vm` with a TPM of these settings, and stores an index in it.
pub fn start_machine(namespace: &Namespace, tpm: Value) -> Result<()> {
    // Without a disk, which a migration would have to copy.
    let mut vm = guest::movable(guest::machine("vm", "Always"));
    guest::spec_of(&mut vm)["domain"]["devices"]["tpm"] = tpm;
    namespace.apply(&vm)?;
    namespace.wait_phase("vm", "Running", RUNNING)?;
    let mut console = Console::open(namespace, "vm")?;
    console.login(BOOT)?;
    ensure!(console.ok("cat /sys/class/tpm/tpm0/tpm_version_major", COMMAND)? == "2");
    ensure!(!succeeds(&mut console, READ)?, "a new TPM holds nothing");
    ensure!(succeeds(&mut console, DEFINE)?, "the TPM does not store the index");
    console.leave().map(drop)
}

/// Fails unless the TPM of the machine `vm` still has the index. `login` is the time limit for the guest's prompt.
pub fn ensure_kept(namespace: &Namespace, login: Duration) -> Result<()> {
    let mut console = Console::open(namespace, "vm")?;
    console.login(login)?;
    ensure!(succeeds(&mut console, READ)?, "the TPM has lost the index");
    console.leave().map(drop)
}

/// Sends a command to the TPM, in the syntax of `printf`, and returns whether it succeeded.
fn succeeds(console: &mut Console, command: &str) -> Result<bool> {
    let line = format!(
        "exec 3<>/dev/tpm0; printf '{command}' >&3; dd bs=4096 count=1 <&3 2>/dev/null >/tmp/answer; hexdump -s 6 -n 4 -e '4/1 \"%02x\"' /tmp/answer; exec 3>&-"
    );
    Ok(console.ok(&line, COMMAND)?.ends_with("00000000"))
}
