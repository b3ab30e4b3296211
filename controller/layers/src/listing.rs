//! What an image has in /disk, from its layers, the uppermost first: what a layer has or deletes hides what layers below it
//! have (OCI image specification 1.1, whiteouts). Pure.

use crate::layer::Entry;
use std::collections::BTreeSet;

/// Most names that a layer may have or delete in /disk.
const MOST_NAMES: usize = 1024;
/// Longest name, in bytes: that of file systems.
const LONGEST_NAME: usize = 255;
/// Enough names to explain an error.
const SHOWN: usize = 4;
/// Prefix of a file that deletes the one with the rest of its name.
const DELETES: &str = ".wh.";

/// Why an image has no disk that can be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ListingError(String);

/// The files in /disk, as far as layers have been read.
#[derive(Debug, Default)]
pub struct Listing {
    /// Their names, and whether they are regular files.
    found: Vec<(String, bool)>,
    /// By all layers above the one that is being read.
    hidden: Hidden,
    /// By the layer that is being read, below it.
    hides: Hidden,
}

/// What cannot be seen of lower layers.
#[derive(Debug, Default)]
struct Hidden {
    names: BTreeSet<String>,
    all: bool,
}

impl Listing {
    /// Adds an entry of a layer; returns whether it is a file of the image in /disk.
    ///
    /// # Errors
    /// There are too many or too long names, or one twice.
    pub fn add(&mut self, entry: &Entry) -> Result<bool, ListingError> {
        match entry.path.as_str() {
            ".wh..wh..opq" | ".wh.disk" | "disk/.wh..wh..opq" => self.hides.all = true,
            // A directory is merged with the one below; anything else takes its place.
            "disk" => self.hides.all |= entry.kind != b'5',
            _ => {}
        }
        let Some(below) = entry.path.strip_prefix("disk/") else { return Ok(false) };
        let name = below.split('/').next().unwrap_or(below);
        if name.len() > LONGEST_NAME {
            return Err(ListingError(format!("a name in /disk is longer than {LONGEST_NAME} bytes")));
        }
        let is_hidden = self.hidden.all || self.hidden.names.contains(name);
        let is_found = entry.disk().is_some() && !is_hidden;
        if is_found {
            let is_twice = self.found.iter().any(|(known, _)| known == name);
            if is_twice {
                return Err(ListingError(format!("it has {} twice", shown(name))));
            }
            self.found.push((name.to_owned(), entry.is_file()));
        }
        self.hides.names.insert(name.strip_prefix(DELETES).unwrap_or(name).to_owned());
        if self.hides.names.len() > MOST_NAMES {
            return Err(ListingError(format!("it has more than {MOST_NAMES} names in /disk")));
        }
        Ok(is_found)
    }

    /// Ends a layer: the next one is below it.
    pub fn end_of_layer(&mut self) {
        let Hidden { names, all } = std::mem::take(&mut self.hides);
        self.hidden.names.extend(names);
        self.hidden.all |= all;
    }

    /// Whether nothing of lower layers can be seen.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.hidden.all
    }

    /// The name of the only file.
    ///
    /// # Errors
    /// There is none, or there are several, or it is not a regular file.
    pub fn only(&self) -> Result<&str, ListingError> {
        match self.found.as_slice() {
            [] => Err(ListingError("it has no disk: no layer has a file in /disk".to_owned())),
            [(name, true)] => Ok(name),
            [(name, false)] => Err(ListingError(format!("{} is not a regular file", shown(name)))),
            several => {
                let mut names: Vec<String> = several.iter().map(|(name, _)| shown(name)).collect();
                names.sort();
                let more = if names.len() > SHOWN { ", ..." } else { "" };
                names.truncate(SHOWN);
                Err(ListingError(format!(
                    "it has {} files in /disk ({}{more}): only one is allowed",
                    several.len(),
                    names.join(", ")
                )))
            }
        }
    }
}

/// A name, without what would control a terminal.
fn shown(name: &str) -> String {
    format!("/disk/{}", name.escape_debug())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is seen of these layers, the uppermost first.
    fn seen(layers: &[&[(&str, u8)]]) -> Result<String, ListingError> {
        let mut listing = Listing::default();
        for layer in layers {
            for (path, kind) in *layer {
                listing.add(&Entry { path: (*path).to_owned(), kind: *kind, size: 0 })?;
            }
            listing.end_of_layer();
        }
        listing.only().map(str::to_owned)
    }

    #[test]
    fn an_upper_layer_deletes_replaces_and_closes_what_is_below() {
        let disk: &[(&str, u8)] = &[("disk", b'5'), ("disk/a", b'0')];
        for upper in [
            ("disk/.wh.a", b'0'),
            ("disk/.wh..wh..opq", b'0'),
            (".wh.disk", b'0'),
            (".wh..wh..opq", b'0'),
            ("disk", b'2'),
            ("disk/a", b'5'),
        ] {
            let error = seen(&[&[upper], disk]).unwrap_err().to_string();
            assert_eq!(error, "it has no disk: no layer has a file in /disk", "{upper:?}");
        }
        // A marker hides nothing of its own layer, and nothing of another name.
        assert_eq!(seen(&[&[("disk/.wh..wh..opq", b'0'), ("disk/b", b'0')], disk]).unwrap(), "b");
        assert_eq!(seen(&[&[("disk/.wh.b", b'0'), ("disk", b'5')], disk]).unwrap(), "a");
        assert!(seen(&[&[("disk/b", b'0')], disk]).unwrap_err().to_string().contains("2 files"));
    }
}
