//! The texts of a file that an operator can see: string literals of more than one word outside tests, messages of errors,
//! help of the command line, what scripts print, the reasons of recipes, the comments of an interface, the titles of a dashboard,
//! the annotations of alerts, and the descriptions of units.
//!
//! A single word is left out: it cannot be distinguished from a name.

use std::collections::BTreeSet;

use proc_macro2::{TokenStream, TokenTree};
use serde_json::Value;
use syn::visit::{self, Visit};
use syn::{
    Attribute, ExprMethodCall, Field, Fields, ItemEnum, ItemFn, ItemMod, ItemStruct, Lit, LitStr, Macro,
    Meta, Type,
};

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

/// Attributes whose texts an operator reads: messages of `thiserror`, help of clap.
const OF_OPERATORS: [&str; 5] = ["error", "command", "arg", "value", "group"];

/// Derives of clap, which makes help of the documentation of fields and variants.
const OF_CLAP: [&str; 4] = ["Parser", "Args", "Subcommand", "ValueEnum"];

/// Those of them that make help of the type's own documentation, too, unless the type is flattened into another.
const OF_CLAP_WITH_OWN: [&str; 2] = ["Parser", "Args"];

/// The macro whose documentation is printed, as the meaning of settings.
const OF_SETTINGS: &str = "family";

/// Every text of a file that reads as words, in the order of the file. The documentation of the `flattened` types is in no help.
///
/// # Errors
/// If the text is not Rust, with the place.
pub fn texts(text: &str, flattened: &BTreeSet<String>) -> Result<Vec<String>, String> {
    let mut found = Found { texts: Vec::new(), flattened };
    found.visit_file(&parsed(text)?);
    found.texts.retain(|text| reads_as_words(text));
    Ok(found.texts)
}

/// Every string literal of a file outside of tests, in the order of the file.
///
/// # Errors
/// As [`texts`].
pub fn literals(text: &str) -> Result<Vec<String>, String> {
    let mut found = Found { texts: Vec::new(), flattened: &BTreeSet::new() };
    found.visit_file(&parsed(text)?);
    Ok(found.texts)
}

/// The names of the types that fields of a file's types are flattened into, `#[command(flatten)]`.
///
/// # Errors
/// As [`texts`].
pub fn flattened(text: &str) -> Result<BTreeSet<String>, String> {
    let mut found = Flattened(BTreeSet::new());
    found.visit_file(&parsed(text)?);
    Ok(found.0)
}

fn parsed(text: &str) -> Result<syn::File, String> {
    syn::parse_file(text).map_err(|error| format!("line {}: {error}", error.span().start().line))
}

/// What a shell script prints: its quoted words, comments apart.
pub fn script_texts(script: &str) -> Vec<String> {
    let lines = script.lines().filter(|line| !line.trim_start().starts_with('#'));
    let is_call = |text: &String| text.starts_with("$(") || text.starts_with(']');
    lines.flat_map(quoted).filter(|text| reads_as_words(text) && !is_call(text)).collect()
}

/// The reasons that recipes give for their values.
pub fn recipe_texts(recipe: &str) -> Vec<String> {
    let lines = recipe.lines().filter(|line| line.split('=').next().is_some_and(|key| key.trim() == "why"));
    lines.flat_map(quoted).collect()
}

/// The comments of a Varlink interface, which its clients read: each one as one text.
pub fn interface_texts(interface: &str) -> Vec<String> {
    let comment = |line: &str| line.trim().strip_prefix('#').map(|words| words.trim().to_owned());
    let lines: Vec<Option<String>> =
        interface.lines().map(|line| comment(line).filter(|words| !words.is_empty())).collect();
    let comments =
        lines.split(Option::is_none).map(|lines| lines.iter().flatten().cloned().collect::<Vec<_>>());
    comments.filter(|lines| !lines.is_empty()).map(|lines| lines.join("\n")).collect()
}

/// The summaries and descriptions of alert rules, in YAML that has one key a line.
pub fn alert_texts(rules: &str) -> Vec<String> {
    let of_key = |line: &str| {
        let line = line.trim();
        let value = line.strip_prefix("summary: ").or_else(|| line.strip_prefix("description: "))?;
        Some(value.trim_matches('"').replace("\\\"", "\""))
    };
    rules.lines().filter_map(of_key).collect()
}

/// The titles, descriptions and legends of a dashboard.
///
/// # Errors
/// If it is no JSON, with the place.
pub fn dashboard_texts(dashboard: &str) -> Result<Vec<String>, String> {
    fn collect(value: &Value, found: &mut Vec<String>) {
        match value {
            Value::Object(fields) => {
                for (key, value) in fields {
                    match (key.as_str(), value) {
                        ("title" | "description", Value::String(text)) => found.push(text.clone()),
                        ("legendFormat" | "titleFormat", Value::String(text)) if reads_as_words(text) => {
                            found.push(text.clone());
                        }
                        _ => collect(value, found),
                    }
                }
            }
            Value::Array(values) => values.iter().for_each(|value| collect(value, found)),
            _ => {}
        }
    }
    let dashboard: Value = serde_json::from_str(dashboard).map_err(|error| error.to_string())?;
    let mut found = Vec::new();
    collect(&dashboard, &mut found);
    Ok(found)
}

