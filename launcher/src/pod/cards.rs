//! Network cards of a running machine: they are plugged and unplugged, their links are set, and their DHCP
//! servers run as long as the cards exist.
//!
//! ```text
//!  wanted, all its descriptors are held ──> getfd, netdev_add, device_add ──> plugged, its addresses are served
//!  plugged, absent or not wanted ──> device_del ─ guest releases it ─> netdev_del, services end, descriptors are forgotten
//! ```
//!
//! At the start, the supervisor sets the links that should be down before the guest runs. When the
//! descriptors of a card are forgotten, the handler removes its network. The descriptors of a card that was
//! never plugged in and is no longer wanted are forgotten as well.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use barevirt_machine::{HotDisks, HotNic, InterfaceFacts, NetBackend, Nic, TapFd};
use barevirt_protocol::names::NetworkDescriptor;
use barevirt_protocol::v1::{self, Interface};
use barevirt_qmp::qapi::qmp;
use barevirt_qmp::{Deadline, Error, Qmp};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_local};
use tokio::time::Instant;

use super::descriptor_store::DescriptorStore;
use super::host_cards::Functions;
use super::monitored::{
    COMMAND, LATER, Leaving, SOON, ask_for, carry_out, has_device, refused, unless_refused,
};
use super::wanted::Wanted;
use crate::cards::{Card, set_link, wanted_card, wants_down};
use crate::dhcp;
use crate::migration::host_cards::HostCards;

/// A network card of the machine.
#[derive(Debug)]
struct Plugged {
    card: Card,
    network: String,
    /// Names of descriptors that were passed to QEMU.
    given: Vec<String>,
    leaving: Option<Leaving>,
    trouble: String,
}

/// A card that QEMU refused.
#[derive(Debug)]
struct Refused {
    name: String,
    why: String,
    at: Instant,
}

/// The cards of one machine.
#[derive(Debug)]
pub struct Cards {
    plugged: Vec<Plugged>,
    refused: Vec<Refused>,
    /// DHCP servers by network.
    servers: BTreeMap<String, JoinHandle<()>>,
    /// Addresses that the guest has by itself, by network.
    heard: watch::Sender<BTreeMap<String, Vec<IpAddr>>>,
    network_boot: bool,
    next: u64,
    functions: Functions,
}

impl Cards {
    /// The cards that the machine starts with, each with its network.
    #[must_use]
    pub fn new(cards: &[Card], facts: &[Interface], network_boot: bool) -> Self {
        let plugged = cards.iter().filter_map(|card| {
            let facts = facts.iter().find(|facts| facts.name == card.name)?;
            Some(Plugged {
                card: card.clone(),
                network: facts.network.clone(),
                given: Vec::new(),
                leaving: None,
                trouble: String::new(),
            })
        });
        let plugged = plugged.collect();
        let (refused, servers, heard) = (Vec::new(), BTreeMap::new(), watch::Sender::default());
        let functions = Functions::default();
        Self { plugged, refused, servers, heard, network_boot, next: 0, functions }
    }

    /// The same, with cards of the node.
    #[must_use]
    pub fn with(self, cards: HostCards) -> Self {
        Self { functions: Functions::of(cards), ..self }
    }

    /// The cards of the node.
    pub fn of_node(&self) -> &HostCards {
        self.functions.cards()
    }

    /// Changes when another address of the guest is heard, which is part of the state then.
    pub fn heard(&self) -> watch::Receiver<BTreeMap<String, Vec<IpAddr>>> {
        self.heard.subscribe()
    }

    /// Runs the DHCP server of a network until its card is gone.
    pub fn serve(&mut self, network: &str, guest: dhcp::Guest, sockets: dhcp::Sockets) {
        let (heard, of) = (self.heard.clone(), network.to_owned());
        let server = spawn_local(async move {
            let tell = |addresses| heard.send_modify(|all| drop(all.insert(of.clone(), addresses)));
            let Err(error) = dhcp::serve(guest, sockets, tell).await;
            tracing::error!(%error, "the DHCP server of a network failed: the guest gets no addresses from it");
        });
        if let Some(former) = self.servers.insert(network.to_owned(), server) {
            former.abort();
        }
    }

    /// Delay until the next check if nothing changes.
    pub fn pause(&self) -> Option<Duration> {
        let leaving = self.plugged.iter().any(|plugged| plugged.leaving.is_some());
        let leaving = leaving || self.functions.is_leaving();
        let troubled =
            !self.refused.is_empty() || self.plugged.iter().any(|plugged| !plugged.trouble.is_empty());
        if leaving { Some(SOON) } else { troubled.then_some(LATER) }
    }

