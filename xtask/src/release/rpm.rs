//! Creates the RPM packages with rpmbuild.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::packaging::{Effort, MAINTAINER, VENDOR, Version, filled_script};
use super::stage::Stage;

use crate::files;
use crate::shell::{self, Result};

/// Packs netpolicy, its tools and their debug symbols into `out`, and returns the first two files.
pub(crate) fn pack(stage: &Stage, version: &Version, out: &Path, effort: Effort) -> Result<[PathBuf; 2]> {
    let listed = |tree: &Path| -> Result<String> {
        let mut list = String::new();
        for file in Stage::files(tree)? {
            let _infallible = writeln!(list, "{}\"{file}\"", kind(&file));
        }
        Ok(list.trim_end().to_owned())
    };
    let spec = files::read(&shell::root().join("packaging/rpm/netpolicy.spec.in"))?;
    let spec = match (effort, spec.split_once("%package debuginfo")) {
        (Effort::Trial, Some((before, after))) => {
            let after = after.split_once("%post\n").map_or("", |(_, after)| after);
            let (files, _) = after.split_once("%files debuginfo").unwrap_or((after, ""));
            format!("{before}%post\n{files}")
        }
        _ => spec,
    };
    let (number, release) = version.rpm();
    let spec = spec
        .replace("@VERSION@", &number)
        .replace("@RELEASE@", &release)
        .replace("@MAINTAINER@", MAINTAINER)
        .replace("@VENDOR@", VENDOR)
        .replace("@FILES@", &listed(&stage.root)?)
        .replace("@TOOL_FILES@", &listed(&stage.tools_root)?)
        .replace("@DEBUG_FILES@", &listed(&stage.debug_root)?);
    // In a spec file, a percent sign in a script would start a macro.
    let spec = filled_script(&spec, "sh $script")?;
    let top = out.join("rpmbuild");
    files::remove(&top)?;
    files::make_directory(&top)?;
    let file = top.join("netpolicy.spec");
    files::write(&file, &spec)?;
    let root = top.join("BUILDROOT");
    files::make_directory(&root)?;
    let debug = (effort == Effort::Release).then_some(&stage.debug_root);
    for tree in [&stage.root, &stage.tools_root].into_iter().chain(debug) {
        shell::output(Command::new("cp").args(["--archive", "--no-target-directory"]).arg(tree).arg(&root))?;
    }
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.args(["-bb", "--quiet", "--noclean", "--buildroot"]).arg(&root);
    for (name, value) in [
        ("_topdir", top.display().to_string()),
        ("_rpmdir", top.join("RPMS").display().to_string()),
        ("_build_name_fmt", "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm".to_owned()),
        ("_buildhost", "localhost".to_owned()),
        ("use_source_date_epoch_as_buildtime", "1".to_owned()),
        ("clamp_mtime_to_source_date_epoch", "1".to_owned()),
        ("source_date_epoch_from_changelog", "0".to_owned()),
        // RHEL 8 can read these compression formats.
        ("_binary_payload", if effort == Effort::Release { "w6.xzdio" } else { "w1.gzdio" }.to_owned()),
        ("_build_id_links", "none".to_owned()),
        ("__os_install_post", "%{nil}".to_owned()),
        ("debug_package", "%{nil}".to_owned()),
    ] {
        rpmbuild.arg("--define").arg(format!("{name} {value}"));
    }
    rpmbuild.env("SOURCE_DATE_EPOCH", version.epoch.to_string());
    shell::output(rpmbuild.arg(&file))?;
    let (mut packed, mut tools) = (None, None);
    for rpm in files::files_of(&top.join("RPMS"))? {
        let place = out.join(rpm.file_name().unwrap_or_default());
        files::put(&rpm, &place, 0o644)?;
        let name = place.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("netpolicy-tools-") {
            tools = Some(place);
        } else if !name.starts_with("netpolicy-debuginfo-") {
            packed = Some(place);
        }
    }
    files::remove(&top)?;
    let made = packed.zip(tools).ok_or("rpmbuild did not create both packages")?;
    Ok(made.into())
}

/// The attribute of a path in the spec's list of files.
fn kind(file: &str) -> &'static str {
    match file {
        _ if file.starts_with("/usr/share/doc/netpolicy/copyright") => "%license ",
        _ if file.starts_with("/usr/share/doc/") || file.starts_with("/usr/share/man/") => "%doc ",
        _ => "",
    }
}
