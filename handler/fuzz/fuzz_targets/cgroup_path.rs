//! Names of control groups, which a container chooses beneath its own.
#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use virt_handler::launchers::cgroup::{container, group_of, is_uid, parse};

fuzz_target!(|text: &str| {
    let paths: HashMap<String, String> =
        text.lines().enumerate().map(|(number, path)| (number.to_string(), path.to_owned())).collect();
    if let Ok(agreed) = container(&paths) {
        assert!(is_uid(&agreed.pod_uid) && agreed.id.len() == 64);
        assert!(paths.values().filter_map(|path| parse(path)).all(|one| one == agreed));
    }
    for path in paths.values() {
        let Some(found) = parse(path) else { continue };
        let group = group_of(path, &found).expect("what is in a container has its group");
        assert!(path.starts_with(group) && parse(group) == Some(found));
    }
});
