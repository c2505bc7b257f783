//! Writes the documents about the linked components: names, versions, licences and their texts, for
//! `copyright` and for a bill of materials (CycloneDX). Also writes the packaged changelog.

use std::path::PathBuf;
use std::process::Command;

use super::packaging::{MAINTAINER, Version};
use super::program::rustc_value;
use crate::files;
use crate::linked::{self, Component, purl};
use crate::shell::{self, Result};

/// The two documents about linked components.
pub(crate) struct Licences {
    /// The text of `copyright`: every component with its licence, then every licence text once.
    pub(crate) copyright: String,
    /// The bill of materials: CycloneDX 1.5, as JSON.
    pub(crate) sbom: String,
}

/// Statically linked C libraries: the package with the static library, the linked component, and its licence.
const C_LIBRARIES: [(&str, &str, &str); 4] = [
    ("libc6-dev", "glibc", "LGPL-2.1-or-later"),
    ("libelf-dev", "elfutils (libelf)", "LGPL-3.0-or-later OR GPL-2.0-or-later"),
    ("zlib1g-dev", "zlib", "Zlib"),
    ("libgcc-12-dev", "libgcc", "GPL-3.0-or-later WITH GCC-exception-3.1"),
];

/// The first part of `copyright`.
const HEAD: &str = "netpolicy: packet delivery as a policy says.\n\n\
    Copyright: 2026 the netpolicy developers.\n\
    Licence: Apache-2.0 OR MIT, at your choice; the BPF programs that it holds are GPL-2.0-only.\n\
    On Debian systems, these licences are in /usr/share/common-licenses/Apache-2.0 and GPL-2.\n\n\
    The programs are linked statically with the parts below. They can be linked with other versions of the\n\
    LGPL's libraries: their source is all that this takes (docs/howto/install.md of the project).\n\n";

impl Licences {
    /// Collects the licences of crates from cargo, and those of C libraries from dpkg.
    pub(crate) fn of_programs(version: &Version) -> Result<Self> {
        let mut components = linked::crates()?;
        components.push(rust()?);
        components.extend(libraries());
        Ok(Self {
            copyright: linked::listing(HEAD, &components)?,
            sbom: linked::sbom(&components, &version.debian()),
        })
    }
}

/// Rust's standard library.
fn rust() -> Result<Component> {
    let version = rustc_value("release")?;
    Ok(Component {
        name: "rust standard library".to_owned(),
        purl: purl("generic", "rust-std", &version),
        directory: PathBuf::new(),
        version,
        licence: "MIT OR Apache-2.0".to_owned(),
        sha256: None,
        texts: ["LICENSE-MIT", "LICENSE-APACHE"].map(|file| shell::root().join(file)).to_vec(),
    })
}

/// The linked C libraries, as far as dpkg knows them.
fn libraries() -> Vec<Component> {
    let mut found = Vec::new();
    for (package, name, licence) in C_LIBRARIES {
        let version = shell::output(Command::new("dpkg-query").args(["-W", "-f=${Version}", package]));
        let Ok(version) = version else { continue };
        let text = PathBuf::from(format!("/usr/share/doc/{package}/copyright"));
        found.push(Component {
            name: name.to_owned(),
            purl: purl("deb/debian", package, &version),
            directory: PathBuf::new(),
            version,
            licence: licence.to_owned(),
            sha256: None,
            texts: [text].into_iter().filter(|text| text.exists()).collect(),
        });
    }
    found
}

/// Returns the changelog in Debian's format, with this version's section of `CHANGELOG.md`.
pub(crate) fn changelog(version: &Version) -> Result<String> {
    let text = files::read(&shell::root().join("CHANGELOG.md"))?;
    let date = shell::output(
        Command::new("date").args(["--utc", "--rfc-email"]).arg(format!("--date=@{}", version.epoch)),
    )?;
    Ok(format!(
        "netpolicy ({}) unstable; urgency=medium\n\n{}\n -- {MAINTAINER}  {}\n",
        version.debian(),
        entries(&text, &version.number),
        date.trim(),
    ))
}

/// Returns the wrapped entries of a version's section or, if there is none, of the first section.
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
}
