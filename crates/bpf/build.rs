//! Compiles the BPF programs.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles each `src/NAME/NAME.bpf.c` to `OUT_DIR/NAME.bpf.o`, which the Rust code in `src/NAME` includes.
///
/// Only clang is needed: `vmlinux_min.h` declares the kernel types that the programs read, and the libbpf
/// that the crate links provides its own headers.
fn main() {
    const PROGRAMS: [&str; 10] = [
        "app_requests",
        "batches",
        "delivery",
        "epolls",
        "family",
        "live",
        "process_events",
        "reuseport",
        "softirqs",
        "wire",
    ];
    /// Headers that several programs include.
    const HEADERS_OF_ALL: [&str; 6] =
        ["vmlinux_min.h", "compat.bpf.h", "poller.bpf.h", "process.bpf.h", "buckets.h", "buckets.bpf.h"];
    /// The directory of the public headers for applications, whose policy numbers the programs use.
    const HEADERS: &str = "../../include";
    println!("cargo::rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".to_owned());
    let source = Path::new("src");
    let out = PathBuf::from(variable("OUT_DIR"));
    // libbpf's bpf_tracing.h uses these names for the architectures.
    let architecture = match variable("CARGO_CFG_TARGET_ARCH").as_str() {
        "x86_64" => "x86",
        "aarch64" => "arm64",
        "riscv64" => "riscv",
        "s390x" => "s390",
        "powerpc64" => "powerpc",
        other => panic!("the BPF programs are not prepared for {other}"),
    };
    let endian = match variable("CARGO_CFG_TARGET_ENDIAN").as_str() {
        "little" => "bpfel",
        _ => "bpfeb",
    };
    for header in HEADERS_OF_ALL {
        println!("cargo::rerun-if-changed={}", source.join(header).display());
    }
    println!("cargo::rerun-if-changed={HEADERS}/netpolicy.h");
    for name in PROGRAMS {
        println!("cargo::rerun-if-changed={}", source.join(name).display());
        let mut command = Command::new(&clang);
        command.args(["-target", endian, "-mcpu=v3", "-g", "-O2", "-Wall", "-Wextra", "-Werror"]);
        // BPF_PROG() names every argument of a tracepoint, even those that the program does not use.
        command.arg("-Wno-unused-parameter");
        command.arg(format!("-D__TARGET_ARCH_{architecture}"));
        command.arg("-I").arg(variable("DEP_BPF_INCLUDE")).arg("-I").arg(HEADERS);
        // Make the object file independent of the build directory.
        command.arg("-fdebug-compilation-dir=.");
        command.arg(format!("-ffile-prefix-map={}=libbpf", variable("DEP_BPF_INCLUDE")));
        command.arg("-c").arg(source.join(name).join(format!("{name}.bpf.c")));
        command.arg("-o").arg(out.join(format!("{name}.bpf.o")));
        match command.status() {
            Ok(status) if status.success() => {}
            Ok(status) => panic!("{clang} could not compile {name}.bpf.c: {status}"),
            Err(error) => {
                panic!("cannot start {clang}, which compiles the BPF programs (set CLANG): {error}")
            }
        }
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
