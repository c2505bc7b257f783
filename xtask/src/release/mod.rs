//! `release`: creates all artefacts of a version in one directory, with checksums, and tries them.

pub(crate) mod contents;
mod deb;
mod documents;
mod pack;
pub(crate) mod packaging;
mod program;
mod rpm;
pub(crate) mod source;
mod sources;
mod stage;
pub(crate) mod trial;

use std::process::Command;

use crate::files::{self, About as _};
use crate::options::Options;
use crate::shell::{self, Result};
use pack::pack;
use packaging::{Effort, Version};
pub(crate) use program::host_target;

const USAGE: &str =
    "usage: cargo xtask release [--out DIRECTORY] [--suffix TEXT] [--program FILE] [--twice] [--test]
       cargo xtask release --trial [--program FILE] [NAME]

--out      where the artefacts go (target/release-VERSION)
--suffix   makes it a version before the released one: 0.1.0~TEXT
--program  packs this netpolicy, and the other programs near it, instead of building them
--twice    builds again in another directory and compares every byte
--test     tries the artefacts: in containers of Debian, by rpm, on older distributions
--trial    tries packages of the program of the tests, as `cargo xtask test` does; NAME is one trial";

/// Creates the artefacts, or tries them.
pub(crate) fn run(arguments: &[String]) -> Result {
    let flags = ["--twice", "--test", "--trial"];
    let options = Options::read(arguments, &flags, &["--out", "--suffix", "--program"], USAGE)?;
    if options.has("--trial") {
        let name = options.words.first().map(String::as_str);
        return trial::run(name, options.path("--program").as_deref())?.end();
    }
    let version = Version::of_workspace(options.value("--suffix").map(str::to_owned))?;
    let out = options
        .path("--out")
        .unwrap_or_else(|| shell::root().join(format!("target/release-{}", version.debian())));
    let out = std::path::absolute(&out).about(&out)?;
    files::remove(&out)?;
    let built = match options.path("--program") {
        Some(program) => program,
        None => program::build(None)?,
    };
    if !options.has("--program") {
        program::need_static(&built)?;
    }
    let artefacts = pack(&built, &version, &out, Effort::Release)?;
    if options.has("--twice") {
        let again = out.join("again");
        let built = program::build(Some(&again.join("target")))?;
        pack(&built, &version, &again.join("out"), Effort::Release)?;
        let said =
            shell::output(Command::new("diff").arg(out.join("SHA256SUMS")).arg(again.join("out/SHA256SUMS")));
        said.map_err(|differs| format!("two builds differ: {differs}"))?;
        files::remove(&again)?;
        eprintln!("release: the second build gave the same bytes");
    }
    if options.has("--test") {
        trial::of_release(&artefacts, &version)?;
    }
    println!("{}", artefacts.directory.display());
    Ok(())
}
