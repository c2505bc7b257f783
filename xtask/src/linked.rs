//! Lists the third-party components of the program in two documents: `THIRD-PARTY` with every licence text,
//! which is installed, and a bill of materials (CycloneDX). Crates are those that cargo resolves for the
//! targets, without build-time dependencies. System libraries (libc, libelf, zlib) are listed elsewhere: a
//! package depends on them, or contains their `copyright` files.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::deny;
use crate::files::{self, About as _};
use crate::programs::PROGRAMS;
use crate::shell::{self, Result};

const USAGE: &str = "usage: cargo xtask linked [--check | --sbom FILE]";

/// The targets for which the program is built.
pub(crate) const TARGETS: [&str; 2] = ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"];

/// The prefixes of the names of licence files in a crate.
const TEXTS: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "UNLICENSE", "NOTICE"];

/// C libraries that a crate compiles in from a subdirectory: the crate, the directory, and the library's name
/// and licence.
const INSIDE: [(&str, &str, &str, &str); 1] =
    [("libbpf-sys", "libbpf", "libbpf", "LGPL-2.1-only OR BSD-2-Clause (BSD-2-Clause is taken)")];

/// A third-party component.
pub(crate) struct Component {
    pub(crate) name: String,
    pub(crate) version: String,
    /// An SPDX expression.
    pub(crate) licence: String,
    /// The crate's checksum in `Cargo.lock`.
    pub(crate) sha256: Option<String>,
    /// The package URL, for CycloneDX.
    pub(crate) purl: String,
    /// The directory of a crate's sources.
    pub(crate) directory: PathBuf,
    /// The licence texts.
    pub(crate) texts: Vec<PathBuf>,
}

/// Prints `THIRD-PARTY`, runs cargo-deny, or writes the bill of materials.
pub(crate) fn run(arguments: &[String]) -> Result {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        [] => {
            print!("{}", third_party()?);
            Ok(())
        }
        ["--check"] => {
            deny::check()?.skipped.iter().for_each(|skipped| eprintln!("{skipped}"));
            Ok(())
        }
        ["--sbom", file] => {
            files::write(Path::new(file), &sbom(&crates()?, &files::manifest_value("version")?))
        }
        _ => Err(USAGE.to_owned()),
    }
}

/// Returns every crate that is linked into the program.
pub(crate) fn crates() -> Result<Vec<Component>> {
    let lock = files::read(&shell::root().join("Cargo.lock"))?;
    let mut sources = sources()?;
    let mut found = BTreeMap::new();
    for (name, version, licence) in resolved()? {
        let directory = sources.remove(&(name.clone(), version.clone()));
        let directory = directory
            .ok_or_else(|| format!("cargo metadata does not name the source of {name} {version}"))?;
        let texts = texts_in(&directory)?;
        if texts.is_empty() {
            return Err(format!("{name} {version} contains no licence text: {}", directory.display()));
        }
        let sha256 = checksum(&lock, &name, &version);
        let purl = purl("cargo", &name, &version);
        found.insert(
            (name.clone(), version.clone()),
            Component { name, version, licence, sha256, purl, directory, texts },
        );
    }
    Ok(found.into_values().collect())
}

/// Returns a package URL (purl) of this type, such as `pkg:TYPE/NAME@VERSION`.
pub(crate) fn purl(kind: &str, name: &str, version: &str) -> String {
    format!("pkg:{kind}/{name}@{}", version.replace('+', "%2B"))
}

/// Returns the name, version and licence of each crate that cargo resolves for any of the targets.
fn resolved() -> Result<BTreeSet<(String, String, String)>> {
    let mut found = BTreeSet::new();
    for target in TARGETS {
        let mut tree = shell::cargo();
        tree.args(["tree", "--quiet", "--locked", "--target", target]);
        tree.args(PROGRAMS.map(|name| ["--package", name]).concat());
        tree.args(["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}\t{l}"]);
        found.extend(shell::output(&mut tree)?.lines().filter_map(read_line));
    }
    Ok(found)
}

/// Parses `NAME vVERSION<tab>LICENCE`. Returns `None` for workspace crates, whose lines name their folder.
fn read_line(line: &str) -> Option<(String, String, String)> {
    let (package, licence) = line.split_once('\t')?;
    let mut words = package.split_whitespace();
    let (name, version) = (words.next()?, words.next()?.strip_prefix('v')?);
    let ours = words.next().is_some_and(|word| word.starts_with("(/"));
    let licence = licence.trim_end_matches(" (*)").replace('/', " OR ");
    (!ours).then(|| (name.to_owned(), version.to_owned(), licence))
}

/// Returns the directory of each package's sources, by name and version: in cargo's registry, or vendored.
fn sources() -> Result<BTreeMap<(String, String), PathBuf>> {
    let mut found = BTreeMap::new();
    for target in TARGETS {
        let mut metadata = shell::cargo();
        metadata.args([
            "metadata",
            "--quiet",
            "--locked",
            "--format-version",
            "1",
            "--filter-platform",
            target,
        ]);
        let metadata: Value = serde_json::from_str(&shell::output(&mut metadata)?)
            .map_err(|error| format!("cargo metadata: {error}"))?;
        for package in metadata["packages"].as_array().into_iter().flatten() {
            let text = |key: &str| package[key].as_str().unwrap_or_default().to_owned();
            let manifest = PathBuf::from(text("manifest_path"));
            if let Some(directory) = manifest.parent() {
                found.insert((text("name"), text("version")), directory.to_path_buf());
            }
        }
    }
    Ok(found)
}

