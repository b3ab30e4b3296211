//! Takes files into the program: the page that `virtctl ui` serves, where `make ui` has built it, and in a release the manifests that
//! `virtctl install` applies, from the folder that `BAREVIRT_MANIFESTS` names.
//!
//! The files of the page are in `target/ui`, each compressed by gzip, with `.gz` after its name. Without them the table is empty, and
//! `virtctl ui` says how to build them.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let here = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?);
    let built = here.parent().ok_or("this crate is in no workspace")?.join("target/ui");
    // Cargo takes a path that is not there for one that changed, every time.
    fs::create_dir_all(&built)?;
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={}", built.display());
    let table = table(&built)?;
    let to = PathBuf::from(env::var("OUT_DIR")?).join("assets.rs");
    fs::write(to, table)?;
    println!("cargo:rerun-if-env-changed=BAREVIRT_MANIFESTS");
    let to = PathBuf::from(env::var("OUT_DIR")?).join("manifests.rs");
    fs::write(to, manifests(env::var_os("BAREVIRT_MANIFESTS").map(PathBuf::from).as_deref()))?;
    Ok(())
}

/// The expression of the texts of both manifests, or of none.
fn manifests(folder: Option<&Path>) -> String {
    let Some(folder) = folder else { return "None".to_owned() };
    let [operator, kubevirt] = ["barevirt-operator.yaml", "barevirt-cr.yaml"].map(|name| folder.join(name));
    for path in [&operator, &kubevirt] {
        println!("cargo:rerun-if-changed={}", path.display());
    }
    format!("Some([include_str!({operator:?}), include_str!({kubevirt:?})])")
}

/// The expression of a list of names and bytes.
fn table(built: &Path) -> io::Result<String> {
    let mut names: Vec<PathBuf> =
        fs::read_dir(built)?.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    names.sort();
    let mut table = "&[\n".to_owned();
    for path in names {
        let Some(name) = path.file_name().and_then(|name| name.to_str()?.strip_suffix(".gz")) else {
            continue;
        };
        // Writing into a string cannot fail.
        let _ = writeln!(table, "    ({name:?}, include_bytes!({path:?})),");
    }
    table.push(']');
    Ok(table)
}
