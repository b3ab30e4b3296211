//! The files of the page: a fixed table that is part of the program.

/// Names of the files, and their bytes compressed by gzip.
const FILES: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// The file for the address `/`.
const PAGE: &str = "index.html";

/// A file of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Asset {
    /// Its media type.
    pub(super) media_type: &'static str,
    /// Its bytes, compressed by gzip.
    pub(super) bytes: &'static [u8],
}

/// The file of an address's path; none if the table has no such name.
pub(super) fn find(path: &str) -> Option<Asset> {
    let name = match path.strip_prefix('/')? {
        "" => PAGE,
        name => name,
    };
    let (name, bytes) = FILES.iter().find(|(known, _)| *known == name)?;
    Some(Asset { media_type: media_type(name), bytes })
}

fn media_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, ending)| ending) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_the_table_are_found() {
        for path in
            ["/../Cargo.toml", "/%2e%2e/Cargo.toml", "//etc/passwd", "/etc/passwd", "", "/app.js/..", "/."]
        {
            assert_eq!(find(path), None, "{path}");
        }
        // The table is empty if the page was not built.
        for (name, bytes) in FILES {
            assert_eq!(find(&format!("/{name}")).map(|asset| asset.bytes), Some(*bytes));
            assert!(bytes.starts_with(&[0x1f, 0x8b]), "{name} is not compressed");
        }
        assert_eq!(find("/"), find("/index.html"));
    }

    #[test]
    fn the_page_stays_small() {
        let all: usize = FILES.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(all < 3 << 20, "{all} bytes");
    }
}
