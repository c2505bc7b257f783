//! Whether the facts on drivers of NICs stand in the kernel's source where they say.

use std::path::Path;

use crate::nic_lines::compared;
use crate::shell;

/// The facts.
const FACTS: &str = "crates/policy-file/nics/drivers.toml";

/// Compares each fact with a tree of the kernel's source: the word that it names must stand on its line.
pub(crate) fn run(arguments: &[String]) -> shell::Result {
    let [tree] = arguments else {
        return Err("usage: cargo xtask nics DIRECTORY, of the release that the facts name".into());
    };
    let text = std::fs::read_to_string(FACTS).map_err(|error| format!("{FACTS}: {error}"))?;
    let (rows, wrong) = compared(&text, Path::new(tree));
    if !wrong.is_empty() {
        return Err(format!("{} of {rows} facts do not stand there:\n{}", wrong.len(), wrong.join("\n")));
    }
    println!("{rows} facts stand where they say");
    Ok(())
}
