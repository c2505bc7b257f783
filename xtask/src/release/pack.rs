//! Creates all artefacts from built programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::packaging::{Effort, Version};
use super::sources::Licences;
use super::stage::Stage;
use super::{deb, program, rpm};
use crate::shell::{self, Result};
use crate::{files, image, setup};

/// The created artefacts.
pub(crate) struct Artefacts {
    pub(crate) directory: PathBuf,
    /// The Debian packages: netpolicy and its tools, with the debug symbols next to them.
    pub(crate) debs: [PathBuf; 2],
    /// The rpm packages: netpolicy and its tools, with the debug symbols next to them.
    pub(crate) rpms: [PathBuf; 2],
    pub(crate) archive: PathBuf,
}

/// Creates all artefacts from netpolicy and the programs next to it.
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
    // Pack the Debian packages last, because that adds files to the trees.
    let rpms = rpm::pack(&stage, version, out, effort)?;
    let build_ids = programs.iter().map(|program| program.build_id.as_str()).collect::<Vec<_>>().join(" ");
    let debs = deb::pack(&stage, version, &build_ids, out, effort)?;
    if effort == Effort::Release && !shell::has("podman") {
        eprintln!("release: no image is created because podman is missing: cargo xtask setup installs it");
    } else if effort == Effort::Release {
        let image = out.join(format!("netpolicy-{}-{}.oci.tar", version.debian(), std::env::consts::ARCH));
        image::pack(&programs[0].stripped, &version.number, &image)?;
    }
    files::remove(&making)?;
    sums(out)?;
    Ok(Artefacts { directory: out.to_path_buf(), debs, rpms, archive })
}

/// Packs the tree as an archive that can be unpacked over `/` of any system.
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

/// Writes the checksums of all files.
fn sums(out: &Path) -> Result {
    let names: Vec<_> = files::files_of(out)?
        .into_iter()
        .filter_map(|file| Some(file.file_name()?.to_owned()))
        .filter(|name| name != "SHA256SUMS")
        .collect();
    let sums = shell::output(Command::new("sha256sum").current_dir(out).arg("--").args(names))?;
    files::write(&out.join("SHA256SUMS"), &sums)
}
