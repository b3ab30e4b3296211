//! A keyboard at the other end of the usbredir protocol: the packets that `usbredirect` sends and answers for
//! a real one.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

/// Packet types of the protocol.
const HELLO: u32 = 0;
const DEVICE_CONNECT: u32 = 1;
const INTERFACE_INFO: u32 = 4;
const EP_INFO: u32 = 5;
const SET_CONFIGURATION: u32 = 6;
const CONFIGURATION_STATUS: u32 = 8;
const CONTROL: u32 = 100;

/// Capabilities that QEMU needs from a client of an XHCI controller: device versions, packet sizes, long
/// numbers, long transfers.
const CAPABILITIES: u32 = 1 << 1 | 1 << 4 | 1 << 5 | 1 << 6;

const DEVICE: [u8; 18] = [18, 1, 0, 2, 0, 0, 0, 64, 0x09, 0x12, 1, 0, 0, 1, 0, 0, 0, 1];
/// One configuration with one interface, a boot keyboard, with one interrupt endpoint.
const CONFIGURATION: [u8; 34] = [
    9, 2, 34, 0, 1, 1, 0, 0xa0, 50, //
    9, 4, 0, 0, 1, 3, 1, 1, 0, //
    9, 0x21, 0x11, 1, 0, 1, 0x22, 63, 0, //
    7, 5, 0x81, 3, 8, 0, 10,
];

/// A packet as it is sent on the stream; the numbers are short in the first ones.
fn packet(kind: u32, number: u64, body: &[u8]) -> Vec<u8> {
    let length = u32::try_from(body.len()).unwrap();
    let mut bytes = [kind.to_le_bytes(), length.to_le_bytes()].concat();
    if kind == HELLO {
        bytes.extend(0_u32.to_le_bytes());
    } else {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(body);
    bytes
}

/// Sends a hello and plugs the keyboard in. The caller reads QEMU's own hello.
pub(crate) fn plug_in(mut slot: &UnixStream) {
    let mut hello = [0; 68];
    hello[..8].copy_from_slice(b"keyboard");
    hello[64..].copy_from_slice(&CAPABILITIES.to_le_bytes());
    let mut interfaces = vec![0; 4 + 4 * 32];
    (interfaces[0], interfaces[4 + 32], interfaces[4 + 64], interfaces[4 + 96]) = (1, 3, 1, 1);
    // Types, intervals and interfaces of 32 endpoints, then their sizes: the control endpoint, in and out,
    // and that of the keys.
    let mut endpoints = vec![0; 5 * 32];
    endpoints[..32].fill(255);
    (endpoints[0], endpoints[16], endpoints[17], endpoints[32 + 17]) = (0, 0, 3, 10);
    (endpoints[96], endpoints[96 + 2 * 16], endpoints[96 + 2 * 17]) = (64, 64, 8);
    let connect = [1, 0, 0, 0, 0x09, 0x12, 1, 0, 0, 1];
    for (kind, body) in [
        (HELLO, &hello[..]),
        (INTERFACE_INFO, &interfaces),
        (EP_INFO, &endpoints),
        (DEVICE_CONNECT, &connect),
    ] {
        slot.write_all(&packet(kind, 0, body)).unwrap();
    }
}

/// Answers the guest until it has set a configuration, which is returned.
pub(crate) fn answer_until_configured(mut slot: &UnixStream) -> io::Result<u8> {
    loop {
        let mut head = [0; 16];
        slot.read_exact(&mut head)?;
        let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().unwrap());
        let number = u64::from_le_bytes(head[8..].try_into().unwrap());
        let mut body = vec![0; usize::try_from(word(4)).unwrap()];
        slot.read_exact(&mut body)?;
        match word(0) {
            CONTROL => {
                // GET_DESCRIPTOR, of the device or of its configuration; all other requests are confirmed
                // without data.
                let wanted = usize::from(u16::from_le_bytes([body[8], body[9]]));
                let all: &[u8] = match (body[1], body[5]) {
                    (6, 1) => &DEVICE,
                    (6, 2) => &CONFIGURATION,
                    _ => &[],
                };
                let data = &all[..all.len().min(wanted)];
                let mut answer = body[..10].to_vec();
                answer[8..].copy_from_slice(&u16::try_from(data.len()).unwrap().to_le_bytes());
                answer.extend(data);
                slot.write_all(&packet(CONTROL, number, &answer))?;
            }
            SET_CONFIGURATION => {
                slot.write_all(&packet(CONFIGURATION_STATUS, number, &[0, body[0]]))?;
                return Ok(body[0]);
            }
            // Resets need no answer.
            _ => {}
        }
    }
}
