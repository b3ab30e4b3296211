//! Hostile guests whose second cards are connected as binding plugins say, beside a guest with a bridge on the same network. They
//! send what `together/hostile_guest.rs` has a guest with a bridge send.

use anyhow::{Context, Result};
use barevirt_e2e::hostile::{self, Card, Guest, LAN, Peer};
use barevirt_e2e::{alone, binding_plugins, in_namespace};

/// The guests that send, one of each plugin.
const HOSTILE: [(&str, Card); 2] = [("managed", Card::Managed), ("macvtap", Card::Macvtap)];

#[test]
fn macspoofchk_keeps_in_hostile_guests_of_binding_plugins_where_the_test_beds_delegate_attaches() {
    in_namespace("hostile-plugins", |namespace| {
        let _alone = alone();
        let _changed = binding_plugins::begin()?;
        hostile::define_lan(namespace)?;
        hostile::start(namespace, "victim", Card::Bridge)?;
        for (name, card) in HOSTILE {
            hostile::start(namespace, name, card)?;
        }
        let mut victim = Guest::booted(namespace, "victim", Card::Bridge)?;
        let booted = |(name, card)| Guest::booted(namespace, name, card);
        let guests = HOSTILE.into_iter().map(booted).collect::<Result<Vec<_>>>()?;
        let address = victim.lan.clone();
        let beside = Peer::begin(namespace, "beside", Some(LAN), &mut victim, &address)?;
        // Before this, the handler says that it finds no macvtap yet.
        let began = jiff::Timestamp::now();
        for mut guest in guests {
            let name = guest.name;
            hostile::is_kept_in_on_lan(namespace, &mut guest, &mut victim, &beside).context(name)?;
            hostile::nothing_has_failed(namespace, &guest, began, &[])?;
            guest.console.leave()?;
        }
        victim.console.leave().map(drop)
    });
}
