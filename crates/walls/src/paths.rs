//! What a file names: the paths in `use`, in types and expressions and inside of macros, the methods and macros that it calls.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{
    Attribute, ExprMethodCall, Item, ItemExternCrate, ItemMod, ItemUse, Macro, UseName, UseRename, UseTree,
};

/// How a name stands in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// In a `use`, so that what is below it can be named without it. One of everything ends with `*`.
    Use,
    /// In a `use` or an `extern crate` that gives it another name.
    Renamed,
    /// In a type, an expression or a pattern.
    Path,
    /// A macro that is called.
    Macro,
    /// A method that is called: its name alone.
    Method,
    /// An attribute that stands on an item.
    Attribute,
}

/// A name as it is written out, and the line that it begins on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPath {
    /// Its words: `std`, `fs`, `read`.
    pub words: Vec<String>,
    /// How it stands there.
    pub form: Form,
    /// The other name, in a `use` that gives it one.
    pub renamed_to: Option<String>,
    /// The modules of the file that it stands in, from the outermost: none for the file itself.
    pub inside: Vec<String>,
    /// Whether it is a `use` that others may go by: `pub use`.
    pub is_public_use: bool,
    /// Whether it is there for tests alone.
    pub in_tests: bool,
    /// The line, from 1.
    pub line: usize,
}

impl NamedPath {
    /// Its last word: of a `use` of everything, `*`.
    pub fn last(&self) -> &str {
        self.words.last().map_or("", String::as_str)
    }

    fn is_use(&self) -> bool {
        matches!(self.form, Form::Use | Form::Renamed)
    }
}

/// Every name of a file.
///
/// # Errors
/// If the text is no Rust, with the place.
pub fn paths(text: &str) -> Result<Vec<NamedPath>, String> {
    let file =
        syn::parse_file(text).map_err(|error| format!("line {}: {error}", error.span().start().line))?;
    let mut found = Found { paths: Vec::new(), inside: Vec::new(), is_public: false, in_tests: 0 };
    found.visit_file(&file);
    Ok(found.paths)
}

/// The modules of a file that are there for tests alone and stand in files of their own: `#[cfg(test)] mod made;`.
///
/// # Errors
/// As [`paths`].
pub fn modules_for_tests(text: &str) -> Result<BTreeSet<String>, String> {
    let file =
        syn::parse_file(text).map_err(|error| format!("line {}: {error}", error.span().start().line))?;
    let for_tests = |item: &Item| match item {
        Item::Mod(module) if module.content.is_none() && is_for_tests(&module.attrs) => {
            Some(module.ident.to_string())
        }
        _ => None,
    };
    Ok(file.items.iter().filter_map(for_tests).collect())
}

/// Whether a path leads to what a room must not know, given by its words: `["std", "fs"]`. A `use` of what is above it does
/// too, whether it takes everything, another name, or the module as it is.
pub fn reaches(path: &NamedPath, forbidden: &[&str]) -> bool {
    if !matches!(path.form, Form::Use | Form::Renamed | Form::Path | Form::Macro) {
        return false;
    }
    let words: Vec<&str> = path.words.iter().map(String::as_str).collect();
    if words.starts_with(forbidden) {
        return true;
    }
    let above = match words.split_last() {
        Some((&"*", above)) => above,
        _ => words.as_slice(),
    };
    path.is_use() && forbidden.starts_with(above)
}

/// Whether an item is there for tests alone.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        path.is_ident("test")
            || path.is_ident("cfg")
                && attribute.parse_args::<syn::Path>().is_ok_and(|condition| condition.is_ident("test"))
    })
}

struct Found {
    paths: Vec<NamedPath>,
    /// The modules that are being read.
    inside: Vec<String>,
    /// Whether the `use` or `extern crate` that is being read is for other crates too.
    is_public: bool,
    /// How many items for tests alone are being read, one in the other.
    in_tests: usize,
}

impl Found {
    fn push(&mut self, words: Vec<String>, form: Form, line: usize) {
        let (inside, in_tests) = (self.inside.clone(), self.in_tests > 0);
        let is_public_use = self.is_public && matches!(form, Form::Use | Form::Renamed);
        self.paths.push(NamedPath { words, form, renamed_to: None, inside, is_public_use, in_tests, line });
    }

