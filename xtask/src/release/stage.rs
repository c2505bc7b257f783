//! The tree that is packed: modes, owners and times are chosen, so that the same contents give the same bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::Version;
use super::contents::{self, MANUAL, PROGRAM, SECTIONS};
use super::program::Program;
use super::sources::{Licences, changelog};
use crate::files;
use crate::shell::{self, Result};

/// A tree with everything below /usr that a package holds, whatever its kind.
pub(crate) struct Stage {
    /// What `/` will be.
    pub(crate) root: PathBuf,
    /// What `/` will be in the package of debug symbols.
    pub(crate) debug_root: PathBuf,
}

impl Stage {
    /// Lays it out in an empty directory. `speaks` is a program that runs here and writes the manual pages.
    pub(crate) fn new(
        directory: &Path,
        program: &Program,
        speaks: &Path,
        version: &Version,
        licences: &Licences,
    ) -> Result<Self> {
        let (root, debug_root) = (directory.join("root"), directory.join("debug"));
        files::remove(&root)?;
        files::remove(&debug_root)?;
        let usr = root.join("usr");
        contents::lay(speaks, &usr, "/usr")?;
        files::put(&program.stripped, &usr.join(PROGRAM), 0o755)?;
        let documents = usr.join("share/doc/netpolicy");
        files::write(&documents.join("copyright"), &licences.copyright)?;
        files::write(&documents.join("changelog"), &changelog(version)?)?;
        let sbom = usr.join("share/doc/netpolicy/netpolicy.cdx.json");
        files::write(&sbom, &licences.sbom)?;
        let mut pages = vec![documents.join("changelog")];
        for section in SECTIONS {
            pages.extend(files::files_of(&usr.join(MANUAL).join(section))?);
        }
        shell::output(Command::new("gzip").arg("-9n").args(&pages))?;
        for (directory, mode) in
            [("etc/netpolicy", 0o755), ("etc/netpolicy/policy.d", 0o755), ("var/lib/netpolicy", 0o700)]
        {
            files::make_directory(&root.join(directory))?;
            files::set_mode(&root.join(directory), mode)?;
        }
        let (first, rest) = program.build_id.split_at(2);
        let symbols = format!("usr/lib/debug/.build-id/{first}/{rest}.debug");
        files::put(&program.debug, &debug_root.join(symbols), 0o644)?;
        let staged = Self { root, debug_root };
        for tree in [&staged.root, &staged.debug_root] {
            settle(tree, version.epoch)?;
        }
        Ok(staged)
    }

    /// Every file of the package, as it is installed: `/usr/sbin/netpolicy`, sorted.
    pub(crate) fn files(&self) -> Result<Vec<String>> {
        let said =
            shell::output(Command::new("find").arg(&self.root).args(["-type", "f", "-printf", "/%P\\n"]))?;
        let mut files: Vec<String> = said.lines().map(str::to_owned).collect();
        files.sort();
        Ok(files)
    }

    /// How many kibibytes a tree takes.
    pub(crate) fn kibibytes(tree: &Path) -> Result<u64> {
        let said = shell::output(
            Command::new("du").args(["--summarize", "--apparent-size", "--block-size=1024"]).arg(tree),
        )?;
        let size = said.split_whitespace().next().and_then(|size| size.parse().ok());
        size.ok_or_else(|| format!("du of {}: {said}", tree.display()))
    }
}

/// Gives directories, files and times their final state.
pub(super) fn settle(tree: &Path, epoch: u64) -> Result {
    let find = |arguments: &[&str]| shell::output(Command::new("find").arg(tree).args(arguments)).map(drop);
    find(&["-type", "d", "-not", "-perm", "700", "-exec", "chmod", "0755", "{}", "+"])?;
    find(&["-type", "f", "-not", "-perm", "/111", "-exec", "chmod", "0644", "{}", "+"])?;
    find(&["-type", "f", "-perm", "/111", "-exec", "chmod", "0755", "{}", "+"])?;
    let date = format!("--date=@{epoch}");
    find(&["-exec", "touch", "--no-dereference", &date, "{}", "+"])
}
