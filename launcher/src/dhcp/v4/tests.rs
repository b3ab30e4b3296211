use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::domain::Name;
use super::super::guest::tests::guest;
use super::*;

const SERVER: [u8; 4] = [10, 0, 2, 1];
const ADDRESS: [u8; 4] = [10, 0, 2, 2];

/// A request of the guest with these options.
fn request(options: &[(u8, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![1, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef, 0, 1, 0x80, 0];
    bytes.extend([0; 16]);
    bytes.extend([0x02, 0x12, 0x34, 0x56, 0x78, 0x9a]);
    bytes.resize(FIXED, 0);
    bytes.extend(COOKIE);
    for (option, value) in options {
        push(&mut bytes, *option, value);
    }
    bytes.push(code::END);
    bytes
}

/// A request with which a guest looks for servers.
pub(in crate::dhcp) fn discover() -> Vec<u8> {
    request(&[(53, &[1])])
}

fn options(reply: &Reply) -> BTreeMap<u8, Vec<u8>> {
    let mut all = BTreeMap::<u8, Vec<u8>>::new();
    for (option, value) in Options(&reply.bytes[FIXED + 4..]) {
        all.entry(option).or_default().extend(value);
    }
    all
}

fn kind(reply: &Reply) -> u8 {
    options(reply)[&53][0]
}

#[test]
fn discover_is_offered_everything_the_guest_needs() {
    let reply = answer(&request(&[(53, &[1])]), &guest()).unwrap();
    assert_eq!(reply.to, Ipv4Addr::BROADCAST);
    assert_eq!(&reply.bytes[..12], [2, 1, 6, 0, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0x80, 0]);
    assert_eq!(&reply.bytes[16..20], ADDRESS);
    assert_eq!(&reply.bytes[28..34], [0x02, 0x12, 0x34, 0x56, 0x78, 0x9a]);
    let expected: BTreeMap<u8, Vec<u8>> = [
        (53, vec![2]),
        (54, SERVER.to_vec()),
        (51, LEASE.to_be_bytes().to_vec()),
        (1, vec![255, 255, 255, 0]),
        (3, SERVER.to_vec()),
        (6, vec![10, 96, 0, 10]),
        (26, 1450u16.to_be_bytes().to_vec()),
        (28, vec![10, 0, 2, 255]),
        (12, b"vm1".to_vec()),
        (15, b"shop.svc.cluster.local".to_vec()),
        (119, b"\x04shop\x03svc\x07cluster\x05local\x00\x03svc\x07cluster\x05local\x00".to_vec()),
    ]
    .into();
    assert_eq!(options(&reply), expected);
}

#[test]
fn a_guest_on_a_network_with_jumbo_frames_gets_the_mtu() {
    let guest = Guest { mtu: 9000, ..guest() };
    let reply = answer(&request(&[(53, &[1])]), &guest).unwrap();
    assert_eq!(options(&reply)[&26], 9000u16.to_be_bytes());
    let advertisement = &super::super::router::advertisements(&guest)[0].message;
    let told = [&[5, 1, 0, 0][..], &9000u32.to_be_bytes()].concat();
    assert!(advertisement.windows(8).any(|option| option == told));
}

#[test]
fn requests_for_its_address_are_acknowledged_and_others_refused() {
    let guest = guest();
    let selecting = answer(&request(&[(53, &[3]), (50, &ADDRESS), (54, &SERVER)]), &guest).unwrap();
    assert_eq!((kind(&selecting), selecting.to), (5, Ipv4Addr::BROADCAST));
    let mut renewing = request(&[(53, &[3])]);
    renewing[12..16].copy_from_slice(&ADDRESS);
    let renewed = answer(&renewing, &guest).unwrap();
    assert_eq!((kind(&renewed), renewed.to), (5, Ipv4Addr::from(ADDRESS)));
    assert_eq!(&renewed.bytes[12..16], ADDRESS);

    // An address from an earlier network, as after a restart on another node.
    let rebooted = answer(&request(&[(53, &[3]), (50, &[192, 168, 1, 5])]), &guest).unwrap();
    assert_eq!((kind(&rebooted), rebooted.to), (6, Ipv4Addr::BROADCAST));
    assert_eq!(&rebooted.bytes[16..20], [0; 4]);
    assert_eq!(options(&rebooted).len(), 2, "a refusal carries no settings");
}

#[test]
fn inform_gets_settings_without_a_lease() {
    let mut inform = request(&[(53, &[8])]);
    inform[12..16].copy_from_slice(&ADDRESS);
    let reply = answer(&inform, &guest()).unwrap();
    assert_eq!((kind(&reply), reply.to), (5, Ipv4Addr::from(ADDRESS)));
    assert_eq!(&reply.bytes[16..20], [0; 4]);
    assert!(!options(&reply).contains_key(&51) && options(&reply).contains_key(&6));
}

#[test]
fn only_the_guests_dhcp_requests_are_answered() {
    let guest = guest();
    let discover = request(&[(53, &[1])]);
    assert!(answer(&discover, &guest).is_some());
    let changed = |at: usize, byte: u8| {
        let mut bytes = discover.clone();
        bytes[at] = byte;
        answer(&bytes, &guest)
    };
    assert_eq!(changed(0, 2), None, "a reply");
    assert_eq!(changed(2, 8), None, "another length of hardware address");
    assert_eq!(changed(33, 0), None, "another MAC address");
    assert_eq!(changed(27, 1), None, "a relay");
    assert_eq!(changed(FIXED, 0), None, "no cookie");
    assert_eq!(answer(&discover[..FIXED + 3], &guest), None, "cut off");
    assert_eq!(answer(&request(&[]), &guest), None, "no type");
    for decline_release_or_reply in [2, 4, 5, 6, 7, 9] {
        assert_eq!(answer(&request(&[(53, &[decline_release_or_reply])]), &guest), None);
    }
    let other_server = request(&[(53, &[3]), (50, &ADDRESS), (54, &[10, 0, 2, 9])]);
    assert_eq!(answer(&other_server, &guest), None);
    assert_eq!(answer(&discover, &Guest { ipv4: None, ..guest.clone() }), None);
}

#[test]
fn the_client_identifier_comes_back() {
    let reply = answer(&request(&[(53, &[1]), (61, b"\x01abcdef")]), &guest()).unwrap();
    assert_eq!(options(&reply)[&61], b"\x01abcdef");
}

#[test]
fn a_gateway_beyond_the_mask_is_reached_by_a_route() {
    let mut guest = guest();
    let ipv4 = guest.ipv4.as_mut().unwrap();
    ipv4.prefix = 32;
    ipv4.gateway = Some(Ipv4Addr::new(169, 254, 1, 1));
    let reply = answer(&request(&[(53, &[1])]), &guest).unwrap();
    assert_eq!(options(&reply)[&121], [32, 169, 254, 1, 1, 0, 0, 0, 0, 0, 169, 254, 1, 1]);
}

#[test]
fn a_guest_on_the_pods_network_gets_its_pods_routes_from_the_bridge() {
    let mut guest = guest();
    let ipv4 = guest.ipv4.as_mut().unwrap();
    let gateway = Ipv4Addr::new(10, 0, 2, 1);
    ipv4.server = Ipv4Addr::new(169, 254, 75, 10);
    ipv4.routes =
        vec![Route { destination: Ipv4Addr::new(10, 96, 0, 0), prefix: 12, gateway: Some(gateway) }];
    let reply = answer(&request(&[(53, &[1])]), &guest).unwrap();
    assert_eq!(options(&reply)[&54], [169, 254, 75, 10]);
    assert_eq!(options(&reply)[&121], [12, 10, 96, 10, 0, 2, 1, 0, 10, 0, 2, 1]);
    let accepted = |server: &[u8]| answer(&request(&[(53, &[3]), (50, &ADDRESS), (54, server)]), &guest);
    assert!(accepted(&[169, 254, 75, 10]).is_some() && accepted(&SERVER).is_none());

    // The guest is isolated: there is no router, and no route to one.
    let ipv4 = guest.ipv4.as_mut().unwrap();
    (ipv4.gateway, ipv4.routes) = (None, Vec::new());
    let reply = answer(&request(&[(53, &[1])]), &guest).unwrap();
    assert!(!options(&reply).contains_key(&3) && !options(&reply).contains_key(&121));
}

#[test]
fn long_lists_are_split_and_the_clients_room_is_kept() {
    let mut guest = guest();
    let name = format!("{}.example", "a".repeat(60));
    guest.search = vec![Name::parse(&name).unwrap(); 6];
    let whole = answer(&request(&[(53, &[1]), (57, &1400u16.to_be_bytes())]), &guest).unwrap();
    assert_eq!(options(&whole)[&119].len(), 6 * 70);
    let parts = Options(&whole.bytes[FIXED + 4..]).filter(|(option, _)| *option == 119).count();
    assert_eq!(parts, 2);

    let small = answer(&request(&[(53, &[1])]), &guest).unwrap();
    assert!(small.bytes.len() + IP_AND_UDP <= USUAL_MESSAGE);
    assert!(!options(&small).contains_key(&119) && options(&small).contains_key(&6));
    // Requested options come first.
    guest.extra = vec![(240, vec![b'x'; 150])];
    guest.search.truncate(2);
    assert!(options(&answer(&request(&[(53, &[1])]), &guest).unwrap()).contains_key(&240));
    let asked = answer(&request(&[(53, &[1]), (55, &[119, 1])]), &guest).unwrap();
    assert!(options(&asked).contains_key(&119) && !options(&asked).contains_key(&240));
}

proptest! {
    #[test]
    fn any_bytes_are_answered_within_bounds_or_ignored(
        changes in proptest::collection::vec((0usize..400, any::<u8>()), 0..60),
        length in 0usize..400,
    ) {
        let mut bytes = request(&[(53, &[1]), (55, &[1, 3, 6]), (57, &[2, 64]), (61, &[1, 2, 3])]);
        bytes.resize(400, 0);
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        if let Some(reply) = answer(&bytes[..length], &guest()) {
            prop_assert!((SHORTEST_REPLY..=LARGEST_REQUEST).contains(&reply.bytes.len()));
            prop_assert_eq!(&reply.bytes[4..8], &bytes[4..8]);
        }
    }
}
