//! What is linked into the program: names, versions, licences and their texts, for `copyright` and for a bill of materials
//! (CycloneDX); and the changelog that goes with it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::contents::files_of;
use super::program;
use super::{MAINTAINER, Version};
use crate::guest::cache::{output, read};
use crate::shell::{self, Result};

/// Both texts about what is linked.
pub(crate) struct Licences {
    /// Every part with its licence, then every licence text once.
    pub(crate) copyright: String,
    /// CycloneDX 1.5, as JSON.
    pub(crate) sbom: String,
}

/// A part of the program that is not ours.
struct Component {
    name: String,
    version: String,
    /// An SPDX expression.
    licence: String,
    /// A package URL, as SPDX and CycloneDX have them.
    purl: String,
    sha256: Option<String>,
    texts: Vec<PathBuf>,
}

/// Libraries of C that are linked statically: the package that brings the archive, what is linked, and its licence.
const C_LIBRARIES: [(&str, &str, &str); 4] = [
    ("libc6-dev", "glibc", "LGPL-2.1-or-later"),
    ("libelf-dev", "elfutils (libelf)", "LGPL-3.0-or-later OR GPL-2.0-or-later"),
    ("zlib1g-dev", "zlib", "Zlib"),
    ("libgcc-12-dev", "libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1"),
];

/// A licence text is named so in a crate.
const TEXTS: [&str; 5] = ["LICENSE", "LICENCE", "COPYING", "UNLICENSE", "NOTICE"];

impl Licences {
    /// Asks cargo, and dpkg for the libraries of C.
    pub(crate) fn of_program(version: &Version) -> Result<Self> {
        let mut components = crates()?;
        components.push(rust()?);
        components.extend(libraries());
        Ok(Self { copyright: copyright(&components)?, sbom: sbom(&components, version) })
    }
}

fn crates() -> Result<Vec<Component>> {
    let target = program::target()?;
    let mut tree = shell::cargo();
    tree.args(["tree", "--quiet", "--locked", "-p", "netpolicy", "--target", &target]);
    tree.args(["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}\t{l}"]);
    let tree = output(&mut tree)?;
    let lock = read(&shell::root().join("Cargo.lock"))?;
    let registry = registry()?;
    let mut found = BTreeMap::new();
    for line in tree.lines() {
        let Some((package, licence)) = line.trim_end_matches(" (*)").split_once('\t') else { continue };
        let mut words = package.split_whitespace();
        let (Some(name), Some(version)) = (words.next(), words.next()) else { continue };
        let version = version.trim_start_matches('v');
        // Ours name their folder.
        if package.contains('/') {
            continue;
        }
        let directory = registry.iter().map(|r| r.join(format!("{name}-{version}"))).find(|d| d.is_dir());
        let directory =
            directory.ok_or_else(|| format!("the source of {name} {version} is not in cargo's registry"))?;
        let component = Component {
            name: name.to_owned(),
            version: version.to_owned(),
            licence: licence.replace('/', " OR "),
            purl: format!("pkg:cargo/{name}@{}", version.replace('+', "%2B")),
            sha256: checksum(&lock, name, version),
            texts: texts_in(&directory)?,
        };
        if component.texts.is_empty() {
            return Err(format!("{name} {version} brings no licence text: {}", directory.display()));
        }
        found.insert((name.to_owned(), version.to_owned()), component);
    }
    Ok(found.into_values().collect())
}

/// Where cargo keeps sources of its registries.
fn registry() -> Result<Vec<PathBuf>> {
    let home = std::env::var_os("CARGO_HOME").map_or_else(
        || PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    );
    let sources = home.join("registry/src");
    let listing = std::fs::read_dir(&sources).map_err(|error| format!("{}: {error}", sources.display()))?;
    Ok(listing.flatten().map(|entry| entry.path()).collect())
}