    /// Checks the cards and acts on differences.
    pub async fn turn(
        &mut self,
        qmp: &Qmp,
        wanted: &Wanted,
        room: &mut HotDisks,
        store: &RefCell<DescriptorStore>,
    ) -> Result<(), Error> {
        let is_wanted = |name: &str| wanted_card(&wanted.vmi, name);
        let mut outcome = self.functions.turn(qmp, wanted).await;
        // A card whose removal was requested is removed even if it is wanted again: it is plugged in again
        // afterwards.
        let go = self.plugged.iter().filter(|one| one.leaving.is_some() || !is_wanted(&one.card.name));
        for name in go.map(|plugged| plugged.card.name.clone()).collect::<Vec<_>>() {
            outcome = outcome.and(self.take_out(qmp, &name, room, store).await);
        }
        self.refused.retain(|refused| is_wanted(&refused.name));
        let emulated = wanted.facts.interfaces.iter().filter(|facts| !wanted.is_passed_through(facts));
        for facts in emulated.filter(|facts| is_wanted(&facts.name)) {
            let tried = |refused: &Refused| refused.name == facts.name && refused.at.elapsed() < LATER;
            let is_there = self.plugged.iter().any(|plugged| plugged.card.name == facts.name);
            if !is_there && !self.refused.iter().any(tried) {
                outcome = outcome.and(self.plug_in(qmp, wanted, facts, room, store).await);
            }
        }
        for plugged in &mut self.plugged {
            outcome = outcome.and(link(qmp, wanted, plugged).await);
        }
        self.drop_unwanted(wanted, &mut store.borrow_mut());
        outcome
    }

    /// Forgets the descriptors of cards that were never plugged in and are no longer wanted. Descriptors for
    /// a later revision than the known one are kept.
    fn drop_unwanted(&self, wanted: &Wanted, store: &mut DescriptorStore) {
        for name in store.given_by(wanted.revision) {
            let Some((network, _)) = NetworkDescriptor::parse(&name) else { continue };
            let is_plugged = self.plugged.iter().any(|plugged| plugged.network == network);
            // Networks have the names of their interfaces.
            if !is_plugged && !wanted_card(&wanted.vmi, network) {
                store.forget(&name);
            }
        }
    }

    async fn plug_in(
        &mut self,
        qmp: &Qmp,
        wanted: &Wanted,
        facts: &Interface,
        room: &mut HotDisks,
        store: &RefCell<DescriptorStore>,
    ) -> Result<(), Error> {
        // The descriptors of its DHCP servers must be there as well, so that it is served from the start.
        let needed = wanted.descriptors(facts);
        if !needed.is_subset(&store.borrow().names()) {
            return Ok(());
        }
        let queues = wanted.taps(facts);
        let taps: Vec<OwnedFd> = queues.iter().filter_map(|name| store.borrow().copy(name)).collect();
        if taps.len() != queues.len() {
            return Ok(());
        }
        self.refused.retain(|refused| refused.name != facts.name);
        let given: Vec<String> = taps.iter().map(|_| self.name()).collect();
        let ready = InterfaceFacts {
            name: facts.name.clone(),
            mac: facts.mac.clone(),
            mtu: u16::try_from(facts.mtu).ok(),
            backend: NetBackend::Tap(given.iter().cloned().map(TapFd::Named).collect()),
        };
        let planned = room.plan_nic(&wanted.vmi, &ready, self.network_boot);
        let guest = wanted.served(facts);
        let (HotNic { nic, steps, room: left }, guest) = match (planned, guest) {
            (Ok(planned), Ok(guest)) => (planned, guest),
            (Err(error), _) => return self.refuse(facts, error.to_string()),
            (_, Err(error)) => return self.refuse(facts, error.to_string()),
        };
        *room = left;
        let plugged = plugged(&nic, facts, given);
        let mut outcome = give(qmp, &plugged.given, &taps).await;
        if outcome.is_ok() {
            outcome = carry_out(qmp, &steps).await;
        }
        if let Err((error, why)) = outcome {
            tracing::warn!(interface = facts.name, why, "card not plugged in");
            // A command without an answer may still be carried out, so the card is recorded as one that must
            // be removed.
            let leaving = Some(Leaving::now(Some(why)));
            self.plugged.push(Plugged { leaving, ..plugged });
            return if matches!(error, Error::Refused { .. }) { Ok(()) } else { Err(error) };
        }
        tracing::info!(interface = facts.name, "card plugged in");
        let sockets = {
            let mut store = store.borrow_mut();
            // They are in use: no others are accepted under these names.
            queues.iter().for_each(|name| drop(store.take(name)));
            let mut take = |kind: NetworkDescriptor| store.take(&kind.of(&facts.network));
            dhcp::Sockets {
                dhcp4: take(NetworkDescriptor::Dhcp4),
                dhcp6: take(NetworkDescriptor::Dhcp6),
                router: take(NetworkDescriptor::RouterAdvertisement),
                bridge_index: facts.bridge_index,
            }
        };
        self.serve(&facts.network, guest, sockets);
        self.plugged.push(plugged);
        Ok(())
    }

    fn name(&mut self) -> String {
        self.next = self.next.saturating_add(1);
        format!("card-{}", self.next)
    }

