//! What the header of a request says about its upload. Pure.

use crate::checksum::Checksum;
use crate::failure::Failure;
use barevirt_import_job::{UPLOAD_CHECKSUM, UPLOAD_ID};
use http::header::{self, HeaderMap};

/// Longest name of an upload, in bytes.
const LONGEST_ID: usize = 64;

/// An upload that begins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Begin {
    /// The name by which it goes on, if it may.
    pub(super) id: Option<String>,
    /// The checksum that it has to have.
    pub(super) checksum: Option<Checksum>,
}

/// The rest of an upload, or a question for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rest {
    /// The upload's name.
    pub(super) id: String,
    /// Where the rest begins, if it is sent.
    pub(super) from: Option<u64>,
    /// Bytes of the whole upload.
    pub(super) length: u64,
}

fn wrong(why: &str) -> Failure {
    Failure::Final(why.to_owned())
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>, Failure> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let value = value.to_str().map_err(|_| Failure::Final(format!("header {name} is not text")))?;
    Ok(Some(value.trim()))
}

fn id(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let Some(id) = text(headers, UPLOAD_ID)? else { return Ok(None) };
    let is_good = (1..=LONGEST_ID).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if is_good {
        Ok(Some(id.to_owned()))
    } else {
        Err(wrong("the name of the upload is not 1 to 64 letters and digits"))
    }
}

impl Begin {
    /// What a request for a whole upload says.
    ///
    /// # Errors
    /// It is no such request.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Failure> {
        if headers.contains_key(header::CONTENT_RANGE) {
            // It must never become a disk of its own.
            return Err(wrong("a part of an image is not an image"));
        }
        let checksum = text(headers, UPLOAD_CHECKSUM)?.map(Checksum::parse).transpose()?;
        Ok(Begin { id: id(headers)?, checksum })
    }
}

impl Rest {
    /// What a request for the rest of an upload says.
    ///
    /// # Errors
    /// It is no such request.
    pub(super) fn of(headers: &HeaderMap) -> Result<Self, Failure> {
        let id = id(headers)?.ok_or_else(|| wrong("the upload has no name"))?;
        let range = text(headers, header::CONTENT_RANGE.as_str())?.and_then(range);
        let (from, length) =
            range.ok_or_else(|| wrong("Content-Range does not say which part of the image it is"))?;
        Ok(Rest { id, from, length })
    }
}

/// Start and whole length in `bytes 5-9/10`, or only the length in `bytes */10`. A part goes on to the end.
fn range(text: &str) -> Option<(Option<u64>, u64)> {
    let (part, length) = text.strip_prefix("bytes ")?.split_once('/')?;
    let length: u64 = length.parse().ok()?;
    if part == "*" {
        return Some((None, length));
    }
    let (from, last) = part.split_once('-')?;
    let (from, last): (u64, u64) = (from.parse().ok()?, last.parse().ok()?);
    (from <= last && last.checked_add(1) == Some(length)).then_some((Some(from), length))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_has_to_reach_the_end_of_the_image() {
        assert_eq!(range("bytes 5-9/10"), Some((Some(5), 10)));
        assert_eq!(range("bytes */10"), Some((None, 10)));
        for bad in [
            "",
            "bytes 5-8/10",
            "bytes 10-9/10",
            "bytes 5-9/*",
            "bytes -9/10",
            "5-9/10",
            "bytes 0-18446744073709551615/0",
        ] {
            assert_eq!(range(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_part_is_never_taken_for_an_image() {
        let mut headers = HeaderMap::new();
        assert_eq!(Begin::of(&headers), Ok(Begin::default()));
        headers.insert(UPLOAD_ID, "abc123".parse().unwrap());
        assert_eq!(Begin::of(&headers).unwrap().id.as_deref(), Some("abc123"));
        assert!(Rest::of(&headers).unwrap_err().to_string().contains("Content-Range"));
        headers.insert(header::CONTENT_RANGE, "bytes 5-9/10".parse().unwrap());
        assert!(Begin::of(&headers).unwrap_err().to_string().contains("is not an image"));
        let rest = Rest { id: "abc123".to_owned(), from: Some(5), length: 10 };
        assert_eq!(Rest::of(&headers), Ok(rest));
        for bad in ["", "a b", "../a", &"a".repeat(65)] {
            headers.insert(UPLOAD_ID, bad.parse().unwrap());
            assert!(Rest::of(&headers).unwrap_err().is_final(), "{bad}");
        }
        headers.remove(UPLOAD_ID);
        assert!(Rest::of(&headers).is_err());
        headers.remove(header::CONTENT_RANGE);
        headers.insert(UPLOAD_CHECKSUM, "sha256:00".parse().unwrap());
        assert!(Begin::of(&headers).unwrap_err().to_string().contains("cannot be used"));
    }
}
