//! Names of control groups, which a container chooses beneath its own group. The first line is the path of
//! the handler itself.
#![no_main]

use std::collections::HashMap;

use libfuzzer_sys::fuzz_target;
use virt_handler::launchers::cgroup::{container, group_of, is_uid, parse};

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines = text.lines();
    let own = lines.next().unwrap_or_default();
    let paths: HashMap<String, String> =
        lines.enumerate().map(|(number, path)| (number.to_string(), path.to_owned())).collect();
    let owns = paths.keys().map(|controller| (controller.clone(), own.to_owned())).collect();
    if let Ok(agreed) = container(&paths, &owns) {
        assert!(is_uid(&agreed.pod_uid) && agreed.id.len() == 64);
        assert!(paths.values().filter_map(|path| parse(path, own)).all(|one| one == agreed));
    }
    for path in paths.values() {
        let Some(found) = parse(path, own) else { continue };
        let group = group_of(path, &found).expect("what is in a container has its group");
        assert!(path.starts_with(group));
        // A pod in which the handler itself runs has its first group there.
        assert!(own.contains(&found.pod_uid) || parse(group, own) == Some(found));
    }
});
