//! Devices of QEMU that have an id.

use std::collections::BTreeSet;

use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};

/// The ids of all devices that QEMU has. One that the guest was asked to release is there until it has.
///
/// # Errors
/// If QEMU does not answer.
pub async fn ids(qmp: &Qmp, by: Deadline) -> Result<BTreeSet<String>, Error> {
    let all = qmp::qom_list { path: "/machine/peripheral".to_owned() };
    Ok(qmp.execute(all, by).await?.into_iter().map(|one| one.name).collect())
}
