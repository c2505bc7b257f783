//! The string literals of a file, outside of tests.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{ItemFn, ItemMod, Lit, LitStr, Macro};

use crate::paths::is_for_tests;

/// Every string literal of a file outside of tests, in the order of the file.
///
/// # Errors
/// If the text is not Rust, with the line.
pub fn literals(text: &str) -> Result<Vec<String>, String> {
    let file =
        syn::parse_file(text).map_err(|error| format!("line {}: {error}", error.span().start().line))?;
    let mut found = Found(Vec::new());
    found.visit_file(&file);
    Ok(found.0)
}

struct Found(Vec<String>);

impl Found {
    /// Adds the literals of a macro's tokens, which `syn` does not parse.
    fn add_tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Literal(literal) => {
                    if let Lit::Str(text) = Lit::new(literal) {
                        self.0.push(text.value());
                    }
                }
                TokenTree::Group(group) => self.add_tokens(group.stream()),
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_fn(self, item);
        }
    }

    fn visit_lit_str(&mut self, text: &'ast LitStr) {
        self.0.push(text.value());
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        self.add_tokens(call.tokens.clone());
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn literals_are_found_in_code_and_in_macros_and_not_in_tests() {
        let text = r#"
            fn f() { g("/proc/stat"); write!(out, "{}", h("/sys/class/net")); }
            #[cfg(test)]
            mod test { const OF_TESTS: &str = "/proc/self"; }
        "#;
        assert_eq!(literals(text).expect("Rust"), ["/proc/stat", "{}", "/sys/class/net"]);
    }
}
