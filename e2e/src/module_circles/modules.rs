//! The tree of a crate's modules: what each defines, imports and mentions, and how long files and functions are.

use super::names::Name;
use anyhow::{Context, Result, bail};
use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree};

/// A crate's modules; the first is its root.
#[derive(Debug, Default)]
pub struct Tree {
    /// Its files.
    pub files: Vec<File>,
    /// Its modules; a file may contain several.
    pub modules: Vec<Module>,
}

/// A file of source text.
#[derive(Debug)]
pub struct File {
    /// Where it is.
    pub path: PathBuf,
    /// Its lines without those of test modules.
    pub lines: usize,
    /// Its functions outside tests.
    pub functions: Vec<Function>,
}

/// A function with a body.
#[derive(Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// The line that it starts at.
    pub line: usize,
    /// How many lines it has.
    pub lines: usize,
}

/// A module.
#[derive(Debug, Default)]
pub struct Module {
    /// The file that it is in, by its number.
    pub file: usize,
    /// The module that declares it.
    pub parent: Option<usize>,
    /// The modules that it declares.
    pub children: BTreeMap<String, usize>,
    /// The names that it defines.
    pub items: BTreeSet<String>,
    /// The imports of its `use` lines, by their local names.
    pub imports: BTreeMap<String, Name>,
    /// Its glob imports.
    pub globs: Vec<Name>,
    /// The names that it uses.
    pub mentions: Vec<Mention>,
}

/// A name that is mentioned.
#[derive(Debug)]
pub struct Mention {
    /// The used name.
    pub name: Name,
    /// The line of the use.
    pub line: usize,
    /// Whether it is a `pub use`, which alone does not make a parent depend on its child.
    pub is_reexport: bool,
}

/// Reads a crate from its root file; `read` returns the text of a file, or nothing if there is no such file.
pub fn read(root: &Path, read: &dyn Fn(&Path) -> Option<String>) -> Result<Tree> {
    let mut reader = Reader { tree: Tree::default(), module: 0, folder: PathBuf::new(), read, error: None };
    let folder = root.parent().unwrap_or(Path::new("")).to_owned();
    reader.file(root, folder, None)?;
    reader.error.map_or(Ok(reader.tree), Err)
}

struct Reader<'a> {
    tree: Tree,
    /// The module that is being read.
    module: usize,
    /// Where the files of its children are.
    folder: PathBuf,
    read: &'a dyn Fn(&Path) -> Option<String>,
    error: Option<anyhow::Error>,
}

