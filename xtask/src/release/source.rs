//! Creates source packages: the sources of a version with every crate that it needs, as a Debian source
//! package and a source rpm. Both build offline.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::deb;
use super::packaging::{MAINTAINER, Version, filled_script};
use super::sources::changelog;
use crate::files::{self, About as _};
use crate::linked::{self, Component, TARGETS};
use crate::shell::{self, Result};

const USAGE: &str = "usage: cargo xtask source-packages [--out DIRECTORY] [--test]

--out    where they go (target/source-packages)
--test   builds both without a network, in a root of Debian, with lintian: two release builds

The sources are those of the last commit. Debian: dpkg-buildpackage in what dpkg-source -x unpacks;
rpm: rpmbuild --rebuild. Both need Rust, clang and libbpf, and no network.";

/// Directories of vendored crates that no build of netpolicy reads, by crate. elfutils and zlib are unused,
/// because libelf and zlib are the system's. libbpf-sys's copy of libbpf stays, because libbpf-sys includes
/// its headers.
const UNUSED: [(&str, &[&str]); 1] = [("libbpf-sys", &["elfutils", "zlib"])];

/// Suffixes of files that a source package must not contain: compiled files, and backup copies that
/// `dh_clean` deletes.
const REMOVED: [&str; 8] = ["a", "dll", "exe", "lib", "o", "orig", "so", "wasm"];

/// The file in which cargo keeps the checksums of a vendored crate.
const CHECKSUMS: &str = ".cargo-checksum.json";

/// The crates whose tests run when a package is built: those that need neither root nor a particular kernel.
const TESTED: [&str; 4] = ["netpolicy-model", "netpolicy-plan", "netpolicy-policy-file", "netpolicy-netlink"];

/// Creates both source packages.
pub(crate) fn run(arguments: &[String]) -> Result {
    let options = crate::options::Options::read(arguments, &["--test"], &["--out"], USAGE)?;
    let out = options.path("--out").unwrap_or_else(|| shell::root().join("target/source-packages"));
    let out = std::path::absolute(&out).about(&out)?;
    files::remove(&out)?;
    let packages = pack(&Version::of_workspace(None)?, &out)?;
    if options.has("--test") {
        build_offline(&packages, &out)?;
    }
    for package in packages {
        println!("{}", package.display());
    }
    Ok(())
}

/// The first Debian release with the required versions of Rust and libbpf.
const SUITE: &str = "forky";

/// The packages that the root must contain: the build dependencies of `debian/control`, and the tools for
/// both package formats.
const WITH_COMPILERS: [&str; 9] =
    ["build-essential", "cargo", "clang", "debhelper", "fakeroot", "libbpf-dev", "lintian", "rpm", "rustc"];

/// The disk space, in MiB, for this root as an archive and unpacked, and for what is built in it.
const SPACE: u64 = 8_000;

