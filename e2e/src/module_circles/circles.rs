//! Which files of a crate use names of other files, and the groups of files that all reach each other.

use super::modules::Tree;
use super::names::Found;
use std::collections::{BTreeMap, BTreeSet};

/// Where a file first uses a name of another file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Witness {
    /// The line.
    pub line: usize,
    /// The name as written there.
    pub name: String,
}

/// Edges from file to file, by their numbers.
pub type Edges = BTreeMap<usize, BTreeMap<usize, Witness>>;

/// A group of three or more files that all reach each other.
#[derive(Debug)]
pub struct Circle {
    /// Its files, by their numbers.
    pub files: BTreeSet<usize>,
    /// The steps (from, to) of a shortest way through each of its files in turn.
    pub steps: Vec<(usize, usize)>,
}

/// All uses of names of other files.
pub fn edges(tree: &Tree) -> Edges {
    let mut edges = Edges::new();
    for (number, module) in tree.modules.iter().enumerate() {
        for mention in &module.mentions {
            let Some(Found::Item(definer)) = tree.find(number, &mention.name) else { continue };
            let file = tree.modules[definer].file;
            let only_reexported = mention.is_reexport && tree.is_within(definer, number);
            if file != module.file && !only_reexported {
                let witness = Witness { line: mention.line, name: mention.name.to_string() };
                edges.entry(module.file).or_default().entry(file).or_insert(witness);
            }
        }
    }
    edges
}

/// The circles among them, largest first.
pub fn circles(edges: &Edges) -> Vec<Circle> {
    let reached: BTreeMap<usize, BTreeSet<usize>> =
        edges.keys().map(|file| (*file, reachable(edges, *file))).collect();
    let reaches = |from: usize, to: usize| reached.get(&from).is_some_and(|files| files.contains(&to));
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for file in edges.keys().copied() {
        if !seen.insert(file) {
            continue;
        }
        let files: BTreeSet<usize> =
            edges.keys().copied().filter(|other| reaches(file, *other) && reaches(*other, file)).collect();
        seen.extend(&files);
        if files.len() > 2 {
            circles.push(Circle { steps: steps(edges, &files), files });
        }
    }
    circles.sort_by_key(|circle| std::cmp::Reverse(circle.files.len()));
    circles
}

fn reachable(edges: &Edges, from: usize) -> BTreeSet<usize> {
    let mut found = BTreeSet::new();
    let mut next = vec![from];
    while let Some(file) = next.pop() {
        let Some(others) = edges.get(&file) else { continue };
        next.extend(others.keys().filter(|other| found.insert(**other)));
    }
    found
}

/// From each file to the next by a shortest way, and back to the first; no step twice.
fn steps(edges: &Edges, files: &BTreeSet<usize>) -> Vec<(usize, usize)> {
    let mut steps = Vec::new();
    for (from, to) in files.iter().zip(files.iter().skip(1).chain(files.first())) {
        for step in shortest(edges, files, *from, *to) {
            if !steps.contains(&step) {
                steps.push(step);
            }
        }
    }
    steps
}

fn shortest(edges: &Edges, files: &BTreeSet<usize>, from: usize, to: usize) -> Vec<(usize, usize)> {
    let mut came: BTreeMap<usize, usize> = BTreeMap::new();
    let mut front = vec![from];
    while !front.is_empty() && !came.contains_key(&to) {
        let mut next = Vec::new();
        for file in front {
            for other in edges.get(&file).into_iter().flat_map(BTreeMap::keys) {
                if files.contains(other) && !came.contains_key(other) {
                    came.insert(*other, file);
                    next.push(*other);
                }
            }
        }
        front = next;
    }
    let mut way = Vec::new();
    let mut at = to;
    while let Some(before) = came.get(&at) {
        way.push((*before, at));
        at = *before;
        if at == from {
            break;
        }
    }
    way.reverse();
    way
}
