//! Builds the programs to package. They are statically linked, so that they run on every distribution, and
//! reproducible: they do not depend on the place and time of the build.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::contents::TOOLS;
use crate::files;
use crate::programs::PROGRAMS;
use crate::shell::{self, Result};

/// A program and its separated debug information.
pub(crate) struct Program {
    /// The program without debug information, which is installed.
    pub(crate) stripped: PathBuf,
    /// The file with the debug information.
    pub(crate) debug: PathBuf,
    /// The build ID that program and debug information share: [`BUILD_ID_DIGITS`] hexadecimal digits.
    pub(crate) build_id: String,
}

/// The number of hexadecimal digits of a build ID, which is a SHA-1.
const BUILD_ID_DIGITS: usize = 40;

/// Returns the target to build for, which is this machine's. Builds name it explicitly, so that the flags do
/// not affect build scripts.
pub(crate) fn host_target() -> Result<String> {
    rustc_value("host")
}

/// Returns a value in rustc's version output, such as that of `host` or `release`.
pub(super) fn rustc_value(name: &str) -> Result<String> {
    let said = shell::output(Command::new("rustc").arg("-vV"))?;
    let value = said.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
    value.map(str::to_owned).ok_or_else(|| format!("rustc -vV does not print {name}"))
}

/// Builds the programs, in `directory` if given. Returns the path of netpolicy; the others are next to it.
pub(crate) fn build(directory: Option<&Path>) -> Result<PathBuf> {
    let target = host_target()?;
    let root = shell::root();
    let sysroot = shell::output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let cargo_home = match std::env::var_os("CARGO_HOME") {
        Some(home) => PathBuf::from(home),
        None => PathBuf::from(std::env::var_os("HOME").unwrap_or_default()).join(".cargo"),
    };
    let below = directory.map_or_else(|| root.join("target"), Path::to_path_buf);
    let places = [
        (below.display().to_string(), "/usr/src/build"),
        (root.display().to_string(), "/usr/src/netpolicy"),
        (cargo_home.display().to_string(), "/usr/src/cargo"),
        (sysroot.trim().to_owned(), "/usr/src/rust"),
    ];
    // If two prefixes match, rustc and the C compilers use the last one.
    let remap = places.iter().rev().map(|(from, to)| format!("--remap-path-prefix={from}={to}"));
    let flags: Vec<String> = remap
        .chain(["-Ctarget-feature=+crt-static".to_owned(), "-Clink-arg=-Wl,--build-id=sha1".to_owned()])
        .collect();
    let c_flags: Vec<String> =
        places.iter().rev().map(|(from, to)| format!("-ffile-prefix-map={from}={to}")).collect();
    let mut cargo = shell::cargo();
    cargo.args(["build", "--locked", "--profile", "dist", "--target", &target]);
    cargo.args(PROGRAMS.map(|name| ["--package", name]).concat());
    cargo.arg("--target-dir").arg(&below);
    cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\u{1f}"));
    cargo.env(format!("CFLAGS_{}", target.replace('-', "_")), format!("-O2 -g1 {}", c_flags.join(" ")));
    shell::run(&mut cargo)?;
    Ok(below.join(target).join("dist/netpolicy"))
}

/// Separates the debug information of netpolicy, and of the programs that it execs, into `directory`.
pub(crate) fn split_all(netpolicy: &Path, directory: &Path) -> Result<Vec<Program>> {
    files::make_directory(directory)?;
    PROGRAMS.into_iter().map(|name| split(name, &near(netpolicy, name)?, directory)).collect()
}

/// Returns the path of the program with this name: next to netpolicy, where cargo builds it, or in the
/// directory in which it is installed.
fn near(netpolicy: &Path, name: &str) -> Result<PathBuf> {
    let directory = netpolicy.parent().unwrap_or(Path::new("."));
    let places = [directory.join(name), directory.join("..").join(TOOLS).join(name)];
    let found = places.into_iter().find(|place| place.is_file());
    found.ok_or_else(|| {
        format!("{name} was not found near {}: cargo build builds all programs", netpolicy.display())
    })
}

fn split(name: &str, built: &Path, directory: &Path) -> Result<Program> {
    let notes = shell::output(Command::new("readelf").args(["--notes", "--wide"]).arg(built))?;
    let build_id = match read_build_id(&notes) {
        Some(id) => id,
        // Programs without a build ID, such as those of the tests, get one from their checksum: they cannot
        // be matched to their symbols anyway.
        None => shell::output(Command::new("sha1sum").arg(built))?.chars().take(BUILD_ID_DIGITS).collect(),
    };
    let (stripped, debug) = (directory.join(name), directory.join(format!("{name}.debug")));
    let copy = |option: &str, to: &Path| {
        shell::output(Command::new("objcopy").arg(option).arg(built).arg(to)).map(drop)
    };
    copy("--strip-all", &stripped)?;
    shell::output(
        Command::new("objcopy")
            .args(["--only-keep-debug", "--compress-debug-sections"])
            .arg(built)
            .arg(&debug),
    )?;
    Ok(Program { stripped, debug, build_id })
}

/// Refuses programs that need a shared library or a loader.
pub(crate) fn need_static(netpolicy: &Path) -> Result {
    for name in PROGRAMS {
        let program = near(netpolicy, name)?;
        if !is_static(&program)? {
            return Err(format!(
                "{} needs shared libraries, but must be linked statically",
                program.display()
            ));
        }
    }
    Ok(())
}

/// Whether a program needs no shared library and no loader.
fn is_static(program: &Path) -> Result<bool> {
    let said = shell::output(
        Command::new("readelf").args(["--dynamic", "--program-headers", "--wide"]).arg(program),
    )?;
    Ok(!said.contains("(NEEDED)") && !said.contains("INTERP"))
}

fn read_build_id(notes: &str) -> Option<String> {
    let id = notes.lines().find_map(|line| line.trim().strip_prefix("Build ID: "))?.trim();
    (id.len() == BUILD_ID_DIGITS && id.bytes().all(|digit| digit.is_ascii_hexdigit())).then(|| id.to_owned())
}

#[cfg(test)]
mod notes {
    use super::*;

    #[test]
    fn the_build_id_is_read_and_a_short_one_refused() {
        let id = "75372cd3c51c0c937d6ae18fd61c3717fa0329ad";
        assert_eq!(read_build_id(&format!("Owner\n    Build ID: {id}\n")).as_deref(), Some(id));
        assert!(read_build_id("Build ID: 7537\n").is_none());
    }
}
