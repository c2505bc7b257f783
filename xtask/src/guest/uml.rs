//! The User-Mode-Linux guest: built here, boots in a second, has what this kernel was built without.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::apt::Apt;
use super::boot::{Guest, Run};
use super::budget;
use super::cache::{self, Cache};
use super::source::Source;
use crate::shell::Result;

/// What it is built with, beyond the architecture's defaults.
const CONFIG: &str = include_str!("uml.config");

/// The objects of a build take this much, in mebibytes.
const SPACE: u64 = 1500;

/// What building needs: what shows it, and the package.
const TOOLS: &[(&str, &str)] =
    &[("make", "make"), ("gcc", "gcc"), ("flex", "flex"), ("bison", "bison"), ("bc", "bc"), ("perl", "perl")];
const HEADERS: &[(&str, &str)] =
    &[("/usr/include/openssl/ssl.h", "libssl-dev"), ("/usr/include/libelf.h", "libelf-dev")];

/// A built kernel: one program.
pub(super) struct Uml {
    program: PathBuf,
    release: String,
}

impl Uml {
    /// The kernel that was built last with this configuration, if it is whole. Needs no network.
    pub(super) fn ready(cache: &Cache, patches: &[PathBuf]) -> Option<Self> {
        let latest = std::fs::read_to_string(cache.at(&latest(patches).ok()?)).ok()?;
        Self::finished(cache, latest.trim())
    }

    fn finished(cache: &Cache, name: &str) -> Option<Self> {
        let done = cache.finished(name)?;
        let release = std::fs::read_to_string(done.join("release")).ok()?;
        Some(Self { program: done.join("linux"), release: release.trim().to_owned() })
    }

    /// Builds the newest source on offer, unless that was done.
    pub(super) fn build(cache: &Cache, patches: &[PathBuf]) -> Result<Self> {
        need_tools()?;
        let _lock = cache.lock("uml")?;
        let apt = Apt::open(cache)?;
        let source = Source::newest(cache, &apt)?;
        drop(apt);
        let key = key(patches)?;
        let name = format!("uml/linux-{}-{key}", source.version);
        if Self::finished(cache, &name).is_none() {
            cache.need_space(SPACE, "building a kernel")?;
            compile(cache, &source, patches, &key, &name)?;
        }
        cache::write(&cache.at(&latest(patches)?), &name)?;
        Self::finished(cache, &name).ok_or_else(|| format!("{name} was built and is not whole"))
    }
}

/// Refuses to begin without the programs that build a kernel.
pub(super) fn need_tools() -> Result {
    for (program, package) in TOOLS {
        cache::need_program(program, package)?;
    }
    if let Some((_, package)) = HEADERS.iter().find(|(header, _)| !Path::new(header).exists()) {
        return Err(format!("a guest needs package {package}: `cargo xtask setup` installs it"));
    }
    Ok(())
}

/// Configures and compiles, in a directory that stays: a build that was interrupted goes on where it was.
fn compile(cache: &Cache, source: &Source, patches: &[PathBuf], key: &str, name: &str) -> Result {
    let objects = cache.at(&format!("build/uml-{}-{key}", source.version));
    cache::make_directory(&objects)?;
    let mut tree = source.tree.clone();
    if !patches.is_empty() {
        tree = cache.at(&format!("build/source-{}-{key}", source.version));
        cache::remove(&tree)?;
        source.patched(patches, &tree)?;
    }
    let make = |targets: &[&str]| {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        let mut command = budget::make(&objects);
        // The caller's build is not ours: its flags stay out.
        command.env_remove("MAKEFLAGS").env_remove("MFLAGS").env_remove("CFLAGS").current_dir(&tree);
        command
            .args(["-s", "ARCH=um", &format!("-j{cpus}"), &format!("O={}", objects.display())])
            .args(targets);
        budget::run(&mut command, "--uml")
    };
    // Noted last: one that was interrupted between its steps is configured again.
    let configured = objects.join("configured");
    if !configured.is_file() {
        make(&["defconfig"])?;
        let wanted = objects.join("wanted.config");
        cache::write(&wanted, CONFIG)?;
        let mut merge = Command::new("scripts/kconfig/merge_config.sh");
        merge.current_dir(&tree).args(["-m", "-O"]).arg(&objects).arg(objects.join(".config")).arg(&wanted);
        cache::output(&mut merge)?;
        make(&["olddefconfig"])?;
        let refused = refused(CONFIG, &cache::read(&objects.join(".config"))?);
        if !refused.is_empty() {
            cache::remove(&objects)?;
            return Err(format!("this kernel's configuration does not take {}", refused.join(", ")));
        }
        cache::write(&configured, "")?;
    }
    make(&["linux"]).map_err(|failed| {
        cache.explained(&format!("building the kernel in {}: {failed}", objects.display()))
    })?;
    let making = cache.begin("uml")?;
    std::fs::copy(objects.join("linux"), making.join("linux")).map_err(|error| format!("linux: {error}"))?;
    let release = cache::read(&objects.join("include/config/kernel.release"))?;
    cache::write(&making.join("release"), &release)?;
    cache.finish(&making, name, &["linux", "release"])?;
    Ok(())
}

/// The switches of a fragment that a configuration has not taken.
pub(super) fn refused(fragment: &str, taken: &str) -> Vec<String> {
    let wanted = fragment.lines().filter(|line| line.starts_with("CONFIG_"));
    wanted.filter(|line| !taken.lines().any(|have| have == *line)).map(str::to_owned).collect()
}

/// What a build is known by, beside its source: the configuration and the patches.
fn key(patches: &[PathBuf]) -> Result<String> {
    let mut texts = vec![CONFIG.to_owned()];
    for patch in patches {
        texts.push(cache::read(patch)?);
    }
    cache::digest(&texts.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Where the name of the newest build of this key is noted.
fn latest(patches: &[PathBuf]) -> Result<String> {
    Ok(format!("uml-{}", key(patches)?))
}

impl Guest for Uml {
    fn described(&self) -> String {
        format!("User-Mode Linux {}", self.release)
    }

    fn command(&self, run: &Run) -> Result<Command> {
        let init = run.directory().join("init");
        run.write_script("init", include_str!("uml-init.sh"))?;
        let mut command = run.contained(&[]);
        command.arg(&self.program).args([
            "seccomp=on", // SMP needs it
            "ncpus=2",
            "root=/dev/root",
            "rootfstype=hostfs",
            "rootflags=/",
            "ro",
            "con=null",
            "con0=null,fd:1",
            "quiet",
        ]);
        command.arg(format!("mem={}M", run.mebibytes())).arg(format!("init={}", init.display()));
        command.arg(format!("guest_run={}", run.directory().display()));
        Ok(command)
    }

    fn modules(&self) -> Option<PathBuf> {
        None
    }
}

#[cfg(test)]
mod configuration {
    use super::*;

    #[test]
    fn a_switch_that_the_kernel_does_not_know_is_named() {
        let fragment = "# words\nCONFIG_A=y\n# CONFIG_M is not set\nCONFIG_B=4\n";
        assert_eq!(refused(fragment, "CONFIG_A=y\nCONFIG_B=8\n"), ["CONFIG_B=4"]);
    }
}
