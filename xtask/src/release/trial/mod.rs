//! Packages tried for real: installed, upgraded while a server answers, removed and purged in a container with systemd; and what
//! goes wrong there.

mod bad_input;
mod container;
mod life;
mod other_roots;

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Artefacts, Effort, Version, pack};
use crate::files;
use crate::guest::cache::Cache;
use crate::shell::{self, Result};
use container::{Container, Root};

/// What a root needs that systemd is to run in, and a lab of two network namespaces.
const WITH_SYSTEMD: [&str; 5] = ["systemd", "systemd-sysv", "iproute2", "ethtool", "libelf1"];

/// The packages that are tried.
struct Packages {
    /// Where both versions are.
    directory: PathBuf,
    /// File names of the earlier version's package and of this one's.
    earlier: String,
    this: String,
    version: Version,
    earlier_version: Version,
    rpm: PathBuf,
    archive: PathBuf,
    /// The program that both hold.
    program: PathBuf,
    /// Whether this is the program that is released: the sizes count.
    released: bool,
}

/// A trial: its name, and what it does in a container that the one before it left.
type InContainer = (&'static str, fn(&Container, &Packages) -> Result);

/// In this order: each begins with what the one before it left.
const IN_CONTAINER: &[InContainer] = &[
    ("packages/a_first_policy_takes_two_commands", life::first_policy),
    ("packages/removal_leaves_packets_as_they_are_and_purge_rolls_back_first", life::removed_and_purged),
    ("packages/what_make_install_laid_out_is_upgraded_with_what_is_in_force", life::from_make_install),
    ("packages/an_upgrade_under_load_fails_no_request_and_changes_no_setting", life::upgraded_under_load),
    ("packages/a_downgrade_keeps_what_is_in_force", life::downgraded),
    ("packages/the_drop_ins_of_the_page_on_monitoring_serve_metrics", life::monitored),
    ("packages/what_is_half_installed_can_be_finished", bad_input::half_installed),
    ("packages/with_var_full_nothing_is_set_and_nothing_is_lost", bad_input::var_full),
    ("packages/a_policy_file_of_a_later_version_is_named_and_the_policy_kept", bad_input::later_policy_file),
    ("packages/a_second_daemon_is_refused_with_the_pid_of_the_first", bad_input::two_versions),
    ("packages/a_purge_that_cannot_roll_back_keeps_the_journal", bad_input::purge_refused),
    ("packages/a_purge_of_what_was_never_configured_rolls_back_first", bad_input::purged_unconfigured),
    ("packages/a_purge_with_var_full_rolls_back_first", bad_input::purged_with_var_full),
    ("packages/removal_leaves_a_journal_on_another_disk", bad_input::purged_by_link),
    ("packages/a_purge_runs_no_script_of_another_user", bad_input::purged_with_foreign_state),
    ("packages/a_purge_under_a_daemon_of_no_unit_is_refused", bad_input::purged_under_daemon),
];

/// A trial in a root of its own.
type InRoot = (&'static str, fn(&Packages) -> Result);

const IN_ROOTS: &[InRoot] = &[
    ("packages/the_same_program_packs_to_the_same_bytes", other_roots::packed_twice),
    ("packages/a_root_without_systemd_takes_the_package_and_a_policy", other_roots::without_systemd),
    ("packages/rpm_installs_verifies_and_erases", other_roots::by_rpm),
];

/// What only a released program can pass: the tests' own needs this machine's libraries.
const OF_RELEASE: &[InRoot] = &[
    ("packages/one_program_runs_on_debian_11_12_and_13", other_roots::older_distributions),
    ("packages/the_archive_unpacks_over_a_root", other_roots::by_archive),
    ("packages/lintian_finds_nothing_but_what_is_listed", other_roots::lintian),
];

/// How the trials went.
#[derive(Debug, Default)]
pub(crate) struct Trials {
    pub(crate) passed: u64,
    /// Their names.
    pub(crate) failed: Vec<String>,
    /// `[SKIPPED, needs X] NAME`.
    pub(crate) skipped: Vec<String>,
}

impl Trials {
    /// Prints the counts; a failure is an error.
    pub(crate) fn end(self) -> Result {
        println!("{} passed, {} failed, {} skipped", self.passed, self.failed.len(), self.skipped.len());
        if self.failed.is_empty() {
            Ok(())
        } else {
            Err(format!("trials failed: {}", self.failed.join(", ")))
        }
    }
}

/// Tries packages of the tests' program: all, or those with `only` in their names.
pub(crate) fn run(only: Option<&str>, program: Option<&Path>) -> Result<Trials> {
    if let Some(why) = unfit() {
        let names = IN_CONTAINER.iter().map(|(name, _)| name).chain(IN_ROOTS.iter().map(|(name, _)| name));
        let skipped = names.map(|name| format!("[SKIPPED, {why}] {name}")).collect();
        return Ok(Trials { skipped, ..Trials::default() });
    }
    let built = program.map_or_else(|| shell::root().join("target/debug/netpolicy"), Path::to_path_buf);
    if program.is_none() {
        shell::run(shell::cargo().args(["build", "--quiet", "-p", "netpolicy"]))?;
    }
    let version = Version::of_workspace(None)?;
    let out = shell::root().join("target/release-trial");
    files::remove(&out)?;
    let artefacts = pack(&built, &version, &out, Effort::Trial)?;
    tried(&artefacts, &version, false, only)
}

/// The same with what is to be released, and what only that can pass.
pub(crate) fn of_release(artefacts: &Artefacts, version: &Version) -> Result {
    match unfit() {
        Some(why) => Err(format!("the artefacts cannot be tried: {why}")),
        None => tried(artefacts, version, true, None)?.end(),
    }
}

/// Why no container can be started here.
fn unfit() -> Option<String> {
    if !shell::is_root() {
        return Some("needs root".to_owned());
    }
    ["mmdebstrap", "systemd-nspawn", "rpm", "dpkg-deb"]
        .into_iter()
        .find(|program| !shell::has(program))
        .map(|program| format!("needs {program}"))
}

fn tried(artefacts: &Artefacts, version: &Version, released: bool, only: Option<&str>) -> Result<Trials> {
    // The version before is the same program, packed with another number, as an upgrade sees it.
    let earlier_version = Version { suffix: Some("earlier".to_owned()), ..version.clone() };
    let directory = artefacts.directory.join("trial");
    let program = directory.join("program");
    let unpacked = directory.join("unpacked");
    files::remove(&directory)?;
    files::make_directory(&unpacked)?;
    shell::output(Command::new("dpkg-deb").arg("-x").arg(&artefacts.deb).arg(&unpacked))?;
    files::put(&unpacked.join("usr/sbin/netpolicy"), &program, 0o755)?;
    let earlier = pack(&program, &earlier_version, &directory.join("earlier"), Effort::Trial)?;
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    for deb in [&earlier.deb, &artefacts.deb] {
        files::put(deb, &directory.join(name(deb)), 0o644)?;
    }
    let packages = Packages {
        earlier: name(&earlier.deb),
        this: name(&artefacts.deb),
        version: version.clone(),
        earlier_version,
        rpm: artefacts.rpm.clone(),
        archive: artefacts.archive.clone(),
        released,
        program,
        directory,
    };
    let mut trials = Trials::default();
    let mut report = |name: &str, outcome: Result| match outcome {
        Ok(()) => {
            trials.passed += 1;
            println!("test {name} ... ok");
        }
        Err(why) => {
            println!("test {name} ... FAILED\n{why}");
            trials.failed.push(name.to_owned());
        }
    };
    let chosen = |name: &str| only.is_none_or(|only| name.contains(only));
    if IN_CONTAINER.iter().any(|(name, _)| chosen(name)) {
        let container = Root::of(&container::own_suite()?, &WITH_SYSTEMD)
            .and_then(|root| Container::boot(root, &packages.directory))?;
        life::prepare(&container)?;
        for (name, trial) in IN_CONTAINER.iter().filter(|(name, _)| chosen(name)) {
            report(name, trial(&container, &packages));
        }
    }
    let of_release = if released { OF_RELEASE } else { &[] };
    for (name, trial) in IN_ROOTS.iter().chain(of_release).filter(|(name, _)| chosen(name)) {
        report(name, trial(&packages));
    }
    files::remove(&packages.directory)?;
    let _ = Cache::open().map(|cache| std::fs::remove_dir(cache.at("trial")));
    Ok(trials)
}

/// A sentence about what is not as it should be, unless it is.
fn must(is: bool, what: &str, seen: &str) -> Result {
    if is { Ok(()) } else { Err(format!("{what}:\n{seen}")) }
}

/// The same unless all these words were said.
fn says(said: &str, words: &[&str], otherwise: &str) -> Result {
    must(words.iter().all(|words| said.contains(words)), otherwise, said)
}
