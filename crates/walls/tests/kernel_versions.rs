//! Where the kernels stand that brought what netpolicy uses.

use std::path::{Path, PathBuf};

use walls::paths;

/// The room that says it once: `since.rs`, and the table of knobs.
const HOME: &str = "model";

#[test]
fn which_kernel_brought_what_is_said_in_one_room() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let (mut seen, mut wrong) = (0, Vec::new());
    for room in entries(&crates).into_iter().filter(|room| !room.ends_with(HOME)) {
        let mut folders = vec![room.join("src")];
        while let Some(folder) = folders.pop() {
            for path in entries(&folder) {
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|end| end == "rs") {
                    seen += 1;
                    let text = std::fs::read_to_string(&path).expect("a source");
                    let names = paths(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
                    let versions = names.into_iter().filter(|name| {
                        name.words.ends_with(&["KernelVersion".to_owned(), "since".to_owned()])
                    });
                    wrong.extend(versions.map(|name| format!("{}:{}", path.display(), name.line)));
                }
            }
        }
    }
    assert!(seen > 300, "{seen} sources were read");
    assert!(wrong.is_empty(), "model::since has versions:\n{}", wrong.join("\n"));
}

fn entries(folder: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
}
