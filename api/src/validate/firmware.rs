//! Machine type and firmware.

use super::text::{is_printable, is_uuid, quoted};
use super::{Cause, Path};
use crate::v1::VirtualMachineInstanceSpec;

/// Longest SMBIOS serial number that is accepted.
const SERIAL_LIMIT: usize = 256;

pub(super) fn validate(path: &Path, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    if let Some(machine) = spec.domain.machine.as_ref().and_then(|machine| machine.type_.as_deref())
        && !is_machine_type(machine)
    {
        let field = path.child("domain.machine.type");
        causes.push(Cause::invalid(
            &field,
            format!("{field} is not supported: {} (allowed values: [q35* pc-q35*])", quoted(machine)),
        ));
    }
    let Some(firmware) = spec.domain.firmware.as_ref() else { return };
    let field = path.child("domain.firmware");
    if let Some(uuid) = firmware.uuid.as_deref().filter(|uuid| !uuid.is_empty() && !is_uuid(uuid)) {
        let field = field.child("uuid");
        causes.push(Cause::invalid(&field, format!("{field} '{}' is not a UUID", quoted(uuid))));
    }
    if firmware.serial.as_deref().is_some_and(|serial| !is_printable(serial, SERIAL_LIMIT)) {
        let field = field.child("serial");
        causes.push(Cause::invalid(
            &field,
            format!("{field} must be made up of printable ASCII characters, at most {SERIAL_LIMIT}"),
        ));
    }
}

/// `q35`, `pc-q35` and versioned forms of them; nothing that could add to the command line.
fn is_machine_type(text: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    text.is_empty()
        || (text.len() <= 64
            && text.bytes().all(known)
            && (text.starts_with("q35") || text.starts_with("pc-q35")))
}
