//! Every text that an operator can see, in one file, to be read in one sitting.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The sources of all rooms but the tests' own, by room.
fn sources() -> BTreeMap<String, Vec<PathBuf>> {
    let rooms = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for room in std::fs::read_dir(&rooms).expect("the rooms") {
        let room = room.expect("an entry");
        let name = room.file_name().into_string().expect("a name in ASCII");
        let mut folders = vec![room.path().join("src")];
        while let Some(folder) = folders.pop().filter(|_| name != "walls") {
            for entry in std::fs::read_dir(&folder).expect("a folder") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extension == "rs") {
                    found.entry(name.clone()).or_default().push(path);
                }
            }
        }
    }
    found
}

#[test]
fn every_text_that_an_operator_can_see_was_read() {
    let mut page = String::new();
    for (room, files) in sources() {
        let mut texts = BTreeSet::new();
        for file in files {
            // Files of tests beside their subject.
            let name = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if name == "test" || name.ends_with("_test") {
                continue;
            }
            let text = std::fs::read_to_string(&file).expect("a source");
            let found = walls::texts(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
            texts.extend(found);
        }
        writeln!(page, "# {room}\n").expect("memory");
        for text in texts {
            writeln!(page, "{}", text.trim().replace('\n', "\n    ")).expect("memory");
        }
        page.push('\n');
    }
    insta::assert_snapshot!(page);
}
