//! The first bytes of an untrusted disk image: the check never panics, and never accepts an image for which
//! QEMU would open another file. The first eight bytes are the length of the whole file.
#![no_main]

use libfuzzer_sys::fuzz_target;
use virt_launcher::disk::Format;
use virt_launcher::disk::header::{INSPECTED, LARGEST, SECTOR, inspect};

fuzz_target!(|input: &[u8]| {
    let Some((length, bytes)) = input.split_first_chunk() else { return };
    let head = &bytes[..bytes.len().min(INSPECTED)];
    let Ok(image) = inspect(head, u64::from_le_bytes(*length)) else { return };
    assert!(image.virtual_size > 0 && image.virtual_size <= LARGEST && image.virtual_size % SECTOR == 0);
    match image.format {
        Format::Qcow2 => {
            assert_eq!(head[8..20], [0; 12], "backing file");
            assert_eq!(head[32..36], [0; 4], "encryption");
            assert!(head[7] == 2 || head[79] & 0b110 == 0, "data file or corrupt");
        }
        Format::Raw => assert!(!head.starts_with(b"QFI\xfb")),
    }
});
