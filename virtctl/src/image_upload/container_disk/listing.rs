//! What an image has in /disk, from its layers, the uppermost first: what a layer has or deletes hides what layers below it
//! have (OCI image specification 1.1, whiteouts). Pure.

use std::collections::BTreeSet;

use anyhow::{bail, ensure};
use barevirt_layers::layer::Entry;

/// Most names that a layer may have or delete in /disk.
const MOST_NAMES: usize = 1024;
/// Longest name, in bytes: that of file systems.
const LONGEST_NAME: usize = 255;
/// Enough names to explain an error.
const SHOWN: usize = 4;
/// Prefix of a file that deletes the one with the rest of its name.
const DELETES: &str = ".wh.";

/// The files in /disk, as far as layers have been read.
#[derive(Debug, Default)]
pub(super) struct Listing {
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
    pub(super) fn add(&mut self, entry: &Entry) -> anyhow::Result<bool> {
        match entry.path.as_str() {
            ".wh..wh..opq" | ".wh.disk" | "disk/.wh..wh..opq" => self.hides.all = true,
            // A directory is merged with the one below; anything else takes its place.
            "disk" => self.hides.all |= entry.kind != b'5',
            _ => {}
        }
        let Some(below) = entry.path.strip_prefix("disk/") else { return Ok(false) };
        let name = below.split('/').next().unwrap_or(below);
        ensure!(name.len() <= LONGEST_NAME, "a name in /disk is longer than {LONGEST_NAME} bytes");
        let is_hidden = self.hidden.all || self.hidden.names.contains(name);
        let is_found = entry.disk().is_some() && !is_hidden;
        if is_found {
            let is_twice = self.found.iter().any(|(known, _)| known == name);
            ensure!(!is_twice, "it has {} twice", shown(name));
            self.found.push((name.to_owned(), entry.is_file()));
        }
        self.hides.names.insert(name.strip_prefix(DELETES).unwrap_or(name).to_owned());
        ensure!(self.hides.names.len() <= MOST_NAMES, "it has more than {MOST_NAMES} names in /disk");
        Ok(is_found)
    }

    /// Ends a layer: the next one is below it.
    pub(super) fn end_of_layer(&mut self) {
        let Hidden { names, all } = std::mem::take(&mut self.hides);
        self.hidden.names.extend(names);
        self.hidden.all |= all;
    }

    /// Whether nothing of lower layers can be seen.
    pub(super) fn is_complete(&self) -> bool {
        self.hidden.all
    }

    /// The name of the only file.
    pub(super) fn only(&self) -> anyhow::Result<&str> {
        match self.found.as_slice() {
            [] => bail!("it has no disk: no layer has a file in /disk"),
            [(name, true)] => Ok(name),
            [(name, false)] => bail!("{} is not a regular file", shown(name)),
            several => {
                let mut names: Vec<String> = several.iter().map(|(name, _)| shown(name)).collect();
                names.sort();
                let more = if names.len() > SHOWN { ", ..." } else { "" };
                names.truncate(SHOWN);
                bail!(
                    "it has {} files in /disk ({}{more}): only one is allowed",
                    several.len(),
                    names.join(", ")
                )
            }
        }
    }
}

/// A name, without what would control a terminal.
fn shown(name: &str) -> String {
    format!("/disk/{}", name.escape_debug())
}
