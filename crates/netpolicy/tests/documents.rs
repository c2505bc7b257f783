//! Checks every link between files of the repository.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use testkit::markdown::{Document, markdown_below, repository};

#[test]
fn every_link_between_documents_leads_to_a_file_and_to_a_heading_that_are_there() {
    let root = repository().canonicalize().expect("the repository");
    let documents: BTreeMap<_, _> = markdown_below(&root)
        .into_iter()
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("a document");
            (path, Document::of(&text))
        })
        .collect();
    let mut broken = Vec::new();
    let mut links = 0;
    for (path, document) in &documents {
        for (line, target) in &document.links {
            if target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            links += 1;
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            let leads_to = if file.is_empty() {
                path.clone()
            } else {
                let beside = path.parent().expect("a folder").join(file);
                beside.canonicalize().unwrap_or(beside)
            };
            let found = leads_to.exists() && leads_to.starts_with(&root);
            let headed = anchor.is_empty()
                || documents
                    .get(&leads_to)
                    .is_some_and(|other| other.anchors.iter().any(|name| name == anchor));
            if !found || !headed {
                let from = path.strip_prefix(&root).expect("the path of a file of the repository").display();
                broken.push(format!("{from}:{line}: {target}"));
            }
        }
    }
    assert!(links > 100, "only {links} links were found");
    assert!(broken.is_empty(), "these lead nowhere:\n{}", broken.join("\n"));
}

#[test]
fn the_readme_is_read_within_a_minute() {
    const LINES_MAX: usize = 100;
    let text = std::fs::read_to_string(repository().join("README.md")).expect("README.md");
    assert!(text.lines().count() <= LINES_MAX, "{} lines", text.lines().count());
}

#[test]
fn every_document_is_found_from_an_index_and_every_decision_has_a_number_of_its_own() {
    let docs = repository().join("docs").canonicalize().expect("docs");
    let listed: BTreeSet<PathBuf> = ["index.md", "decisions/README.md"]
        .iter()
        .flat_map(|index| {
            let index = docs.join(index);
            let text = std::fs::read_to_string(&index).expect("an index");
            let folder = index.parent().expect("a folder").to_owned();
            let links = Document::of(&text).links.into_iter();
            links.filter_map(move |(_, target)| folder.join(target.split('#').next()?).canonicalize().ok())
        })
        .collect();
    let mut numbers = BTreeSet::new();
    for path in markdown_below(&docs).iter().filter(|path| !path.ends_with("index.md")) {
        assert!(listed.contains(path), "no index names {}", path.display());
        let name = path.file_name().expect("a name").to_string_lossy();
        if let Some((number, _)) = name.split_once('-').filter(|(number, _)| number.parse::<u32>().is_ok()) {
            assert!(numbers.insert(number.to_owned()), "two decisions have the number {number}");
        }
    }
}

#[test]
fn a_link_in_code_is_none_and_a_heading_that_stands_twice_is_numbered() {
    let text =
        "# A `b`, c-d\n[x](y.md#z) and `[no](none)`\n```text\n# no\n[no](none)\n```\n## Same\n## Same\n";
    let document = Document::of(text);
    assert_eq!(document.links, [(2, "y.md#z".to_owned())]);
    assert_eq!(document.anchors, ["a-b-c-d", "same", "same-1"]);
    assert_eq!(document.blocks.len(), 1);
    assert_eq!((document.blocks[0].line, document.blocks[0].info.as_str()), (3, "text"));
    assert_eq!(document.blocks[0].lines, ["# no", "[no](none)"]);
}
