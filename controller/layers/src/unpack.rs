//! The contents of a stream: an image as it is, or compressed once (gz, xz, zstd).
//!
//! The writer bounds the size of the result; this module bounds the memory for it.

use flate2::read::MultiGzDecoder;
use lzma_rust2::XzReader;
use ruzstd::decoding::errors::{FrameDecoderError, ReadFrameHeaderError};
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};
use std::io::{self, Cursor, Read};

/// Largest dictionary of xz and window of zstd, in bytes: more than `xz -9` and `zstd -19` use.
const LARGEST_WINDOW: u64 = 128 << 20;

/// A stream whose first bytes are known.
pub struct Peeked {
    /// The first bytes: as many as were asked for, or all.
    pub head: Vec<u8>,
    rest: Box<dyn Read + Send>,
    position: usize,
}

impl Peeked {
    /// Reads the first bytes.
    ///
    /// # Errors
    /// Reading fails.
    pub fn new(mut rest: Box<dyn Read + Send>, most: usize) -> io::Result<Self> {
        let mut head = vec![];
        (&mut rest).take(most as u64).read_to_end(&mut head)?;
        Ok(Peeked { head, rest, position: 0 })
    }

    /// Whether the stream has ended. If not, the head contains its next byte.
    fn is_at_end(&mut self) -> io::Result<bool> {
        if self.position < self.head.len() {
            return Ok(false);
        }
        self.head.clear();
        self.position = 0;
        (&mut self.rest).take(1).read_to_end(&mut self.head)?;
        Ok(self.head.is_empty())
    }
}

impl Read for Peeked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.position < self.head.len() {
            let count = Cursor::new(&self.head[self.position..]).read(buffer)?;
            self.position += count;
            return Ok(count);
        }
        self.rest.read(buffer)
    }
}

/// Removes one compression, if there is one; returns the stream, and whether it was compressed.
///
/// # Errors
/// Reading fails.
pub fn unpacked(stream: Box<dyn Read + Send>, most: usize) -> io::Result<(Peeked, bool)> {
    let peeked = Peeked::new(stream, most)?;
    let inner: Box<dyn Read + Send> = match peeked.head.as_slice() {
        [0x1f, 0x8b, 8, ..] => Box::new(MultiGzDecoder::new(peeked)),
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => {
            let kibibytes = u32::try_from(LARGEST_WINDOW >> 10).unwrap_or(u32::MAX);
            Box::new(XzReader::new_mem_limit(peeked, true, kibibytes))
        }
        [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Box::new(Zstd::new(peeked)),
        _ => return Ok((peeked, false)),
    };
    Ok((Peeked::new(inner, most)?, true))
}

/// A zstd file: frames, with skippable frames between them.
struct Zstd {
    source: Peeked,
    decoder: FrameDecoder,
    within: bool,
}

impl Zstd {
    fn new(source: Peeked) -> Self {
        let mut decoder = FrameDecoder::new();
        decoder.set_max_window_size(LARGEST_WINDOW);
        Zstd { source, decoder, within: false }
    }

    /// Begins the next frame; false at the end.
    fn begin(&mut self) -> io::Result<bool> {
        while !self.source.is_at_end()? {
            match self.decoder.init(&mut self.source) {
                Ok(()) => return Ok(true),
                Err(FrameDecoderError::ReadFrameHeaderError(ReadFrameHeaderError::SkipFrame {
                    length,
                    ..
                })) => {
                    let skipped = io::copy(&mut (&mut self.source).take(length.into()), &mut io::sink())?;
                    if skipped < length.into() {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(false)
    }
}

impl Read for Zstd {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.within {
                if buffer.is_empty() || !self.begin()? {
                    return Ok(0);
                }
                self.within = true;
            }
            while self.decoder.can_collect() == 0 && !self.decoder.is_finished() {
                let one = BlockDecodingStrategy::UptoBlocks(1);
                self.decoder.decode_blocks(&mut self.source, one).map_err(io::Error::other)?;
            }
            let count = self.decoder.read(buffer)?;
            if count > 0 || buffer.is_empty() {
                return Ok(count);
            }
            let said = self.decoder.get_checksum_from_data();
            if said.is_some() && said != self.decoder.get_calculated_checksum() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "a zstd frame has another checksum"));
            }
            self.within = false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::process::{Command, Stdio};

    fn through(command: &[&str], bytes: &[u8]) -> Vec<u8> {
        let mut child = Command::new(command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (mut input, bytes) = (child.stdin.take().unwrap(), bytes.to_vec());
        let writing = std::thread::spawn(move || input.write_all(&bytes).unwrap());
        let output = child.wait_with_output().unwrap();
        writing.join().unwrap();
        output.stdout
    }

    fn read(bytes: Vec<u8>) -> io::Result<(Vec<u8>, bool)> {
        let (mut stream, packed) = unpacked(Box::new(Cursor::new(bytes)), 16)?;
        let mut all = vec![];
        stream.read_to_end(&mut all)?;
        Ok((all, packed))
    }

    #[test]
    fn gzip_xz_and_zstd_files_of_several_parts_are_unpacked() {
        let image: Vec<u8> = (0..300_000_u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        assert_eq!(read(image.clone()).unwrap(), (image.clone(), false));
        assert_eq!(read(vec![]).unwrap(), (vec![], false));
        for command in [&["gzip", "-c"][..], &["xz", "-9", "-c"], &["zstd", "-q", "-c"]] {
            let (first, second) = image.split_at(500_001);
            let mut packed = through(command, first);
            packed.extend(through(command, second));
            assert_eq!(read(packed.clone()).unwrap(), (image.clone(), true), "{command:?}");
            packed.truncate(packed.len() - 9);
            assert!(read(packed).is_err(), "{command:?} cut short");
        }
    }

    #[test]
    fn skippable_zstd_frames_are_skipped() {
        let mut packed = vec![0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3];
        packed.extend(through(&["zstd", "-q", "-c"], b"abc"));
        packed.extend([0x5f, 0x2a, 0x4d, 0x18, 0, 0, 0, 0]);
        assert_eq!(read(packed.clone()).unwrap().0, b"abc");
        packed.extend([0x5f, 0x2a, 0x4d, 0x18, 9, 0, 0, 0, 1]);
        assert!(read(packed).is_err());
    }

    #[test]
    fn memory_is_bounded_before_it_is_taken() {
        // A window of 2 GiB: frame header with a window descriptor of exponent 21.
        let bomb = vec![0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 1, 0, 0];
        assert!(read(bomb).unwrap_err().to_string().to_lowercase().contains("window"));
        let large = through(&["xz", "-c", "--lzma2=dict=1GiB"], b"abc");
        assert!(read(large).unwrap_err().to_string().contains("memory"));
    }
}
