//! Judges the names in an archive. Pure: no file is touched.
//!
//! A name that could lead out of the claim is refused, not changed: an archive that is unpacked under other names than it
//! has would surprise its author, too.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

/// Longest name of an entry, and longest target of a link, in bytes: Linux' PATH_MAX.
const LONGEST: usize = 4096;
/// Most parts of a name: clearing a tree needs a descriptor for each.
const DEEPEST: usize = 128;
/// Directory of the claim's file system itself, which is never an archive's.
const LOST_AND_FOUND: &str = "lost+found";

/// Why a name or a target is refused. The text follows the entry's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum NameError {
    #[error("has an absolute name: pack it by a relative one")]
    Absolute,
    #[error("leads out of the archive by ..")]
    Leaves,
    #[error("has a name of more than {LONGEST} bytes")]
    Long,
    #[error("has a name of more than {DEEPEST} parts")]
    Deep,
    #[error("has a name with a zero byte")]
    Zero,
    #[error("has a name that is used while the archive is unpacked")]
    Reserved,
    #[error("is a link without a target")]
    NoTarget,
    #[error("is a link to an absolute path, which may lead out of the claim")]
    AbsoluteTarget,
    #[error("is a link that leads out of the archive, or may: .. is allowed only at the start of its target")]
    TargetLeaves,
    #[error("is a link with a target of more than {LONGEST} bytes")]
    LongTarget,
}

/// The parts of an entry's name, below the root; none for the root itself. `reserved` is no name at the root.
pub(super) fn parts(name: &[u8], reserved: &str) -> Result<Vec<OsString>, NameError> {
    if name.len() > LONGEST {
        return Err(NameError::Long);
    }
    if name.contains(&0) {
        return Err(NameError::Zero);
    }
    if name.starts_with(b"/") {
        return Err(NameError::Absolute);
    }
    let mut parts = vec![];
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => return Err(NameError::Leaves),
            part => parts.push(OsStr::from_bytes(part).to_owned()),
        }
    }
    if parts.len() > DEEPEST {
        return Err(NameError::Deep);
    }
    if parts.first().is_some_and(|first| first == reserved) {
        return Err(NameError::Reserved);
    }
    Ok(parts)
}

/// Whether an entry belongs to the directory that a file system keeps for itself.
pub(super) fn is_of_file_system(parts: &[OsString]) -> bool {
    parts.first().is_some_and(|first| first == LOST_AND_FOUND)
}

/// Checks the target of a symbolic link, `depth` directories below the root.
///
/// `..` after another part is refused: that part may be a link, so that the result is not known.
pub(super) fn target(target: &[u8], depth: usize) -> Result<(), NameError> {
    if target.is_empty() {
        return Err(NameError::NoTarget);
    }
    if target.len() > LONGEST {
        return Err(NameError::LongTarget);
    }
    if target.contains(&0) {
        return Err(NameError::Zero);
    }
    if target.starts_with(b"/") {
        return Err(NameError::AbsoluteTarget);
    }
    let (mut up, mut down) = (0, false);
    for part in target.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." if down => return Err(NameError::TargetLeaves),
            b".." => up += 1,
            _ => down = true,
        }
    }
    if up > depth { Err(NameError::TargetLeaves) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_below_the_root_or_not_at_all() {
        let of = |name: &[u8]| parts(name, ".import").map(|parts| parts.join(OsStr::new("|")));
        assert_eq!(of(b"./a//b/./c/"), Ok("a|b|c".into()));
        assert_eq!(of(b"./"), Ok("".into()));
        assert_eq!(of(b"..a/b.."), Ok("..a|b..".into()));
        for (bad, why) in [
            (&b"/etc/passwd"[..], NameError::Absolute),
            (b"../a", NameError::Leaves),
            (b"a/../../b", NameError::Leaves),
            (b"a/..", NameError::Leaves),
            (b"a\0b", NameError::Zero),
            (b"./.import/a", NameError::Reserved),
            (&[b'a'; 4097], NameError::Long),
            (&b"a/".repeat(129), NameError::Deep),
        ] {
            assert_eq!(of(bad), Err(why), "{}", String::from_utf8_lossy(bad));
        }
        assert_eq!(of(b"a/.import"), Ok("a|.import".into()));
    }

    #[test]
    fn a_link_with_a_target_outside_the_archive_is_refused() {
        for good in [&b"b"[..], b"../../b/c", b"./b", b"../..", b"...", b"b/..c"] {
            assert_eq!(target(good, 2), Ok(()), "{}", String::from_utf8_lossy(good));
        }
        for (bad, why) in [
            (&b"/etc"[..], NameError::AbsoluteTarget),
            (b"../../../b", NameError::TargetLeaves),
            (b"..//./../..", NameError::TargetLeaves),
            (b"b/../c", NameError::TargetLeaves),
            (b"", NameError::NoTarget),
            (b"b\0", NameError::Zero),
            (&[b'a'; 4097], NameError::LongTarget),
        ] {
            assert_eq!(target(bad, 2), Err(why), "{}", String::from_utf8_lossy(bad));
        }
    }
}
