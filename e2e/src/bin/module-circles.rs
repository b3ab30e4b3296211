//! `cargo run --bin module-circles`: circles of imports, the longest files and the longest functions of every crate. Fails on
//! a circle that is not known and on a file that is too long.

use anyhow::{Context, Result};
use barevirt_e2e::module_circles::circles::{Circle, Edges, circles, edges};
use barevirt_e2e::module_circles::crates::{self, Crate};
use barevirt_e2e::module_circles::modules::{self, File, Tree};
use barevirt_e2e::module_circles::problems::{FoundCircle, problems};
use std::cmp::Reverse;
use std::path::Path;
use std::process::ExitCode;

const KNOWN: &str = include_str!("../module_circles/known.txt");
const SHOWN: usize = 10;

fn main() -> Result<ExitCode> {
    let (workspace, crates) = crates::all()?;
    let mut found = Vec::new();
    let mut trees = Vec::new();
    for (one, tree) in crates.iter().zip(read(&crates)) {
        let tree = tree.with_context(|| one.name.clone())?;
        let edges = edges(&tree);
        for circle in circles(&edges) {
            let files = circle.files.iter().map(|file| name(&workspace, &tree.files[*file])).collect();
            let circle_of_crate = FoundCircle { name: one.name.clone(), files };
            show(&circle_of_crate, &circle, &tree, &edges, &workspace);
            found.push(circle_of_crate);
        }
        trees.push(tree);
    }

    let files = trees.iter().flat_map(|tree| &tree.files);
    let mut lengths: Vec<(String, usize)> = files.map(|file| (name(&workspace, file), file.lines)).collect();
    lengths.sort_by_key(|(name, lines)| (Reverse(*lines), name.clone()));
    println!("longest files, without tests:");
    for (file, lines) in lengths.iter().take(SHOWN) {
        println!("  {lines:4}  {file}");
    }

    let files = trees.iter().flat_map(|tree| &tree.files);
    let functions = files.flat_map(|file| file.functions.iter().map(move |function| (file, function)));
    let mut functions: Vec<_> = functions.collect();
    functions.sort_by_key(|(_, function)| Reverse(function.lines));
    println!("longest functions:");
    for (file, function) in functions.iter().take(SHOWN) {
        println!("  {:4}  {} {}:{}", function.lines, function.name, name(&workspace, file), function.line);
    }

    let problems = problems(&found, KNOWN, &lengths);
    for problem in &problems {
        eprintln!("module-circles: {problem}");
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Each crate in a thread of its own: parsing is all the work.
fn read(crates: &[Crate]) -> Vec<Result<Tree>> {
    let one = |root: &Path| modules::read(root, &|path| std::fs::read_to_string(path).ok());
    std::thread::scope(|scope| {
        let threads: Vec<_> = crates.iter().map(|each| scope.spawn(|| one(&each.root))).collect();
        let trees = threads.into_iter().map(|thread| match thread.join() {
            Ok(tree) => tree,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        trees.collect()
    })
}

fn show(found: &FoundCircle, circle: &Circle, tree: &Tree, edges: &Edges, workspace: &Path) {
    println!("{}: {} files import each other in a circle:", found.name, found.files.len());
    for file in &found.files {
        println!("  {file}");
    }
    println!("  the steps:");
    for (from, to) in &circle.steps {
        if let Some(witness) = edges.get(from).and_then(|edges| edges.get(to)) {
            let (from, to) = (name(workspace, &tree.files[*from]), name(workspace, &tree.files[*to]));
            println!("    {from}:{} names {} of {to}", witness.line, witness.name);
        }
    }
}

fn name(workspace: &Path, file: &File) -> String {
    file.path.strip_prefix(workspace).unwrap_or(&file.path).display().to_string()
}
