//! `install`: the programs and what a system needs to run it, below DESTDIR. It starts nothing and enables nothing.

use std::path::PathBuf;

use crate::release::contents;
use crate::shell::{self, Result};

/// Installs below `$DESTDIR$PREFIX` (PREFIX is /usr, unless it is given).
pub(crate) fn run(arguments: &[String]) -> Result {
    if let Some(unknown) = arguments.first() {
        return Err(format!(
            "install takes no `{unknown}`: it reads DESTDIR and PREFIX from the environment"
        ));
    }
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let prefix = variable("PREFIX").unwrap_or_else(|| "/usr".to_owned());
    if !prefix.starts_with('/') {
        return Err(format!("PREFIX is `{prefix}`: it begins with /"));
    }
    let below = PathBuf::from(format!("{}{prefix}", variable("DESTDIR").unwrap_or_default()));
    contents::build_programs(&["--release"])?;
    contents::lay(&shell::root().join("target/release"), &below, &prefix)?;
    contents::lay_licences(&below)?;
    println!("installed below {}; nothing was started: systemctl enable --now netpolicy", below.display());
    Ok(())
}
