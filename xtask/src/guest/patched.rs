//! Builds the patched kernel: the distribution's source with the patch series of `kernel/`, for the emulated
//! machine. All sets of patches of a source version share one tree and one set of objects. Only files whose
//! contents change are written, so that rebuilding after a change of the series takes seconds.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::apt::{self, Apt};
use super::cache::{self, Cache};
use super::selftests;
use crate::files::{self, About as _};
use crate::setup;
use crate::shell::{self, Result};

/// The kernel configuration to apply on top of `allnoconfig`.
const CONFIG: &str = include_str!("../../../kernel/guest.config");

/// The directory of the patch series, below the root of the workspace.
const SERIES: &str = "kernel/epoll-event-busy-loop";

/// The directory of patches for tests only, such as those that enable features of an emulated NIC that its
/// driver reserves for newer NICs.
const FOR_TESTS: &str = "kernel/test-only";

/// The space for the objects of a build, in MiB.
const SPACE: u64 = 2000;

/// The space for an unpacked tree, in MiB.
const SOURCE_SPACE: u64 = 2600;

/// An unpacked, unmodified source tree.
struct Source {
    /// The version of the package, with characters that are valid in a path.
    version: String,
    tree: PathBuf,
}

impl Source {
    /// Returns the newest available source, unpacked as `source/linux-VERSION` in the cache.
    fn newest(cache: &Cache, apt: &Apt) -> Result<Self> {
        let newest = apt::newest_kernel(apt.offers("linux-source-")?)
            .ok_or_else(|| format!("no linux-source of 6.18 or newer is available in {}", apt.suites()))?;
        let version = apt::path_letters(&newest.version);
        let tree = cache.at(&format!("source/linux-{version}"));
        let _lock = cache.lock("source")?;
        if tree.join("Kconfig").is_file() {
            return Ok(Self { version, tree });
        }
        cache.need_space(SOURCE_SPACE, "the kernel's source")?;
        eprintln!("guest: unpacking {} {} as {}", newest.package, newest.version, tree.display());
        let making = cache.begin("source")?;
        apt.download(&[(&newest.package, &newest.version)], &making)?;
        apt::unpack_all(&making, &making)?;
        let tarball = making.join("usr/src").join(format!("{}.tar.xz", newest.package));
        shell::run(shell::tied("tar").arg("-C").arg(&making).arg("-xf").arg(&tarball))?;
        let unpacked = making.join(&newest.package);
        files::rename(&unpacked, &tree)?;
        files::remove(&making)?;
        Ok(Self { version, tree })
    }

    /// Copies the tree as hard links. This is safe, because `patch` replaces the files that it changes.
    fn copy(&self, into: &Path) -> Result {
        shell::run(shell::tied("cp").arg("-al").arg(&self.tree).arg(into))
    }
}

/// The result of a build: `vmlinuz`, `release` and `selftests/`.
pub(super) struct Patched {
    pub(super) directory: PathBuf,
}

impl Patched {
    /// Returns the patches in the order of their application: the series, those that tests need, and further
    /// ones.
    pub(super) fn patches(further: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let mut patches = in_order(&shell::root().join(SERIES))?;
        patches.extend(in_order(&shell::root().join(FOR_TESTS))?);
        patches.extend_from_slice(further);
        Ok(patches)
    }

    /// Returns the last build with these patches and this configuration. Needs no network.
    pub(super) fn ready(cache: &Cache, patches: &[PathBuf]) -> Option<Self> {
        Some(Self { directory: cache.latest(&latest(patches).ok()?)? })
    }

    /// Builds the newest available source, unless it has already been built.
    pub(super) fn build(cache: &Cache, patches: &[PathBuf]) -> Result<Self> {
        setup::need(setup::GUESTS)?;
        let _lock = cache.lock("patched")?;
        let apt = Apt::open(cache)?;
        let source = Source::newest(cache, &apt)?;
        drop(apt);
        let name = format!("patched/linux-{}-{}", source.version, key(patches)?);
        if cache.finished(&name).is_none() {
            cache.need_space(SPACE, "building a kernel")?;
            compile(cache, &source, patches, &name)?;
        }
        Ok(Self { directory: cache.note(&latest(patches)?, &name)? })
    }
}

