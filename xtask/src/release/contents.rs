//! Lists the installed files. This is the only list: `make install`, the packages and the archive use it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::documents::with_installed_links;
use super::stage::Stage;
use crate::options::Options;
use crate::programs::PROGRAMS;
use crate::shell::{self, Result};
use crate::{files, linked};

/// The path of the program in the systemd units, which is replaced if the prefix is not /usr.
const IN_UNITS: &str = "/usr/sbin/netpolicy";

/// The commands of the programs of `netpolicy-tools`, which have manual pages and schemas.
const COMMANDS_OF_TOOLS: [&str; 4] = ["tc", "bench", "sim", "lab"];

/// The path of the program, relative to the prefix.
pub(crate) const PROGRAM: &str = "sbin/netpolicy";

/// The directory in which netpolicy finds the other programs, relative to the prefix.
pub(crate) const TOOLS: &str = "libexec/netpolicy";

/// The path of the manual, relative to the prefix, and its sections.
pub(crate) const MANUAL: &str = "share/man";
pub(crate) const SECTIONS: [&str; 2] = ["man5", "man8"];

/// Directories of zsh completions, relative to the prefix: zsh's own, and Debian's for packages.
pub(crate) const ZSH: &str = "share/zsh/site-functions/_netpolicy";
pub(crate) const DEBIAN_ZSH: &str = "share/zsh/vendor-completions/_netpolicy";

/// Files to copy: from the project, to a path relative to the prefix.
const FILES: &[(&str, &str)] = &[
    ("packaging/tmpfiles/netpolicy.conf", "lib/tmpfiles.d/netpolicy.conf"),
    ("packaging/sysusers/netpolicy.conf", "lib/sysusers.d/netpolicy.conf"),
    ("include/netpolicy.h", "include/netpolicy.h"),
    ("packaging/container/seccomp.json", "share/netpolicy/container/seccomp.json"),
    ("packaging/container/Containerfile", "share/netpolicy/container/Containerfile"),
];

/// Licences to copy from the project where no `copyright` file of a package contains them.
const LICENCES: [&str; 3] = ["LICENSE-APACHE", "LICENSE-MIT", "LICENSE-GPL-2.0"];

/// Directories whose files are all copied.
const DIRECTORIES: &[(&str, &str)] = &[
    ("packaging/examples", "share/doc/netpolicy/examples"),
    ("docs/reference", "share/doc/netpolicy/reference"),
    ("docs/howto", "share/doc/netpolicy/howto"),
    ("crates/policy-file/recipes", "share/netpolicy/recipes"),
    ("packaging/monitoring", "share/netpolicy/monitoring"),
];

const UNITS: [&str; 2] = ["netpolicy.service", "netpolicy-attach.service"];

/// Shells, and the paths of their completions.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "share/bash-completion/completions/netpolicy"),
    ("zsh", ZSH),
    ("fish", "share/fish/vendor_completions.d/netpolicy.fish"),
];

const INSTALL_USAGE: &str = "usage: [DESTDIR=DIRECTORY] [PREFIX=/usr] cargo xtask install [--lists DIRECTORY]

--lists   writes the installed paths there, one file for each package: netpolicy, netpolicy-tools";

/// Runs `cargo xtask install`, which installs below `$DESTDIR$PREFIX` (PREFIX defaults to /usr). It starts
/// and enables nothing.
pub(crate) fn install(arguments: &[String]) -> Result {
    let options = Options::read(arguments, &[], &["--lists"], INSTALL_USAGE)?;
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let prefix = variable("PREFIX").unwrap_or_else(|| "/usr".to_owned());
    if !prefix.starts_with('/') {
        return Err(format!("PREFIX is `{prefix}`, but must begin with /"));
    }
    let root = PathBuf::from(variable("DESTDIR").unwrap_or_else(|| "/".to_owned()));
    let below = root.join(&prefix[1..]);
    build_programs(&["--release"])?;
    lay(&shell::root().join("target/release"), &below, &prefix)?;
    lay_licences(&below)?;
    if let Some(lists) = options.path("--lists") {
        write_lists(&below, &prefix, &lists)?;
    }
    println!("installed below {}; no service was started: systemctl enable --now netpolicy", below.display());
    Ok(())
}

/// Writes the paths of the files below a directory, each with `prefix` before it, into one file per package.
fn write_lists(below: &Path, prefix: &str, lists: &Path) -> Result {
    let found = Stage::files(below)?;
    let (tools, own): (Vec<_>, Vec<_>) = found.iter().partition(|file| is_of_tools(&file[1..]));
    for (name, files) in [("netpolicy", own), ("netpolicy-tools", tools)] {
        let lines: String = files.iter().map(|file| format!("{prefix}{file}\n")).collect();
        files::write(&lists.join(name), &lines)?;
    }
    Ok(())
}

/// Builds the programs to install, with these options of cargo.
pub(crate) fn build_programs(options: &[&str]) -> Result {
    let programs = PROGRAMS.map(|name| ["--package", name]).concat();
    shell::run(shell::cargo().args(["build", "--quiet"]).args(options).args(programs))
}

/// Returns the path of an installed program, relative to the prefix.
pub(crate) fn place(program: &str) -> String {
    if program == PROGRAMS[0] { PROGRAM.to_owned() } else { format!("{TOOLS}/{program}") }
}

