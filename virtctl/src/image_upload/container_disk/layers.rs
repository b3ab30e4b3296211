//! Which files are the layers of an image: OCI's image layout 1.1, or the list of `docker save`.

use anyhow::{Context, anyhow, bail, ensure};
use barevirt_layers::manifest::{Descriptor, Index, MOST_LAYERS, Manifest, own_architecture};
use serde::Deserialize;

use super::contents::{BLOBS, Contents, INDEX, LAYOUT, Part};

/// Docker's list of images.
const SAVED: &str = "manifest.json";
/// Architecture of guests.
const GUESTS: &str = "amd64";
/// How many indexes may lead to each other: two are usual.
const DEPTH: usize = 4;

/// An image in docker's list.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    /// Names of files in the archive, the lowest layer first.
    layers: Vec<String>,
}

/// The layers of the image, the uppermost first. `None` if it is no image.
pub(super) fn of(contents: &Contents) -> anyhow::Result<Option<Vec<Part>>> {
    if contents.file(LAYOUT)?.is_some()
        && let Some(index) = contents.file(INDEX)?
    {
        return of_layout(contents, index.text(INDEX)?).map(Some);
    }
    match contents.file(SAVED)? {
        Some(list) => of_saved(contents, &list.text(SAVED)?).map(Some),
        None => Ok(None),
    }
}

fn of_layout(contents: &Contents, index: Vec<u8>) -> anyhow::Result<Vec<Part>> {
    let mut body = index;
    for _ in 0..=DEPTH {
        let index = match Manifest::parse(&body).map_err(|error| anyhow!("it {error}"))? {
            Manifest::Image(layers) => {
                return layers.iter().rev().map(|layer| blob(contents, layer)).collect();
            }
            Manifest::Index(index) => index,
        };
        let chosen = choose(&index)?;
        body = blob(contents, chosen)?.text(&chosen.digest)?;
    }
    bail!("more than {DEPTH} indexes lead to each other")
}

/// The image for a guest, else that for this machine. The only image of an index need not say what it is for.
fn choose(index: &Index) -> anyhow::Result<&Descriptor> {
    let mut images: Vec<&Descriptor> = vec![];
    for image in index.images() {
        // Each tag of an image is an entry.
        if !images.iter().any(|known| known.digest == image.digest) {
            images.push(image);
        }
    }
    if let [only] = images[..] {
        return Ok(only);
    }
    for architecture in [GUESTS, own_architecture()] {
        let fitting: Vec<&Descriptor> =
            images.iter().copied().filter(|image| image.is_for(architecture)).collect();
        match fitting[..] {
            [] => {}
            [one] => return Ok(one),
            [..] => bail!("it has {} images for linux/{architecture}: save one alone", fitting.len()),
        }
    }
    if images.iter().all(|image| image.platform.is_none()) {
        bail!("it has {} images: save one alone", images.len());
    }
    index.choose(GUESTS).map_err(|error| anyhow!("it {error}"))
}

fn blob(contents: &Contents, described: &Descriptor) -> anyhow::Result<Part> {
    let Descriptor { digest, size, .. } = described;
    let digits = digest.split_once(':').map_or(digest.as_str(), |(_, digits)| digits);
    let part = contents.file(&format!("{BLOBS}{digits}"))?;
    let part = part.with_context(|| format!("{digest} is missing"))?;
    let length = part.length();
    ensure!(length == *size, "{digest} has {length} bytes, but should have {size}");
    Ok(part)
}

fn of_saved(contents: &Contents, list: &[u8]) -> anyhow::Result<Vec<Part>> {
    let images: Vec<Saved> =
        serde_json::from_slice(list).with_context(|| format!("{SAVED} is not what docker save writes"))?;
    let [Saved { layers }] = images.as_slice() else {
        bail!("it has {} images: save one alone", images.len())
    };
    ensure!(layers.len() <= MOST_LAYERS, "it has {} layers, more than {MOST_LAYERS}", layers.len());
    let part = |name: &String| {
        let part = contents.file(name)?;
        part.with_context(|| format!("layer {name:?} is not a file of the archive"))
    };
    layers.iter().rev().map(part).collect()
}
