//! Which module defines the name of a path: through imports, globs and re-exports, like the compiler.

use super::modules::{Module, Tree};
use std::fmt;

/// A path as written, without generics.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name(pub Vec<String>);

impl fmt::Display for Name {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0.join("::"))
    }
}

/// The result of resolving a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// A module.
    Module(usize),
    /// Something that this module defines.
    Item(usize),
}

/// How many imports of imports are followed. Longer chains are imports that refer to each other.
const MAX_DEPTH: usize = 16;

impl Tree {
    /// Resolves `name` as used in `module`; nothing if it is local or of another crate.
    pub fn find(&self, module: usize, name: &Name) -> Option<Found> {
        self.walk(module, name, 0)
    }

    fn walk(&self, from: usize, name: &Name, depth: usize) -> Option<Found> {
        if depth > MAX_DEPTH {
            return None;
        }
        let mut rest = name.0.as_slice();
        let mut at = None;
        while let Some((first, others)) = rest.split_first() {
            let next = match (first.as_str(), at) {
                ("crate", None) => Found::Module(0),
                ("self", None) => Found::Module(from),
                ("super", _) => Found::Module(self.modules[at.unwrap_or(from)].parent?),
                (first, None) => self.lookup(from, first, !others.is_empty(), depth)?,
                // A macro may define names that are not visible here.
                (first, Some(module)) => {
                    self.lookup(module, first, !others.is_empty(), depth).unwrap_or(Found::Item(module))
                }
            };
            match next {
                // The rest of the path is a variant or an associated function.
                Found::Item(_) => return Some(next),
                Found::Module(module) => at = Some(module),
            }
            rest = others;
        }
        at.map(Found::Module)
    }

    /// Resolves a word in `module`. A module and a function may have the same name: before `::` it is the
    /// module.
    fn lookup(&self, module: usize, word: &str, goes_on: bool, depth: usize) -> Option<Found> {
        let Module { children, items, imports, globs, .. } = &self.modules[module];
        let child = children.get(word).map(|child| Found::Module(*child));
        let item = items.contains(word).then_some(Found::Item(module));
        let defined = if goes_on { child.or(item) } else { item.or(child) };
        let imported = || imports.get(word).and_then(|import| self.walk(module, import, depth + 1));
        let brought = || {
            globs.iter().find_map(|glob| match self.walk(module, glob, depth + 1)? {
                Found::Module(whole) if whole != module => self.lookup(whole, word, goes_on, depth + 1),
                Found::Module(_) => None,
                // The variants of an enum.
                Found::Item(_) => None,
            })
        };
        if depth > MAX_DEPTH { None } else { defined.or_else(imported).or_else(brought) }
    }

    /// Whether `module` is `above` or within it.
    pub fn is_within(&self, module: usize, above: usize) -> bool {
        let mut at = Some(module);
        while let Some(module) = at {
            if module == above {
                return true;
            }
            at = self.modules[module].parent;
        }
        false
    }
}
