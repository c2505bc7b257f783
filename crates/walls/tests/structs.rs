//! How much one structure of a program that never ends may hold.

use std::path::Path;

use walls::structures;

/// The most fields that a reader keeps in mind; more belong in parts with a meaning of their own.
const FIELDS_MAX: usize = 12;

/// The rooms that are held to it.
const ROOMS: [&str; 2] = ["daemon", "netpolicyd"];

#[test]
fn no_structure_of_the_daemon_has_more_fields_than_a_reader_keeps_in_mind() {
    let (mut seen, mut wrong) = (0, Vec::new());
    for room in ROOMS {
        let mut folders = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(room).join("src")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    let text = std::fs::read_to_string(&path).expect("a source");
                    let all = structures(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                    seen += all.len();
                    let large = all.into_iter().filter(|one| one.fields > FIELDS_MAX);
                    wrong.extend(large.map(|one| {
                        format!("{}:{}: {} has {} fields", path.display(), one.line, one.name, one.fields)
                    }));
                }
            }
        }
    }
    assert!(seen > 100, "{seen} structures were found");
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
}
