//! The headers are written here byte by byte; `tests/imports` has images that qemu-img has written.

use super::*;

const LENGTH: u64 = 1 << 20;
const TEXT: &str = "# Disk DescriptorFile\nversion=1\nCID=7d7592fd\nparentCID=ffffffff\n\
    createType=\"streamOptimized\"\n\n# Extent description\nRW 32768 SPARSE \"s.vmdk\"\n\nddb.adapterType = \"ide\"\n";

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// A sound vmdk of 16 MiB, with that descriptor.
fn vmdk(descriptor: &str) -> Vec<u8> {
    let mut head = vec![0; INSPECTED];
    put(&mut head, 0, b"KDMV\x03");
    for (at, value) in [(12, 0x8000_u64), (20, 128), (28, 1), (36, 20), (48, 21), (56, 26), (64, 128)] {
        put(&mut head, at, &value.to_le_bytes());
    }
    put(&mut head, 8, &3_u32.to_le_bytes());
    put(&mut head, 44, &512_u32.to_le_bytes());
    put(&mut head, 77, &1_u16.to_le_bytes());
    put(&mut head, 512, descriptor.as_bytes());
    head
}

/// A stream: its directory is known at its end, and its end.
fn stream() -> (Vec<u8>, Vec<u8>) {
    let (mut head, mut end) = (vmdk(TEXT), vec![0; END]);
    end[512..1024].copy_from_slice(&head[..512]);
    put(&mut head, 56, &u64::MAX.to_le_bytes());
    (head, end)
}

/// A sound vdi of 16 MiB.
fn vdi() -> Vec<u8> {
    let mut head = vec![0; 1024];
    let numbers = [
        (0x44, 0x0001_0001_u32),
        (0x48, 0x180),
        (0x4c, 1),
        (0x154, 512),
        (0x158, 1024),
        (0x168, 512),
        (0x170, 16 << 20),
        (0x178, 1 << 20),
        (0x180, 16),
    ];
    put(&mut head, 64, b"\x7f\x10\xda\xbe");
    for (at, value) in numbers {
        put(&mut head, at, &value.to_le_bytes());
    }
    head
}

fn refused(head: &[u8]) -> String {
    inspect(head, Some(LENGTH)).expect_err("must be refused").to_string()
}

#[test]
fn sound_images_are_what_they_are() {
    let virtual_size = 16 << 20;
    let expected = Ok(Image { format: Format::Vmdk, virtual_size });
    assert_eq!(inspect(&vmdk(TEXT), Some(LENGTH)), expected);
    assert_eq!(inspect(&vmdk(TEXT), None), expected);
    // As VMware and VirtualBox write it.
    let other = TEXT.replace("RW 32768", "RDONLY 32768").replace('\n', "\r\n");
    assert_eq!(inspect(&vmdk(&other), Some(LENGTH)), expected);
    assert_eq!(inspect(&vdi(), Some(LENGTH)), Ok(Image { format: Format::Vdi, virtual_size }));
    let (head, end) = stream();
    assert_eq!(inspect_whole(&head, &end, LENGTH), expected);
    assert_eq!(inspect_whole(&vmdk(TEXT), &[], LENGTH), expected);
    let raw = inspect(&[1; 512], None).unwrap();
    assert_eq!((raw.format, raw.virtual_size), (Format::Raw, LARGEST));
}

#[test]
fn a_vmdk_that_refers_to_another_file_is_refused() {
    let parent = "vmdk image names a parent, which is not allowed";
    for (from, to, why) in [
        ("ddb.", "parentFileNameHint=\"/etc/shadow\"\nddb.", parent),
        // Behind the end of the text, as far as qemu-img may see it.
        ("ddb.", "\0parentfilenamehint=\"/etc/shadow\"\nddb.", parent),
        ("parentCID=ffffffff", "parentCID=01234567", parent),
        ("streamOptimized", "twoGbMaxExtentSparse", "is of kind \"twoGbMaxExtentSparse\""),
        ("createType", "x", "is of kind \"\""),
        ("\nddb.", "\nRW 32768 SPARSE \"t.vmdk\"\nddb.", "names several extents"),
        ("SPARSE", "FLAT", "names another file"),
        ("\"s.vmdk\"", "\"/etc/shadow\"", "names another file"),
        ("RW 32768", "# 32768", "names no extent"),
        ("# Disk", "# disk", "is not where it says"),
    ] {
        let text = refused(&vmdk(&TEXT.replacen(from, to, 1)));
        assert!(text.contains(why), "{to}: {text}");
    }
    let mut late = vmdk(TEXT);
    put(&mut late, INSPECTED - 18, b"parentFileNameHint");
    assert_eq!(refused(&late), parent);
    // With no capacity qemu-img opens what the descriptor names.
    let mut empty = vmdk(TEXT);
    put(&mut empty, 12, &0_u64.to_le_bytes());
    assert_eq!(refused(&empty), "vmdk image has a bad header: capacity is 0");
    let mut part = vmdk(TEXT);
    put(&mut part, 28, &0_u64.to_le_bytes());
    assert!(refused(&part).contains("one of several parts"));
    assert!(refused(TEXT.as_bytes()).contains("it is a descriptor"));
    assert!(refused(b"COWD and more").contains("is of kind \"vmfsSparse\""));
}

