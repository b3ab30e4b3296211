//! An untrusted image: the check never panics, and accepts none for which qemu-img would open another file. The first eight
//! bytes are the length of the whole image; the rest is its beginning, and its end.
#![no_main]

use libfuzzer_sys::fuzz_target;
use virt_importer::format::{END, Format, INSPECTED, inspect, inspect_whole};

/// The largest disk that is served, in bytes.
const LARGEST: u64 = 64 << 40;

fuzz_target!(|input: &[u8]| {
    let Some((length, bytes)) = input.split_first_chunk() else { return };
    let length = u64::from_le_bytes(*length);
    let (head, end) = (&bytes[..bytes.len().min(INSPECTED)], &bytes[bytes.len().saturating_sub(END)..]);
    let Ok(image) = inspect_whole(head, end, length) else { return };
    assert_eq!(inspect(head, None).map(|image| image.format), Ok(image.format));
    let size = image.virtual_size;
    assert!(size > 0 && size <= LARGEST && size.is_multiple_of(512), "{size}");
    match image.format {
        Format::Vmdk => {
            assert!(head.starts_with(b"KDMV"));
            assert_ne!(head[12..20], [0; 8], "the descriptor's extents are opened");
            let hint = b"parentFileNameHint";
            assert!(!head[512..].windows(hint.len()).any(|word| word == hint), "a backing file");
        }
        Format::Vdi => assert_eq!(head[0x1a8..0x1c8], [0; 32], "a parent"),
        Format::Qcow2 => assert_eq!(head[8..20], [0; 12], "a backing file"),
        Format::Raw => assert!(!head.starts_with(b"KDMV") && !head.starts_with(b"QFI\xfb")),
    }
});
