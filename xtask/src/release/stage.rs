//! Lays out the file trees to pack. Modes, owners and times are fixed, so that the same contents give the
//! same bytes.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::contents::{self, MANUAL, SECTIONS};
use super::packaging::Version;
use super::program::Program;
use super::sources::{Licences, changelog};
use crate::files::{self, About as _};
use crate::shell::{self, Result};

/// The trees of the files of all packages, for all package formats.
pub(crate) struct Stage {
    /// The tree of the package netpolicy, as the future `/`. Until [`Stage::split`], it includes the files
    /// that `tools_root` contains afterwards.
    pub(crate) root: PathBuf,
    /// The tree of the tools' package, as the future `/`.
    pub(crate) tools_root: PathBuf,
    /// The tree of the debug symbols' package, as the future `/`.
    pub(crate) debug_root: PathBuf,
}

impl Stage {
    /// Lays out the tree in an empty directory. The programs run on this machine to write their manual pages.
    pub(crate) fn new(
        directory: &Path,
        programs: &[Program],
        version: &Version,
        licences: &Licences,
    ) -> Result<Self> {
        let [root, tools_root, debug_root] = ["root", "tools", "debug"].map(|name| directory.join(name));
        for tree in [&root, &tools_root, &debug_root] {
            files::remove(tree)?;
        }
        let usr = root.join("usr");
        let stripped = programs.iter().find_map(|program| program.stripped.parent());
        contents::lay(stripped.ok_or("no program")?, &usr, "/usr")?;
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
        for program in programs {
            let (first, rest) = program.build_id.split_at(2);
            let symbols = format!("usr/lib/debug/.build-id/{first}/{rest}.debug");
            files::put(&program.debug, &debug_root.join(symbols), 0o644)?;
        }
        let staged = Self { root, tools_root, debug_root };
        for tree in [&staged.root, &staged.debug_root] {
            settle(tree, version.epoch)?;
        }
        Ok(staged)
    }

    /// Moves the files of the tools into a separate tree.
    pub(crate) fn split(&self, epoch: u64) -> Result {
        for file in Self::files(&self.root)? {
            if file.strip_prefix("/usr/").is_some_and(contents::is_of_tools) {
                let (from, to) = (self.root.join(&file[1..]), self.tools_root.join(&file[1..]));
                files::make_directory(to.parent().unwrap_or(&self.tools_root))?;
                files::rename(&from, &to)?;
            }
        }
        let emptied = self.root.join("usr").join(contents::TOOLS);
        files::remove(&emptied)?;
        files::remove(emptied.parent().unwrap_or(&emptied))?;
        // The licences of netpolicy-tools are in the package netpolicy, on which netpolicy-tools depends, so
        // link to them.
        let documents = self.tools_root.join("usr/share/doc");
        files::make_directory(&documents)?;
        let link = documents.join("netpolicy-tools");
        std::os::unix::fs::symlink("netpolicy", &link).about(&link)?;
        settle(&self.root, epoch)?;
        settle(&self.tools_root, epoch)
    }

    /// Returns the installed path of every file of a tree, such as `/usr/sbin/netpolicy`, sorted.
    pub(crate) fn files(tree: &Path) -> Result<Vec<String>> {
        let said = shell::output(
            Command::new("find")
                .arg(tree)
                .args(["(", "-type", "f", "-o", "-type", "l", ")", "-printf", "/%P\\n"]),
        )?;
        let mut files: Vec<String> = said.lines().map(str::to_owned).collect();
        files.sort();
        Ok(files)
    }

    /// Returns the size of a tree in KiB.
    pub(crate) fn kibibytes(tree: &Path) -> Result<u64> {
        let said = shell::output(
            Command::new("du").args(["--summarize", "--apparent-size", "--block-size=1024"]).arg(tree),
        )?;
        let size = said.split_whitespace().next().and_then(|size| size.parse().ok());
        size.ok_or_else(|| format!("du of {}: {said}", tree.display()))
    }
}

/// Sets directories, modes and times to their final state.
pub(super) fn settle(tree: &Path, epoch: u64) -> Result {
    let find = |arguments: &[&str]| shell::output(Command::new("find").arg(tree).args(arguments)).map(drop);
    find(&["-type", "d", "-not", "-perm", "700", "-exec", "chmod", "0755", "{}", "+"])?;
    find(&["-type", "f", "-not", "-perm", "/111", "-exec", "chmod", "0644", "{}", "+"])?;
    find(&["-type", "f", "-perm", "/111", "-exec", "chmod", "0755", "{}", "+"])?;
    let date = format!("--date=@{epoch}");
    find(&["-exec", "touch", "--no-dereference", &date, "{}", "+"])
}
