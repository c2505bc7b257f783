//! The modules of a room, and which of them name each other in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crate::paths::{Form, NamedPath};

/// The modules directly below the root of a crate, each with those that it names outside of tests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Modules {
    named: BTreeMap<String, BTreeSet<String>>,
}

/// The module that a file below `src` is: none for the root's own, `lib.rs` and `main.rs`.
pub fn module_of(file: &Path) -> Vec<String> {
    let mut words: Vec<String> =
        file.with_extension("").iter().map(|word| word.to_string_lossy().into_owned()).collect();
    let is_root = words.len() == 1 && matches!(words[0].as_str(), "lib" | "main");
    if is_root || words.last().is_some_and(|last| last == "mod") {
        words.pop();
    }
    words
}

impl Modules {
    /// Of what each file of a crate names, by the module that the file is.
    pub fn of<'a>(files: impl IntoIterator<Item = (Vec<String>, &'a [NamedPath])>) -> Self {
        let files: Vec<_> = files.into_iter().collect();
        let tops: BTreeSet<&String> = files.iter().filter_map(|(module, _)| module.first()).collect();
        // What the root offers by a name of its own is its module's.
        let mut offered: BTreeMap<&str, &str> = BTreeMap::new();
        for path in files.iter().filter(|(module, _)| module.is_empty()).flat_map(|(_, paths)| *paths) {
            let words = match path.words.as_slice() {
                [root, words @ ..] if root == "crate" || root == "self" => words,
                words => words,
            };
            if let (Form::Use | Form::Renamed, [top, .., name]) = (path.form, words)
                && tops.contains(top)
            {
                offered.insert(path.renamed_to.as_ref().unwrap_or(name), top);
            }
        }
        let mut named: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (module, paths) in &files {
            let Some(top) = module.first() else { continue };
            let found = named.entry(top.clone()).or_default();
            for path in paths.iter().filter(|path| !path.in_tests) {
                let Some(words) = from_root(module, path) else { continue };
                // The root under another name, or all that it has: any module can be named by that.
                let Some(first) = words.first().filter(|first| *first != "*") else {
                    if matches!(path.form, Form::Use | Form::Renamed) {
                        found.extend(tops.iter().map(|top| (*top).clone()));
                    }
                    continue;
                };
                if tops.contains(first) {
                    found.insert(first.clone());
                } else if let Some(of) = offered.get(first.as_str()) {
                    found.insert((*of).to_owned());
                }
            }
            found.remove(top);
        }
        Self { named }
    }

    /// Modules that name each other, directly or by others: each circle once, in the order of its first name.
    pub fn circles(&self) -> Vec<BTreeSet<&str>> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.named.keys().map(|module| (module.as_str(), self.reached(module))).collect();
        let mut circles = BTreeSet::new();
        for (module, below) in &reached {
            let circle: BTreeSet<&str> = below
                .iter()
                .copied()
                .filter(|other| reached.get(other).is_some_and(|back| back.contains(module)))
                .collect();
            if circle.len() > 1 {
                circles.insert(circle);
            }
        }
        circles.into_iter().collect()
    }

    /// All that a module names, directly or by others.
    fn reached(&self, module: &str) -> BTreeSet<&str> {
        let of = |module: &str| self.named.get(module).into_iter().flatten().map(String::as_str);
        let mut reached = BTreeSet::new();
        let mut next: Vec<&str> = of(module).collect();
        while let Some(module) = next.pop() {
            if reached.insert(module) {
                next.extend(of(module));
            }
        }
        reached
    }

    /// Which modules a module names itself.
    pub fn named_by(&self, module: &str) -> impl Iterator<Item = &str> {
        self.named.get(module).into_iter().flatten().map(String::as_str)
    }
}

