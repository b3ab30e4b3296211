//! Sources of the repository.

use std::fs;

use super::pages;

/// A source file.
pub(super) struct Source {
    /// Its path in the repository, with slashes.
    pub(super) path: String,
    pub(super) text: String,
}

impl Source {
    /// The text without tests; nothing in a file that has only tests.
    pub(super) fn without_tests(&self) -> &str {
        if self.path.split('/').any(|part| part.trim_end_matches(".rs").ends_with("tests")) {
            return "";
        }
        self.text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default()
    }
}

/// All sources in Rust.
pub(super) fn all() -> Vec<Source> {
    let root = pages::repository();
    let (mut found, mut folders) = (Vec::new(), vec![root.clone()]);
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let entry = entry.unwrap();
            let (path, name) = (entry.path(), entry.file_name());
            if entry.file_type().unwrap().is_dir() {
                // Cargo marks the folders that it builds in. A module may be named target too.
                let is_built = path == root.join("target") || path.join("CACHEDIR.TAG").exists();
                if !is_built && ["node_modules", ".git"].iter().all(|other| name != *other) {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|ending| ending == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let path = path.strip_prefix(&root).unwrap().to_str().unwrap().to_owned();
                found.push(Source { path, text });
            }
        }
    }
    found
}

#[test]
fn tests_are_left_out() {
    let source = |path: &str| Source {
        path: path.to_owned(),
        text: "code\n#[cfg(test)]\nmod tests {\n}\n".to_owned(),
    };
    assert_eq!(source("api/src/a.rs").without_tests(), "code\n");
    assert_eq!(source("api/src/a/tests.rs").without_tests(), "");
    assert_eq!(source("api/tests/a.rs").without_tests(), "");
}
