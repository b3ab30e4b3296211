//! A tar archive of plain files (POSIX ustar). Pure.

/// Size of a block.
const BLOCK: usize = 512;

/// Appends one file. Names have at most 100 bytes.
pub(super) fn add(archive: &mut Vec<u8>, name: &str, content: &[u8], time: u64) {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &name.as_bytes()[..name.len().min(100)]);
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", content.len()).as_bytes());
    put(136, format!("{time:011o}\0").as_bytes());
    // The checksum is computed with spaces in its own field.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    archive.extend_from_slice(&header);
    archive.extend_from_slice(content);
    archive.resize(archive.len().next_multiple_of(BLOCK), 0);
}

/// Ends the archive.
pub(super) fn end(archive: &mut Vec<u8>) {
    archive.resize(archive.len() + 2 * BLOCK, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tar_reads_it() {
        let mut archive = Vec::new();
        add(&mut archive, "vm/one.json", b"{}", 1_700_000_000);
        add(&mut archive, "vm/two.txt", &[b'x'; 600], 1_700_000_000);
        end(&mut archive);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.tar");
        std::fs::write(&path, &archive).unwrap();
        let unpacked =
            std::process::Command::new("tar").arg("xf").arg(&path).arg("-C").arg(directory.path()).status();
        assert!(unpacked.unwrap().success());
        assert_eq!(std::fs::read(directory.path().join("vm/one.json")).unwrap(), b"{}");
        assert_eq!(std::fs::read(directory.path().join("vm/two.txt")).unwrap(), [b'x'; 600]);
    }
}