/// Every `*.patch` of a directory, sorted by name.
pub(super) fn in_order(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = files::entries(directory)?;
    files.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.ends_with(".patch") && !name.starts_with("0000-")
    });
    let mut files: Vec<_> = files.into_iter().map(|path| path.canonicalize().unwrap_or(path)).collect();
    files.sort();
    if files.is_empty() {
        return Err(format!("{} has no *.patch", directory.display()));
    }
    Ok(files)
}

fn compile(cache: &Cache, source: &Source, patches: &[PathBuf], name: &str) -> Result {
    let tree = cache.at(&format!("build/patched-source-{}", source.version));
    let objects = cache.at(&format!("build/patched-{}-{}", source.version, cache::digest(&[CONFIG])?));
    files::make_directory(&objects)?;
    if !tree.join("Kconfig").is_file() {
        let copying = beside(&tree, "copying");
        files::remove(&copying)?;
        source.copy(&copying)?;
        files::rename(&copying, &tree)?;
    }
    repatch(cache, source, &tree, patches)?;
    let wanted = objects.join("wanted.config");
    let make = |targets: &[&str]| {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        // `make` and its children inherit the descriptor of the lock, so no other build changes these
        // objects, even if the lock's owner is killed. The build uses only CPU time that tests leave idle.
        let mut command = shell::tied("flock");
        command.arg("--no-fork").arg(beside(&objects, "lock")).args(shell::IN_IDLE_TIME).arg("make");
        // Do not inherit the flags of the calling build.
        for name in ["MAKEFLAGS", "MFLAGS", "MAKELEVEL", "CFLAGS"] {
            command.env_remove(name);
        }
        command.current_dir(&tree);
        command.env("KCONFIG_ALLCONFIG", &wanted);
        command.args(["-s", &format!("-j{cpus}"), &format!("O={}", objects.display())]).args(targets);
        shell::run(&mut command).map_err(|failed| failed.replacen("flock", "make", 1))
    };
    // Write this file last, so that an interrupted configuration is repeated.
    let configured = objects.join("configured");
    if !configured.is_file() {
        files::write(&wanted, CONFIG)?;
        make(&["allnoconfig"])?;
        let refused = refused_switches(CONFIG, &files::read(&objects.join(".config"))?);
        if !refused.is_empty() {
            files::remove(&objects)?;
            return Err(format!("this kernel's configuration does not accept {}", refused.join(", ")));
        }
        files::write(&configured, "")?;
    }
    eprintln!("guest: building the patched kernel; the first build takes ten minutes of two CPUs");
    make(&["bzImage"]).map_err(|failed| {
        cache.explained(&format!("building the kernel in {} failed: {failed}", objects.display()))
    })?;

    let making = cache.begin("patched")?;
    files::put(&objects.join("arch/x86/boot/bzImage"), &making.join("vmlinuz"), 0o644)?;
    files::write(&making.join("release"), &files::read(&objects.join("include/config/kernel.release"))?)?;
    selftests::build(&tree, &making.join("selftests"))?;
    cache.finish(&making, name, &["vmlinuz", "release", "selftests/run"])?;
    Ok(())
}

/// Changes a tree from its current patches to the given ones, and writes only files whose contents change.
fn repatch(cache: &Cache, source: &Source, tree: &Path, patches: &[PathBuf]) -> Result {
    let record = beside(tree, "touched");
    let mut touched: BTreeSet<String> =
        std::fs::read_to_string(&record).unwrap_or_default().lines().map(str::to_owned).collect();
    for patch in patches {
        touched.extend(touched_by(&files::read(patch)?));
    }
    // Write the record before the first file changes, so that the next run can repair an interrupted change.
    files::write(&record, &touched.iter().map(|file| format!("{file}\n")).collect::<String>())?;
    let scratch = cache.begin("patching")?;
    let copy = |from: &Path, to: &Path| {
        to.parent().map_or(Ok(()), files::make_directory)?;
        std::fs::copy(from, to).map(drop).about(from)
    };
    for file in &touched {
        let pristine = source.tree.join(file);
        if pristine.is_file() {
            copy(&pristine, &scratch.join(file))?;
        }
    }
    for patch in patches {
        let mut apply = Command::new("patch");
        apply.current_dir(&scratch).args(["-p1", "--silent", "--fuzz=0", "--forward", "-i"]).arg(patch);
        shell::run(&mut apply).map_err(|failed| {
            format!("{} does not apply to {}: {failed}", patch.display(), source.version)
        })?;
    }
    for file in &touched {
        let (now, then) = (std::fs::read(tree.join(file)).ok(), std::fs::read(scratch.join(file)).ok());
        if now != then {
            // The file may be a hard link to the pristine one: unlink it before writing.
            files::remove(&tree.join(file))?;
            if then.is_some() {
                copy(&scratch.join(file), &tree.join(file))?;
            }
        }
    }
    files::remove(&scratch)
}

