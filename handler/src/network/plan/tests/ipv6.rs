//! What a bridge saves of IPv6, and gives back.

use super::*;
use crate::network::state::Routers;

const GATEWAY: &str = "fd00:10:244:1::1";
const ROUTER: &str = "fe80::ba:5eff:fe00:101";

fn route(destination: &str, prefix: u8, gateway: Option<&str>) -> Route {
    Route {
        destination: destination.parse().unwrap(),
        prefix,
        gateway: gateway.map(|gateway| gateway.parse().unwrap()),
    }
}

fn routers() -> Routers {
    [((2, GATEWAY.parse().unwrap()), ROUTER.parse().unwrap())].into()
}

/// A pod with routes of both families. The router of one route is unknown.
fn dual_pod() -> Observed {
    let mut observed = pod_with_routes();
    let eth0 = observed.links.get_mut("eth0").unwrap();
    eth0.routes.extend([
        route("fd00:10:244:1::", 64, None),
        route("::", 0, Some(GATEWAY)),
        route("fd00:96::", 64, Some("fe80::9")),
        route("fd00:97::", 64, Some("fd00:10:244:1::9")),
    ]);
    observed.routers = routers();
    observed
}

/// The routes of IPv6 that are saved.
fn saved() -> BTreeSet<Route> {
    [
        route("fd00:10:244:1::", 64, None),
        route("::", 0, Some(ROUTER)),
        route("fd00:96::", 64, Some("fe80::9")),
    ]
    .into()
}

#[test]
fn ipv6_routes_are_saved_with_their_routers_at_a_link_of_their_own() {
    let (observed, card) = (dual_pod(), bridged("default", "eth0"));
    let steps = plan(&card, &observed).unwrap();
    let after = carry_out(&observed, &steps);
    let (note, bridge) = (&after.links["noteeth0"], &after.links["k6t-eth0"]);
    assert_eq!((note.kind, note.up, &note.kept_routes), (Kind::Bridge, true, &saved()));
    assert!(bridge.kept_routes.iter().all(|route| route.destination.is_ipv4()));
    assert!(after.links.values().all(|link| link.controller != Some(note.index)));
    let down = steps.iter().position(|step| matches!(step, Step::Down { .. })).unwrap();
    let kept = steps.iter().rposition(|step| matches!(step, Step::KeepRoute { .. })).unwrap();
    assert!(kept < down);
    for link in ["keepeth0", "noteeth0"] {
        let path = format!("net/ipv6/conf/{link}/disable_ipv6");
        assert!(steps.contains(&Step::Sysctl { path, value: "0", optional: true }), "{link}");
    }
    assert_eq!(plan(&card, &after), Ok(vec![]));
}

#[test]
fn frames_are_served_where_the_link_has_a_lasting_ipv6_address() {
    let frames = |observed: &Observed, binding| {
        let steps = plan(&Wanted { binding, ..bridged("default", "eth0") }, observed).unwrap();
        let mut services = steps.into_iter().filter_map(|step| match step {
            Step::Open { service: Service::Frames, link, descriptor } => Some((link, descriptor)),
            _ => None,
        });
        services.next()
    };
    let opened = ("tap0".to_owned(), "net/default/ra".to_owned());
    assert_eq!(frames(&dual_pod(), Binding::Bridge), Some(opened));
    assert_eq!(frames(&dual_pod(), Binding::ManagedTap), None);
    let mut ipv4_only = dual_pod();
    ipv4_only.links.get_mut("eth0").unwrap().addresses.retain(|(address, _)| address.is_ipv4());
    assert_eq!(frames(&ipv4_only, Binding::Bridge), None);
    // The network's own router advertises the address: the guest gets it there.
    let mut advertised = dual_pod();
    let eth0 = advertised.links.get_mut("eth0").unwrap();
    eth0.expiring.insert("fd00:10:244:1::7".parse().unwrap());
    assert_eq!(frames(&advertised, Binding::Bridge), None);
    let steps = plan(&bridged("default", "eth0"), &advertised).unwrap();
    assert!(!steps.iter().any(|step| matches!(step, Step::Address { address, .. } if address.is_ipv6())));
}

#[test]
fn gateways_are_asked_while_the_link_has_its_routes() {
    let (observed, card) = (dual_pod(), bridged("default", "eth0"));
    let gateways =
        |observed: &Observed| crate::network::plan::gateways(std::slice::from_ref(&card), observed);
    let one = |address: &str| ("eth0".to_owned(), 2, address.parse().unwrap());
    assert_eq!(gateways(&observed), [one(GATEWAY), one("fd00:10:244:1::9")].into());
    let after = carry_out(&observed, &plan(&card, &observed).unwrap());
    assert_eq!(gateways(&after), BTreeSet::new());
    let mut down = observed;
    down.links.get_mut("eth0").unwrap().up = false;
    assert_eq!(gateways(&down), BTreeSet::new());
}

#[test]
fn a_plan_that_is_cut_anywhere_loses_nothing_of_ipv6() {
    let (observed, card) = (dual_pod(), bridged("default", "eth0"));
    let gone = Wanted { binding: Binding::Gone, ..card.clone() };
    let before = &observed.links["eth0"];
    // The kernel makes the route to the address's own network.
    let mut back = saved();
    back.retain(|route| route.gateway.is_some());
    let ipv6 = |link: &Link| -> BTreeSet<Route> {
        link.routes.iter().filter(|route| route.destination.is_ipv6()).copied().collect()
    };
    let whole = plan(&card, &observed).unwrap();
    for cut in 0..=whole.len() {
        let part = Observed { held: BTreeSet::new(), ..carry_out(&observed, &whole[..cut]) };
        let done = carry_out(&part, &plan(&card, &part).unwrap());
        assert_eq!(done.links["noteeth0"].kept_routes, saved(), "{cut}");
        assert_eq!(Vec::from_iter(done.links["eth0"].global()), Vec::from_iter(before.global()), "{cut}");
        assert_eq!(plan(&card, &done).unwrap(), [], "{cut}");
        let returned = carry_out(&part, &plan(&gone, &part).unwrap());
        assert_eq!(Vec::from_iter(returned.links.keys()), Vec::from_iter(observed.links.keys()), "{cut}");
        let eth0 = &returned.links["eth0"];
        assert!(back.is_subset(&ipv6(eth0)) || ipv6(eth0) == ipv6(before), "{cut}: {:?}", eth0.routes);
        assert_eq!(Vec::from_iter(eth0.global()), Vec::from_iter(before.global()), "{cut}");
    }
    let there = carry_out(&observed, &whole);
    let whole = plan(&gone, &there).unwrap();
    for cut in 0..whole.len() {
        let part = carry_out(&there, &whole[..cut]);
        let returned = carry_out(&part, &plan(&gone, &part).unwrap());
        assert_eq!(returned.links.len(), observed.links.len(), "{cut}");
        assert_eq!(ipv6(&returned.links["eth0"]), back, "{cut}");
    }
}
