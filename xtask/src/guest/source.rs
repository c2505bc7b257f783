//! The kernel's source, as the distribution packages it.

use std::path::{Path, PathBuf};

use super::apt::{self, Apt, Offer};
use super::cache::Cache;
use crate::files::{self, About as _};
use crate::shell::{self, Result};

/// The oldest kernel that has everything the tests speak of.
pub(super) const OLDEST: &str = "6.18~";

/// An unpacked tree takes this much, in mebibytes.
const SPACE: u64 = 2600;

/// An unpacked, unchanged source tree.
pub(super) struct Source {
    /// The package's version, in letters that a path may have.
    pub(super) version: String,
    pub(super) tree: PathBuf,
}

impl Source {
    /// The newest source on offer, unpacked as `source/linux-VERSION` in the cache.
    pub(super) fn newest(cache: &Cache, apt: &Apt) -> Result<Self> {
        let offers = apt.offers("linux-source-")?;
        let newest = newest_of(&offers).ok_or_else(|| none_in(&offers, &apt.suites()))?;
        let version = path_letters(&newest.version);
        let tree = cache.at(&format!("source/linux-{version}"));
        let _lock = cache.lock("source")?;
        if tree.join("Kconfig").is_file() {
            return Ok(Self { version, tree });
        }
        cache.need_space(SPACE, "the kernel's source")?;
        shell::need_program("xz", "xz-utils")?;
        eprintln!("guest: unpacking {} {} as {}", newest.package, newest.version, tree.display());
        let making = cache.begin("source")?;
        apt.download(&[(&newest.package, &newest.version)], &making)?;
        apt::unpack_all(&making, &making)?;
        let tarball = making.join("usr/src").join(format!("{}.tar.xz", newest.package));
        shell::run(shell::tied("tar").arg("-C").arg(&making).arg("-xf").arg(&tarball))?;
        let unpacked = making.join(&newest.package);
        files::make_directory(&cache.at("source"))?;
        std::fs::rename(&unpacked, &tree).about(&unpacked)?;
        files::remove(&making)?;
        Ok(Self { version, tree })
    }

    /// Makes a copy of hard links: `patch` replaces the files that it changes.
    pub(super) fn copy(&self, into: &Path) -> Result {
        shell::run(shell::tied("cp").arg("-al").arg(&self.tree).arg(into))
    }
}

/// That no source is new enough, and which there are.
fn none_in(offers: &[Offer], suites: &str) -> String {
    let mut others: Vec<_> = offers.iter().map(|offer| offer.version.as_str()).collect();
    others.dedup();
    let others =
        if others.is_empty() { "none at all".to_owned() } else { format!("only {}", others.join(", ")) };
    format!("no linux-source of 6.18 or newer is on offer in {suites}: {others}")
}

/// The newest of the offers that name a kernel version, and are new enough.
pub(super) fn newest_of(offers: &[Offer]) -> Option<&Offer> {
    let mut newest: Option<&Offer> = None;
    for offer in offers.iter().filter(|offer| apt::newer(&offer.version, OLDEST)) {
        if newest.is_none_or(|so_far| apt::newer(&offer.version, &so_far.version)) {
            newest = Some(offer);
        }
    }
    newest
}

/// A version without the letters that shells and makefiles take for something else.
pub(super) fn path_letters(version: &str) -> String {
    version.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

#[cfg(test)]
mod versions {
    use super::*;

    #[test]
    fn the_newest_is_taken_and_an_old_one_is_not() {
        let offer = |package: &str, version: &str| Offer {
            package: package.into(),
            version: version.into(),
            suite: "stable".into(),
        };
        let offers = [
            offer("linux-source-6.12", "6.12.107-1"),
            offer("linux-source-7.3", "7.3.4-1~bpo13+1"),
            offer("linux-source-7.2", "7.2.12-1"),
        ];
        assert_eq!(newest_of(&offers).map(|o| o.package.as_str()), Some("linux-source-7.3"));
        assert_eq!(newest_of(&offers[..1]), None);
        let said = none_in(&offers[..1], "old, old-backports");
        assert_eq!(
            said,
            "no linux-source of 6.18 or newer is on offer in old, old-backports: only 6.12.107-1"
        );
        assert!(none_in(&[], "old").ends_with("in old: none at all"));
        assert_eq!(path_letters("7.3.4-1~bpo13+1"), "7.3.4-1-bpo13-1");
    }
}
