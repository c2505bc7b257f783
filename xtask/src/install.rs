//! `install`: the program and what a system needs to run it, below DESTDIR. It starts nothing and enables nothing.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{self, Result};

/// Where the units say that the program is; with another PREFIX they are written with that.
const IN_UNITS: &str = "/usr/sbin/netpolicy";

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
    shell::run(shell::cargo().args(["build", "--quiet", "--release", "-p", "netpolicy"]))?;
    let built = shell::root().join("target/release/netpolicy");
    let program = put(&built, &below.join("sbin/netpolicy"), 0o755)?;
    let packaging = shell::root().join("packaging");
    for unit in ["netpolicy.service", "netpolicy-attach.service"] {
        let text = read(&packaging.join("systemd").join(unit))?;
        let text = text.replace(IN_UNITS, &format!("{prefix}/sbin/netpolicy"));
        write(&below.join("lib/systemd/system").join(unit), &text)?;
    }
    put(&packaging.join("tmpfiles/netpolicy.conf"), &below.join("lib/tmpfiles.d/netpolicy.conf"), 0o644)?;
    put(&packaging.join("sysusers/netpolicy.conf"), &below.join("lib/sysusers.d/netpolicy.conf"), 0o644)?;
    let pages = below.join("share/man/man1");
    std::fs::create_dir_all(&pages).map_err(|error| format!("{}: {error}", pages.display()))?;
    shell::run(Command::new(&program).args(["man", "--dir"]).arg(&pages))?;
    for (shell, file) in [
        ("bash", "share/bash-completion/completions/netpolicy"),
        ("zsh", "share/zsh/site-functions/_netpolicy"),
        ("fish", "share/fish/vendor_completions.d/netpolicy.fish"),
    ] {
        let output = Command::new(&program).args(["completions", shell]).output();
        let output = output.map_err(|error| format!("netpolicy completions {shell}: {error}"))?;
        write(&below.join(file), &String::from_utf8_lossy(&output.stdout))?;
    }
    println!("installed below {}; nothing was started: systemctl enable --now netpolicy", below.display());
    Ok(())
}

fn put(from: &Path, to: &Path, mode: u32) -> Result<PathBuf> {
    make_room(to)?;
    // Beside its place first: a program that runs is not written over.
    let beside = to.with_extension("new");
    std::fs::copy(from, &beside)
        .map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))?;
    let permissions = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(&beside, permissions)
        .and_then(|()| std::fs::rename(&beside, to))
        .map_err(|error| format!("{}: {error}", to.display()))?;
    Ok(to.to_owned())
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn write(path: &Path, text: &str) -> Result {
    make_room(path)?;
    std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn make_room(path: &Path) -> Result {
    let Some(directory) = path.parent() else { return Ok(()) };
    std::fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))
}
