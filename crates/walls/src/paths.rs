//! The paths that a file names: in `use`, in types and expressions, and inside of macros.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{ItemUse, Macro, UseName, UseRename, UseTree};

/// A path as it is written out, and the line that it begins on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedPath {
    /// Its words: `std`, `fs`, `read`. A `use` of everything ends with `*`.
    pub words: Vec<String>,
    /// Whether it is a `use`, so that what is below it can be named without it.
    pub is_use: bool,
    /// The line, from 1.
    pub line: usize,
}

/// Every path of a file.
///
/// # Errors
/// If the text is no Rust, with the place.
pub fn paths(text: &str) -> Result<Vec<NamedPath>, String> {
    let file =
        syn::parse_file(text).map_err(|error| format!("line {}: {error}", error.span().start().line))?;
    let mut found = Found(Vec::new());
    found.visit_file(&file);
    Ok(found.0)
}

/// Whether a path leads to what a room must not know, given by its words: `["std", "fs"]`. A `use` of what is above it does
/// too, whether it takes everything, another name, or the module as it is.
pub fn reaches(path: &NamedPath, forbidden: &[&str]) -> bool {
    let words: Vec<&str> = path.words.iter().map(String::as_str).collect();
    if words.starts_with(forbidden) {
        return true;
    }
    let above = match words.split_last() {
        Some((&"*", above)) => above,
        _ => words.as_slice(),
    };
    path.is_use && forbidden.starts_with(above)
}

struct Found(Vec<NamedPath>);

impl Found {
    fn tree(&mut self, tree: &UseTree, above: &[String], line: usize) {
        let with = |word: String| above.iter().cloned().chain([word]).collect::<Vec<_>>();
        let mut push = |words: Vec<String>| self.0.push(NamedPath { words, is_use: true, line });
        match tree {
            UseTree::Path(path) => self.tree(&path.tree, &with(path.ident.to_string()), line),
            UseTree::Name(UseName { ident }) | UseTree::Rename(UseRename { ident, .. }) => {
                push(if ident == "self" { above.to_vec() } else { with(ident.to_string()) });
            }
            UseTree::Glob(_) => push(with("*".to_owned())),
            UseTree::Group(group) => group.items.iter().for_each(|tree| self.tree(tree, above, line)),
        }
    }

    /// What is inside of a macro is words to the parser: those with `::` between them are a path.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut words: Vec<String> = Vec::new();
        let (mut line, mut colons) = (0, 0);
        let mut end = |words: &mut Vec<String>, line| {
            if words.len() > 1 {
                self.0.push(NamedPath { words: std::mem::take(words), is_use: false, line });
            }
            words.clear();
        };
        let mut inside = Vec::new();
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        end(&mut words, line);
                        line = ident.span().start().line;
                    }
                    words.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(mark) if mark.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    inside.push(group.stream());
                    end(&mut words, line);
                    colons = 0;
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {
                    end(&mut words, line);
                    colons = 0;
                }
            }
        }
        end(&mut words, line);
        inside.into_iter().for_each(|tokens| self.tokens(tokens));
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.tree(&item.tree, &[], item.use_token.span.start().line);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let words: Vec<String> = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        let line = path.segments.first().map_or(0, |first| first.ident.span().start().line);
        self.0.push(NamedPath { words, is_use: false, line });
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.visit_path(&call.path);
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
}
