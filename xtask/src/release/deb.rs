//! Creates the Debian packages with dpkg-deb.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::contents::{DEBIAN_ZSH, ZSH};
use super::packaging::{Effort, MAINTAINER, Version, filled_script};
use super::stage::{Stage, settle};

use crate::files::{self, About as _};
use crate::shell::{self, Result};

/// The maintainer scripts.
pub(super) const SCRIPTS: [&str; 4] = ["preinst", "postinst", "prerm", "postrm"];

/// Returns a maintainer script for a package of this version.
pub(super) fn script(name: &str, version: &str) -> Result<String> {
    let text = files::read(&shell::root().join("packaging/debian").join(name))?.replace("@VERSION@", version);
    let text = filled_script(&text, "sh $script, or purge the package")?;
    // Debian's administrators can forbid `deb-systemd-invoke` to stop a service. The scripts share parts with
    // rpm, which has only systemctl.
    Ok(text.replace("systemctl stop", "deb-systemd-invoke stop"))
}

/// Packs netpolicy, its tools and their debug symbols into `out`, and returns the first two files.
/// Afterwards, the trees also contain Debian's own files.
pub(crate) fn pack(
    stage: &Stage,
    version: &Version,
    build_ids: &str,
    out: &Path,
    effort: Effort,
) -> Result<[PathBuf; 2]> {
    let architecture = shell::output(Command::new("dpkg").arg("--print-architecture"))?;
    let architecture = architecture.trim();
    let templates = shell::root().join("packaging/debian");
    let filled = |template: &str, tree: &Path| -> Result<String> {
        let text = files::read(&templates.join(template))?;
        let size = Stage::kibibytes(tree)?.to_string();
        Ok(text
            .replace("@VERSION@", &version.debian())
            .replace("@ARCHITECTURE@", architecture)
            .replace("@MAINTAINER@", MAINTAINER)
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
    std::os::unix::fs::symlink("netpolicy", &link).about(&link)?;

    let usr = stage.root.join("usr");
    let zsh = usr.join(ZSH);
    files::rename(&zsh, &usr.join(DEBIAN_ZSH))?;
    files::remove(zsh.parent().ok_or("no directory of completions")?)?;

    // The script postinst creates this directory. If the package contained it, dpkg would replace a symlink
    // to another disk, and the journal would be lost.
    files::remove(&stage.root.join("var"))?;

    let control = stage.root.join("DEBIAN");
    files::write(&control.join("control"), &filled("control.in", &stage.root)?)?;
    for name in SCRIPTS {
        files::write_script(&control.join(name), &script(name, &version.debian())?)?;
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
    let mut trees = vec![(&stage.root, "netpolicy"), (&stage.tools_root, "netpolicy-tools")];
    // Use xz, because Debian 11 cannot read zstd.
    let compression: &[&str] = match effort {
        Effort::Release => &["-Zxz"],
        Effort::Trial => &["-Zgzip", "-z1"],
    };
    if effort == Effort::Release {
        trees.push((&stage.debug_root, "netpolicy-dbgsym"));
    }
    for (tree, name) in trees {
        settle(tree, version.epoch)?;
        let mut dpkg = Command::new("dpkg-deb");
        dpkg.args(["--root-owner-group", "--uniform-compression"]).args(compression);
        dpkg.arg("--build").arg(tree).arg(place(name));
        // Use one thread: the output depends on the number of threads.
        dpkg.env("SOURCE_DATE_EPOCH", version.epoch.to_string()).env("DPKG_DEB_THREADS_MAX", "1");
        shell::output(&mut dpkg)?;
    }
    Ok(["netpolicy", "netpolicy-tools"].map(place))
}
