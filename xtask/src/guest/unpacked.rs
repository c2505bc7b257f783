//! A package that is wanted for its program alone: unpacked where nothing starts it, and not installed.

use std::path::PathBuf;
use std::process::Command;

use super::apt::{self, Apt};
use super::cache::Cache;
use crate::files;
use crate::shell::{self, Result};

/// How much room it takes at most, in MiB, with what it needs and is not installed.
const SPACE: u64 = 200;

/// Unpacks a package of this release, unless that was done. `shown_by` is its program, below the root.
pub(crate) fn unpack(package: &str, shown_by: &str) -> Result {
    let cache = Cache::open()?;
    if cache.finished(package).is_some() {
        return Ok(());
    }
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

/// Whether that was done.
pub(crate) fn is_unpacked(package: &str) -> bool {
    Cache::open().is_ok_and(|cache| cache.finished(package).is_some())
}

/// Installs a wheel of PyPI's into a place of its own, unless that was done. `pinned` is its line of a requirements file, with its
/// version and checksums; `shown_by` its program, below that place.
pub(crate) fn install_wheel(name: &str, pinned: &str, shown_by: &str) -> Result {
    let cache = Cache::open()?;
    if cache.finished(name).is_some() {
        return Ok(());
    }
    let _lock = cache.lock(name)?;
    cache.need_space(SPACE, name)?;
    let making = cache.begin(name)?;
    let requirements = making.join("requirements.txt");
    files::write(&requirements, pinned)?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"]);
    pip.args(["--disable-pip-version-check", "--root-user-action", "ignore", "--target"]).arg(&making);
    shell::run(pip.arg("--requirement").arg(&requirements))?;
    cache.finish(&making, name, &[shown_by]).map(drop)
}

/// Where a program of something unpacked is, if it is.
pub(crate) fn program(name: &str, path: &str) -> Option<PathBuf> {
    let place = Cache::open().ok()?.finished(name)?.join(path);
    place.is_file().then_some(place)
}
