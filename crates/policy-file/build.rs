//! Lists all files in `recipes/`, which netpolicy ships. A new policy needs no other change here.

#![expect(
    clippy::disallowed_methods,
    reason = "this program runs during the build; the crate itself opens nothing"
)]

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let variable = |name: &str| env::var(name).map_err(io::Error::other);
    let directory = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("recipes");
    println!("cargo::rerun-if-changed=recipes");
    let mut names = Vec::new();
    for entry in fs::read_dir(&directory)? {
        names.push(entry?.file_name().into_string().map_err(|name| io::Error::other(format!("{name:?}")))?);
    }
    // Sort the files, because the order of a directory varies.
    names.sort();
    let mut list = String::from("[\n");
    for name in names {
        let path = directory.join(&name);
        let _infallible = writeln!(list, "    ({name:?}, include_str!({path:?})),");
    }
    list.push_str("]\n");
    fs::write(Path::new(&variable("OUT_DIR")?).join("recipes.rs"), list)
}