/// Builds both packages in a Debian root without network, and runs lintian on the Debian packages.
fn build_offline(packages: &[PathBuf; 2], out: &Path) -> Result {
    let root = out.join("root");
    files::make_directory(&root)?;
    let archive = super::trial::root_archive(SUITE, &WITH_COMPILERS, SPACE)?;
    shell::output(Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(&root))?;
    let build = root.join("build");
    for file in files::files_of(out)? {
        files::put(&file, &build.join(file.file_name().unwrap_or_default()), 0o644)?;
    }
    let names =
        packages.clone().map(|path| path.file_name().unwrap_or_default().to_string_lossy().into_owned());
    let [dsc, srpm] = names;
    for step in [
        format!("dpkg-source -x {dsc} deb && cd deb && dpkg-buildpackage --no-sign"),
        "lintian --allow-root --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs *.changes".to_owned(),
        "rm -rf deb".to_owned(),
        // --nodeps: rpm does not know which packages dpkg has installed.
        format!("rpmbuild --rebuild --nodeps --define '_topdir /build/rpm' {srpm}"),
    ] {
        eprintln!("source-packages: {step}");
        let mut inside = shell::tied("unshare");
        inside.args(["--net", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c"]).arg(
            "mount --make-rprivate / && mount -t proc proc \"$1/proc\" && \
             exec chroot \"$1\" /usr/bin/env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C sh -ec \"cd /build; $2\"",
        );
        shell::run(inside.arg("sh").arg(&root).arg(step))?;
    }
    for built in files::files_of(&build)? {
        if built.extension().is_some_and(|ending| ending == "deb") {
            files::put(&built, &out.join(built.file_name().unwrap_or_default()), 0o644)?;
        }
    }
    files::remove(&root)
}

/// Creates the `.dsc` of the Debian source package, and the source rpm, in a directory.
pub(crate) fn pack(version: &Version, out: &Path) -> Result<[PathBuf; 2]> {
    crate::setup::need(crate::setup::PACKAGES)?;
    let making = out.join("making");
    files::remove(&making)?;
    let tree = making.join(format!("netpolicy-{}", version.debian()));
    files::make_directory(&tree)?;
    let mut git = Command::new("git");
    git.current_dir(shell::root())
        .args(["archive", "--format=tar", "--output"])
        .arg(making.join("tree.tar"))
        .arg("HEAD");
    shell::output(&mut git)?;
    shell::output(Command::new("tar").arg("-xf").arg(making.join("tree.tar")).arg("-C").arg(&tree))?;
    let vendor = making.join("vendor");
    vendor_crates(&vendor)?;
    let names = [
        format!("netpolicy_{}.orig.tar.xz", version.debian()),
        format!("netpolicy_{}.orig-vendor.tar.xz", version.debian()),
    ];
    let archives = names.map(|name| out.join(name));
    archive(&tree, version, &archives[0])?;
    archive(&vendor, version, &archives[1])?;
    let components = linked::crates()?;
    let dsc = debian(&tree, &vendor, version, &components, out)?;
    let srpm = srpm(&archives, version, &components, &making, out)?;
    files::remove(&making)?;
    Ok([dsc, srpm])
}

/// Packs a directory into an archive whose bytes depend only on the directory's contents.
fn archive(directory: &Path, version: &Version, file: &Path) -> Result {
    let (parent, name) = (directory.parent(), directory.file_name());
    let mut tar = Command::new("tar");
    tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
    tar.arg(format!("--mtime=@{}", version.epoch)).args([
        "--mode=u=rwX,go=rX",
        "--use-compress-program",
        "xz -6 -T1",
    ]);
    tar.arg("--file").arg(file).arg("--directory").arg(parent.unwrap_or(Path::new("/")));
    shell::output(tar.arg(name.unwrap_or_default())).map(drop)
}

/// Vendors the crates. Crates that no build for Linux uses keep only their manifest, which cargo reads to
/// resolve `Cargo.lock`. Compiled files are removed.
fn vendor_crates(vendor: &Path) -> Result {
    let mut cargo = shell::cargo();
    cargo.args(["vendor", "--locked", "--quiet", "--versioned-dirs"]).arg(vendor);
    shell::output(&mut cargo)?;
    let built = built()?;
    for directory in files::entries(vendor)? {
        let name = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if built.contains(&name) {
            let unused = UNUSED.iter().filter(|(of, _)| name.starts_with(&format!("{of}-")));
            for below in unused.flat_map(|(_, below)| *below) {
                files::remove(&directory.join(below))?;
            }
            remove_unwanted(&directory)?;
        } else {
            keep_manifest(&directory)?;
        }
        write_checksums(&directory)?;
    }
    Ok(())
}

/// Returns the vendored directories of crates that are built for Linux, including those of tests and build
/// scripts.
fn built() -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    for target in TARGETS {
        let mut tree = shell::cargo();
        tree.args(["tree", "--quiet", "--locked", "--workspace", "--target", target]);
        tree.args(["--edges", "normal,build,dev", "--prefix", "none", "--format", "{p}"]);
        found.extend(shell::output(&mut tree)?.lines().filter_map(|line| {
            let mut words = line.split_whitespace();
            Some(format!("{}-{}", words.next()?, words.next()?.strip_prefix('v')?))
        }));
    }
    Ok(found)
}

/// Removes the files below a directory whose suffixes are in [`REMOVED`].
fn remove_unwanted(directory: &Path) -> Result {
    for path in files::entries(directory)? {
        let unwanted = path.extension().is_some_and(|ending| REMOVED.iter().any(|of| ending == *of));
        if path.is_dir() && !path.is_symlink() {
            remove_unwanted(&path)?;
        } else if unwanted {
            files::remove(&path)?;
        }
    }
    Ok(())
}

/// Removes everything except a crate's manifest, and creates an empty file for each path that the manifest
/// names.
fn keep_manifest(directory: &Path) -> Result {
    let manifest = files::read(&directory.join("Cargo.toml"))?;
    for path in files::entries(directory)? {
        let name = path.file_name().unwrap_or_default();
        if name != "Cargo.toml" && name != CHECKSUMS {
            files::remove(&path)?;
        }
    }
    let named = |line: &str| {
        let value = line.strip_prefix("path = \"").or_else(|| line.strip_prefix("build = \""))?;
        value.strip_suffix('"').map(str::to_owned)
    };
    // Older manifests do not name the path of the library, so always create the default.
    for file in manifest.lines().filter_map(named).chain(["src/lib.rs".to_owned()]) {
        files::write(&directory.join(file), "")?;
    }
    Ok(())
}