/// Whether a file, given by its path below the prefix, belongs to the package `netpolicy-tools`.
pub(crate) fn is_of_tools(file: &str) -> bool {
    let of_command = |name: &str, before: &str, after: &str| {
        let rest = name.strip_prefix(before).and_then(|rest| rest.strip_suffix(after));
        let command = rest.map(|rest| rest.split('-').next().unwrap_or_default());
        command.is_some_and(|command| COMMANDS_OF_TOOLS.contains(&command))
    };
    file.starts_with(TOOLS)
        || of_command(file, "share/man/man8/netpolicy-", ".8")
        || of_command(file, "share/man/man8/netpolicy-", ".8.gz")
        || of_command(file, "share/netpolicy/schema/", ".json")
}

/// Lays out all installed files below a directory, for programs that will see it at `prefix`. The programs in
/// the directory `programs` must run on this machine, because they write their own manual pages, completions
/// and schemas.
pub(crate) fn lay(programs: &Path, below: &Path, prefix: &str) -> Result {
    for program in PROGRAMS {
        files::put(&programs.join(program), &below.join(place(program)), 0o755)?;
    }
    let program = programs.join(PROGRAMS[0]);
    let packaging = shell::root().join("packaging");
    for unit in UNITS {
        let text = files::read(&packaging.join("systemd").join(unit))?;
        let text = text.replace(IN_UNITS, &format!("{prefix}/{PROGRAM}"));
        files::write(&below.join("lib/systemd/system").join(unit), &text)?;
    }
    lay_copies(below)?;
    for (command, directory) in [("man", MANUAL), ("schema", "share/netpolicy/schema")] {
        let directory = below.join(directory);
        files::make_directory(&directory)?;
        shell::output(Command::new(&program).args(["--quiet", command, "--dir"]).arg(&directory))?;
    }
    for (shell, file) in COMPLETIONS {
        let script = shell::output(Command::new(&program).args(["completions", shell]))?;
        files::write(&below.join(file), &script)?;
    }
    Ok(())
}

/// Lays out the files that are only copied. In documents, only links to installed files remain.
fn lay_copies(below: &Path) -> Result {
    let mut copied: BTreeMap<PathBuf, PathBuf> =
        FILES.iter().map(|(from, to)| (PathBuf::from(from), PathBuf::from(to))).collect();
    for (from, to) in DIRECTORIES {
        for file in files::files_of(&shell::root().join(from))? {
            let name = file.file_name().unwrap_or_default();
            copied.insert(Path::new(from).join(name), Path::new(to).join(name));
        }
    }
    for (from, to) in &copied {
        let source = shell::root().join(from);
        if from.extension().is_some_and(|ending| ending == "md") {
            let text = with_installed_links(&files::read(&source)?, from, &copied);
            files::write(&below.join(to), &text)?;
        } else {
            files::put(&source, &below.join(to), 0o644)?;
        }
    }
    Ok(())
}

/// Lays out, below a directory, the licences of netpolicy and of everything that is linked.
pub(crate) fn lay_licences(below: &Path) -> Result {
    let documents = below.join("share/doc/netpolicy");
    for file in LICENCES {
        files::put(&shell::root().join(file), &documents.join(file), 0o644)?;
    }
    files::write(&documents.join("THIRD-PARTY"), &linked::third_party()?)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn pages_and_schemas_are_where_their_commands_are() {
        for file in [
            "libexec/netpolicy/netpolicy-tc",
            "share/man/man8/netpolicy-tc.8",
            "share/man/man8/netpolicy-tc-load.8.gz",
            "share/man/man8/netpolicy-lab.8.gz",
            "share/netpolicy/schema/bench.json",
        ] {
            assert!(is_of_tools(file), "{file}");
        }
        for file in [
            "sbin/netpolicy",
            "share/man/man8/netpolicy.8.gz",
            "share/man/man8/netpolicy-show.8.gz",
            "share/netpolicy/schema/show.json",
            "share/netpolicy/recipes/latency.toml",
        ] {
            assert!(!is_of_tools(file), "{file}");
        }
    }

    #[test]
    fn every_link_of_an_installed_document_leads_to_an_installed_file() -> Result {
        let below = std::env::temp_dir().join(format!("netpolicy-copies-{}", std::process::id()));
        let laid = lay_copies(&below).and_then(|()| links_astray(&below));
        files::remove(&below)?;
        let (links, astray) = laid?;
        assert!(links > 30, "only {links} links were found");
        assert!(astray.is_empty(), "these lead nowhere:\n{}", astray.join("\n"));
        Ok(())
    }

    /// Returns the number of links to files in the documents below a directory, and the broken links.
    fn links_astray(below: &Path) -> Result<(usize, Vec<String>)> {
        let (mut links, mut astray) = (0, Vec::new());
        for (_, to) in DIRECTORIES {
            for path in files::files_of(&below.join(to))? {
                if path.extension().is_none_or(|ending| ending != "md") {
                    continue;
                }
                let text = files::read(&path)?;
                // No document has `](` in code, so every `](` begins the target of a link.
                for target in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
                    let file = target.split('#').next().unwrap_or_default();
                    if target.contains("://") || file.is_empty() {
                        continue;
                    }
                    links += 1;
                    if !path.with_file_name(file).exists() {
                        astray.push(format!("{}: {target}", path.display()));
                    }
                }
            }
        }
        Ok((links, astray))
    }
}
