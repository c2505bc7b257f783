//! Builds an OCI image of the program as one file (`image`). The image has no base image, so no registry is
//! contacted. podman uses a separate storage, so the machine's images do not change.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::files::{self, About as _};
use crate::linked;
use crate::options::Options;
use crate::release::contents;
use crate::release::packaging::Version;
use crate::shell::{self, Result};

const USAGE: &str = "usage: cargo xtask image [--program FILE] [--out FILE]

--program  packs this program instead of building one; one that is linked dynamically brings its libraries
--out      the archive (target/netpolicy-VERSION.oci.tar)";

/// Directories that serve as mount points in the image.
const MOUNT_POINTS: [&str; 5] = ["etc/netpolicy", "var/lib/netpolicy", "run/netpolicy", "tmp", "sys"];

/// Builds the image.
pub(crate) fn run(arguments: &[String]) -> Result {
    let options = Options::read(arguments, &[], &["--program", "--out"], USAGE)?;
    let version = Version::of_workspace(None)?.number;
    let target = shell::root().join("target");
    let program = match options.path("--program") {
        Some(program) => program,
        None => {
            shell::run(shell::cargo().args(["build", "--quiet", "--release", "-p", "netpolicy"]))?;
            target.join("release/netpolicy")
        }
    };
    let out = options.path("--out").unwrap_or_else(|| target.join(format!("netpolicy-{version}.oci.tar")));
    let out = std::path::absolute(&out).about(&out)?;
    pack(&program, &version, &out)?;
    println!("{}", out.display());
    Ok(())
}

/// Builds an image of this program.
pub(crate) fn pack(program: &Path, version: &str, out: &Path) -> Result {
    if !shell::has("podman") {
        return Err("an image needs podman: cargo xtask setup installs it".to_owned());
    }
    // Use a separate directory for each run, so that two can run at the same time.
    let making = shell::root().join(format!("target/image-{}", std::process::id()));
    let made = make(program, version, &making, out);
    let removed = std::fs::remove_dir_all(&making);
    made?;
    removed.about(&making)
}

fn make(program: &Path, version: &str, making: &Path, out: &Path) -> Result {
    let context = making.join("context");
    let root = context.join("root");
    lay(program, version, &root)?;
    let packaging = shell::root().join("packaging/container");
    files::put(&packaging.join("Containerfile"), &context.join("Containerfile"), 0o644)?;
    let tag = format!("localhost/netpolicy:{version}");
    let mut build = podman(making);
    build.args(["build", "--quiet", "--format", "oci", "--tag", &tag]);
    // Use the time of the sources for the image and its files, so that equal sources give an equal image.
    let time = Version::of_workspace(None)?.epoch.to_string();
    build.args(["--timestamp", &time]);
    for (name, value) in [
        ("title", "netpolicy"),
        ("description", "Packet delivery as a policy says"),
        ("version", version),
        ("licenses", "(Apache-2.0 OR MIT) AND GPL-2.0-only"),
    ] {
        build.arg("--label").arg(format!("org.opencontainers.image.{name}={value}"));
    }
    shell::run(build.arg(&context))?;
    let (saved, layout) = (making.join("saved.tar"), making.join("layout"));
    let mut save = podman(making);
    shell::run(save.args(["save", "--quiet", "--format", "oci-archive", "--output"]).arg(&saved).arg(&tag))?;
    // podman's archive contains its creation time, so repack it.
    files::make_directory(&layout)?;
    shell::run(
        Command::new("tar").arg("--extract").arg("--file").arg(&saved).arg("--directory").arg(&layout),
    )?;
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    tar.args(["--mode=u=rwX,go=rX", &format!("--mtime=@{time}")]).arg("--file").arg(out);
    shell::run(tar.arg("--directory").arg(&layout).arg("."))
}

/// Returns a podman command with a separate storage, which needs no file system support in the kernel.
fn podman(making: &Path) -> Command {
    let mut command = Command::new("podman");
    command.arg("--root").arg(making.join("storage")).arg("--runroot").arg(making.join("run"));
    command.args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--events-backend", "none"]);
    command
}

/// Lays out the contents of the image.
fn lay(program: &Path, version: &str, root: &Path) -> Result {
    for directory in MOUNT_POINTS {
        let directory = root.join(directory);
        files::make_directory(&directory)?;
    }
    let inside = root.join("usr/sbin/netpolicy");
    files::put(program, &inside, 0o755)?;
    if shell::has("strip") {
        shell::run(Command::new("strip").arg("--strip-all").arg(&inside))?;
    }
    for library in libraries(program)? {
        let place = library.strip_prefix("/").unwrap_or(&library);
        files::put(&library, &root.join(place), 0o755)?;
        if let Some(copyright) = copyright_of(&library) {
            files::put(&copyright, &root.join(copyright.strip_prefix("/").unwrap_or(&copyright)), 0o644)?;
        }
    }
    contents::lay_licences(&root.join("usr"))?;
    let sbom = root.join("usr/share/doc/netpolicy/netpolicy.cdx.json");
    files::write(&sbom, &linked::sbom(&linked::crates()?, version))
}

/// Returns the shared libraries and the loader that a program needs; none if the program is statically
/// linked.
fn libraries(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new("ldd").arg(program).env("LC_ALL", "C").output();
    let output = output.map_err(|error| format!("ldd: {error}"))?;
    read_ldd(&String::from_utf8_lossy(&output.stdout))
        .map_err(|missing| format!("{}: the library {missing} does not exist", program.display()))
}

/// Returns the licence file of a library, if dpkg knows the library's package.
fn copyright_of(library: &Path) -> Option<PathBuf> {
    // On systems where /lib is a link to /usr/lib, dpkg knows the file by only one of its two paths.
    let whole = std::fs::canonicalize(library).ok()?;
    let outside =
        whole.strip_prefix("/usr").map_or_else(|_| whole.clone(), |below| Path::new("/").join(below));
    [whole.as_path(), outside.as_path()].into_iter().find_map(|path| {
        let output = Command::new("dpkg-query").arg("--search").arg(path).output().ok()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let package = said.split([':', ',']).next().filter(|package| !package.is_empty())?;
        let file = PathBuf::from(format!("/usr/share/doc/{package}/copyright"));
        file.is_file().then_some(file)
    })
}

/// Parses the output of ldd; `Err` is a missing library.
fn read_ldd(text: &str) -> std::result::Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [name, "=>", "not", "found"] => return Err(name.to_owned()),
            [_, "=>", path, ..] | [path, ..] if path.starts_with('/') => found.push(PathBuf::from(path)),
            _ => {}
        }
    }
    Ok(found)
}

#[cfg(test)]
mod laid_out {
    use super::*;

    #[test]
    fn libraries_are_those_with_a_path_and_a_missing_one_is_named() {
        let text = "\tlinux-vdso.so.1 (0x00007f6d73e50000)\n\tlibelf.so.1 => /lib/libelf.so.1 (0x00007f6d73e24000)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f6d73e52000)\n";
        let paths = ["/lib/libelf.so.1", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from);
        assert_eq!(read_ldd(text).as_deref(), Ok(&paths[..]));
        assert_eq!(read_ldd("\tstatically linked\n"), Ok(Vec::new()));
        assert_eq!(read_ldd("\tlibelf.so.1 => not found\n"), Err("libelf.so.1".to_owned()));
    }
}
