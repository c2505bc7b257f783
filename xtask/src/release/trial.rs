//! Tries the packages: packs and lays out what `packaging/trials/run.sh` needs, and runs this script.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::contents;
use super::pack::{Artefacts, pack};
use super::packaging::{Effort, Version};
use crate::files;
use crate::guest::Mirror;
use crate::guest::cache::Cache;
use crate::programs::{Verdict, read_line};
use crate::shell::{self, Result};
use crate::tally::Tally;

const SCRIPT: &str = "packaging/trials/run.sh";

/// The packages that a root needs for systemd and a lab with two network namespaces.
const WITH_SYSTEMD: [&str; 5] = ["systemd", "systemd-sysv", "iproute2", "ethtool", "libelf1"];

/// The Debian releases on which a released program is tried.
const SUITES: [&str; 3] = ["bullseye", "bookworm", "trixie"];

/// The maximum disk space of a root, in MiB, as an archive and unpacked.
const SPACE: u64 = 800;

/// Tries packages of the program that the tests use: runs all trials, or those with `only` in their names.
pub(crate) fn run(only: Option<&str>, program: Option<&Path>) -> Result<Tally> {
    if let Some(why) = unfit() {
        return Ok(Tally::of_skipped(&format!("[SKIPPED, {why}] packages")));
    }
    let built = program.map_or_else(|| shell::root().join("target/debug/netpolicy"), Path::to_path_buf);
    if program.is_none() {
        contents::build_programs(&[])?;
    }
    let version = Version::of_workspace(None)?;
    let out = shell::root().join("target/release-trial");
    files::remove(&out)?;
    let artefacts = pack(&built, &version, &out, Effort::Trial)?;
    run_script(&artefacts, &version, false, only)
}

/// Tries release packages, including the checks that only release packages can pass.
pub(crate) fn of_release(artefacts: &Artefacts, version: &Version) -> Result {
    match unfit() {
        Some(why) => Err(format!("the artefacts cannot be tried: {why}")),
        None => run_script(artefacts, version, true, None)?.end(),
    }
}

/// Returns the reason why containers cannot be started on this machine, if there is one.
fn unfit() -> Option<String> {
    if !shell::is_root() {
        return Some("needs root".to_owned());
    }
    ["mmdebstrap", "systemd-nspawn", "rpm", "dpkg-deb", "lintian"]
        .into_iter()
        .find(|program| !shell::has(program))
        .map(|program| format!("needs {program}"))
}

fn run_script(artefacts: &Artefacts, version: &Version, released: bool, only: Option<&str>) -> Result<Tally> {
    let directory = artefacts.directory.join("trial");
    files::remove(&directory)?;
    let unpacked = directory.join("unpacked");
    files::make_directory(&unpacked)?;
    for deb in &artefacts.debs {
        shell::output(Command::new("dpkg-deb").arg("-x").arg(deb).arg(&unpacked))?;
    }
    let program = unpacked.join("usr/sbin/netpolicy");
    // As the earlier version, package the same program with another version number: an upgrade sees only the
    // number.
    let earlier_version = Version { suffix: Some("earlier".to_owned()), ..version.clone() };
    let earlier = pack(&program, &earlier_version, &directory.join("earlier"), Effort::Trial)?;
    pack(&program, &earlier_version, &directory.join("again"), Effort::Trial)?;
    for (file, name) in [
        (&earlier.debs[0], "earlier.deb"),
        (&earlier.debs[1], "earlier-tools.deb"),
        (&artefacts.debs[0], "this.deb"),
        (&artefacts.debs[1], "this-tools.deb"),
        (&earlier.rpms[0], "earlier.rpm"),
        (&artefacts.rpms[0], "this.rpm"),
        (&artefacts.rpms[1], "this-tools.rpm"),
        (&artefacts.archive, "this.tar.gz"),
    ] {
        files::put(file, &directory.join(name), 0o644)?;
    }
    for (name, version) in [("earlier.version", &earlier_version), ("this.version", version)] {
        files::write(&directory.join(name), &version.debian())?;
    }
    lay_root(&directory, "own", &Mirror::of_this_system()?.release, &WITH_SYSTEMD)?;
    if released {
        files::write(&directory.join("release"), "")?;
        for suite in SUITES {
            lay_root(&directory, suite, suite, &["iproute2", "ethtool"])?;
        }
    }
    let mut script = shell::tied("bash");
    script.arg(shell::root().join(SCRIPT)).arg(&directory).args(only).stdout(Stdio::piped());
    let mut script = script.spawn().map_err(|error| format!("{SCRIPT}: {error}"))?;
    let mut trials = Tally::default();
    for line in BufReader::new(script.stdout.take().ok_or("no output")?).lines() {
        let line = line.map_err(|error| format!("{SCRIPT}: {error}"))?;
        println!("{line}");
        match read_line(&line) {
            Some((Verdict::Passed, _)) => trials.passed += 1,
            Some((_, name)) => trials.failed.push(name.to_owned()),
            None => {}
        }
    }
    let status = script.wait().map_err(|error| format!("{SCRIPT}: {error}"))?;
    if trials.failed.is_empty() && (!status.success() || trials.passed == 0) {
        trials.failed.push(format!("{SCRIPT}: {status}, {} trials", trials.passed));
    }
    files::remove(&directory)?;
    Ok(trials)
}

/// Links the archive of a suite's root into a directory. On first use, the root's packages are fetched from
/// the system's mirror.
fn lay_root(directory: &Path, name: &str, suite: &str, packages: &[&str]) -> Result {
    let to = directory.join(format!("{name}.tar"));
    std::os::unix::fs::symlink(root_archive(suite, packages, SPACE)?, &to)
        .map_err(|error| format!("{}: {error}", to.display()))
}

/// Returns the archive of a root. Creates the archive if it does not exist; this needs `mebibytes` of free
/// disk space.
pub(super) fn root_archive(suite: &str, packages: &[&str], mebibytes: u64) -> Result<PathBuf> {
    const FILE: &str = "root.tar";
    let cache = Cache::open()?;
    let name = format!("roots/{suite}-{}", packages.join("-"));
    let _lock = cache.lock("roots")?;
    if let Some(done) = cache.finished(&name) {
        return Ok(done.join(FILE));
    }
    cache.need_space(mebibytes, "a root of Debian")?;
    let mirror = Mirror::of_this_system()?;
    let key = mirror.signed_by.as_ref().map_or(String::new(), |key| format!("[signed-by={key}] "));
    let making = cache.begin("root")?;
    let mut mmdebstrap = shell::tied("mmdebstrap");
    mmdebstrap.args(["--variant=minbase", "--quiet", "--mode=root"]);
    // Accept a mirror that is a snapshot of an earlier day. Signatures are still checked.
    mmdebstrap.arg("--aptopt=Acquire::Check-Valid-Until \"false\"");
    mmdebstrap.arg(format!("--include={}", packages.join(",")));
    mmdebstrap.arg(suite).arg(making.join(FILE)).arg(format!("deb {key}{} {suite} main", mirror.uri));
    shell::show(&mmdebstrap);
    shell::output(&mut mmdebstrap)?;
    cache.finish(&making, &name, &[FILE]).map(|done| done.join(FILE))
}
