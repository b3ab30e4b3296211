//! A connection to a guest that moves goes on, on a network of all nodes.

use anyhow::ensure;
use barevirt_e2e::moving_guest::machine;
use barevirt_e2e::{Console, held_connection, in_namespace};
use std::time::Duration;

/// The longest time without a number, on a busy machine.
const LONGEST: Duration = Duration::from_secs(20);

#[test]
fn a_pods_connection_to_a_guest_that_moves_loses_nothing_on_a_network_that_the_test_beds_delegate_attaches() {
    in_namespace("moveconnection", |namespace| {
        let mut manifest = machine("vm");
        held_connection::with_card(namespace, &mut manifest)?;
        let mut console = Console::boot(namespace, &manifest)?;
        held_connection::begin(namespace, &mut console)?;
        console.leave()?;
        namespace.migrate("vm")?;
        held_connection::goes_on(namespace, held_connection::POD)?;
        let received = held_connection::received(namespace)?;
        println!("the longest gap while the guest moved: {:?}", received.longest_gap);
        ensure!(received.longest_gap < LONGEST, "the longest gap: {:?}", received.longest_gap);
        Ok(())
    });
}
