//! `release`: all artefacts of a version, with checksums, in one directory; and trials of them.

pub(crate) mod contents;
mod deb;
mod documents;
mod program;
mod rpm;
mod sources;
mod stage;
pub(crate) mod trial;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{self, About as _};
use crate::image;
use crate::options::Options;
use crate::setup;
use crate::shell::{self, Result};
pub(crate) use program::host_target;
use sources::Licences;
use stage::Stage;

/// The maintainer of the packages. Distributors use their own name. Debian policy 5.6.2 requires an address,
/// and lintian rejects a control file without one (`malformed-contact`). The project has no public address:
/// `.invalid` never has a host (RFC 2606), so mail bounces immediately.
pub(crate) const MAINTAINER: &str = "the netpolicy developers <netpolicy@packages.invalid>";
/// The same without an address.
pub(crate) const VENDOR: &str = "the netpolicy developers";

const USAGE: &str =
    "usage: cargo xtask release [--out DIRECTORY] [--suffix TEXT] [--program FILE] [--twice] [--test]
       cargo xtask release --trial [--program FILE] [NAME]

--out      where the artefacts go (target/release-VERSION)
--suffix   makes it a version before the released one: 0.1.0~TEXT
--program  packs this netpolicy, and the other programs near it, instead of building them
--twice    builds again in another directory and compares every byte
--test     tries the artefacts: in containers of Debian, by rpm, on older distributions
--trial    tries packages of the program of the tests, as `cargo xtask test` does; NAME is one trial";

/// The version of the artefacts.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// The workspace's: `0.1.0`.
    pub(crate) number: String,
    /// The suffix of a pre-release.
    pub(crate) suffix: Option<String>,
    /// The modification time of files, in seconds.
    pub(crate) epoch: u64,
}

impl Version {
    /// The workspace's version, at the time of SOURCE_DATE_EPOCH or of the last commit.
    pub(crate) fn of_workspace(suffix: Option<String>) -> Result<Self> {
        let number = shell::manifest_value("version")?;
        let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(said) => said,
            Err(_) => {
                let mut git = Command::new("git");
                shell::output(git.current_dir(shell::root()).args(["log", "-1", "--format=%ct"]))?
            }
        };
        let epoch =
            epoch.trim().parse().map_err(|error| format!("the time of the sources, {epoch:?}: {error}"))?;
        if let Some(suffix) = &suffix {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.';
            if suffix.is_empty() || !suffix.bytes().all(plain) {
                return Err(format!("--suffix {suffix:?}: letters, digits and dots"));
            }
        }
        Ok(Self { number, suffix, epoch })
    }

    /// In Debian's version order.
    pub(crate) fn debian(&self) -> String {
        match &self.suffix {
            Some(suffix) => format!("{}~{suffix}", self.number),
            None => self.number.clone(),
        }
    }

    /// In RPM's form: version and release.
    pub(crate) fn rpm(&self) -> (String, String) {
        let release = self.suffix.as_ref().map_or("1".to_owned(), |suffix| format!("0.{suffix}"));
        (self.number.clone(), release)
    }
}

/// How much effort to put into packing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Small files, and debug symbols.
    Release,
    /// Fast, and without the symbols: for trials of installation.
    Trial,
}

/// The created artefacts.
pub(crate) struct Artefacts {
    pub(crate) directory: PathBuf,
    /// The Debian packages: netpolicy and its tools, with the debug symbols next to them.
    pub(crate) debs: [PathBuf; 2],
    /// The same for rpm.
    pub(crate) rpms: [PathBuf; 2],
    pub(crate) archive: PathBuf,
}

