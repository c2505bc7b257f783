//! Roots without systemd, of other distributions and of RPM.

use std::path::Path;
use std::process::Command;

use super::container::{Root, own_suite};
use super::{Packages, WITH_SYSTEMD, must, says};
use crate::files::{self, About as _};
use crate::release::{Effort, pack};
use crate::shell::{self, Result};

/// A device with NAPIs, in the namespace of one command.
const LAB: &str = "ip link add veth-server numrxqueues 2 numtxqueues 2 type veth peer name veth-client && \
    ip link set veth-server up && ip link set veth-client up && ethtool -K veth-server gro on";

/// The releases of Debian that one program must run on.
const SUITES: [&str; 3] = ["bullseye", "bookworm", "trixie"];

/// A chroot, as containers and rescue systems are: nothing runs as process 1.
pub(super) fn without_systemd(packages: &Packages) -> Result {
    let root = Root::of(&own_suite()?, &WITH_SYSTEMD)?;
    files::put(&packages.directory.join(&packages.this), &root.0.join("netpolicy.deb"), 0o644)?;
    let said = root.runs(&format!(
        "dpkg --install /netpolicy.deb && {LAB} && netpolicy set device veth-server defer200 && netpolicy verify && \
         dpkg --purge netpolicy && ls -d /var/lib/netpolicy || true"
    ))?;
    says(&said, &["4 settings are as they were applied"], "no policy was applied")?;
    says(&said, &["put back to 0", "cannot access '/var/lib/netpolicy'"], "not purged")
}

/// rpm's own tools, and a root that has rpm's database alone.
pub(super) fn by_rpm(packages: &Packages) -> Result {
    let root = Root::of(&own_suite()?, &WITH_SYSTEMD)?;
    let rpm = |arguments: &[&str]| {
        // Scripts of the package find a /proc, as they do on a host.
        let mut rpm = Command::new("unshare");
        rpm.args([
            "--mount",
            "sh",
            "-c",
            "mount --bind /proc \"$0/proc\" && exec rpm --root \"$0\" \"$@\" 2>&1",
        ]);
        shell::output(rpm.arg(&root.0).args(arguments))
    };
    // The journal is on another disk: rpm must not take the link to it.
    let link = root.0.join("var/lib/netpolicy");
    files::make_directory(&root.0.join("srv/journal"))?;
    std::os::unix::fs::symlink("../../srv/journal", &link).about(&link)?;
    let file = root.0.join("netpolicy.rpm");
    files::put(&packages.rpm, &file, 0o644)?;
    let file = file.display().to_string();
    shell::output(Command::new("rpm").args(["--checksig", "--nosignature", &file]))?;
    // /bin/sh is there, by dpkg, of which rpm's database has no word.
    rpm(&["--install", "--nodeps", &file])?;
    // Every file is as the package says.
    rpm(&["--verify", "--nodeps", "netpolicy"])?;
    let said = root.runs(&format!(
        "{LAB} && netpolicy set device veth-server defer200 && netpolicy verify; cat /etc/group"
    ))?;
    says(&said, &["4 settings are as they were applied", "netpolicy:"], "no policy was applied")?;
    let said = rpm(&["--erase", "netpolicy"])?;
    says(&said, &["sh /var/lib/netpolicy/roll-back.sh"], "no way back named")?;
    must(
        !root.0.join("usr/sbin/netpolicy").exists() && root.0.join("var/lib/netpolicy/journal").exists(),
        "erased",
        &said,
    )
}

/// Packed again, at another time: names, modes, times and order are all chosen.
pub(super) fn packed_twice(packages: &Packages) -> Result {
    let again =
        pack(&packages.program, &packages.earlier_version, &packages.directory.join("again"), Effort::Trial)?;
    let sums = |directory: &Path| files::read(&directory.join("SHA256SUMS"));
    let (first, second) = (sums(&packages.directory.join("earlier"))?, sums(&again.directory)?);
    must(first == second && first.lines().count() == 4, "other bytes", &format!("{first}{second}"))
}

/// Debian's own judge; what it may find is in the package's overrides, with reasons.
pub(super) fn lintian(packages: &Packages) -> Result {
    shell::need_program("lintian", "lintian")?;
    let mut lintian = Command::new("lintian");
    lintian.args(["--allow-root", "--fail-on", "error,warning", "--tag-display-limit", "0"]);
    let said = shell::output(lintian.arg(packages.directory.join(&packages.this)))?;
    must(said.trim().is_empty(), "lintian", &said)
}

/// The archive, for distributions that have neither.
pub(super) fn by_archive(packages: &Packages) -> Result {
    let root = Root::of(&own_suite()?, &WITH_SYSTEMD)?;
    shell::output(
        Command::new("tar")
            .arg("--directory")
            .arg(&root.0)
            .args(["--extract", "--keep-directory-symlink", "--file"])
            .arg(&packages.archive),
    )?;
    let said =
        root.runs(&format!("{LAB} && netpolicy set device veth-server defer200 && netpolicy verify"))?;
    says(&said, &["4 settings are as they were applied"], "no policy was applied")
}

/// One program on all of them.
pub(super) fn older_distributions(packages: &Packages) -> Result {
    for suite in SUITES {
        let root = Root::of(suite, &["iproute2", "ethtool"])?;
        files::put(&packages.directory.join(&packages.this), &root.0.join("netpolicy.deb"), 0o644)?;
        let said = root.runs(&format!(
            "dpkg --install /netpolicy.deb && {LAB} && netpolicy set device veth-server defer200 && netpolicy verify && \
             netpolicy doctor --seconds 0; dpkg --purge netpolicy"
        ))?;
        says(&said, &["4 settings are as they were applied"], suite)?;
        says(&said, &["put back to 0"], suite)?;
        eprintln!("trial: installed, applied, purged on {suite}");
    }
    Ok(())
}
