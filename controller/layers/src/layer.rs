//! Parses the archive of a layer, to find its file in `/disk` (POSIX ustar and pax, GNU's long names and large numbers).
//!
//! No file is created by name: names are only compared, and the contents of one file are read.

use std::io::{self, Read};

/// Size of a header, and alignment of contents, in bytes.
const RECORD: usize = 512;
/// Longest name, or list of pax settings, in bytes.
const LONGEST: u64 = 64 << 10;
/// Directory with disks.
const DIRECTORY: &str = "disk";

/// A file of an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path, without a leading `./` or `/`.
    pub path: String,
    /// Its type in the header: `0` is a regular file.
    pub kind: u8,
    /// Length of its contents, in bytes.
    pub size: u64,
}

impl Entry {
    /// Its name if it is directly in `/disk`; markers of deletions in layers do not count.
    #[must_use]
    pub fn disk(&self) -> Option<&str> {
        let name = self.path.strip_prefix(DIRECTORY)?.strip_prefix('/')?;
        let is_one =
            !name.is_empty() && !name.contains('/') && !name.starts_with(".wh.") && self.kind != b'5';
        is_one.then_some(name)
    }

    /// Whether it is a regular file.
    #[must_use]
    pub fn is_file(&self) -> bool {
        matches!(self.kind, b'0' | 0 | b'7')
    }
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not an archive of a layer: {why}"))
}

/// Reads up to the contents of the next file; `None` at the end.
///
/// # Errors
/// It is not an archive.
pub fn next(archive: &mut impl Read) -> io::Result<Option<Entry>> {
    let (mut name, mut size) = (None, None);
    loop {
        let mut header = [0; RECORD];
        if !fill(archive, &mut header)? {
            return Ok(None);
        }
        if header.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        check(&header)?;
        let (kind, said) = (header[156], number(&header[124..136])?);
        match kind {
            b'L' => name = Some(text(&until_zero(&contents(archive, said)?))?),
            b'x' => {
                for (key, value) in settings(&contents(archive, said)?)? {
                    match key.as_str() {
                        "path" => name = Some(value),
                        "size" => size = Some(value.parse().map_err(|_| bad("a size is not a number"))?),
                        _ => {}
                    }
                }
            }
            // Global settings, long targets of links, volume names: not needed here.
            b'g' | b'K' | b'V' => skip(archive, padded(said)?)?,
            _ => {
                let own = || {
                    let (prefix, last) = (until_zero(&header[345..500]), until_zero(&header[..100]));
                    if &header[257..263] == b"ustar\0" && !prefix.is_empty() {
                        Ok(format!("{}/{}", text(&prefix)?, text(&last)?))
                    } else {
                        text(&last)
                    }
                };
                let path = match name {
                    Some(name) => name,
                    None => own()?,
                };
                let path =
                    path.trim_start_matches("./").trim_start_matches('/').trim_end_matches('/').to_owned();
                // Links, directories and devices have no contents, whatever size the header has.
                let size = if matches!(kind, b'1'..=b'6') { 0 } else { size.unwrap_or(said) };
                return Ok(Some(Entry { path, kind, size }));
            }
        }
    }
}

/// Skips the remaining contents of a file, and their padding.
///
/// # Errors
/// The archive ends too early.
pub fn skip_contents(archive: &mut impl Read, size: u64, read: u64) -> io::Result<()> {
    skip(archive, padded(size)?.checked_sub(read).ok_or_else(|| bad("more was read than there is"))?)
}

fn padded(size: u64) -> io::Result<u64> {
    size.checked_next_multiple_of(RECORD as u64).ok_or_else(|| bad("a size is too large"))
}

fn skip(archive: &mut impl Read, count: u64) -> io::Result<()> {
    let skipped = io::copy(&mut archive.take(count), &mut io::sink())?;
    if skipped < count { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
}

/// False at the end of the archive.
fn fill(archive: &mut impl Read, buffer: &mut [u8]) -> io::Result<bool> {
    let mut filled = 0;
    while filled < buffer.len() {
        match archive.read(&mut buffer[filled..]) {
            Ok(0) if filled == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

fn contents(archive: &mut impl Read, size: u64) -> io::Result<Vec<u8>> {
    if size > LONGEST {
        return Err(bad("a name or a list of settings is too long"));
    }
    let mut bytes = vec![];
    archive.take(padded(size)?).read_to_end(&mut bytes)?;
    if (bytes.len() as u64) < padded(size)? {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    bytes.truncate(usize::try_from(size).unwrap_or(0));
    Ok(bytes)
}

fn check(header: &[u8; RECORD]) -> io::Result<()> {
    let sum: u64 = header
        .iter()
        .enumerate()
        .map(|(at, byte)| if (148..156).contains(&at) { u64::from(b' ') } else { u64::from(*byte) })
        .sum();
    if number(&header[148..156])? == sum { Ok(()) } else { Err(bad("a header has another checksum")) }
}

/// Octal digits, or GNU's binary number if the first bit is set.
fn number(field: &[u8]) -> io::Result<u64> {
    if field.first().is_some_and(|first| first & 0x80 != 0) {
        let (head, tail) = field.split_at(field.len().saturating_sub(8));
        if head.iter().skip(1).any(|byte| *byte != 0) || head.first().is_some_and(|first| *first != 0x80) {
            return Err(bad("a number is too large"));
        }
        let tail = <[u8; 8]>::try_from(tail).map_err(|_| bad("a number is too short"))?;
        return Ok(u64::from_be_bytes(tail));
    }
    let digits =
        field.iter().copied().skip_while(|byte| *byte == b' ').take_while(|byte| !matches!(byte, 0 | b' '));
    digits.into_iter().try_fold(0u64, |number, digit| {
        let digit = match digit {
            b'0'..=b'7' => u64::from(digit - b'0'),
            _ => return Err(bad("a number has other digits than octal ones")),
        };
        number.checked_mul(8).map(|number| number + digit).ok_or_else(|| bad("a number is too large"))
    })
}

fn until_zero(bytes: &[u8]) -> Vec<u8> {
    bytes.iter().copied().take_while(|byte| *byte != 0).collect()
}

fn text(bytes: &[u8]) -> io::Result<String> {
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Repeated `LENGTH KEY=VALUE\n`.
fn settings(mut bytes: &[u8]) -> io::Result<Vec<(String, String)>> {
    let mut all = vec![];
    while !bytes.is_empty() {
        let wrong = || bad("a list of settings is damaged");
        let space = bytes.iter().position(|byte| *byte == b' ').ok_or_else(wrong)?;
        let length: usize = text(&bytes[..space])?.parse().map_err(|_| wrong())?;
        let record = bytes.get(space + 1..length).ok_or_else(wrong)?;
        let record = text(record.strip_suffix(b"\n").ok_or_else(wrong)?)?;
        let (key, value) = record.split_once('=').ok_or_else(wrong)?;
        all.push((key.to_owned(), value.to_owned()));
        bytes = &bytes[length..];
    }
    Ok(all)
}

#[cfg(test)]
mod tests;