/// The checksum of a package in `Cargo.lock`.
fn checksum(lock: &str, name: &str, version: &str) -> Option<String> {
    let head = format!("name = \"{name}\"\nversion = \"{version}\"\n");
    let entry = lock.split("[[package]]\n").find(|entry| entry.starts_with(&head))?;
    let line = entry.lines().find_map(|line| line.strip_prefix("checksum = \""))?;
    Some(line.trim_end_matches('"').to_owned())
}

fn texts_in(directory: &Path) -> Result<Vec<PathBuf>> {
    let named = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        TEXTS.iter().any(|text| name.starts_with(text))
    };
    let mut texts = files_of(directory)?;
    texts.retain(named);
    Ok(texts)
}

/// Rust's own library.
fn rust() -> Result<Component> {
    let said = output(Command::new("rustc").arg("-vV"))?;
    let version =
        said.lines().find_map(|line| line.strip_prefix("release: ")).unwrap_or("unknown").to_owned();
    Ok(Component {
        name: "rust standard library".to_owned(),
        purl: format!("pkg:generic/rust-std@{version}"),
        version,
        licence: "MIT OR Apache-2.0".to_owned(),
        sha256: None,
        texts: ["LICENSE-MIT", "LICENSE-APACHE"].map(|file| shell::root().join(file)).to_vec(),
    })
}

/// What is linked of C libraries, where dpkg knows them.
fn libraries() -> Vec<Component> {
    let mut found = Vec::new();
    for (package, name, licence) in C_LIBRARIES {
        let version = output(Command::new("dpkg-query").args(["-W", "-f=${Version}", package]));
        let Ok(version) = version else { continue };
        let text = PathBuf::from(format!("/usr/share/doc/{package}/copyright"));
        found.push(Component {
            name: name.to_owned(),
            purl: format!("pkg:deb/debian/{package}@{}", version.replace('+', "%2B")),
            version,
            licence: licence.to_owned(),
            sha256: None,
            texts: [text].into_iter().filter(|text| text.exists()).collect(),
        });
    }
    found
}

fn copyright(components: &[Component]) -> Result<String> {
    let mut text = "netpolicy: packet delivery as a policy says.\n\n\
        Copyright: 2026 the netpolicy developers.\n\
        Licence: Apache-2.0 OR MIT, at your choice; the BPF programs that it holds are GPL-2.0-only.\n\
        On Debian systems, these licences are in /usr/share/common-licenses/Apache-2.0 and GPL-2.\n\n\
        The program is linked statically with the parts below. It can be linked with other versions of the\n\
        LGPL's libraries: its source is all that this takes (docs/howto/install.md of the project).\n\n"
        .to_owned();
    // A text that many share stands once.
    let mut shared: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for Component { name, version, licence, texts, .. } in components {
        let _infallible = writeln!(text, "  {name} {version}: {licence}");
        for file in texts {
            let words = String::from_utf8_lossy(
                &std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?,
            )
            .replace('\r', "");
            shared.entry(words.trim_end().to_owned()).or_default().push(format!("{name} {version}"));
        }
    }
    let mut texts: Vec<_> = shared.into_iter().collect();
    texts.sort_by(|left, right| left.1.cmp(&right.1));
    for (words, names) in texts {
        let _infallible = write!(text, "\n{}\n{}\n\n{words}\n", "-".repeat(72), names.join(", "));
    }
    Ok(text)
}

