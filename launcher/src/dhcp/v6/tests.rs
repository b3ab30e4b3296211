use proptest::prelude::*;

use super::super::guest::tests::guest;
use super::*;

const CLIENT: &[u8] = b"\x00\x03\x00\x01\x02\x12\x34\x56\x78\x9a";
const ADDRESS: &str = "fd10:0:2::2";

fn message(kind: u8, options: &[(u16, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![kind, 1, 2, 3];
    for (option, value) in options {
        push(&mut bytes, *option, value);
    }
    bytes
}

/// An association with these addresses.
fn ia(id: u8, addresses: &[&str]) -> Vec<u8> {
    let mut value = vec![0, 0, 0, id];
    value.extend([0; 8]);
    for address in addresses {
        push_address(&mut value, address.parse().unwrap(), 100);
    }
    value
}

/// A message with which a guest looks for servers.
pub(in crate::dhcp) fn solicit() -> Vec<u8> {
    message(1, &[(1, CLIENT), (3, &ia(7, &[]))])
}

/// The value of an option of a reply, which must occur once.
fn only(reply: &[u8], option: u16) -> Vec<u8> {
    let all: Vec<_> =
        Options(&reply[4..]).filter(|(code, _)| *code == option).map(|(_, value)| value).collect();
    assert_eq!(all.len(), 1, "option {option} in {reply:x?}");
    all[0].to_vec()
}

fn has(reply: &[u8], option: u16) -> bool {
    Options(&reply[4..]).any(|(code, _)| code == option)
}

/// Address and preferred lifetime of each address of an association.
fn addresses(association: &[u8]) -> Vec<(String, u32)> {
    Options(&association[12..])
        .filter(|(code, _)| *code == code::ADDRESS)
        .map(|(_, value)| {
            let octets: [u8; 16] = value[..16].try_into().unwrap();
            (Ipv6Addr::from(octets).to_string(), u32::from_be_bytes(value[16..20].try_into().unwrap()))
        })
        .collect()
}

#[test]
fn solicit_is_advertised_the_address_and_the_resolver() {
    let reply = answer(&message(1, &[(1, CLIENT), (3, &ia(7, &[]))]), &guest()).unwrap();
    assert_eq!(&reply[..4], [2, 1, 2, 3]);
    assert_eq!(only(&reply, 1), CLIENT);
    assert_eq!(only(&reply, 2), [0, 3, 0, 1, 2, 0, 0, 0, 0, 0]);
    assert_eq!(only(&reply, 7), [255]);
    let association = only(&reply, 3);
    assert_eq!(&association[..4], [0, 0, 0, 7]);
    assert_eq!(addresses(&association), [(ADDRESS.to_owned(), LEASE)]);
    assert_eq!(only(&reply, 23), "fd10:96::a".parse::<Ipv6Addr>().unwrap().octets());
    assert_eq!(only(&reply, 24), b"\x04shop\x03svc\x07cluster\x05local\x00\x03svc\x07cluster\x05local\x00");
}

#[test]
fn rapid_commit_is_replied_to_at_once() {
    let reply = answer(&message(1, &[(1, CLIENT), (14, b""), (3, &ia(7, &[]))]), &guest()).unwrap();
    assert_eq!(reply[0], REPLY);
    assert_eq!(only(&reply, 14), b"");
    assert_eq!(addresses(&only(&reply, 3)).len(), 1);
}

#[test]
fn request_renew_and_rebind_are_replied_to() {
    let server = identity();
    for (kind, options) in [
        (3, vec![(1, CLIENT), (2, &server[..])]),
        (5, vec![(1, CLIENT), (2, &server[..])]),
        (6, vec![(1, CLIENT)]),
    ] {
        let held = ia(1, &[ADDRESS, "fd10:0:2::99"]);
        let mut options = options;
        options.push((3, &held));
        let reply = answer(&message(kind, &options), &guest()).unwrap();
        assert_eq!(reply[0], REPLY);
        let mut expected = vec![(ADDRESS.to_owned(), LEASE)];
        if kind != 3 {
            expected.push(("fd10:0:2::99".to_owned(), 0));
        }
        assert_eq!(addresses(&only(&reply, 3)), expected, "kind {kind}");
    }
}

#[test]
fn confirm_says_whether_the_address_is_the_one() {
    let confirm = |held: &[&str]| {
        answer(&message(4, &[(1, CLIENT), (3, &ia(1, held))]), &guest()).map(|reply| only(&reply, 13))
    };
    assert_eq!(confirm(&[ADDRESS]), Some(vec![0, 0]));
    assert_eq!(confirm(&["2001:db8::1"]), Some(vec![0, 4]));
    assert_eq!(confirm(&[]), None);
}

#[test]
fn release_is_acknowledged_and_information_is_given_without_address() {
    let server = identity();
    let released =
        answer(&message(8, &[(1, CLIENT), (2, &server), (3, &ia(1, &[ADDRESS]))]), &guest()).unwrap();
    assert_eq!(only(&released, 13), [0, 0]);
    let information = answer(&message(11, &[]), &guest()).unwrap();
    assert!(has(&information, 23) && has(&information, 24) && !has(&information, 3) && !has(&information, 1));
}

#[test]
fn second_associations_and_prefixes_get_a_status() {
    let (one, other) = (ia(1, &[]), ia(2, &[]));
    let reply =
        answer(&message(1, &[(1, CLIENT), (3, &one), (3, &other), (25, &ia(3, &[])[..12])]), &guest())
            .unwrap();
    let all: Vec<_> =
        Options(&reply[4..]).filter(|(code, _)| *code == 3).map(|(_, value)| value.to_vec()).collect();
    assert_eq!((addresses(&all[0]).len(), addresses(&all[1]).len()), (1, 0));
    assert_eq!(&all[1][12..], [0, 13, 0, 2, 0, 2]);
    assert_eq!(&only(&reply, 25)[12..], [0, 13, 0, 2, 0, 6]);
}

#[test]
fn messages_for_others_or_without_the_right_identities_are_not_answered() {
    let guest = guest();
    let server = identity();
    let other = b"\x00\x03\x00\x01\x00\x00\x00\x00\x00\x01";
    let cases: [Vec<u8>; 9] = [
        message(1, &[]),
        message(1, &[(1, CLIENT), (2, &server)]),
        message(3, &[(1, CLIENT)]),
        message(3, &[(1, CLIENT), (2, other)]),
        message(6, &[(1, CLIENT), (2, &server)]),
        message(11, &[(2, other)]),
        message(2, &[(1, CLIENT)]),
        message(12, &[(1, CLIENT)]),
        vec![1, 2, 3],
    ];
    for bytes in cases {
        assert_eq!(answer(&bytes, &guest), None, "{bytes:x?}");
    }
    let without = Guest { ipv6: None, ..guest };
    assert_eq!(answer(&message(1, &[(1, CLIENT)]), &without), None);
}

proptest! {
    #[test]
    fn any_bytes_are_answered_within_bounds_or_ignored(
        kind in 0u8..14,
        bytes in proptest::collection::vec(any::<u8>(), 0..LARGEST_REQUEST),
        options in proptest::collection::vec(
            (0u16..30, proptest::collection::vec(any::<u8>(), 0..120)), 0..20),
    ) {
        let options: Vec<_> = options.iter().map(|(code, value)| (*code, value.as_slice())).collect();
        let mut built = message(kind, &options);
        built.extend(&bytes);
        built.truncate(LARGEST_REQUEST);
        for input in [&bytes, &built] {
            if let Some(reply) = answer(input, &guest()) {
                prop_assert!(reply.len() < 8192);
                prop_assert_eq!(&reply[1..4], &input[1..4]);
            }
        }
    }
}
