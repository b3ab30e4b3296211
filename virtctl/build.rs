//! Takes the files of the page that `virtctl ui` serves into the program, where `make ui` has built them.
//!
//! They are in `target/ui`, each compressed by gzip, with `.gz` after its name. Without them the table is empty, and
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
    Ok(())
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