/// A path from the root of the crate; `None` for one that begins with a name, which is of the module itself or was brought in.
fn from_root(module: &[String], path: &NamedPath) -> Option<Vec<String>> {
    if !matches!(path.form, Form::Use | Form::Renamed | Form::Path | Form::Macro) {
        return None;
    }
    let mut here: Vec<String> = module.iter().chain(&path.inside).cloned().collect();
    let mut words = path.words.iter().peekable();
    match words.next()?.as_str() {
        "crate" => here.clear(),
        "self" => {}
        "super" => drop(here.pop()),
        _ => return None,
    }
    while words.next_if(|word| *word == "super").is_some() {
        here.pop();
    }
    here.extend(words.cloned());
    Some(here)
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::paths::paths;

    fn modules(files: &[(&str, &str)]) -> Modules {
        let files: Vec<_> = files
            .iter()
            .map(|(file, text)| (module_of(Path::new(file)), paths(text).expect("Rust")))
            .collect();
        Modules::of(files.iter().map(|(module, paths)| (module.clone(), paths.as_slice())))
    }

    fn circles(files: &[(&str, &str)]) -> Vec<Vec<String>> {
        let modules = modules(files);
        let of = |circle: BTreeSet<&str>| circle.into_iter().map(str::to_owned).collect();
        modules.circles().into_iter().map(of).collect()
    }

    #[test]
    fn a_file_is_the_module_that_it_is_named_after() {
        for (file, module) in [
            ("lib.rs", &[] as &[&str]),
            ("a.rs", &["a"]),
            ("a/mod.rs", &["a"]),
            ("a/b.rs", &["a", "b"]),
            ("a/main.rs", &["a", "main"]),
        ] {
            assert_eq!(module_of(Path::new(file)), module, "{file}");
        }
    }

    #[test]
    fn modules_that_name_each_other_are_a_circle_and_those_below_them_are_not() {
        let files = [
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "use crate::b::B;"),
            ("b.rs", "use super::c::C;"),
            ("c/mod.rs", "mod inner;"),
            ("c/inner.rs", "fn f() -> super::super::a::A { g() }"),
            ("d.rs", "use crate::{a, b};"),
        ];
        assert_eq!(circles(&files), [["a", "b", "c"]]);
        assert!(circles(&files[..4]).is_empty());
    }

    #[test]
    fn a_circle_by_a_name_that_the_root_offers_or_in_a_macro_is_found() {
        let by_root = [
            ("lib.rs", "mod a; mod b; pub use a::A; pub use b::{B, C};"),
            ("a.rs", "use crate::B;"),
            ("b.rs", "fn f() { g!(crate::A::new()); }"),
        ];
        assert_eq!(circles(&by_root), [["a", "b"]]);
        let all = [
            ("lib.rs", "mod a; mod b; pub use b::B;"),
            ("a.rs", "use super::*;"),
            ("b.rs", "use crate::a::A;"),
        ];
        assert_eq!(circles(&all), [["a", "b"]]);
        let renamed = [
            ("lib.rs", "mod a; mod b; pub use b::B as Other;"),
            ("a.rs", "use crate::Other;"),
            ("b.rs", "use crate::a::A;"),
        ];
        assert_eq!(circles(&renamed), [["a", "b"]]);
        for root in [
            "use crate as top; fn f() { top::b::g() }",
            "use super::*; fn f() { b::g() }",
            "use crate::{self as top};",
        ] {
            let hidden = [("lib.rs", "mod a; mod b;"), ("a.rs", root), ("b.rs", "use crate::a::A;")];
            assert_eq!(circles(&hidden), [["a", "b"]], "{root}");
        }
    }

    #[test]
    fn what_tests_name_and_a_module_within_its_own_file_are_no_circle() {
        let files = [
            ("lib.rs", "mod a; mod b;"),
            ("a.rs", "use crate::b::B; mod inner { use super::A; }"),
            ("b.rs", "#[cfg(test)] mod test { use crate::a::A; }"),
        ];
        assert!(circles(&files).is_empty());
        assert_eq!(modules(&files).named_by("a").collect::<Vec<_>>(), ["b"]);
    }
}