fn sbom(components: &[Component], version: &Version) -> String {
    let mut parts = String::new();
    for (index, part) in components.iter().enumerate() {
        let hash = part.sha256.as_ref().map_or(String::new(), |sum| {
            format!(",\n      \"hashes\": [{{ \"alg\": \"SHA-256\", \"content\": {} }}]", json(sum))
        });
        let _infallible = write!(
            parts,
            "{}    {{\n      \"type\": \"library\",\n      \"name\": {},\n      \"version\": {},\n      \"purl\": {},\n      \
             \"licenses\": [{{ \"expression\": {} }}]{hash}\n    }}",
            if index == 0 { "" } else { ",\n" },
            json(&part.name),
            json(&part.version),
            json(&part.purl),
            json(&part.licence),
        );
    }
    format!(
        "{{\n  \"bomFormat\": \"CycloneDX\",\n  \"specVersion\": \"1.5\",\n  \"version\": 1,\n  \"metadata\": {{\n    \"component\": {{\n      \
         \"type\": \"application\",\n      \"name\": \"netpolicy\",\n      \"version\": {},\n      \
         \"licenses\": [{{ \"expression\": \"(Apache-2.0 OR MIT) AND GPL-2.0-only\" }}]\n    }}\n  }},\n  \"components\": [\n{parts}\n  ]\n}}\n",
        json(&version.debian()),
    )
}

/// A text as JSON.
fn json(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => quoted.extend(['\\', letter]),
            control if control.is_control() => {
                let _infallible = write!(quoted, "\\u{:04x}", u32::from(control));
            }
            other => quoted.push(other),
        }
    }
    quoted.push('"');
    quoted
}

/// The changelog in Debian's form: what `CHANGELOG.md` says of this version.
pub(crate) fn changelog(version: &Version) -> Result<String> {
    let text = read(&shell::root().join("CHANGELOG.md"))?;
    let date = output(
        Command::new("date").args(["--utc", "--rfc-email"]).arg(format!("--date=@{}", version.epoch)),
    )?;
    Ok(format!(
        "netpolicy ({}) unstable; urgency=medium\n\n{}\n -- {MAINTAINER}  {}\n",
        version.debian(),
        entries(&text, &version.number),
        date.trim(),
    ))
}

/// The entries of a version's section, else of the first one, wrapped.
fn entries(changelog: &str, number: &str) -> String {
    const WIDTH: usize = 78;
    let section = changelog.split("\n## ").skip(1).find(|section| section.starts_with(number));
    let section = section.or_else(|| changelog.split("\n## ").nth(1)).unwrap_or_default();
    let mut text = String::new();
    let mut column = 0;
    for line in section.lines().skip(1).filter(|line| !line.trim().is_empty() && !line.starts_with('#')) {
        let (begins, words) = match line.strip_prefix("- ") {
            Some(words) => (true, words),
            None => (false, line),
        };
        if begins {
            text += if text.is_empty() { "  *" } else { "\n  *" };
            column = 3;
        }
        for word in words.split_whitespace() {
            if column + 1 + word.len() > WIDTH {
                text += "\n   ";
                column = 3;
            }
            text += " ";
            text += word;
            column += 1 + word.len();
        }
    }
    text + "\n"
}

#[cfg(test)]
mod texts {
    use super::*;

    #[test]
    fn a_versions_entries_are_wrapped_and_no_other_versions_are_taken() {
        let text = "# C\n\n## Unreleased\n\n- no\n\n## 0.1.0 - 2026-01-01\n\n### Added\n- one\n  more\n- two\n\n## 0.0.9\n- no\n";
        assert_eq!(entries(text, "0.1.0"), "  * one more\n  * two\n");
        let long = format!("\n## 0.1.0\n- {}\n", "word ".repeat(40));
        assert!(entries(&long, "0.1.0").lines().all(|line| line.len() <= 80));
    }

    #[test]
    fn a_checksum_is_that_of_the_version() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1\"\nchecksum = \"x\"\n\n[[package]]\nname = \"a\"\nversion = \"2\"\nchecksum = \"y\"\n";
        assert_eq!(checksum(lock, "a", "2").as_deref(), Some("y"));
        assert_eq!(checksum(lock, "b", "2"), None);
    }

    #[test]
    fn quotes_do_not_end_a_text() {
        assert_eq!(json("a\"\\\n"), "\"a\\\"\\\\\\u000a\"");
    }
}
