//! The texts of a file that an operator can see: its string literals of more than one word, outside tests.

use proc_macro2::{TokenStream, TokenTree};
use syn::visit::{self, Visit};
use syn::{Attribute, ExprMethodCall, ItemFn, ItemMod, Lit, LitStr, Macro};

use crate::paths::is_for_tests;

/// Macros whose texts are about our own faults.
const OF_FAULTS: [&str; 8] = [
    "assert",
    "assert_eq",
    "assert_ne",
    "debug_assert",
    "debug_assert_eq",
    "panic",
    "unreachable",
    "concat_bytes",
];

/// Every text of a file that reads as words, in the order of the file.
///
/// # Errors
/// If the text is no Rust, with the place.
pub fn texts(text: &str) -> Result<Vec<String>, String> {
    let mut found = literals(text)?;
    found.retain(|text| reads_as_words(text));
    Ok(found)
}

/// Every string literal of a file outside of tests, in the order of the file.
///
/// # Errors
/// As [`texts`].
pub fn literals(text: &str) -> Result<Vec<String>, String> {
    let file =
        syn::parse_file(text).map_err(|error| format!("line {}: {error}", error.span().start().line))?;
    let mut found = Found(Vec::new());
    found.visit_file(&file);
    Ok(found.0)
}

/// Whether a text is more than a name, a path or a format.
fn reads_as_words(text: &str) -> bool {
    let is_word = |word: &&str| word.len() > 1 && word.chars().filter(|c| c.is_alphabetic()).count() > 1;
    let bare = |word: &'_ str| !word.contains(['{', '}', '/', '_', '=', '<', '>', '\\']);
    text.split_whitespace().filter(is_word).filter(|word| bare(word)).count() > 1
}

struct Found(Vec<String>);

impl Found {
    fn tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Literal(literal) => {
                    if let Lit::Str(text) = Lit::new(literal) {
                        self.0.push(text.value());
                    }
                }
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Found {
    fn visit_attribute(&mut self, _: &'ast Attribute) {}

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

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        if call.method == "expect" {
            self.visit_expr(&call.receiver);
        } else {
            visit::visit_expr_method_call(self, call);
        }
    }

    fn visit_lit_str(&mut self, text: &'ast LitStr) {
        self.0.push(text.value());
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        let name = call.path.segments.last().map(|segment| segment.ident.to_string());
        if !name.is_some_and(|name| OF_FAULTS.contains(&name.as_str())) {
            self.tokens(call.tokens.clone());
        }
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_an_operator_can_see_is_found_and_nothing_else() {
        let text = r##"
            //! A room.
            /// Documentation is another matter.
            fn refuse() -> String {
                let refusal = format!("{device}: no such queue");
                let name = "napi-defer-hard-irqs";
                let path = "/sys/class/net";
                thing().expect("our own fault, this").hint("run it as root");
                assert!(name == path, "a fault of ours");
                refusal
            }
            #[cfg(test)]
            mod test {
                const SEEN: &str = "by no operator";
            }
        "##;
        assert_eq!(texts(text).expect("Rust"), ["{device}: no such queue", "run it as root"]);
        assert!(literals(text).expect("Rust").contains(&"/sys/class/net".to_owned()));
    }
}
