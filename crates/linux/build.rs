//! Compiles the preload libraries.

use std::env;
use std::path::PathBuf;

fn main() {
    preload_libraries();
}

/// Compiles each `preload/NAME.c` to `OUT_DIR/NAME.so`, which `src/process/preload` includes. They are linked
/// without any library, so that every program on this machine can load them, whichever C library it uses.
fn preload_libraries() {
    const LIBRARIES: [&str; 2] = ["epoll_cap", "epoll_count"];
    println!("cargo::rerun-if-changed=preload/epoll_calls.h");
    let compiler = cc::Build::new().opt_level(2).debug(false).warnings(true).get_compiler();
    for name in LIBRARIES {
        let source = format!("preload/{name}.c");
        println!("cargo::rerun-if-changed={source}");
        let library = PathBuf::from(variable("OUT_DIR")).join(format!("{name}.so"));
        let mut command = compiler.to_command();
        command.args(["-shared", "-fPIC", "-nostdlib", "-fvisibility=hidden", "-fno-stack-protector"]);
        if variable("CARGO_CFG_TARGET_ARCH") == "aarch64" {
            // Inline atomic instructions: the outlined functions would need libgcc.
            command.arg("-mno-outline-atomics");
        }
        let status = command.arg("-o").arg(&library).arg(&source).status();
        assert!(
            status.as_ref().is_ok_and(std::process::ExitStatus::success),
            "{source}: {compiler:?}: {status:?}"
        );
    }
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"))
}