impl Reader<'_> {
    fn file(&mut self, path: &Path, folder: PathBuf, parent: Option<usize>) -> Result<usize> {
        let text = (self.read)(path).with_context(|| format!("there is no {}", path.display()))?;
        let parsed = syn::parse_file(&text).with_context(|| format!("parse {}", path.display()))?;
        let file = self.tree.files.len();
        let lines = text.lines().count().saturating_sub(test_lines(&parsed.items));
        self.tree.files.push(File { path: path.to_owned(), lines, functions: Vec::new() });
        Ok(self.module(file, folder, parent, &parsed.items))
    }

    fn module(&mut self, file: usize, folder: PathBuf, parent: Option<usize>, items: &[Item]) -> usize {
        let module = self.tree.modules.len();
        let defined = items.iter().filter_map(defines).collect();
        self.tree.modules.push(Module { file, parent, items: defined, ..Module::default() });
        let outer = (self.module, std::mem::replace(&mut self.folder, folder));
        self.module = module;
        items.iter().for_each(|item| self.visit_item(item));
        (self.module, self.folder) = outer;
        module
    }

    fn declared(&mut self, declaration: &syn::ItemMod) -> Result<()> {
        let name = plain(&declaration.ident);
        let folder = self.folder.join(&name);
        let parent = Some(self.module);
        let child = match &declaration.content {
            Some((_, items)) => {
                let file = self.tree.modules[self.module].file;
                self.module(file, folder, parent, items)
            }
            None => {
                let files = [self.folder.join(format!("{name}.rs")), folder.join("mod.rs")];
                let Some(file) = files.iter().find(|file| (self.read)(file).is_some()) else {
                    bail!("module {name} has no file in {}", self.folder.display());
                };
                if file.file_name().is_some_and(|name| name.to_string_lossy().ends_with("tests.rs")) {
                    return Ok(());
                }
                self.file(file, folder, parent)?
            }
        };
        self.tree.modules[self.module].children.insert(name, child);
        Ok(())
    }

    fn mention(&mut self, name: Name, line: usize, is_reexport: bool) {
        self.tree.modules[self.module].mentions.push(Mention { name, line, is_reexport });
    }

    /// Adds the names that a `use` imports.
    fn imported(&mut self, tree: &UseTree, before: &[String], is_reexport: bool) {
        let with = |ident: &syn::Ident| [before, &[plain(ident)]].concat();
        let (mut name, bound, line) = match tree {
            UseTree::Path(path) => return self.imported(&path.tree, &with(&path.ident), is_reexport),
            UseTree::Group(group) => {
                return group.items.iter().for_each(|tree| self.imported(tree, before, is_reexport));
            }
            UseTree::Glob(_) => return self.tree.modules[self.module].globs.push(Name(before.to_vec())),
            UseTree::Name(name) => (with(&name.ident), plain(&name.ident), start(&name.ident)),
            UseTree::Rename(name) => (with(&name.ident), plain(&name.rename), start(&name.ident)),
        };
        let mut bound = bound;
        // `use a::b::{self}` brings in `b`.
        if name.len() > 1 && name.last().is_some_and(|last| last == "self") {
            name.pop();
            if bound == "self" {
                bound = name.last().cloned().unwrap_or_default();
            }
        }
        self.mention(Name(name.clone()), line, is_reexport);
        self.tree.modules[self.module].imports.insert(bound, Name(name));
    }

    /// Adds paths in the tokens of a macro call: `crate::a::b`, and single words that are not fields.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut name = Vec::new();
        let mut line = 0;
        let mut colons = 0;
        let mut field = false;
        for token in tokens {
            match &token {
                TokenTree::Ident(ident) if colons == 2 => name.push(plain(ident)),
                TokenTree::Punct(punct) if punct.as_char() == ':' && !name.is_empty() && colons < 2 => {
                    colons += 1;
                    continue;
                }
                other => {
                    self.word(std::mem::take(&mut name), line);
                    if let (TokenTree::Ident(ident), false) = (other, field) {
                        line = start(ident);
                        name.push(plain(ident));
                    }
                    field = matches!(other, TokenTree::Punct(punct) if punct.as_char() == '.');
                }
            }
            colons = 0;
            match token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                // `#[serde(with = "a::b")]` names a function by a string.
                TokenTree::Literal(literal) => self.quoted(&literal.to_string(), literal.span().start().line),
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
        self.word(name, line);
    }

    fn word(&mut self, name: Vec<String>, line: usize) {
        if !name.is_empty() {
            self.mention(Name(name), line, false);
        }
    }

    fn quoted(&mut self, literal: &str, line: usize) {
        let Some(text) = literal.strip_prefix('"').and_then(|text| text.strip_suffix('"')) else { return };
        let words: Vec<String> = text.split("::").map(str::to_owned).collect();
        let is_word = |word: &String| {
            !word.is_empty() && word.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
        };
        if words.len() > 1 && words.iter().all(is_word) {
            self.mention(Name(words), line, false);
        }
    }

    fn function(&mut self, signature: &syn::Signature, body: &syn::Block) {
        let (first, last) = (signature.fn_token.span.start().line, body.brace_token.span.close().end().line);
        let function = Function { name: plain(&signature.ident), line: first, lines: last + 1 - first };
        let file = self.tree.modules[self.module].file;
        self.tree.files[file].functions.push(function);
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, declaration: &'ast syn::ItemMod) {
        if let Err(error) = self.declared(declaration) {
            self.error.get_or_insert(error);
        }
    }

    fn visit_item_use(&mut self, import: &'ast syn::ItemUse) {
        let is_reexport = !matches!(import.vis, syn::Visibility::Inherited);
        self.imported(&import.tree, &[], is_reexport);
    }

    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.function(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        if !is_test(&function.attrs) {
            self.function(&function.sig, &function.block);
            visit::visit_impl_item_fn(self, function);
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let name = path.segments.iter().map(|segment| plain(&segment.ident)).collect();
        if let (None, Some(first)) = (&path.leading_colon, path.segments.first()) {
            self.mention(Name(name), start(&first.ident), false);
        }
        visit::visit_path(self, path);
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }

    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {
        // `pub(super)` is a visibility, and not a dependency.
    }
}

/// The name that an item gives to its module; imports and modules are kept apart.
fn defines(item: &Item) -> Option<String> {
    let ident = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::TraitAlias(item) => &item.ident,
        Item::Type(item) => &item.ident,
        Item::Union(item) => &item.ident,
        _ => return None,
    };
    (!is_test(attributes(item))).then(|| plain(ident))
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[cfg(test)]`, also together with other conditions.
fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| match &attribute.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let condition = list.tokens.to_string();
            condition.split(|letter: char| !letter.is_alphanumeric()).any(|word| word == "test")
                && !condition.contains("not")
        }
        _ => false,
    })
}

/// How many lines the test modules within a file have.
fn test_lines(items: &[Item]) -> usize {
    let modules = items.iter().filter_map(|item| match item {
        Item::Mod(module) if is_test(&module.attrs) => module.content.as_ref().map(|(braces, _)| {
            let first = module.attrs.iter().map(|attribute| attribute.pound_token.span.start().line).min();
            let last = braces.span.close().end().line;
            last + 1 - first.unwrap_or(last)
        }),
        _ => None,
    });
    modules.sum()
}

fn plain(ident: &proc_macro2::Ident) -> String {
    let text = ident.to_string();
    text.strip_prefix("r#").map(str::to_owned).unwrap_or(text)
}

fn start(ident: &proc_macro2::Ident) -> usize {
    ident.span().start().line
}