    fn tree(&mut self, tree: &UseTree, above: &[String], line: usize) {
        let with = |word: String| above.iter().cloned().chain([word]).collect::<Vec<_>>();
        let whole = |ident: &syn::Ident| {
            if ident == "self" { above.to_vec() } else { with(ident.to_string()) }
        };
        match tree {
            UseTree::Path(path) => self.tree(&path.tree, &with(path.ident.to_string()), line),
            UseTree::Name(UseName { ident }) => self.push(whole(ident), Form::Use, line),
            UseTree::Rename(UseRename { ident, rename, .. }) => {
                self.push(whole(ident), Form::Renamed, line);
                if let Some(path) = self.paths.last_mut() {
                    path.renamed_to = Some(rename.to_string());
                }
            }
            UseTree::Glob(_) => self.push(with("*".to_owned()), Form::Use, line),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(tree, above, line)),
        }
    }

    /// What is inside of a macro is words to the parser: those with `::` between them are a path, one with `!` behind it is a
    /// macro, and one between `.` and `(` a method.
    fn tokens(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mark = |at: usize, wanted: char| matches!(tokens.get(at), Some(TokenTree::Punct(mark)) if mark.as_char() == wanted);
        let mut at = 0;
        while at < tokens.len() {
            let TokenTree::Ident(first) = &tokens[at] else {
                if let TokenTree::Group(group) = &tokens[at] {
                    self.tokens(group.stream());
                }
                at += 1;
                continue;
            };
            let line = first.span().start().line;
            let is_method = at > 0 && mark(at - 1, '.') && !(at > 1 && mark(at - 2, '.'));
            let mut words = vec![first.to_string()];
            at += 1;
            while mark(at, ':') && mark(at + 1, ':') {
                let Some(TokenTree::Ident(next)) = tokens.get(at + 2) else { break };
                words.push(next.to_string());
                at += 3;
            }
            let called = matches!(tokens.get(at), Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Parenthesis);
            let is_macro = mark(at, '!') && matches!(tokens.get(at + 1), Some(TokenTree::Group(_)));
            if is_macro {
                self.push(words, Form::Macro, line);
            } else if is_method {
                if called || mark(at, ':') {
                    self.push(words, Form::Method, line);
                }
            } else if words.len() > 1 || called {
                self.push(words, Form::Path, line);
            }
        }
    }
}

