//! Cards of a machine, and their links, which can be up or down.

use std::time::Duration;

use barevirt_api::networks::{self, DOWN};
use barevirt_api::valid::ValidVmi;
use barevirt_machine::Nic;
use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};

/// How long QEMU may take for it.
const COMMAND: Duration = Duration::from_secs(10);

/// A card that the machine has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Card {
    /// Name of the interface in the spec.
    pub name: String,
    /// QEMU's id of the device.
    pub id: String,
    /// QEMU's id of what is behind it.
    pub netdev: String,
    /// Its link is down.
    pub down: bool,
}

impl Card {
    /// Those of a machine that starts.
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

/// Whether the link of an interface is to be down. `None` where there is no such interface.
#[must_use]
pub fn wants_down(vmi: &ValidVmi, name: &str) -> Option<bool> {
    let mut interfaces = vmi.interfaces().iter().map(|valid| &valid.interface);
    let interface = interfaces.find(|interface| interface.name == name)?;
    Some(networks::state(interface) == DOWN)
}

/// Whether the guest is to have the card of that interface.
#[must_use]
pub fn wanted_card(vmi: &ValidVmi, name: &str) -> bool {
    let mut interfaces = vmi.interfaces().iter().map(|valid| &valid.interface);
    interfaces.any(|interface| interface.name == name && !networks::is_absent(interface))
}

/// Sets the link of a card up or down. It stays so until it is set again.
///
/// # Errors
/// When QEMU refuses or does not answer.
pub async fn set_link(qmp: &Qmp, id: &str, down: bool) -> Result<(), Error> {
    let set = qmp::set_link { name: id.to_owned(), up: !down };
    qmp.execute(set, Deadline::after(COMMAND)).await.map(drop)
}
