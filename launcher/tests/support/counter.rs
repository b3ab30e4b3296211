//! A guest of one sector: it counts in its memory, and sometimes sends the count on its serial port.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::time::timeout;

/// For a processor in real mode, at 0x7c00. Each time the low half of the count is zero, the high half is
/// sent: four digits from `0` to `?`, and a line end. An access to the port of a POST card takes the time between two lines.
///
/// After a line it sleeps until the next tick of the firmware's timer. A processor that never sleeps can keep QEMU's emulation from
/// the end of a `device_add` that it refuses: that waits for all readers of RCU, and a processor is one while it runs.
const CODE: [u8; 47] = [
    0xfb, // sti
    0x31, 0xc0, // xor ax, ax
    0x8e, 0xd8, // mov ds, ax
    0x66, 0xff, 0x06, 0x00, 0x80, // next: inc dword [0x8000]
    0xe4, 0x80, // in al, 0x80
    0x83, 0x3e, 0x00, 0x80, 0x00, // cmp word [0x8000], 0
    0x75, 0xf2, // jne next
    0x8b, 0x1e, 0x02, 0x80, // mov bx, [0x8002]
    0xb9, 0x04, 0x00, // mov cx, 4
    0xc1, 0xc3, 0x04, // digit: rol bx, 4
    0x88, 0xd8, // mov al, bl
    0x24, 0x0f, // and al, 15
    0x04, 0x30, // add al, '0'
    0xba, 0xf8, 0x03, // mov dx, 0x3f8
    0xee, // out dx, al
    0xe2, 0xf1, // loop digit
    0xb0, 0x0a, // mov al, 10
    0xee, // out dx, al
    0xf4, // hlt
    0xeb, 0xd6, // jmp next
];

/// A guest that writes to each page of half a megabyte before it counts on, and prints the middle 16 bits of the count.
const WRITING: [u8; 64] = [
    0xfa, // cli
    0x31, 0xc0, // xor ax, ax
    0x8e, 0xd8, // mov ds, ax
    0xbb, 0x00, 0x10, // next: mov bx, 0x1000
    0x8e, 0xc3, // page: mov es, bx
    0x26, 0xfe, 0x06, 0x10, 0x00, // inc byte [es:0x10]
    0x81, 0xc3, 0x00, 0x01, // add bx, 0x100
    0x81, 0xfb, 0x00, 0x90, // cmp bx, 0x9000
    0x72, 0xef, // jb page
    0x66, 0xff, 0x06, 0x00, 0x80, // inc dword [0x8000]
    0x80, 0x3e, 0x00, 0x80, 0x00, // cmp byte [0x8000], 0
    0x75, 0xe0, // jne next
    0x8b, 0x1e, 0x01, 0x80, // mov bx, [0x8001]
    0xb9, 0x04, 0x00, // mov cx, 4
    0xc1, 0xc3, 0x04, // digit: rol bx, 4
    0x88, 0xd8, // mov al, bl
    0x24, 0x0f, // and al, 15
    0x04, 0x30, // add al, '0'
    0xba, 0xf8, 0x03, // mov dx, 0x3f8
    0xee, // out dx, al
    0xe2, 0xf1, // loop digit
    0xb0, 0x0a, // mov al, 10
    0xee, // out dx, al
    0xeb, 0xc5, // jmp next
];

/// Writes its disk, unless the disk exists.
pub fn disk(directory: &Path) -> PathBuf {
    let path = directory.join(NAME);
    if path.exists() { path } else { write(path, &CODE) }
}

/// Writes the disk of a guest that writes to more memory than is sent in a second.
pub fn writing_disk(directory: &Path) -> PathBuf {
    write(directory.join(NAME), &WRITING)
}

const NAME: &str = "counter.img";

fn write(path: PathBuf, code: &[u8]) -> PathBuf {
    let mut image = vec![0; 1 << 20];
    image[..code.len()].copy_from_slice(code);
    image[510..512].copy_from_slice(&[0x55, 0xaa]);
    std::fs::write(&path, image).unwrap();
    path
}

/// The next count on the serial port.
pub async fn next_count(serial: &mut UnixStream) -> u32 {
    let mut line = Vec::new();
    let read = async {
        loop {
            match serial.read_u8().await.unwrap() {
                b'\n' => match count(&line) {
                    Some(count) => return count,
                    // Output of the firmware, or older output.
                    None => line.clear(),
                },
                byte => line.push(byte),
            }
        }
    };
    timeout(Duration::from_secs(30), read).await.expect("the guest does not count")
}

/// The count in a line.
pub fn count(line: &[u8]) -> Option<u32> {
    let line: &[u8; 4] = line.try_into().ok()?;
    line.iter()
        .try_fold(0, |count, byte| (b'0'..=b'?').contains(byte).then(|| count * 16 + u32::from(byte - b'0')))
}
