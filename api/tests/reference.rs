//! Tests that docs/reference/fields.md matches the lists and the gates. `make docs` writes it.

use barevirt_api::gates::{GATES, State};
use barevirt_api::migratable::SERVED;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// Each list, with the kind of its object and the path within it.
const LISTS: [(&str, &str); 4] = [
    (
        "VirtualMachineInstance, and the template of whatever makes one: below `spec`",
        include_str!("../src/validate/supported/vmi.txt"),
    ),
    ("VirtualMachine: below `spec`", include_str!("../src/validate/supported/vm.txt")),
    (
        "VirtualMachineInstanceReplicaSet: below `spec`",
        include_str!("../src/validate/supported/replica_set.txt"),
    ),
    ("VirtualMachinePool: below `spec`", include_str!("../src/validate/supported/pool.txt")),
];
/// The list for migration settings: while this version has no migrations, only the defaults of the settings are accepted.
const MIGRATIONS: &str = if SERVED {
    include_str!("../src/validate/supported/kubevirt_migrations.txt")
} else {
    include_str!("../src/validate/supported/kubevirt_no_migrations.txt")
};

/// All lists.
fn lists() -> Vec<(&'static str, String)> {
    let mut lists: Vec<_> = LISTS.into_iter().map(|(title, list)| (title, list.to_owned())).collect();
    let kubevirt = include_str!("../src/validate/supported/kubevirt.txt");
    lists.push(("KubeVirt: below `spec`", format!("{kubevirt}\n{MIGRATIONS}")));
    if SERVED {
        let policy = include_str!("../src/validate/supported/migration_policy.txt");
        lists.push(("MigrationPolicy: below `spec`", policy.to_owned()));
    }
    lists
}

/// A field, its only allowed value if there is one, and whether all fields below it are included.
fn row(line: &str) -> (&str, Option<&str>, bool) {
    let (field, value) = line.split_once(" = ").map_or((line, None), |(field, value)| (field, Some(value)));
    match field.strip_suffix(" **") {
        Some(field) => (field, value, true),
        None => (field, value, false),
    }
}

fn page() -> String {
    let mut page = String::from(
        "# Fields and gates\n\n\
         Written by `make docs` from the lists that admission goes by. A field of KubeVirt's API that is not here is refused by name.\n",
    );
    for (title, list) in lists() {
        let mut fields: BTreeMap<&str, (Vec<&str>, bool)> = BTreeMap::new();
        for line in list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            let (field, value, whole) = row(line);
            let (values, all) = fields.entry(field).or_default();
            values.extend(value);
            *all |= whole;
        }
        let _ = write!(page, "\n## {title}\n\n| field | what it takes |\n|---|---|\n");
        for (field, (values, whole)) in fields {
            let takes = match (values.as_slice(), whole) {
                ([], false) => "every valid value".to_owned(),
                ([], true) => "with all that is in it".to_owned(),
                (values, _) => format!("`{}` alone", values.join("`, `")),
            };
            let _ = writeln!(page, "| `{field}` | {takes} |");
        }
    }
    page.push_str("\n## Feature gates\n\n| gate | |\n|---|---|\n");
    for (name, state) in GATES {
        let state = match state {
            State::Alpha => "off unless it is switched on",
            State::Beta => "on unless it is switched off",
            State::General => "always on",
            State::Gone => "known, without effect",
        };
        let _ = writeln!(page, "| `{name}` | {state} |");
    }
    page.push_str(
        "\nA gate of a feature that is not built opens nothing: its fields are not in the lists above.\n",
    );
    page
}

#[test]
fn reference_page_of_fields_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/reference/fields.md");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        fs::write(&path, page()).unwrap();
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), page(), "`make docs` updates docs/reference/fields.md");
}
