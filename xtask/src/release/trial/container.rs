//! A fresh root of a Debian suite, and systemd booted on it in a container without a network but its own.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::files::{self, About as _};
use crate::guest::Mirror;
use crate::guest::cache::Cache;
use crate::shell::{self, Result};

/// How long a container may take to boot.
const BOOT_LIMIT: Duration = Duration::from_secs(90);
/// How long one command in it may take.
const COMMAND_LIMIT_SECONDS: &str = "120";
/// How long it is waited between two looks.
const PAUSE: Duration = Duration::from_millis(200);

/// How much room a root takes at most, in MiB, as an archive and unpacked.
const SPACE: u64 = 800;

/// A root directory of its own. Dropping it removes it.
pub(super) struct Root(pub(super) PathBuf);

impl Root {
    /// Unpacks a suite with these packages, which are fetched from the system's own mirror the first time.
    pub(super) fn of(suite: &str, packages: &[&str]) -> Result<Self> {
        let cache = Cache::open()?;
        let archive = archive(&cache, suite, packages)?;
        let directory = cache.at(&format!("trial/{suite}-{}-{}", packages.len(), std::process::id()));
        files::remove(&directory)?;
        files::make_directory(&directory)?;
        let root = Self(directory);
        shell::output(
            Command::new("tar").arg("--directory").arg(&root.0).arg("--extract").arg("--file").arg(archive),
        )?;
        Ok(root)
    }

    /// Runs a shell command in it, without systemd and with a network namespace of its own. Returns all that it printed.
    pub(super) fn runs(&self, command: &str) -> Result<String> {
        let mut unshare = shell::tied("unshare");
        unshare.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]);
        // /proc and /sys as a chroot of an operator has them.
        unshare.arg(
            "mount --make-rprivate / && mount -t proc proc \"$1/proc\" && mount -t sysfs -o ro sys \"$1/sys\" && \
             exec chroot \"$1\" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive \
             timeout \"$3\" sh -c \"$2\" 2>&1",
        );
        unshare.arg("sh").arg(&self.0).arg(command).arg(COMMAND_LIMIT_SECONDS);
        said(&mut unshare, command)
    }
}

impl Drop for Root {
    fn drop(&mut self) {
        if let Err(why) = files::remove(&self.0) {
            eprintln!("trial: {why}");
        }
    }
}

/// The release that this machine runs.
pub(super) fn own_suite() -> Result<String> {
    Ok(Mirror::of_this_system()?.release)
}

/// The archive of a root, made unless it is there.
fn archive(cache: &Cache, suite: &str, packages: &[&str]) -> Result<PathBuf> {
    const FILE: &str = "root.tar";
    shell::need_program("mmdebstrap", "mmdebstrap")?;
    let name = format!("roots/{suite}-{}", packages.join("-"));
    let _lock = cache.lock("roots")?;
    if let Some(done) = cache.finished(&name) {
        return Ok(done.join(FILE));
    }
    cache.need_space(SPACE, "a root of Debian")?;
    let mirror = Mirror::of_this_system()?;
    let key = mirror.signed_by.as_ref().map_or(String::new(), |key| format!("[signed-by={key}] "));
    let making = cache.begin("root")?;
    let mut mmdebstrap = shell::tied("mmdebstrap");
    mmdebstrap.args(["--variant=minbase", "--quiet", "--mode=root"]);
    mmdebstrap.arg(format!("--include={}", packages.join(",")));
    mmdebstrap.arg(suite).arg(making.join(FILE)).arg(format!("deb {key}{} {suite} main", mirror.uri));
    shell::show(&mmdebstrap);
    shell::output(&mut mmdebstrap)?;
    cache.finish(&making, &name, &[FILE]).map(|done| done.join(FILE))
}

/// A container in which systemd runs. Dropping it ends all that is in it, and removes its root.
pub(super) struct Container {
    nspawn: Child,
    leader: u32,
    root: Root,
}

impl Container {
    /// Boots a root, with a directory of packages at `/packages`.
    pub(super) fn boot(root: Root, packages: &Path) -> Result<Self> {
        shell::need_program("systemd-nspawn", "systemd-container")?;
        files::make_directory(&root.0.join("packages"))?;
        let mut nspawn = shell::tied("systemd-nspawn");
        nspawn.args(["--quiet", "--register=no", "--keep-unit", "--private-network", "--capability=all"]);
        nspawn.args(["--boot", "--console=read-only", "--directory"]).arg(&root.0);
        nspawn.arg(format!("--bind-ro={}:/packages", packages.display()));
        // What is set there is set in its own network namespace; nothing else of /proc and /sys can be written.
        nspawn.env("SYSTEMD_NSPAWN_API_VFS_WRITABLE", "network");
        let log = root.0.with_extension("log");
        let file = std::fs::File::create(&log).about(&log)?;
        let errors = file.try_clone().about(&log)?;
        nspawn.stdin(Stdio::null()).stdout(file).stderr(errors);
        let nspawn = nspawn.spawn().map_err(|error| format!("systemd-nspawn: {error}"))?;
        let mut container = Self { nspawn, leader: 0, root };
        let begun = Instant::now();
        loop {
            container.leader = container.child().unwrap_or(0);
            if container.leader != 0 {
                let state = container.runs("systemctl is-system-running || true").unwrap_or_default();
                if ["running", "degraded"].contains(&state.trim()) {
                    return Ok(container);
                }
            }
            let ended = container.nspawn.try_wait().ok().flatten();
            if begun.elapsed() > BOOT_LIMIT || ended.is_some() {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                let last: Vec<&str> = said.lines().rev().take(20).collect();
                let last: Vec<&str> = last.into_iter().rev().collect();
                return Err(format!("the container did not boot ({ended:?}):\n{}", last.join("\n")));
            }
            std::thread::sleep(PAUSE);
        }
    }

    /// The process that is 1 in there.
    fn child(&self) -> Option<u32> {
        let pid = self.nspawn.id();
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).ok()?;
        children.split_whitespace().next()?.parse().ok()
    }

    /// Runs a shell command in it. Returns all that it printed; a failure has that, too.
    pub(super) fn runs(&self, command: &str) -> Result<String> {
        let mut nsenter = shell::tied("nsenter");
        nsenter.arg(format!("--target={}", self.leader));
        nsenter.args(["--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--root"]);
        nsenter.args(["/usr/bin/env", "--chdir=/", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL=C"]);
        nsenter.args(["DEBIAN_FRONTEND=noninteractive", "timeout", COMMAND_LIMIT_SECONDS]);
        nsenter.args(["sh", "-c", "exec 2>&1; eval \"$1\"", "sh", command]);
        said(&mut nsenter, command)
    }

    /// Its root.
    pub(super) fn root(&self) -> &Root {
        &self.root
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // Its process 1 is killed, and with it all others of its pid namespace.
        if self.leader != 0 {
            let _ = Command::new("kill").args(["-KILL", &self.leader.to_string()]).status();
        } else {
            let _ = self.nspawn.kill();
        }
        let _ = self.nspawn.wait();
        let _ = std::fs::remove_file(self.root.0.with_extension("log"));
    }
}

/// Runs a command and returns what it printed, on both.
fn said(command: &mut Command, shown: &str) -> Result<String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| format!("{shown}: {error}"))?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    if output.status.success() {
        Ok(said)
    } else {
        Err(format!("`{shown}` ended with {}:\n{said}", output.status))
    }
}