/// Returns the checksum of a package in `Cargo.lock`.
fn checksum(lock: &str, name: &str, version: &str) -> Option<String> {
    let head = format!("name = \"{name}\"\nversion = \"{version}\"\n");
    let entry = lock.split("[[package]]\n").find(|entry| entry.starts_with(&head))?;
    let line = entry.lines().find_map(|line| line.strip_prefix("checksum = \""))?;
    Some(line.trim_end_matches('"').to_owned())
}

/// Returns the licence files of a directory, in the order of their names.
fn texts_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut texts = files::files_of(directory)?;
    texts.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        TEXTS.iter().any(|text| name.starts_with(text))
    });
    Ok(texts)
}

/// Returns the text of `THIRD-PARTY`.
pub(crate) fn third_party() -> Result<String> {
    const HEAD: &str = "What others wrote and netpolicy is linked with. `cargo xtask linked` prints this text.\n\
                        Libraries of the system are not in it: libc, libelf, zlib. netpolicy's own licences are LICENSE-APACHE and\n\
                        LICENSE-MIT, at your choice, and LICENSE-GPL-2.0 for its BPF programs.\n\n";
    listing(HEAD, &crates()?)
}

/// Writes the head, then every component with its licence, and then every licence text once, with the names
/// of the components to which it applies.
pub(crate) fn listing(head: &str, components: &[Component]) -> Result<String> {
    let mut text = head.to_owned();
    let mut shared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut add = |part: &str, licence: &str, texts: &[PathBuf]| -> Result {
        let _infallible = writeln!(text, "{part}: {licence}");
        for path in texts {
            let words = std::fs::read(path).about(path)?;
            let words = String::from_utf8_lossy(&words).replace('\r', "");
            let lines: Vec<&str> = words.trim_end().lines().map(str::trim_end).collect();
            let owners = shared.entry(lines.join("\n")).or_default();
            if !owners.iter().any(|owner| owner == part) {
                owners.push(part.to_owned());
            }
        }
        Ok(())
    };
    for Component { name, version, licence, directory, texts, .. } in components {
        add(&format!("{name} {version}"), licence, texts)?;
        for (_, below, inside, licence) in INSIDE.iter().filter(|(owner, ..)| owner == name) {
            add(&format!("{inside} (in {name} {version})"), licence, &texts_in(&directory.join(below))?)?;
        }
    }
    let mut texts: Vec<_> = shared.into_iter().collect();
    texts.sort_by(|left, right| (&left.1, &left.0).cmp(&(&right.1, &right.0)));
    for (words, owners) in texts {
        let _infallible = write!(text, "\n{}\n{}\n\n{words}\n", "-".repeat(72), owners.join(", "));
    }
    Ok(text)
}

/// Writes the bill of materials in the format CycloneDX 1.5, as JSON.
pub(crate) fn sbom(components: &[Component], version: &str) -> String {
    let licences = |expression: &str| json!([{ "expression": expression }]);
    let part = |part: &Component| {
        let hashes: Vec<_> =
            part.sha256.iter().map(|sum| json!({ "alg": "SHA-256", "content": sum })).collect();
        json!({
            "type": "library", "bom-ref": part.purl, "name": part.name, "version": part.version, "purl": part.purl,
            "licenses": licences(&part.licence), "hashes": hashes,
        })
    };
    let ours = json!({
        "type": "application", "name": "netpolicy", "version": version,
        "licenses": licences("(Apache-2.0 OR MIT) AND GPL-2.0-only"),
    });
    let all = json!({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1, "metadata": { "component": ours },
        "components": components.iter().map(part).collect::<Vec<_>>(),
    });
    format!("{all:#}\n")
}

#[cfg(test)]
mod texts {
    use super::*;

    #[test]
    fn a_line_of_the_tree_is_a_part_unless_it_is_ours() {
        let ours = "netpolicy-model v0.1.0 (/src/crates/model)\tApache-2.0 OR MIT";
        assert_eq!(read_line(ours), None);
        let theirs = ["libbpf-sys", "1.7.2+v1.7.2", "MIT OR Apache-2.0"].map(str::to_owned);
        let [name, version, licence] = theirs;
        assert_eq!(read_line("libbpf-sys v1.7.2+v1.7.2\tMIT/Apache-2.0 (*)"), Some((name, version, licence)));
    }

    #[test]
    fn a_checksum_is_that_of_the_version() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1\"\nchecksum = \"x\"\n\n[[package]]\nname = \"a\"\nversion = \"2\"\nchecksum = \"y\"\n";
        assert_eq!(checksum(lock, "a", "2").as_deref(), Some("y"));
        assert_eq!(checksum(lock, "b", "2"), None);
    }
}
