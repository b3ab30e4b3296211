use super::circles::{Edges, circles, edges};
use super::modules::{self, Tree};
use super::problems::{FoundCircle, problems};
use std::collections::BTreeSet;
use std::path::Path;

fn tree(files: &[(&str, &str)]) -> Tree {
    let read = |path: &Path| {
        let file = files.iter().find(|(name, _)| Path::new(name) == path)?;
        Some(file.1.to_owned())
    };
    modules::read(Path::new("lib.rs"), &read).unwrap()
}

/// The circles as names of files.
fn found(files: &[(&str, &str)]) -> Vec<Vec<String>> {
    let tree = tree(files);
    let circles = circles(&edges(&tree));
    let names = |circle: &super::circles::Circle| {
        let names = circle.files.iter().map(|file| tree.files[*file].path.display().to_string());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    circles.iter().map(names).collect()
}

/// The edges as `from -> to (name)`.
fn named(tree: &Tree, edges: &Edges) -> Vec<String> {
    let path = |file: &usize| tree.files[*file].path.display().to_string();
    let all = edges.iter().flat_map(|(from, to)| {
        to.iter().map(move |(to, witness)| {
            format!("{}:{} -> {} ({})", path(from), witness.line, path(to), witness.name)
        })
    });
    all.collect()
}

#[test]
fn three_files_that_import_each_other_are_a_circle() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\nmod c;"),
        ("a.rs", "use crate::b::B;\npub struct A(B);"),
        ("b.rs", "pub struct B;\nfn go() { super::c::go() }"),
        ("c.rs", "use crate::a;\npub fn go(_: a::A) {}"),
    ];
    assert_eq!(found(&files), [["a.rs", "b.rs", "c.rs"]]);
    let tree = tree(&files);
    let edges = edges(&tree);
    let steps = &circles(&edges)[0].steps;
    assert_eq!(steps.len(), 3);
    assert!(steps.iter().all(|(from, to)| edges[from].contains_key(to)), "{steps:?}");
    assert_eq!(
        named(&tree, &edges),
        ["a.rs:1 -> b.rs (crate::b::B)", "b.rs:2 -> c.rs (super::c::go)", "c.rs:2 -> a.rs (a::A)"]
    );
}

#[test]
fn imports_in_one_direction_are_no_circle() {
    let files = [
        ("lib.rs", "mod a;\nmod b;\nmod c;"),
        (
            "a.rs",
            "mod child;\nuse crate::b::B;\npub struct A(B);\npub fn of() -> child::Child { child::of() }",
        ),
        ("a/child.rs", "use super::A;\npub struct Child(A);\npub fn of() -> Child { loop {} }"),
        ("b.rs", "use crate::c::C;\npub struct B(C);"),
        ("c.rs", "pub struct C;"),
    ];
    assert!(found(&files).is_empty());
}

#[test]
fn a_declaration_and_a_reexport_are_no_edges() {
    let tree = tree(&[
        ("lib.rs", "pub mod room;\nmod user;"),
        ("room.rs", "mod one;\nmod two;\npub use one::One;\npub use two::*;"),
        ("room/one.rs", "use super::Two;\npub struct One(Two);"),
        ("room/two.rs", "pub struct Two;"),
        ("user.rs", "use crate::room::{One, Two as Second};\nstruct User(One, Second);"),
    ]);
    // A name leads to where it is defined, not to where it is re-exported.
    assert_eq!(
        named(&tree, &edges(&tree)),
        [
            "room/one.rs:1 -> room/two.rs (super::Two)",
            "user.rs:1 -> room/one.rs (crate::room::One)",
            "user.rs:1 -> room/two.rs (crate::room::Two)"
        ]
    );
}

#[test]
fn a_parent_that_uses_what_it_reexports_depends_on_it() {
    let files = [
        ("lib.rs", "mod room;"),
        ("room.rs", "mod one;\nmod two;\npub use one::One;\npub struct Room(One);\nfn go() { two::go() }"),
        (
            "room/one.rs",
            "pub struct One;\nimpl From<super::Room> for One { fn from(_: super::Room) -> One { One } }",
        ),
        ("room/two.rs", "pub fn go() { drop(None::<super::Room>) }"),
    ];
    assert_eq!(found(&files), [["room.rs", "room/one.rs", "room/two.rs"]]);
}

#[test]
fn macros_and_attributes_are_looked_into() {
    let tree = tree(&[
        ("lib.rs", "mod a;\nmod b;\nmod c;"),
        (
            "a.rs",
            "fn go() { println!(\"{}\", crate::b::NUMBER); }\nstruct S {\n#[serde(with = \"crate::c::of\")]\nx: u8 }",
        ),
        ("b.rs", "pub const NUMBER: u8 = 1;"),
        ("c.rs", "pub fn of() {}"),
    ]);
    assert_eq!(
        named(&tree, &edges(&tree)),
        ["a.rs:1 -> b.rs (crate::b::NUMBER)", "a.rs:3 -> c.rs (crate::c::of)"]
    );
}

#[test]
fn tests_do_not_count() {
    let tree = tree(&[
        ("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\nmod missing;"),
        (
            "a.rs",
            "pub fn a() {\n}\n\n#[cfg(test)]\nmod tests {\n    use crate::b::b;\n    #[test]\n    fn works() { b() }\n}",
        ),
        ("b.rs", "pub(crate) fn b() { crate::a::a() }\nmod more_tests;"),
        ("b/more_tests.rs", "use crate::nothing;"),
    ]);
    assert_eq!(named(&tree, &edges(&tree)), ["b.rs:1 -> a.rs (crate::a::a)"]);
    let a = &tree.files[1];
    assert_eq!((a.lines, a.functions.len(), a.functions[0].lines), (3, 1, 2));
}

#[test]
fn new_circles_stale_lines_and_long_files_are_said() {
    let circle = |name: &str, files: &[&str]| FoundCircle {
        name: name.to_owned(),
        files: files.iter().map(|file| (*file).to_owned()).collect::<BTreeSet<_>>(),
    };
    let known = "# a comment\none: a.rs b.rs c.rs d.rs # why\ntwo: x.rs y.rs z.rs\n";
    let found = [circle("one", &["a.rs", "b.rs", "c.rs"]), circle("three", &["a.rs", "b.rs", "c.rs"])];
    let files = [("long.rs".to_owned(), 401), ("short.rs".to_owned(), 400)];
    let problems = problems(&found, known, &files);
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems[0].starts_with("three: 3 files"), "{problems:?}");
    assert!(problems[1].starts_with("two: a circle of the known ones is gone"), "{problems:?}");
    assert!(problems[2].starts_with("long.rs: 401 lines"), "{problems:?}");
}
