//! Links the program so that it starts quickly, where the feature `quick-start` asks for it: at a fixed address, and with
//! libelf, libz and libgcc inside it, as far as their archives are there. Nothing is downloaded or compiled.

use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Archives that take the place of the shared libraries of the same name.
const ARCHIVES: [&str; 2] = ["libelf.a", "libz.a"];

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if env::var_os("CARGO_FEATURE_QUICK_START").is_none() {
        return;
    }
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    for archive in ARCHIVES {
        match found(archive) {
            Some(path) => link(&path, &out.join(archive)),
            None => println!(
                "cargo:warning={archive} is not there: the shared library is used, and starting takes longer"
            ),
        }
    }
    // rustc names the shared libgcc; its two archives say the same.
    if let Err(error) = fs::write(out.join("libgcc_s.a"), "GROUP ( -lgcc_eh -lgcc )\n") {
        println!("cargo:warning=libgcc_s.a: {error}");
    }
    // Looked into before the system's own directories.
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-arg-bins=-no-pie");
}

/// Where the compiler has a file; it says the bare name if it has none.
fn found(archive: &str) -> Option<PathBuf> {
    let said = Command::new("cc").arg(format!("-print-file-name={archive}")).output().ok()?.stdout;
    let path = PathBuf::from(String::from_utf8(said).ok()?.trim());
    (path.is_absolute() && path.is_file()).then_some(path)
}

fn link(archive: &Path, name: &Path) {
    let _ = fs::remove_file(name);
    if let Err(error) = symlink(archive, name) {
        println!("cargo:warning={}: {error}", name.display());
    }
}