    fn refuse(&mut self, facts: &Interface, why: String) -> Result<(), Error> {
        tracing::warn!(interface = facts.name, why, "card not plugged in");
        self.refused.push(Refused { name: facts.name.clone(), why, at: Instant::now() });
        Ok(())
    }

    /// Requests the removal of a card from the guest; cleans up when the guest has released it.
    async fn take_out(
        &mut self,
        qmp: &Qmp,
        name: &str,
        room: &mut HotDisks,
        store: &RefCell<DescriptorStore>,
    ) -> Result<(), Error> {
        let Some(at) = self.plugged.iter().position(|plugged| plugged.card.name == name) else {
            return Ok(());
        };
        let Plugged { card, given, leaving, .. } = &mut self.plugged[at];
        if leaving.get_or_insert_with(|| Leaving::now(None)).asks() {
            tracing::info!(interface = name, "the guest is asked to release a network card");
            ask_for(qmp, &card.id).await?;
        }
        if has_device(qmp, &card.id).await? {
            return Ok(());
        }
        let delete = qmp::netdev_del { id: card.netdev.clone() };
        unless_refused(qmp.execute(delete, Deadline::after(COMMAND)).await)?;
        for name in given.iter() {
            let close = qmp::closefd { fdname: name.clone() };
            unless_refused(qmp.execute(close, Deadline::after(COMMAND)).await)?;
        }
        let gone = self.plugged.remove(at);
        room.free_nic(&gone.card.id);
        if let Some(why) = gone.leaving.and_then(|leaving| leaving.refused) {
            self.refused.push(Refused { name: name.to_owned(), why, at: Instant::now() });
            return Ok(());
        }
        if let Some(server) = self.servers.remove(&gone.network) {
            server.abort();
            // Its sockets are closed before the handler reads that in the status.
            let _ = server.await;
        }
        self.heard.send_if_modified(|all| all.remove(&gone.network).is_some());
        let mut store = store.borrow_mut();
        let of_network = |name: &&String| {
            NetworkDescriptor::parse(name).is_some_and(|(network, _)| network == gone.network)
        };
        let names: Vec<String> = store.names().iter().filter(of_network).cloned().collect();
        names.iter().for_each(|name| store.forget(name));
        tracing::info!(interface = name, "card taken out");
        Ok(())
    }

    /// The state that the handler uses.
    pub fn status(&self) -> Vec<v1::Card> {
        let heard = self.heard.borrow();
        let plugged = self.plugged.iter().map(|plugged| {
            let addresses = heard.get(&plugged.network).into_iter().flatten();
            let addresses = addresses.map(ToString::to_string).collect();
            let trouble = plugged.leaving.as_ref().and_then(|leaving| leaving.trouble("card"));
            let trouble = trouble.unwrap_or_else(|| plugged.trouble.clone());
            // The guest has the card until it has released it.
            let has = plugged.leaving.as_ref().is_none_or(|leaving| leaving.refused.is_none());
            let Card { name, down, .. } = plugged.card.clone();
            v1::Card { name, plugged: has, down, trouble, addresses }
        });
        let refused = self.refused.iter().map(|refused| v1::Card {
            name: refused.name.clone(),
            trouble: refused.why.clone(),
            ..v1::Card::default()
        });
        plugged.chain(refused).chain(self.functions.status()).collect()
    }
}

fn plugged(nic: &Nic, facts: &Interface, given: Vec<String>) -> Plugged {
    // QEMU makes cards with their links up.
    let card = Card { name: nic.name.clone(), id: nic.id(), netdev: nic.netdev(), down: false };
    Plugged { card, network: facts.network.clone(), given, leaving: None, trouble: String::new() }
}

/// Passes the descriptors with these names to QEMU.
async fn give(qmp: &Qmp, names: &[String], taps: &[OwnedFd]) -> Result<(), (Error, String)> {
    for (name, tap) in names.iter().zip(taps) {
        let give = qmp::getfd { fdname: name.clone() };
        let answer = qmp.execute_with_fds(give, &[tap.as_fd()], Deadline::after(COMMAND)).await;
        answer.map_err(|error| refused("getfd", error))?;
    }
    Ok(())
}

async fn link(qmp: &Qmp, wanted: &Wanted, plugged: &mut Plugged) -> Result<(), Error> {
    let Plugged { card, leaving: None, trouble, .. } = plugged else { return Ok(()) };
    let down = wants_down(&wanted.vmi, &card.name).filter(|down| *down != card.down);
    trouble.clear();
    let Some(down) = down else { return Ok(()) };
    match set_link(qmp, &card.id, down).await {
        Ok(()) => {
            tracing::info!(interface = card.name, down, "link set");
            card.down = down;
            Ok(())
        }
        Err(error @ Error::Refused { .. }) => {
            tracing::warn!(interface = card.name, %error, "the link could not be set");
            *trouble = format!("QEMU refuses to set the link: {error}");
            Ok(())
        }
        Err(error) => Err(error),
    }
}
