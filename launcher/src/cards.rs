//! Network cards of a machine, and their links, which can be up or down.

use std::time::Duration;

use barevirt_api::networks::{self, DOWN};
use barevirt_api::valid::ValidVmi;
use barevirt_machine::Nic;
use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};

/// Time limit for QEMU's answer.
const COMMAND: Duration = Duration::from_secs(10);

/// A network card of the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Name of the interface in the spec.
    pub name: String,
    /// QEMU's id of the device.
    pub id: String,
    /// QEMU's id of its backend.
    pub netdev: String,
    /// Whether its link is down.
    pub down: bool,
}

impl Card {
    /// The cards of a machine at its start.
    #[must_use]
    pub fn of(nics: &[Nic], vmi: &ValidVmi) -> Vec<Self> {
        let card = |nic: &Nic| Card {
            name: nic.name.clone(),
            id: nic.id(),
            netdev: nic.netdev(),
            down: wants_down(vmi, &nic.name).unwrap_or_default(),
        };
        nics.iter().map(card).collect()
    }
}

/// Whether the link of an interface should be down. `None` if there is no such interface.
#[must_use]
pub fn wants_down(vmi: &ValidVmi, name: &str) -> Option<bool> {
    let mut interfaces = vmi.interfaces().iter().map(|valid| &valid.interface);
    let interface = interfaces.find(|interface| interface.name == name)?;
    Some(networks::state(interface) == DOWN)
}

/// Whether the guest should have the card of this interface.
#[must_use]
pub fn wanted_card(vmi: &ValidVmi, name: &str) -> bool {
    let mut interfaces = vmi.interfaces().iter().map(|valid| &valid.interface);
    interfaces.any(|interface| interface.name == name && !networks::is_absent(interface))
}

/// Sets the link of a card up or down, until it is set again.
///
/// # Errors
/// If QEMU refuses or does not answer.
pub async fn set_link(qmp: &Qmp, id: &str, down: bool) -> Result<(), Error> {
    let set = qmp::set_link { name: id.to_owned(), up: !down };
    qmp.execute(set, Deadline::after(COMMAND)).await.map(drop)
}
