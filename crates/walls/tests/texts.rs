//! Every text that an operator can see, in one file, to be read in one sitting.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The files below a folder.
fn files(below: PathBuf) -> Vec<PathBuf> {
    let (mut folders, mut found) = (vec![below], Vec::new());
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() { folders.push(path) } else { found.push(path) }
        }
    }
    found
}

/// The sources of all rooms but the tests' own, by room, and of the packages.
fn sources() -> BTreeMap<String, Vec<PathBuf>> {
    let rooms = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut found: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    for room in std::fs::read_dir(&rooms).expect("the rooms") {
        let room = room.expect("an entry");
        let name = room.file_name().into_string().expect("a name in ASCII");
        if name == "walls" {
            continue;
        }
        let own = found.entry(name.clone()).or_default();
        own.extend(files(room.path().join("src")));
        if name == "policy-file" {
            own.extend(files(room.path().join("recipes")));
        }
    }
    found.insert("packaging".to_owned(), files(rooms.join("../packaging")));
    found
}

/// The names of all types that are flattened into the command line.
fn flattened() -> BTreeSet<String> {
    let of = |file: &PathBuf| {
        let text = std::fs::read_to_string(file).expect("a source");
        walls::flattened(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
    };
    let is_rust = |file: &PathBuf| file.extension().is_some_and(|extension| extension == "rs");
    sources().into_values().flatten().filter(is_rust).flat_map(|file| of(&file)).collect()
}

/// The texts of a file that an operator can see, by the kind of the file.
fn texts(file: &Path, flattened: &BTreeSet<String>) -> Vec<String> {
    let text = || std::fs::read_to_string(file).expect("a source");
    let is_script = ["postinst", "postrm", "preinst", "prerm"].iter().any(|name| file.ends_with(name));
    match file.extension().and_then(|extension| extension.to_str()) {
        Some("rs") => {
            walls::texts(&text(), flattened).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        }
        Some("toml") => walls::recipe_texts(&text()),
        Some("sh") => walls::script_texts(&text()),
        Some("varlink") => walls::interface_texts(&text()),
        // Tests of alert rules expect the annotations of these.
        Some("yml") if !file.to_string_lossy().ends_with(".test.yml") => walls::alert_texts(&text()),
        Some("json") => {
            walls::dashboard_texts(&text()).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
        }
        Some("service") => walls::unit_texts(&text()),
        _ if is_script => walls::script_texts(&text()),
        _ => Vec::new(),
    }
}

#[test]
fn every_text_that_an_operator_can_see_was_read() {
    let flattened = flattened();
    let mut page = String::new();
    for (room, files) in sources() {
        let mut seen = BTreeSet::new();
        for file in files {
            // Files of tests beside their subject.
            let name = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
            if name == "test" || name.ends_with("_test") {
                continue;
            }
            seen.extend(texts(&file, &flattened));
        }
        writeln!(page, "# {room}\n").expect("memory");
        for text in seen {
            writeln!(page, "{}", text.trim().replace('\n', "\n    ")).expect("memory");
        }
        page.push('\n');
    }
    insta::assert_snapshot!(page);
}