/// The description of a systemd unit.
pub fn unit_texts(unit: &str) -> Vec<String> {
    unit.lines().filter_map(|line| line.strip_prefix("Description=")).map(str::to_owned).collect()
}

/// The texts between the double quotes of a line.
fn quoted(line: &str) -> impl Iterator<Item = String> {
    line.split('"').skip(1).step_by(2).map(str::to_owned)
}

/// Whether a text is more than a name, a path, a format, a drawing or a style sheet.
fn reads_as_words(text: &str) -> bool {
    let is_word = |word: &&str| {
        let letters = word.chars().filter(|c| c.is_alphabetic()).count();
        letters > 1 && letters * 2 > word.chars().count()
    };
    if text.trim_start().starts_with(":root") {
        return false;
    }
    let bare = |word: &'_ str| !word.contains(['{', '}', '/', '_', '=', '<', '>', '\\']);
    text.split_whitespace().filter(is_word).filter(|word| bare(word)).count() > 1
}

struct Found<'f> {
    texts: Vec<String>,
    /// The names of types whose documentation is in no help.
    flattened: &'f BTreeSet<String>,
}

struct Flattened(BTreeSet<String>);

impl<'ast> Visit<'ast> for Flattened {
    fn visit_field(&mut self, field: &'ast Field) {
        if is_command(&field.attrs, "flatten")
            && let Type::Path(path) = &field.ty
        {
            self.0.extend(path.path.segments.last().map(|segment| segment.ident.to_string()));
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if !is_for_tests(&item.attrs) {
            visit::visit_item_mod(self, item);
        }
    }
}

/// Whether attributes have `#[command(word)]`.
fn is_command(attrs: &[Attribute], word: &str) -> bool {
    attrs.iter().filter(|attribute| attribute.path().is_ident("command")).any(|attribute| {
        let Meta::List(list) = &attribute.meta else { return false };
        list.tokens.clone().into_iter().any(|token| matches!(token, TokenTree::Ident(name) if name == word))
    })
}

/// The lines of an item's documentation, as one text.
fn documentation(attrs: &[Attribute]) -> Option<String> {
    let lines = attrs.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if attribute.path().is_ident("doc") => match &pair.value {
            syn::Expr::Lit(literal) => match &literal.lit {
                Lit::Str(text) => Some(text.value().trim().to_owned()),
                _ => None,
            },
            _ => None,
        },
        _ => None,
    });
    let lines: Vec<String> = lines.collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

/// Whether a type has one of these derives.
fn derives(attrs: &[Attribute], names: &[&str]) -> bool {
    attrs.iter().filter(|attribute| attribute.path().is_ident("derive")).any(|attribute| {
        let Meta::List(list) = &attribute.meta else { return false };
        let is_one =
            |token: TokenTree| matches!(token, TokenTree::Ident(name) if names.iter().any(|of| name == of));
        list.tokens.clone().into_iter().any(is_one)
    })
}

impl Found<'_> {
    /// The help of fields. What is flattened and subcommands have their own.
    fn fields(&mut self, fields: &Fields) {
        let has_own =
            |field: &&Field| is_command(&field.attrs, "flatten") || is_command(&field.attrs, "subcommand");
        let arguments = fields.iter().filter(|field| !has_own(field));
        self.texts.extend(arguments.filter_map(|field| documentation(&field.attrs)));
    }

    /// The texts of a macro's tokens. Its documentation is for developers, unless `documented`.
    fn tokens(&mut self, tokens: TokenStream, documented: bool) {
        let mut after_hash = false;
        for token in tokens {
            let is_attribute = std::mem::replace(
                &mut after_hash,
                matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '#'),
            );
            match token {
                TokenTree::Group(group) if is_attribute && !documented && is_doc(&group.stream()) => {}
                TokenTree::Literal(literal) => {
                    if let Lit::Str(text) = Lit::new(literal) {
                        self.texts.push(text.value());
                    }
                }
                TokenTree::Group(group) => self.tokens(group.stream(), documented),
                TokenTree::Ident(_) | TokenTree::Punct(_) => {}
            }
        }
    }
}

/// Whether the inside of an attribute is documentation.
fn is_doc(attribute: &TokenStream) -> bool {
    matches!(attribute.clone().into_iter().next(), Some(TokenTree::Ident(name)) if name == "doc")
}

