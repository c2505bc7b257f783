//! A package that is wanted for its program alone: unpacked where nothing starts it, and not installed.

use super::apt::{self, Apt};
use super::cache::{self, Cache};
use crate::shell::Result;

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
    cache::remove(&packages)?;
    cache.finish(&making, package, &[shown_by]).map(drop)
}

/// Whether that was done.
pub(crate) fn is_unpacked(package: &str) -> bool {
    Cache::open().is_ok_and(|cache| cache.finished(package).is_some())
}