#[test]
fn a_footer_says_what_the_header_says() {
    let (head, end) = stream();
    for (at, value) in [(12, 0x9000_u64), (20, 64), (56, u64::MAX)] {
        let mut other = end.clone();
        put(&mut other, 512 + at, &value.to_le_bytes());
        assert_eq!(inspect_whole(&head, &other, LENGTH), Err(FormatError::Footer), "{at}");
    }
    let mut far = end.clone();
    put(&mut far, 512 + 56, &LENGTH.to_le_bytes());
    assert!(inspect_whole(&head, &far, LENGTH).unwrap_err().to_string().contains("gdOffset"));
    assert_eq!(inspect_whole(&head, &vec![0; END], LENGTH), Err(FormatError::Footer));
    assert_eq!(inspect_whole(&head, &end, LENGTH + 1), Err(FormatError::Short(Format::Vmdk)));
    assert_eq!(inspect_whole(&head, &end[1..], LENGTH), Err(FormatError::Short(Format::Vmdk)));
}

#[test]
fn a_vdi_that_belongs_to_another_image_is_refused() {
    for link in [0x1a8, 0x1b8] {
        let mut head = vdi();
        head[link + 15] = 1;
        assert_eq!(refused(&head), "vdi image names a parent, which is not allowed");
    }
    let mut difference = vdi();
    difference[0x4c] = 4;
    assert_eq!(refused(&difference), "vdi image has a bad header: image_type is 4");
}

#[test]
fn absurd_fields_are_refused_by_name() {
    for (at, value, expected) in [
        (4, 4, "version is 4"),
        (12, u64::MAX, "capacity is"),
        (12, (LARGEST >> 9) + 1, "capacity is"),
        (20, 127, "grainSize is 127"),
        (20, 1 << 21, "grainSize is"),
        (28, 2, "descriptorOffset is 2"),
        (36, 21, "descriptorSize is 21"),
        (48, 1 << 30, "rgdOffset is"),
        (56, 1 << 30, "gdOffset is"),
        (56, 0, "gdOffset is 0"),
    ] {
        let mut head = vmdk(TEXT);
        put(&mut head, at, &value.to_le_bytes());
        // Eight bytes from the version on are the flags as well.
        put(&mut head, 8, &3_u32.to_le_bytes());
        let text = refused(&head);
        assert!(text.contains(expected), "{text}");
    }
    for (at, value, expected) in [
        (0x44, 1_u32, "version is 1"),
        (0x154, 513, "offset_bmap is 513"),
        (0x154, 1 << 20, "offset_bmap is"),
        (0x158, 0, "offset_data is 0"),
        (0x168, 4096, "sector_size is 4096"),
        (0x174, 1 << 16, "disk_size is"),
        (0x178, 4096, "block_size is 4096"),
        (0x17c, 1, "block_extra is 1"),
        (0x180, 15, "blocks_in_image is 15"),
        (0x180, u32::MAX, "offset_bmap is"),
    ] {
        let mut head = vdi();
        put(&mut head, at, &value.to_le_bytes());
        let text = refused(&head);
        assert!(text.contains(expected), "{text}");
    }
    // One that ends within its header.
    assert!(refused(&vmdk(TEXT)[..70]).contains("it has no descriptor"));
    assert_eq!(refused(&vdi()[..100]), "vdi image ends within its header");
    assert_eq!(refused(b"KDMV"), "vmdk image ends within its header");
    assert_eq!(refused(b"vhdxfile"), "image is in vhdx format: only raw, qcow2, vmdk and vdi are supported");
}