impl<'ast> Visit<'ast> for Found<'_> {
    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        if let Meta::List(list) = &attribute.meta
            && OF_OPERATORS.iter().any(|name| list.path.is_ident(name))
        {
            self.tokens(list.tokens.clone(), false);
        }
    }

    fn visit_item_struct(&mut self, item: &'ast ItemStruct) {
        if derives(&item.attrs, &OF_CLAP) {
            if derives(&item.attrs, &OF_CLAP_WITH_OWN) && !self.flattened.contains(&item.ident.to_string()) {
                self.texts.extend(documentation(&item.attrs));
            }
            self.fields(&item.fields);
        }
        visit::visit_item_struct(self, item);
    }

    fn visit_item_enum(&mut self, item: &'ast ItemEnum) {
        if derives(&item.attrs, &OF_CLAP) {
            for variant in &item.variants {
                self.texts.extend(documentation(&variant.attrs));
                self.fields(&variant.fields);
            }
        }
        visit::visit_item_enum(self, item);
    }

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
        self.texts.push(text.value());
    }

    fn visit_macro(&mut self, call: &'ast Macro) {
        let name = call.path.segments.last().map(|segment| segment.ident.to_string());
        if !name.as_deref().is_some_and(|name| OF_FAULTS.contains(&name)) {
            self.tokens(call.tokens.clone(), name.as_deref() == Some(OF_SETTINGS));
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
        assert_eq!(
            texts(text, &BTreeSet::new()).expect("Rust"),
            ["{device}: no such queue", "run it as root"]
        );
        assert!(literals(text).expect("Rust").contains(&"/sys/class/net".to_owned()));
    }

    #[test]
    fn messages_of_errors_and_help_are_found_and_documentation_of_developers_is_not() {
        let text = r##"
            /// Refuses.
            #[derive(Debug, thiserror::Error)]
            enum Refused {
                /// By the host.
                #[error("no such queue: {0}")]
                Queue(u32),
            }
            /// Print what would change.
            #[derive(clap::Args)]
            #[command(after_help = "Examples: none")]
            struct Plan {
                /// How many seconds.
                #[arg(long)]
                seconds: u64,
            }
            ids! {
                /// Its own number.
                Cpu,
            }
            family! {
                /// The length of a ring.
                Ring,
            }
        "##;
        let found = texts(text, &BTreeSet::new()).expect("Rust");
        let seen = ["no such queue: {0}", "Print what would change.", "How many seconds.", "Examples: none"];
        assert_eq!(found[..4], seen);
        assert_eq!(found[4..], [" The length of a ring."]);
    }

    #[test]
    fn documentation_that_clap_does_not_print_is_left_out() {
        let text = r##"
            /// The line of every command.
            #[derive(clap::Parser)]
            struct Line {
                /// Options of every command.
                #[command(flatten)]
                globals: Globals,
                /// One of them.
                #[command(subcommand)]
                command: Command,
            }
            /// What every command takes.
            #[derive(clap::Args)]
            struct Globals {
                /// Print less of it.
                #[arg(long)]
                quiet: bool,
            }
            /// All the commands.
            #[derive(clap::Subcommand)]
            enum Command {
                /// Print what would change.
                Plan,
            }
        "##;
        let flattened = flattened(text).expect("Rust");
        assert_eq!(flattened, BTreeSet::from(["Globals".to_owned()]));
        let seen = ["The line of every command.", "Print less of it.", "Print what would change."];
        assert_eq!(texts(text, &flattened).expect("Rust"), seen);
    }

    #[test]
    fn what_scripts_print_and_recipes_give_as_reasons_is_found() {
        let script =
            "# it is \"not printed at all\"\necho \"The host has been booted since.\" >&2\nfile=\"$1\"\n";
        assert_eq!(script_texts(script), ["The host has been booted since."]);
        assert_eq!(recipe_texts("value = \"max\"\nwhy = \"short\"\n"), ["short"]);
    }

    #[test]
    fn comments_of_an_interface_annotations_of_alerts_titles_of_a_dashboard_and_descriptions_of_units_are_found()
     {
        let interface = "# One daemon.\n#\n# Root calls\n# everything.\ninterface a.b\n\n# Its state.\ntype State (\n  pid: int\n)\n";
        assert_eq!(interface_texts(interface), ["One daemon.", "Root calls\neverything.", "Its state."]);
        let rules = "  - alert: Down\n    annotations:\n      summary: \"{{ $labels.instance }}: down\"\n      description: \"Start it.\"\n";
        assert_eq!(alert_texts(rules), ["{{ $labels.instance }}: down", "Start it."]);
        let dashboard = r#"{"title": "A host", "panels": [{"title": "Work", "legendFormat": "{{kind}}", "unit": "cps"},
            {"targets": [{"legendFormat": "full scans"}], "description": "Plans made."}]}"#;
        let mut found = dashboard_texts(dashboard).expect("JSON");
        found.sort();
        assert_eq!(found, ["A host", "Plans made.", "Work", "full scans"]);
        assert_eq!(unit_texts("# A unit.\n[Unit]\nDescription=Packet delivery\n"), ["Packet delivery"]);
    }
}
