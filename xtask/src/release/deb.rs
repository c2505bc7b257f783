//! Debian packages, by dpkg-deb.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::contents::{DEBIAN_ZSH, ZSH};
use super::script;
use super::stage::{Stage, settle};
use super::{Effort, Version};
use crate::files::{self, About as _};
use crate::shell::{self, Result};

/// Packs netpolicy, its tools and their debug symbols into `out`, and returns the first two files.
pub(crate) fn pack(
    stage: &Stage,
    version: &Version,
    build_ids: &str,
    out: &Path,
    effort: Effort,
) -> Result<[PathBuf; 2]> {
    shell::need_program("dpkg-deb", "dpkg")?;
    let architecture = shell::output(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let templates = shell::root().join("packaging/debian");
    let filled = |template: &str, tree: &Path| -> Result<String> {
        let text = files::read(&templates.join(template))?;
        let size = Stage::kibibytes(tree)?.to_string();
        Ok(text
            .replace("@VERSION@", &version.debian())
            .replace("@ARCHITECTURE@", architecture)
            .replace("@MAINTAINER@", super::MAINTAINER)
            .replace("@INSTALLED_SIZE@", &size)
            .replace("@BUILD_IDS@", build_ids))
    };
    for (tree, name) in [(&stage.root, "netpolicy"), (&stage.tools_root, "netpolicy-tools")] {
        let overrides = templates.join(format!("{name}.lintian-overrides"));
        files::put(&overrides, &tree.join("usr/share/lintian/overrides").join(name), 0o644)?;
    }
    let documents = stage.debug_root.join("usr/share/doc");
    files::make_directory(&documents)?;
    let link = documents.join("netpolicy-dbgsym");
    if !link.is_symlink() {
        std::os::unix::fs::symlink("netpolicy", &link).about(&link)?;
    }

    let usr = stage.root.join("usr");
    let (zsh, debian_zsh) = (usr.join(ZSH), usr.join(DEBIAN_ZSH));
    put_in_place_of(&zsh, &debian_zsh)?;

    // A script makes it: dpkg would remove a link to another disk, and the journal would be lost.
    files::remove(&stage.root.join("var"))?;

    let control = stage.root.join("DEBIAN");
    files::write(&control.join("control"), &filled("control.in", &stage.root)?)?;
    for name in ["preinst", "postinst", "prerm", "postrm"] {
        let text = files::read(&templates.join(name))?.replace("@VERSION@", &version.debian());
        let text = script::filled(&text, "sh $script, or purge the package")?;
        let file = control.join(name);
        files::write(&file, &text)?;
        let mode = std::fs::Permissions::from_mode(0o755);
        std::fs::set_permissions(&file, mode).about(&file)?;
    }
    let control_of_tools = stage.tools_root.join("DEBIAN/control");
    files::write(&control_of_tools, &filled("control-tools.in", &stage.tools_root)?)?;
    for tree in [&stage.root, &stage.tools_root] {
        let sums = shell::output(
            Command::new("sh")
                .current_dir(tree)
                .args(["-c", "find usr etc -type f 2>/dev/null | LC_ALL=C sort | xargs -r md5sum"]),
        )?;
        files::write(&tree.join("DEBIAN/md5sums"), &sums)?;
    }
    files::write(&stage.debug_root.join("DEBIAN/control"), &filled("control-dbgsym.in", &stage.debug_root)?)?;

    let place = |name: &str| out.join(format!("{name}_{}_{architecture}.deb", version.debian()));
    let (trees, compression) = match effort {
        Effort::Release => (
            &[
                (&stage.root, "netpolicy"),
                (&stage.tools_root, "netpolicy-tools"),
                (&stage.debug_root, "netpolicy-dbgsym"),
            ][..],
            "-Zxz",
        ),
        Effort::Trial => {
            (&[(&stage.root, "netpolicy"), (&stage.tools_root, "netpolicy-tools")][..], "-Zgzip")
        }
    };
    for (tree, name) in trees {
        settle(tree, version.epoch)?;
        let mut dpkg = Command::new("dpkg-deb");
        // xz, for Debian 11 reads no zstd; one thread, for the blocks of several are others.
        dpkg.args(["--root-owner-group", "--uniform-compression", compression]);
        if effort == Effort::Trial {
            dpkg.arg("-z1");
        }
        dpkg.arg("--build").arg(tree).arg(place(name));
        dpkg.env("SOURCE_DATE_EPOCH", version.epoch.to_string()).env("DPKG_DEB_THREADS_MAX", "1");
        shell::output(&mut dpkg)?;
    }
    // What is Debian's own is in no other package.
    for (tree, ours) in [
        (&stage.root, "usr/share/lintian"),
        (&stage.tools_root, "usr/share/lintian"),
        (&stage.debug_root, "usr/share/doc"),
    ] {
        files::remove(&tree.join(ours))?;
        files::remove(&tree.join("DEBIAN"))?;
    }
    put_in_place_of(&debian_zsh, &zsh)?;
    Ok(["netpolicy", "netpolicy-tools"].map(place))
}

/// Moves a file into a directory of its own, and removes the one that it leaves empty.
fn put_in_place_of(from: &Path, to: &Path) -> Result {
    let parent = |path: &Path| path.parent().map(Path::to_owned).unwrap_or_default();
    files::make_directory(&parent(to))?;
    files::rename(from, to)?;
    files::remove(&parent(from))
}
