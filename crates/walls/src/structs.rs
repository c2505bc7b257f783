//! How many fields the structures of a source have.

use syn::visit::{Visit, visit_item_struct};

/// A structure of a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Structure {
    /// Its name.
    pub name: String,
    /// Where it is defined.
    pub line: usize,
    /// How many fields it has.
    pub fields: usize,
}

/// All structures of a source, also those within functions and of its tests.
///
/// # Errors
/// What is no Rust.
pub fn structures(text: &str) -> Result<Vec<Structure>, String> {
    struct Found(Vec<Structure>);
    impl<'ast> Visit<'ast> for Found {
        fn visit_item_struct(&mut self, item: &'ast syn::ItemStruct) {
            self.0.push(Structure {
                name: item.ident.to_string(),
                line: item.ident.span().start().line,
                fields: item.fields.len(),
            });
            visit_item_struct(self, item);
        }
    }
    let file = syn::parse_file(text).map_err(|error| error.to_string())?;
    let mut found = Found(Vec::new());
    found.visit_file(&file);
    Ok(found.0)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn fields_are_counted_wherever_a_structure_is_defined() {
        let text = "struct A { a: u8, b: u8 }\nfn f() { struct B(u8); }\nmod m { struct C; }";
        let found = structures(text).expect("Rust");
        let found: Vec<_> = found.iter().map(|one| (one.name.as_str(), one.line, one.fields)).collect();
        assert_eq!(found, [("A", 1, 2), ("B", 2, 1), ("C", 3, 0)]);
        assert!(structures("struct {").is_err());
    }
}
