//! Runs the fuzz targets of a crate in its unit tests, over the inputs in `fuzz/seeds`. So a target that no longer compiles, or
//! an input for which it no longer holds, fails in `make check`.
//!
//! Each crate with fuzz targets has this file as a module, and the targets beside it. A target imports its macro from
//! `libfuzzer_sys`; in unit tests that is another name of the crate itself.

use std::fs::{read, read_dir, read_to_string};
use std::path::Path;

/// Takes the place of the macro of `libfuzzer_sys`: the body of the target becomes a function.
#[macro_export]
macro_rules! fuzz_target {
    (|$bytes:ident: &[u8]| $body:block) => {
        pub(super) fn run($bytes: &[u8]) $body
    };
}

/// A fuzz target: its name, and its body.
type Target<'a> = (&'a str, fn(&[u8]));

/// Runs all targets of a folder `fuzz`, which is given from the crate's own folder.
pub(super) fn all(folder: &str, targets: &[Target<'_>]) {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let manifest = read_to_string(folder.join("Cargo.toml")).expect("the manifest of the fuzz targets");
    let paths = manifest.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/"));
    let known: Vec<_> = paths.filter_map(|path| path.strip_suffix(".rs\"")).collect();
    assert_eq!(
        targets.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
        known,
        "the targets of the manifest, in its order"
    );
    for (name, run) in targets {
        run(&[]);
        let seeds = read_dir(folder.join("seeds").join(name)).expect("a folder of seeds");
        for seed in seeds {
            let path = seed.expect("a seed").path();
            eprintln!("{}", path.display());
            run(&read(path).expect("a seed"));
        }
    }
}
