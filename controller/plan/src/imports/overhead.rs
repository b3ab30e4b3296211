//! The share of a claim that is left to its file system.

use barevirt_api::cdi::FilesystemOverhead;
use barevirt_api::v1::PersistentVolumeClaimInfo;
use std::collections::BTreeMap;

/// The share where the settings give none, in thousandths: CDI's.
pub(super) const USUAL: u16 = PersistentVolumeClaimInfo::FILE_SYSTEM_SHARE;

/// The shares of the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Overhead {
    /// Of classes that have none of their own, in thousandths.
    global: u16,
    /// Of other classes, in thousandths.
    classes: BTreeMap<String, u16>,
}

impl Default for Overhead {
    fn default() -> Self {
        Self { global: USUAL, classes: BTreeMap::new() }
    }
}

impl Overhead {
    /// The shares that the settings give. One that cannot be read counts as not given.
    pub fn of(given: Option<&FilesystemOverhead>) -> Self {
        let Some(given) = given else { return Self::default() };
        let global = given.global.as_deref().and_then(thousandths).unwrap_or(USUAL);
        let classes = given.storage_class.iter();
        let classes = classes.filter_map(|(class, share)| Some((class.clone(), thousandths(share)?)));
        Self { global, classes: classes.collect() }
    }

    /// The share of claims of that class, in thousandths: less than 1000.
    pub fn of_class(&self, class: Option<&str>) -> u16 {
        class.and_then(|class| self.classes.get(class)).copied().unwrap_or(self.global)
    }

    /// The shares of these classes, as the settings write them.
    pub(super) fn shown(&self, classes: &[String]) -> FilesystemOverhead {
        let of_class = |class: &String| (class.clone(), fraction(self.of_class(Some(class))));
        FilesystemOverhead {
            global: Some(fraction(self.global)),
            storage_class: classes.iter().map(of_class).collect(),
        }
    }
}

/// Reads `0.06` as 60.
fn thousandths(text: &str) -> Option<u16> {
    let digits = match text.strip_prefix('0')? {
        "" => "",
        rest => rest.strip_prefix('.').filter(|digits| !digits.is_empty())?,
    };
    let is_short = digits.len() <= 3 && digits.bytes().all(|byte| byte.is_ascii_digit());
    if is_short { format!("{digits:0<3}").parse().ok() } else { None }
}

/// Writes 60 as `0.06`.
fn fraction(thousandths: u16) -> String {
    let digits = format!("{thousandths:03}");
    match digits.trim_end_matches('0') {
        "" => "0".to_owned(),
        digits => format!("0.{digits}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_less_than_the_whole_and_written_as_it_is_read() {
        for (text, share) in
            [("0", 0), ("0.06", 60), ("0.055", 55), ("0.1", 100), ("0.999", 999), ("0.001", 1), ("0.5", 500)]
        {
            assert_eq!(thousandths(text), Some(share), "{text}");
            assert_eq!(fraction(share), text);
        }
        for text in ["", "1", "0.", ".06", "0.0555", "0.-1", "0,06", "00", "6%", "-0.1"] {
            assert_eq!(thousandths(text), None, "{text}");
        }
        assert_eq!(thousandths("0.100"), Some(100));
    }

    #[test]
    fn a_class_has_its_own_share_or_that_of_all() {
        let given = FilesystemOverhead {
            global: Some("0.1".to_owned()),
            storage_class: [("fast", "0"), ("odd", "much")]
                .map(|(class, share)| (class.to_owned(), share.to_owned()))
                .into(),
        };
        let overhead = Overhead::of(Some(&given));
        assert_eq!(overhead.of_class(Some("fast")), 0);
        assert_eq!((overhead.of_class(Some("odd")), overhead.of_class(None)), (100, 100));
        let shown = overhead.shown(&["fast".to_owned(), "slow".to_owned()]);
        assert_eq!(shown.global.as_deref(), Some("0.1"));
        assert_eq!(
            (shown.storage_class["fast"].as_str(), shown.storage_class["slow"].as_str()),
            ("0", "0.1")
        );
        let usual = Overhead::of(None);
        assert_eq!((usual.of_class(Some("fast")), usual.shown(&[]).global.as_deref()), (USUAL, Some("0.06")));
    }
}
