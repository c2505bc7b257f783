//! Collects the words of netpolicy's own messages. A redacted recording keeps only these words of a text.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates whose messages a recording can contain.
const SOURCES: [&str; 9] =
    ["model", "plan", "apply", "policy-file", "sys", "netlink", "bpf", "linux", "session"];

fn main() {
    let here = PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").expect("cargo sets it"));
    let crates = here.parent().expect("the directory of all crates");
    let mut words = BTreeSet::new();
    for source in SOURCES {
        collect(&crates.join(source).join("src"), &mut words);
    }
    collect(&crates.join("policy-file/recipes"), &mut words);
    collect(&crates.join("policy-file/nics"), &mut words);
    let mut text = String::new();
    for word in words {
        text.push_str(&word);
        text.push('\n');
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets it"));
    fs::write(out.join("own_words.txt"), text).expect("the output directory is writable");
}

fn collect(directory: &Path, words: &mut BTreeSet<String>) {
    println!("cargo::rerun-if-changed={}", directory.display());
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            // Skip documents for people, because no recording contains their words.
            if name != "page" {
                collect(&path, words);
            }
        } else if (name.ends_with(".rs") || name.ends_with(".toml")) && !name.contains("test") {
            let text = fs::read_to_string(&path).unwrap_or_default();
            // Skip examples in tests: they contain names that are not netpolicy's own words.
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            for line in text.lines().filter(|line| !line.trim_start().starts_with("//")) {
                // The parts between quotes are alternately code and literals, so take every second part. An
                // escaped quote would shift that, so remove it.
                for literal in line.replace("\\\"", " ").split('"').skip(1).step_by(2) {
                    add(literal, words);
                }
                // Also read lines that are probably part of a literal of several lines.
                if line.matches('"').count() % 2 == 1
                    || !line.contains('"') && !line.contains(['{', ';', '='])
                {
                    add(line, words);
                }
            }
        }
    }
}

fn add(text: &str, words: &mut BTreeSet<String>) {
    let split = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.extend(split.filter(|word| word.chars().any(char::is_alphabetic)).map(str::to_owned));
}