/// The attributes of an item.
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
        // What the grammar may have one day.
        _ => &[],
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item(&mut self, item: &'ast Item) {
        let for_tests = usize::from(is_for_tests(attributes(item)));
        self.in_tests += for_tests;
        visit::visit_item(self, item);
        self.in_tests -= for_tests;
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.inside.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.inside.pop();
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        let path = attribute.path();
        let words: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let line = path.segments.first().map_or(0, |first| first.ident.span().start().line);
        self.push(words, Form::Attribute, line);
        if let syn::Meta::List(list) = &attribute.meta {
            self.tokens(list.tokens.clone());
        }
    }

    fn visit_item_extern_crate(&mut self, item: &'ast ItemExternCrate) {
        let form = if item.rename.is_some() { Form::Renamed } else { Form::Use };
        self.is_public = matches!(item.vis, syn::Visibility::Public(_));
        self.push(vec![item.ident.to_string()], form, item.extern_token.span.start().line);
        self.is_public = false;
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.is_public = matches!(item.vis, syn::Visibility::Public(_));
        self.tree(&item.tree, &[], item.use_token.span.start().line);
        self.is_public = false;
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        self.push(vec![call.method.to_string()], Form::Method, call.method.span().start().line);
        visit::visit_expr_method_call(self, call);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let line = path.segments.first().map_or(0, |first| first.ident.span().start().line);
        self.push(words, Form::Path, line);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        let words: Vec<String> = call.path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let line = call.path.segments.first().map_or(0, |first| first.ident.span().start().line);
        self.push(words, Form::Macro, line);
        self.tokens(call.tokens.clone());
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn lines_that_reach(text: &str, forbidden: &[&str]) -> Vec<usize> {
        let found = paths(text).expect("Rust");
        let mut lines: Vec<usize> =
            found.iter().filter(|path| reaches(path, forbidden)).map(|path| path.line).collect();
        lines.dedup();
        lines
    }

    const FILES: [&str; 2] = ["std", "fs"];

    #[test]
    fn a_use_that_is_wrapped_over_lines_does_not_pass() {
        let text = "use std::collections::BTreeMap;\nuse std::{\n    io,\n    collections::{\n        BTreeSet,\n    },\n    fs::{\n        self,\n        File,\n    },\n};\n";
        assert_eq!(lines_that_reach(text, &FILES), [2]);
        let wrapped = "use model::{\n    Host,\n    policy::{\n        Match\n    },\n    Policy\n};";
        assert_eq!(lines_that_reach(wrapped, &["model", "Policy"]), [1]);
        assert_eq!(lines_that_reach(wrapped, &["model", "policy"]), [1]);
        assert!(lines_that_reach(wrapped, &["model", "PolicyName"]).is_empty());
    }

    #[test]
    fn a_path_in_a_type_an_expression_or_a_macro_does_not_pass() {
        assert_eq!(lines_that_reach("fn f() -> ::std::fs::File { g() }", &FILES), [1]);
        assert_eq!(lines_that_reach("fn f() {\n    std :: fs\n        :: read(\"x\");\n}", &FILES), [2]);
        assert_eq!(lines_that_reach("fn f() {\n    assert!(g([std::fs::read(\"x\")]));\n}", &FILES), [2]);
        assert_eq!(lines_that_reach("macro_rules! m { () => { std::fs::read(\"x\") } }", &FILES), [1]);
    }

    #[test]
    fn everything_of_a_module_the_module_itself_and_another_name_for_it_do_not_pass() {
        assert_eq!(lines_that_reach("use std::*;", &FILES), [1]);
        assert_eq!(lines_that_reach("use std as s;", &FILES), [1]);
        assert_eq!(lines_that_reach("use std::{fs as f};", &FILES), [1]);
        assert_eq!(lines_that_reach("use std::net;", &["std", "net", "TcpStream"]), [1]);
        assert!(lines_that_reach("use std::io::{self as i, prelude::*};", &FILES).is_empty());
    }

    #[test]
    fn words_in_comments_and_quotes_and_names_that_begin_alike_are_none() {
        let text = "//! std::fs\n/* use std::fs; */\nuse std::fmt;\nuse model::Plane;\nconst A: &str = \"std::fs\";\nfn f() { g!(\"std::fs\"); x.fs(); }\n";
        assert!(lines_that_reach(text, &FILES).is_empty());
        assert!(lines_that_reach(text, &["model", "Plan"]).is_empty());
    }

    /// The names that a text has in this form, as they are written.
    fn named(text: &str, form: Form) -> Vec<String> {
        let found = paths(text).expect("Rust");
        found.iter().filter(|path| path.form == form).map(|path| path.words.join("::")).collect()
    }

    #[test]
    fn another_name_for_a_crate_does_not_pass() {
        assert_eq!(lines_that_reach("extern crate std as s;\nfn f() { s::fs::read(\"x\"); }", &FILES), [1]);
        assert_eq!(named("use std::process as p;", Form::Renamed), ["std::process"]);
    }

    #[test]
    fn macros_are_found_by_their_last_word_and_inside_of_others() {
        let text = "fn f() { std::println!(\"a\"); g!({ println!(\"b\") }); }\nmacro_rules! m { () => { std::eprint!(\"c\") } }";
        let found = named(text, Form::Macro);
        assert_eq!(found, ["std::println", "g", "println", "macro_rules", "std::eprint"]);
        assert!(named("fn f() { g!(a != b, !c); }", Form::Macro) == ["g"], "`!=` and `!` call nothing");
    }

    #[test]
    fn methods_are_found_also_inside_of_macros() {
        let text = "fn f(p: &Path) { p.exists(); g!(p.join(\"x\").read_dir()); h!(0..exists(1)); p.exists; }";
        assert_eq!(named(text, Form::Method), ["exists", "join", "read_dir"]);
    }

    #[test]
    fn attributes_of_items_are_found() {
        assert_eq!(named("#[path = \"elsewhere.rs\"]\nmod a;", Form::Attribute), ["path"]);
    }

    #[test]
    fn what_is_there_for_tests_alone_is_known_and_so_is_the_module() {
        let text = "mod a { fn f() { x::y(); } }\n#[cfg(test)]\nmod test { use super::b::c; }\n#[test]\nfn t() { z::w(); }\n#[cfg(test)]\nmod made;";
        let found = paths(text).expect("Rust");
        let seen: Vec<(String, &[String], bool)> = found
            .iter()
            .filter(|path| matches!(path.form, Form::Path | Form::Use))
            .map(|path| (path.words.join("::"), path.inside.as_slice(), path.in_tests))
            .collect();
        let (a, test) = (["a".to_owned()], ["test".to_owned()]);
        let expected: [(String, &[String], bool); 3] = [
            ("x::y".to_owned(), &a, false),
            ("super::b::c".to_owned(), &test, true),
            ("z::w".to_owned(), &[], true),
        ];
        assert_eq!(seen, expected);
        assert_eq!(modules_for_tests(text).expect("Rust"), BTreeSet::from(["made".to_owned()]));
    }
}