/// Rewrites the file with cargo's checksums of a vendored crate, so that it lists only the remaining files,
/// except the empty ones.
fn write_checksums(directory: &Path) -> Result {
    let file = directory.join(CHECKSUMS);
    let mut sums: Value = serde_json::from_str(&files::read(&file)?).about(&file)?;
    if let Some(of_files) = sums["files"].as_object_mut() {
        of_files.retain(|name, _| std::fs::metadata(directory.join(name)).is_ok_and(|about| about.len() > 0));
    }
    files::write(&file, &sums.to_string())
}

/// Creates the Debian source package from both archives and `debian/`.
fn debian(
    tree: &Path,
    vendor: &Path,
    version: &Version,
    components: &[Component],
    out: &Path,
) -> Result<PathBuf> {
    let packaging = shell::root().join("packaging/debian");
    let directory = tree.join("debian");
    for file in files::files_of(&packaging.join("source-package"))? {
        let name = file.file_name().unwrap_or_default();
        let text = files::read(&file)?.replace("@MAINTAINER@", MAINTAINER).replace("@TESTED@", &tested());
        files::write(&directory.join(name), &text)?;
    }
    files::set_mode(&directory.join("rules"), 0o755)?;
    files::write(&directory.join("source/format"), "3.0 (quilt)\n")?;
    let revised = Version { number: format!("{}-1", version.debian()), suffix: None, epoch: version.epoch };
    files::write(&directory.join("changelog"), &changelog(&revised)?)?;
    files::write(&directory.join("copyright"), &copyright(components)?)?;
    for name in deb::SCRIPTS {
        let text = with_debhelper(&deb::script(name, &revised.number)?);
        files::write(&directory.join(format!("netpolicy.{name}")), &text)?;
    }
    let vendored = tree.join("vendor");
    files::rename(vendor, &vendored)?;
    let mut dpkg = Command::new("dpkg-source");
    dpkg.current_dir(out).env("SOURCE_DATE_EPOCH", version.epoch.to_string()).arg("--build").arg(tree);
    shell::output(&mut dpkg)?;
    files::rename(&vendored, vendor)?;
    Ok(out.join(format!("netpolicy_{}.dsc", revised.number)))
}

/// Returns a maintainer script with the marker at which debhelper inserts its own lines.
fn with_debhelper(script: &str) -> String {
    let text = script.trim_end().trim_end_matches("exit 0").trim_end();
    format!("{text}\n\n#DEBHELPER#\n\nexit 0\n")
}

/// Returns the cargo options that select [`TESTED`].
fn tested() -> String {
    TESTED.map(|name| format!("-p {name}")).join(" ")
}

/// Licences whose texts are on every Debian system.
const COMMON: [&str; 3] = ["Apache-2.0", "GPL-2.0-only", "LGPL-2.1-only"];

/// The SPDX identifier of a licence with an exception, whose text repeats the licence.
const LLVM: &str = "Apache-2.0 WITH LLVM-exception";

