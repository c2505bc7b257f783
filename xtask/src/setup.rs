//! What building and testing need, and how a Debian machine gets it.

use std::path::Path;
use std::process::Command;

use crate::shell::{self, Result};
use crate::{deny, guest, nextest};

/// A need: what shows that it is there, the package that brings it, and what it is for.
struct Need {
    shown_by: Shown,
    package: &'static str,
    /// What needs it. The demo needs what begins with [`PROGRAM`] or [`DEMO`].
    purpose: &'static str,
}

/// How the purposes begin of what building the program takes, and of what the demo starts.
const PROGRAM: &str = "the program: ";
const DEMO: &str = "the demo: ";

enum Shown {
    Program(&'static str),
    File(&'static str),
}

const NEEDS: &[Need] = &[
    Need {
        shown_by: Shown::Program("cc"),
        package: "gcc",
        purpose: "the program: linking, libbpf, the preload library",
    },
    Need { shown_by: Shown::Program("c++"), package: "g++", purpose: "the fuzz targets: libFuzzer" },
    Need { shown_by: Shown::Program("make"), package: "make", purpose: "the program: building libbpf" },
    Need {
        shown_by: Shown::Program("pkg-config"),
        package: "pkg-config",
        purpose: "the program: building libbpf",
    },
    Need {
        shown_by: Shown::Program("clang"),
        package: "clang",
        purpose: "the program: compiling what is BPF",
    },
    Need {
        shown_by: Shown::File("/usr/include/libelf.h"),
        package: "libelf-dev",
        purpose: "the program: libbpf",
    },
    Need {
        shown_by: Shown::File("/usr/include/zlib.h"),
        package: "zlib1g-dev",
        purpose: "the program: libbpf",
    },
    Need {
        shown_by: Shown::File("/usr/include/linux/bpf.h"),
        package: "linux-libc-dev",
        purpose: "the program: BPF headers",
    },
    Need {
        shown_by: Shown::Program("memcached"),
        package: "memcached",
        purpose: "the demo: the server of the lab",
    },
    Need {
        shown_by: Shown::Program("redis-server"),
        package: "redis-server",
        purpose: "the demo: its second server; tests",
    },
    Need {
        shown_by: Shown::Program("curl"),
        package: "curl",
        purpose: "tests: uploads by an independent client",
    },
    Need {
        shown_by: Shown::Program("wrk"),
        package: "wrk",
        purpose: "tests: an independent client that pipelines",
    },
    Need {
        shown_by: Shown::Program("h2load"),
        package: "nghttp2-client",
        purpose: "tests: an independent client of HTTP/2",
    },
    Need {
        shown_by: Shown::Program("nghttpd"),
        package: "nghttp2-server",
        purpose: "tests: a server of HTTP/2 in the clear",
    },
    Need {
        shown_by: Shown::Program("openssl"),
        package: "openssl",
        purpose: "tests: the certificate of a server",
    },
    Need {
        shown_by: Shown::Program("nginx"),
        package: "nginx-light",
        purpose: "tests: a server that answers by sendfile",
    },
    Need { shown_by: Shown::Program("haproxy"), package: "haproxy", purpose: "tests: a proxy" },
    Need {
        shown_by: Shown::Program("ip"),
        package: "iproute2",
        purpose: "tests: making namespaces, cross-checks",
    },
    Need { shown_by: Shown::Program("ethtool"), package: "ethtool", purpose: "tests: cross-checks" },
    Need { shown_by: Shown::Program("strace"), package: "strace", purpose: "tests: what tc sends" },
    Need {
        shown_by: Shown::Program("redis-benchmark"),
        package: "redis-tools",
        purpose: "bench selfcheck: a closed loop to compare with",
    },
    Need {
        shown_by: Shown::Program("wrk"),
        package: "wrk",
        purpose: "bench selfcheck: a closed loop to compare with",
    },
    Need {
        shown_by: Shown::Program("memcaslap"),
        package: "libmemcached-tools",
        purpose: "the demo: its clients; bench: the client to compare with",
    },
    Need {
        shown_by: Shown::Program("python3"),
        package: "python3",
        purpose: "tests: the undo script's epoll line",
    },
    Need {
        shown_by: Shown::Program("taskset"),
        package: "util-linux",
        purpose: "tests: the undo script's affinity line",
    },
    Need { shown_by: Shown::Program("flex"), package: "flex", purpose: "guests: the kernel's build" },
    Need { shown_by: Shown::Program("bison"), package: "bison", purpose: "guests: the kernel's build" },
    Need { shown_by: Shown::Program("bc"), package: "bc", purpose: "guests: the kernel's build" },
    Need { shown_by: Shown::Program("perl"), package: "perl", purpose: "guests: the kernel's build" },
    Need {
        shown_by: Shown::File("/usr/include/sys/capability.h"),
        package: "libcap-dev",
        purpose: "guests: the kernel's own tests",
    },
    Need { shown_by: Shown::Program("socat"), package: "socat", purpose: "guests: the kernel's own tests" },
    Need {
        shown_by: Shown::File("/usr/lib/python3/dist-packages/yaml/__init__.py"),
        package: "python3-yaml",
        purpose: "guests: the kernel's own tests",
    },
    Need {
        shown_by: Shown::File("/usr/lib/python3/dist-packages/jsonschema/__init__.py"),
        package: "python3-jsonschema",
        purpose: "guests: the kernel's own tests",
    },
    Need {
        shown_by: Shown::Program("sparse"),
        package: "sparse",
        purpose: "the kernel patches: their checks",
    },
    Need {
        shown_by: Shown::File("/usr/include/openssl/ssl.h"),
        package: "libssl-dev",
        purpose: "guests: the kernel's build",
    },
    Need { shown_by: Shown::Program("xz"), package: "xz-utils", purpose: "guests: the kernel's source" },
    Need { shown_by: Shown::Program("patch"), package: "patch", purpose: "guests: a patched kernel" },
    Need { shown_by: Shown::Program("cpio"), package: "cpio", purpose: "guests: the first root" },
    Need { shown_by: Shown::Program("depmod"), package: "kmod", purpose: "guests: the kernel's modules" },
    Need {
        shown_by: Shown::Program("varlink-go-interface-generator"),
        package: "varlink-go",
        purpose: "tests: another reader of the API's description",
    },
    Need {
        shown_by: Shown::Program("mmdebstrap"),
        package: "mmdebstrap",
        purpose: "tests: roots that packages are installed in",
    },
    Need {
        shown_by: Shown::Program("systemd-nspawn"),
        package: "systemd-container",
        purpose: "tests: packages on a host with systemd",
    },
    Need { shown_by: Shown::Program("rpmbuild"), package: "rpm", purpose: "packages: rpm, and its tests" },
    Need {
        shown_by: Shown::Program("lintian"),
        package: "lintian",
        purpose: "tests: the packages for Debian",
    },
    Need {
        shown_by: Shown::Program("objcopy"),
        package: "binutils",
        purpose: "packages: debug symbols apart",
    },
    Need {
        shown_by: Shown::Program("podman"),
        package: "podman",
        purpose: "the image: building and running it",
    },
    Need { shown_by: Shown::Program("runc"), package: "runc", purpose: "tests: running the image" },
    Need { shown_by: Shown::Program("shellcheck"), package: "shellcheck", purpose: "tests: the undo script" },
];

/// A package that is unpacked and not installed, because it would start a service: irqbalance moves interrupts, and
/// Prometheus takes a port. Where it is installed already, it is taken as it is.
struct Unpacked {
    package: &'static str,
    /// Its program, below `/`.
    program: &'static str,
    purpose: &'static str,
}

const UNPACKED: &[Unpacked] = &[
    Unpacked { package: "irqbalance", program: "usr/sbin/irqbalance", purpose: "tests: living with it" },
    Unpacked {
        package: "prometheus",
        program: "usr/bin/prometheus",
        purpose: "tests: what reads the metrics, and the alert rules",
    },
];

impl Need {
    fn met(&self) -> bool {
        match self.shown_by {
            Shown::Program(program) => shell::has(program),
            Shown::File(path) => Path::new(path).exists(),
        }
    }
}

/// Installs what is missing, or of that what the demo needs (`demo`); a second run does nothing and needs no network.
pub(crate) fn run(arguments: &[String]) -> Result {
    match arguments {
        [] => install(NEEDS.iter().collect())?,
        [only] if only == "demo" => return install(for_the_demo()),
        _ => return Err("usage: cargo xtask setup [demo]".to_owned()),
    }
    for Unpacked { package, program, purpose } in UNPACKED {
        if !Path::new("/").join(program).exists() && !guest::is_unpacked(package) {
            eprintln!("setup: unpacking {package} ({purpose})");
            guest::unpack(package, program)?;
        }
    }
    nextest::install()?;
    // Without it the rest is tested; what it would have checked is counted as skipped.
    if let Err(why) = deny::install() {
        eprintln!("setup: no cargo-deny: {why}");
    }
    let version = oldest_rust()?;
    if shell::has("rustup") && !has_rust(&version) {
        eprintln!("setup: installing Rust {version} (tests: the oldest that is promised)");
        shell::run(Command::new("rustup").args([
            "toolchain",
            "install",
            &version,
            "--profile",
            "minimal",
            "--no-self-update",
        ]))?;
    }
    Ok(())
}

/// The oldest Rust that the workspace promises to build with: `rust-version` of its manifest.
pub(crate) fn oldest_rust() -> Result<String> {
    let manifest = shell::root().join("Cargo.toml");
    let text =
        std::fs::read_to_string(&manifest).map_err(|error| format!("{}: {error}", manifest.display()))?;
    let version = text.lines().find_map(|line| line.strip_prefix("rust-version = \"")?.strip_suffix('"'));
    version.map(str::to_owned).ok_or_else(|| format!("{}: no rust-version", manifest.display()))
}

/// Whether rustup has that Rust.
pub(crate) fn has_rust(version: &str) -> bool {
    let mut rustc = Command::new("rustup");
    rustc.args(["run", version, "rustc", "--version"]).env_remove("RUSTUP_TOOLCHAIN");
    rustc.output().is_ok_and(|output| output.status.success())
}

fn for_the_demo() -> Vec<&'static Need> {
    let begins = |need: &&Need| need.purpose.starts_with(PROGRAM) || need.purpose.starts_with(DEMO);
    NEEDS.iter().filter(begins).collect()
}

fn install(needs: Vec<&Need>) -> Result {
    let missing: Vec<&Need> = needs.into_iter().filter(|need| !need.met()).collect();
    if missing.is_empty() {
        eprintln!("setup: everything is here");
        return Ok(());
    }
    for need in &missing {
        eprintln!("setup: missing {} ({})", need.package, need.purpose);
    }
    let packages: Vec<&str> = missing.iter().map(|need| need.package).collect();
    if !shell::has("apt-get") {
        return Err(format!("no apt-get here: install these by your system's means: {}", packages.join(" ")));
    }
    if !shell::is_root() && !shell::has("sudo") {
        return Err(format!("installing needs root: run `apt-get install {}` as root", packages.join(" ")));
    }
    shell::run(apt().arg("update"))?;
    shell::run(apt().args(["install", "-y", "--no-install-recommends"]).args(&packages))?;
    match missing.iter().find(|need| !need.met()) {
        Some(need) => {
            Err(format!("package {} was installed, but what it should bring is not there", need.package))
        }
        None => Ok(()),
    }
}

/// `apt-get` that asks nothing and starts no service: the distribution's memcached must not run by itself.
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
    use super::*;

    #[test]
    fn the_oldest_rust_is_that_of_the_manifest() {
        let version = oldest_rust().expect("a manifest that says so");
        assert!(version.starts_with("1."), "{version}");
    }

    #[test]
    fn the_demo_needs_what_builds_the_program_and_servers_with_clients() {
        let packages: Vec<_> = for_the_demo().iter().map(|need| need.package).collect();
        let builds = ["gcc", "make", "pkg-config", "clang", "libelf-dev", "zlib1g-dev", "linux-libc-dev"];
        assert_eq!(packages[..builds.len()], builds);
        assert_eq!(packages[builds.len()..], ["memcached", "redis-server", "libmemcached-tools"]);
    }
}
