//! The header is written here byte by byte, so that Miri can run these tests; it cannot start `qemu-img`, which
//! [`qemu_img`] compares with.

#[cfg(not(miri))]
mod qemu_img;

use proptest::prelude::*;

use super::*;

/// A valid version 3 header, as qemu-img writes it for a disk of 1 GiB.
fn sound() -> Vec<u8> {
    let mut head = vec![0; INSPECTED];
    head[..4].copy_from_slice(QCOW_MAGIC);
    for (at, value) in [(4, 3_u32), (20, 16), (36, 2), (56, 1), (96, 4), (100, 112)] {
        head[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
    for (at, value) in [(24, 1_u64 << 30), (40, 3 << 16), (48, 1 << 16)] {
        head[at..at + 8].copy_from_slice(&value.to_be_bytes());
    }
    head
}

const LENGTH: u64 = 1 << 20;

/// `sound` with bytes replaced at an offset.
fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut head = sound();
    head[at..at + bytes.len()].copy_from_slice(bytes);
    head
}

fn refused(head: &[u8]) -> String {
    inspect(head, LENGTH).expect_err("must be refused").to_string()
}

#[test]
fn sound_images_are_what_they_are() {
    assert_eq!(inspect(&sound(), LENGTH), Ok(Image { format: Format::Qcow2, virtual_size: 1 << 30 }));
    let mut boot_sector = vec![0; 512];
    boot_sector[510..].copy_from_slice(b"\x55\xaa");
    assert_eq!(inspect(&boot_sector, 10 << 20), Ok(Image { format: Format::Raw, virtual_size: 10 << 20 }));
    assert_eq!(
        inspect(b"x", 1),
        Ok(Image { format: Format::Raw, virtual_size: 512 }),
        "rounded up to a sector"
    );
}

#[test]
fn images_that_name_other_files_are_refused() {
    let mut head = with(8, &200u64.to_be_bytes());
    head[16..20].copy_from_slice(&11u32.to_be_bytes());
    head[200..211].copy_from_slice(b"/etc/shadow");
    assert_eq!(
        refused(&head),
        "qcow2 image names a backing file (\"/etc/shadow\") in its header, which is not allowed"
    );
    // Values beyond the checked bytes, and with a length beyond the file: they are refused as well, without a
    // panic.
    assert!(refused(&with(8, &u64::MAX.to_be_bytes())).contains("names a backing file (\"\")"));
    assert!(refused(&with(16, &u32::MAX.to_be_bytes())).contains("names a backing file"));
    assert_eq!(
        refused(&with(72, &4u64.to_be_bytes())),
        "qcow2 image names an external data file in its header, which is not allowed"
    );
}

#[test]
fn encrypted_corrupt_and_unknown_images_are_refused() {
    assert!(refused(&with(32, &2u32.to_be_bytes())).contains("encrypted"));
    assert!(refused(&with(72, &2u64.to_be_bytes())).contains("corrupt"));
    assert!(
        refused(&with(72, &(1u64 << 40).to_be_bytes())).contains("unknown features (bits 0x10000000000)")
    );
    assert!(refused(&with(4, &1u32.to_be_bytes())).contains("version 1"));
    assert!(refused(&with(4, &4u32.to_be_bytes())).contains("version 4"));
    // The dirty bit is harmless to a reader. Subclusters halve the size that an L1 entry covers, so this
    // table is too short.
    assert!(inspect(&with(72, &1u64.to_be_bytes()), LENGTH).is_ok());
    assert!(refused(&with(72, &16u64.to_be_bytes())).contains("l1_size is 2"));
}

#[test]
fn absurd_fields_are_refused_by_name() {
    let cases: [(usize, Vec<u8>, &str); 10] = [
        (20, 8u32.to_be_bytes().to_vec(), "cluster_bits is 8"),
        (20, 22u32.to_be_bytes().to_vec(), "cluster_bits is 22"),
        (24, 0u64.to_be_bytes().to_vec(), "size is 0"),
        (24, (LARGEST + 1).to_be_bytes().to_vec(), "has a size of"),
        (36, 0u32.to_be_bytes().to_vec(), "l1_size is 0"),
        (36, u32::MAX.to_be_bytes().to_vec(), "l1_size is"),
        (40, (LENGTH * 2).to_be_bytes().to_vec(), "l1_table_offset is"),
        (48, u64::MAX.to_be_bytes().to_vec(), "refcount_table_offset is"),
        (56, u32::MAX.to_be_bytes().to_vec(), "refcount_table_clusters is"),
        (60, u32::MAX.to_be_bytes().to_vec(), "nb_snapshots is"),
    ];
    for (at, bytes, expected) in cases {
        let text = refused(&with(at, &bytes));
        assert!(text.contains(expected), "{text}");
    }
    assert_eq!(refused(&sound()[..100]), "qcow2 image ends within its header");
    assert_eq!(inspect(&[], 0), Err(HeaderError::Empty));
    assert!(inspect(b"raw", LARGEST + 1).is_err());
}

#[test]
fn other_formats_are_refused_by_name_and_not_taken_for_raw() {
    for (name, at, magic) in REFUSED {
        let mut head = vec![0; 1024];
        head[*at..at + magic.len()].copy_from_slice(magic);
        assert_eq!(inspect(&head, LENGTH), Err(HeaderError::Format(name)), "{name}");
    }
}

proptest! {
    #[test]
    fn any_header_is_judged_without_panic(
        changes in proptest::collection::vec((0usize..128, any::<u8>()), 0..40),
        length in any::<u64>(),
        cut in 0usize..INSPECTED,
    ) {
        let mut head = sound();
        for (at, byte) in changes {
            head[at] = byte;
        }
        let _ = inspect(&head[..cut], length);
        if let Ok(image) = inspect(&head, length) {
            prop_assert!(image.virtual_size <= LARGEST && image.virtual_size.is_multiple_of(SECTOR));
            prop_assert!(image.virtual_size > 0);
        }
    }
}