/// Returns `debian/copyright`, in Debian's machine-readable format 1.0, for netpolicy and each linked crate.
fn copyright(components: &[Component]) -> Result<String> {
    let mut text = "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
        Upstream-Name: netpolicy\n\
        Upstream-Contact: the netpolicy developers\n\
        Comment: vendor/ also has crates that are not linked: those of tests and of builds, each with its\n \
        licence, and manifests of crates for other systems.\n\n\
        Files: *\nCopyright: 2026 the netpolicy developers\nLicense: Apache-2.0 or MIT\n\n\
        Files: crates/bpf/src/*.bpf.c crates/bpf/src/*.h kernel/*\n\
        Copyright: 2026 the netpolicy developers\nLicense: GPL-2.0-only\n"
        .to_owned();
    // Lists each licence by its SPDX identifier, with its text as found in one of the crates.
    let mut licences: BTreeMap<&str, Option<String>> =
        ["Apache-2.0", "MIT", "GPL-2.0-only"].map(|name| (name, None)).into();
    for crate_ in components {
        let notices = notices(crate_)?;
        let licence = dep5_expression(&crate_.licence);
        let _infallible = write!(
            text,
            "\nFiles: vendor/{}-{}/*\nCopyright: {}\nLicense: {licence}\n",
            crate_.name,
            crate_.version,
            notices.join("\n           "),
        );
        for name in identifiers(&crate_.licence) {
            let found = licences.entry(name).or_default();
            if found.is_none() {
                *found = text_of(name, crate_)?;
            }
        }
    }
    licences.insert("MIT", Some(files::read(&shell::root().join("LICENSE-MIT"))?));
    for (name, words) in licences {
        let words = match words {
            _ if COMMON.contains(&name) => {
                let file = name.trim_end_matches("-only").trim_end_matches(".0");
                let file = if name == "Apache-2.0" { name } else { file };
                format!("On Debian systems, the full text is in /usr/share/common-licenses/{file}.")
            }
            // Include only the text of the exception: Debian systems have that of the licence.
            Some(words) if name == LLVM => {
                let exception = words.split_once("LLVM Exceptions").map_or("", |(_, after)| after);
                let exception = exception.split_once('\n').map_or("", |(_, after)| after);
                format!(
                    "Apache-2.0, which is in /usr/share/common-licenses on Debian systems, and:\n{exception}"
                )
            }
            Some(words) => words,
            None => {
                return Err(format!(
                    "no crate contains exactly the text of {name}, which debian/copyright needs"
                ));
            }
        };
        let _infallible = write!(text, "\nLicense: {}\n", dep5_expression(name));
        for line in words.trim().lines() {
            let _infallible = writeln!(
                text,
                " {}",
                if line.trim().is_empty() { ".".to_owned() } else { line.trim_end().replace('\t', "    ") }
            );
        }
    }
    Ok(text)
}

/// An SPDX expression as Debian's copyright format (DEP-5) writes it.
fn dep5_expression(expression: &str) -> String {
    // In this format, a comma binds less tightly than `or`.
    let words = expression.replace(") AND ", ", and ").replace(" OR ", " or ").replace(" AND ", " and ");
    let words = words.replace(['(', ')'], "");
    words.replace(" WITH LLVM-exception", " with LLVM exception")
}

/// The SPDX identifiers in an expression, each with its exception.
fn identifiers(expression: &str) -> Vec<&str> {
    let alternatives = expression.split(" OR ").flat_map(|part| part.split(" AND "));
    alternatives.map(|name| name.trim_matches(['(', ')', ' '])).collect()
}

/// Returns the copyright notices in a crate's licence files or, if there are none, names the crate's
/// developers.
fn notices(component: &Component) -> Result<Vec<String>> {
    let mut found = BTreeSet::new();
    for path in &component.texts {
        let words = std::fs::read(path).about(path)?;
        let words = String::from_utf8_lossy(&words).into_owned();
        // Skip the lines of templates, whose fields are in brackets.
        let lines = words.lines().map(str::trim).filter(|line| !line.contains(['[', '{']));
        let lines = lines.filter_map(|line| line.strip_prefix("Copyright "));
        found.extend(lines.filter(|line| line.contains(|c: char| c.is_ascii_digit())).map(str::to_owned));
    }
    if found.is_empty() {
        found.insert(format!("the developers of {}", component.name));
    }
    Ok(found.into_iter().collect())
}

/// Returns the text of a licence from a crate: the file that is named after the licence or, in a crate with
/// one licence, the only licence file.
fn text_of(name: &str, component: &Component) -> Result<Option<String>> {
    let key = match name {
        "BSL-1.0" => "BOOST".to_owned(),
        _ => name.split(['-', ' ']).next().unwrap_or(name).to_uppercase(),
    };
    let named = component.texts.iter().find(|path| {
        let file = path.file_name().unwrap_or_default().to_string_lossy().to_uppercase();
        file.contains(&key)
    });
    let only = (component.licence == name).then(|| component.texts.first()).flatten();
    named.or(only).map(|path| files::read(path)).transpose()
}

/// Creates the source rpm from both archives and the spec file.
fn srpm(
    archives: &[PathBuf; 2],
    version: &Version,
    components: &[Component],
    making: &Path,
    out: &Path,
) -> Result<PathBuf> {
    let top = making.join("rpm");
    let mut bundled = String::new();
    let mut licences: BTreeSet<String> = ["(Apache-2.0 OR MIT)".to_owned(), "GPL-2.0-only".to_owned()].into();
    for component in components {
        let _infallible = writeln!(
            bundled,
            "Provides:       bundled(crate({})) = {}",
            component.name,
            rpm_version(&component.version)
        );
        let licence = &component.licence;
        licences.insert(if licence.contains(" OR ") && !licence.starts_with('(') {
            format!("({licence})")
        } else {
            licence.clone()
        });
    }
    let licences: Vec<String> = licences.into_iter().collect();
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let (number, release) = version.rpm();
    let spec = files::read(&shell::root().join("packaging/rpm/netpolicy-source.spec.in"))?
        .replace("@VERSION@", &number)
        .replace("@RELEASE@", &release)
        .replace("@DEBIAN_VERSION@", &version.debian())
        .replace("@LICENCES@", &licences.join(" AND "))
        .replace("@BUNDLED@", bundled.trim_end())
        .replace("@TESTED@", &tested())
        .replace("@SOURCE@", &name(&archives[0]))
        .replace("@VENDORED@", &name(&archives[1]));
    let spec = filled_script(&spec, "sh $script")?;
    let file = top.join("netpolicy.spec");
    files::write(&file, &spec)?;
    let mut rpmbuild = Command::new("rpmbuild");
    rpmbuild.args(["-bs", "--quiet"]).env("SOURCE_DATE_EPOCH", version.epoch.to_string());
    let sources = out.display().to_string();
    for (name, value) in [
        ("_topdir", top.display().to_string()),
        ("_sourcedir", sources.clone()),
        ("_srcrpmdir", sources),
        ("_buildhost", "localhost".to_owned()),
        ("use_source_date_epoch_as_buildtime", "1".to_owned()),
        ("source_date_epoch_from_changelog", "0".to_owned()),
        ("dist", "%{nil}".to_owned()),
    ] {
        rpmbuild.arg("--define").arg(format!("{name} {value}"));
    }
    shell::output(rpmbuild.arg(&file))?;
    Ok(out.join(format!("netpolicy-{number}-{release}.src.rpm")))
}

/// Returns a crate's version in rpm's format, which allows no `-` and sorts the part after `~` before the
/// release.
fn rpm_version(version: &str) -> String {
    version.replace('-', "~")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn each_licence_of_an_expression_is_named_once() {
        assert_eq!(identifiers("(MIT OR Apache-2.0) AND Unicode-3.0"), ["MIT", "Apache-2.0", "Unicode-3.0"]);
        assert_eq!(identifiers("Zlib"), ["Zlib"]);
        assert_eq!(
            identifiers("Apache-2.0 WITH LLVM-exception OR MIT"),
            ["Apache-2.0 WITH LLVM-exception", "MIT"]
        );
    }

    #[test]
    fn an_expression_keeps_its_meaning_in_debians_format() {
        let expression = dep5_expression("(MIT OR Apache-2.0) AND Unicode-3.0");
        assert_eq!(expression, "MIT or Apache-2.0, and Unicode-3.0");
        let expression = dep5_expression("Apache-2.0 WITH LLVM-exception OR MIT");
        assert_eq!(expression, "Apache-2.0 with LLVM exception or MIT");
    }

    #[test]
    fn a_script_ends_with_debhelpers_place_once() {
        let script = with_debhelper("#!/bin/sh\n[ \"$1\" = configure ] || exit 0\n\nwork\nexit 0\n");
        assert_eq!(script, "#!/bin/sh\n[ \"$1\" = configure ] || exit 0\n\nwork\n\n#DEBHELPER#\n\nexit 0\n");
    }

    #[test]
    fn a_crate_for_other_systems_keeps_what_cargo_reads() -> Result {
        let directory = std::env::temp_dir().join(format!("netpolicy-vendored-{}", std::process::id()));
        let manifest = "[package]\nname = \"w\"\nbuild = \"build.rs\"\n\n[lib]\npath = \"src/lib.rs\"\n";
        for (file, text) in [
            ("Cargo.toml", manifest),
            ("build.rs", "fn main() {}"),
            ("src/lib.rs", "pub fn f() {}"),
            ("lib/w.a", "!<arch>"),
            (
                CHECKSUMS,
                r#"{"files":{"Cargo.toml":"1","build.rs":"2","src/lib.rs":"3","lib/w.a":"4"},"package":"5"}"#,
            ),
        ] {
            files::write(&directory.join(file), text)?;
        }
        keep_manifest(&directory)?;
        write_checksums(&directory)?;
        let (empty, sums) =
            (files::read(&directory.join("src/lib.rs")), files::read(&directory.join(CHECKSUMS)));
        let gone = !directory.join("lib").exists();
        files::remove(&directory)?;
        assert_eq!(empty?, "");
        assert!(gone);
        assert_eq!(sums?, r#"{"files":{"Cargo.toml":"1"},"package":"5"}"#);
        Ok(())
    }
}
