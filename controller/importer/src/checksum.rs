//! Checksums of received files.

use crate::failure::Failure;
use barevirt_import_job::DIGEST_PREFIX;
use sha1::Digest as _;
use std::fmt::Write;

/// An expected digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum {
    algorithm: Algorithm,
    digest: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Algorithm {
    Md5,
    Sha1,
    Sha256,
    Sha512,
}

impl Algorithm {
    const ALL: [(&'static str, Algorithm, usize); 4] = [
        ("md5", Algorithm::Md5, 32),
        ("sha1", Algorithm::Sha1, 40),
        ("sha256", Algorithm::Sha256, 64),
        ("sha512", Algorithm::Sha512, 128),
    ];
}

/// The digest that identifies images: `sha256:` and the SHA-256 of these bytes.
pub(crate) fn of(bytes: &[u8]) -> String {
    let mut hasher = Hasher::Sha256(<sha2::Sha256 as sha2::Digest>::new());
    hasher.update(bytes);
    format!("{DIGEST_PREFIX}{}", hasher.finish())
}

impl Checksum {
    /// Parses `algorithm:digest`.
    ///
    /// # Errors
    /// The algorithm is unknown, or the digest does not fit it.
    pub fn parse(text: &str) -> Result<Self, Failure> {
        let wrong = |why: String| Failure::Final(format!("checksum {text:?} cannot be used: {why}"));
        let (name, digest) =
            text.trim().split_once(':').ok_or_else(|| wrong("it is not algorithm:digest".to_owned()))?;
        let digest = digest.to_ascii_lowercase();
        let known = Algorithm::ALL.into_iter().find(|(known, ..)| known.eq_ignore_ascii_case(name));
        let (name, algorithm, digits) =
            known.ok_or_else(|| wrong("only md5, sha1, sha256 and sha512 are supported".to_owned()))?;
        if digest.len() != digits || !digest.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(wrong(format!("a digest of {name} has {digits} hexadecimal digits")));
        }
        Ok(Checksum { algorithm, digest })
    }

    /// The hasher for this digest's algorithm.
    #[must_use]
    pub fn hasher(&self) -> Hasher {
        match self.algorithm {
            Algorithm::Md5 => Hasher::Md5(md5::Md5::new()),
            Algorithm::Sha1 => Hasher::Sha1(sha1::Sha1::new()),
            Algorithm::Sha256 => Hasher::Sha256(<sha2::Sha256 as sha2::Digest>::new()),
            Algorithm::Sha512 => Hasher::Sha512(<sha2::Sha512 as sha2::Digest>::new()),
        }
    }

    /// Compares the expected digest with the computed one.
    ///
    /// # Errors
    /// They differ.
    pub fn verify(&self, hasher: Hasher, what: &str) -> Result<(), Failure> {
        let found = hasher.finish();
        if found == self.digest {
            return Ok(());
        }
        Err(Failure::Final(format!("{what} has the checksum {found}, not {} as it should", self.digest)))
    }
}

/// Computes a digest.
#[derive(Clone, Debug)]
#[expect(missing_docs, reason = "named as the algorithms")]
pub enum Hasher {
    Md5(md5::Md5),
    Sha1(sha1::Sha1),
    Sha256(sha2::Sha256),
    Sha512(sha2::Sha512),
}

impl Hasher {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Md5(hasher) => hasher.update(bytes),
            Hasher::Sha1(hasher) => hasher.update(bytes),
            Hasher::Sha256(hasher) => sha2::Digest::update(hasher, bytes),
            Hasher::Sha512(hasher) => sha2::Digest::update(hasher, bytes),
        }
    }

    fn finish(self) -> String {
        match self {
            Hasher::Md5(hasher) => hexadecimal(&hasher.finalize()),
            Hasher::Sha1(hasher) => hexadecimal(&hasher.finalize()),
            Hasher::Sha256(hasher) => hexadecimal(&sha2::Digest::finalize(hasher)),
            Hasher::Sha512(hasher) => hexadecimal(&sha2::Digest::finalize(hasher)),
        }
    }
}

/// Bytes as hexadecimal digits.
pub(crate) fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string does not fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_matches_only_its_content() {
        for good in [
            "md5:900150983CD24FB0D6963F7D28E17F72",
            "sha1:a9993e364706816aba3e25717850c26c9cd0d89d",
            "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
            "sha512:ddaf35a193617abacc417349ae20413112e6fa4e89a97ea20a9eeee64b55d39a2192992a274fc1a836ba3c23a3feebbd454d4423643ce80e2a9ac94fa54ca49f",
        ] {
            let checksum = Checksum::parse(good).unwrap();
            let mut hasher = checksum.hasher();
            hasher.update(b"a");
            hasher.update(b"bc");
            assert_eq!(checksum.verify(hasher.clone(), "image"), Ok(()), "{good}");
            hasher.update(b"d");
            assert!(checksum.verify(hasher, "image").unwrap_err().is_final(), "{good}");
        }
        for bad in
            ["", "abc", "crc:00", "md5:00", "sha256:zz", "sha1:a9993e364706816aba3e25717850c26c9cd0d89é"]
        {
            assert!(Checksum::parse(bad).unwrap_err().is_final(), "{bad}");
        }
    }
}