/// Returns the path of a tree with a suffix. (`set_extension` would replace the part after the last dot of
/// the version.)
fn beside(tree: &Path, what: &str) -> PathBuf {
    let mut name = tree.as_os_str().to_owned();
    name.push(format!(".{what}"));
    name.into()
}

/// The files that a patch creates or changes, relative to the tree.
fn touched_by(patch: &str) -> Vec<String> {
    patch.lines().filter_map(|line| line.strip_prefix("+++ b/")).map(str::to_owned).collect()
}

/// Returns what identifies a build in addition to its source: the configuration, the patches, and the recipe
/// of the kernel selftests.
fn key(patches: &[PathBuf]) -> Result<String> {
    let mut texts = vec![CONFIG.to_owned(), selftests::RECIPE.to_owned()];
    for patch in patches {
        texts.push(files::read(patch)?);
    }
    cache::digest(&texts.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns the name of the file that records the newest build with this key.
fn latest(patches: &[PathBuf]) -> Result<String> {
    Ok(format!("patched-{}", key(patches)?))
}

/// Returns the options of a configuration fragment that the resulting configuration lacks.
fn refused_switches(fragment: &str, taken: &str) -> Vec<String> {
    let wanted = fragment.lines().filter(|line| line.starts_with("CONFIG_"));
    wanted.filter(|line| !taken.lines().any(|have| have == *line)).map(str::to_owned).collect()
}

#[cfg(test)]
mod series {
    use super::*;

    #[test]
    fn a_patch_names_the_files_that_it_makes_and_changes() {
        let patch = "--- a/fs/eventpoll.c\n+++ b/fs/eventpoll.c\n+++b\n--- /dev/null\n+++ b/new.c\n";
        assert_eq!(touched_by(patch), ["fs/eventpoll.c", "new.c"]);
    }

    #[test]
    fn the_series_is_in_order_without_its_cover_letter_and_patches_for_tests_come_last() {
        let patches = Patched::patches(&[]).expect("the file is part of the tree");
        let of_tests = |path: &&PathBuf| path.parent().is_some_and(|parent| parent.ends_with("test-only"));
        let names: Vec<_> = patches
            .iter()
            .map(|path| (of_tests(&path), path.file_name().and_then(|name| name.to_str()?.get(..4))))
            .collect();
        let series = ["0001", "0002", "0003", "0004", "0005", "0006"].map(|number| (false, Some(number)));
        let for_tests = ["0001", "0002", "0003"].map(|number| (true, Some(number)));
        assert_eq!(names, [series.as_slice(), &for_tests].concat());
        for patch in patches {
            let text = std::fs::read_to_string(&patch).expect("the file can be read");
            assert!(
                !touched_by(&text).is_empty() && text.contains("\nSigned-off-by: "),
                "{}",
                patch.display()
            );
        }
    }
}

#[cfg(test)]
mod configuration {
    use super::*;

    #[test]
    fn a_switch_that_the_kernel_does_not_know_is_named() {
        let fragment = "# words\nCONFIG_A=y\n# CONFIG_M is not set\nCONFIG_B=4\n";
        assert_eq!(refused_switches(fragment, "CONFIG_A=y\nCONFIG_B=8\n"), ["CONFIG_B=4"]);
    }
}