/// Creates all of them from a program and those next to it.
pub(crate) fn pack(built: &Path, version: &Version, out: &Path, effort: Effort) -> Result<Artefacts> {
    setup::need(setup::PACKAGES)?;
    files::make_directory(out)?;
    let making = out.join("making");
    files::remove(&making)?;
    let programs = program::split_all(built, &making.join("program"))?;
    let licences = Licences::of_programs(version)?;
    let stage = Stage::new(&making, &programs, version, &licences)?;
    files::write(&out.join(format!("netpolicy-{}.cdx.json", version.debian())), &licences.sbom)?;
    let archive = archive(&stage, version, out, effort)?;
    stage.split(version.epoch)?;
    // Debian packages come last: packing them adds files to the trees.
    let rpms = rpm::pack(&stage, version, out, effort)?;
    let build_ids = programs.iter().map(|program| program.build_id.as_str()).collect::<Vec<_>>().join(" ");
    let debs = deb::pack(&stage, version, &build_ids, out, effort)?;
    if effort == Effort::Release && !shell::has("podman") {
        eprintln!("release: no image is made: it needs podman, which cargo xtask setup installs");
    } else if effort == Effort::Release {
        let image = out.join(format!("netpolicy-{}-{}.oci.tar", version.debian(), std::env::consts::ARCH));
        image::pack(&programs[0].stripped, &version.number, &image)?;
    }
    files::remove(&making)?;
    sums(out)?;
    Ok(Artefacts { directory: out.to_path_buf(), debs, rpms, archive })
}

/// The tree as an archive, to be unpacked over `/` of any system.
fn archive(stage: &Stage, version: &Version, out: &Path, effort: Effort) -> Result<PathBuf> {
    let file = out.join(format!("netpolicy-{}-{}.tar.gz", version.debian(), std::env::consts::ARCH));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    let gzip = if effort == Effort::Release { "gzip -9n" } else { "gzip -1n" };
    tar.arg(format!("--mtime=@{}", version.epoch)).args(["--use-compress-program", gzip]);
    tar.arg("--file").arg(&file).arg("--directory").arg(&stage.root).arg(".");
    shell::output(&mut tar)?;
    Ok(file)
}

/// The parts that a maintainer script of any package may include, and their files.
const PARTS: [(&str, &str); 2] =
    [("@AFTER_INSTALL@", "after-install.sh"), ("@BEFORE_REMOVAL@", "before-removal.sh")];

/// A script with its parts included; `put_back` is the command to roll back.
fn filled_script(script: &str, put_back: &str) -> Result<String> {
    let mut script = script.to_owned();
    for (name, file) in PARTS {
        let part = files::read(&shell::root().join("packaging/scripts").join(file))?;
        script = script.replace(name, part.trim_end());
    }
    Ok(script.replace("@PUT_BACK@", put_back))
}

/// The checksums of all files.
fn sums(out: &Path) -> Result {
    let names: Vec<_> = files::files_of(out)?
        .into_iter()
        .filter_map(|file| Some(file.file_name()?.to_owned()))
        .filter(|name| name != "SHA256SUMS")
        .collect();
    let sums = shell::output(Command::new("sha256sum").current_dir(out).arg("--").args(names))?;
    files::write(&out.join("SHA256SUMS"), &sums)
}

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
        eprintln!("release: the second build has the same bytes");
    }
    if options.has("--test") {
        trial::of_release(&artefacts, &version)?;
    }
    println!("{}", artefacts.directory.display());
    Ok(())
}

#[cfg(test)]
mod versions {
    use super::*;

    #[test]
    fn a_version_before_a_release_sorts_before_it_in_both_orders() {
        let version = |suffix: Option<&str>| Version {
            number: "0.1.0".to_owned(),
            suffix: suffix.map(str::to_owned),
            epoch: 0,
        };
        assert_eq!(version(Some("rc1")).debian(), "0.1.0~rc1");
        assert_eq!(version(None).rpm(), ("0.1.0".to_owned(), "1".to_owned()));
        assert_eq!(version(Some("rc1")).rpm().1, "0.rc1");
        let before = Command::new("dpkg")
            .args(["--compare-versions", &version(Some("rc1")).debian(), "lt", &version(None).debian()])
            .status();
        assert!(before.is_ok_and(|status| status.success()));
    }
}
