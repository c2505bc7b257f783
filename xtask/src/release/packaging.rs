//! Common parts of all packages: the version, the maintainer, the scripts, and the compression effort.

use std::process::Command;

use crate::files;
use crate::shell::{self, Result};

/// Returns a script with its parts included; `put_back` is the command that rolls back.
pub(super) fn filled_script(script: &str, put_back: &str) -> Result<String> {
    let mut script = script.to_owned();
    for (name, file) in PARTS {
        let part = files::read(&shell::root().join("packaging/scripts").join(file))?;
        script = script.replace(name, part.trim_end());
    }
    Ok(script.replace("@PUT_BACK@", put_back))
}

/// The maintainer of the packages; distributors use their own name. Debian policy 5.6.2 requires an address,
/// and lintian rejects a control file without one (`malformed-contact`). The project has no public address,
/// so use one in `.invalid`: no host exists there (RFC 2606), and mail bounces immediately.
pub(crate) const MAINTAINER: &str = "the netpolicy developers <netpolicy@packages.invalid>";
/// The maintainer of the packages, without an address.
pub(crate) const VENDOR: &str = "the netpolicy developers";

/// The version of the artefacts.
#[derive(Clone, Debug)]
pub(crate) struct Version {
    /// The workspace's version: `0.1.0`.
    pub(crate) number: String,
    /// The suffix, if this is a pre-release.
    pub(crate) suffix: Option<String>,
    /// The modification time of files, in seconds.
    pub(crate) epoch: u64,
}

impl Version {
    /// The workspace's version, with the time of SOURCE_DATE_EPOCH or of the last commit.
    pub(crate) fn of_workspace(suffix: Option<String>) -> Result<Self> {
        let number = files::manifest_value("version")?;
        let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(said) => said,
            Err(_) => {
                let mut git = Command::new("git");
                shell::output(git.current_dir(shell::root()).args(["log", "-1", "--format=%ct"]))?
            }
        };
        let epoch = epoch
            .trim()
            .parse()
            .map_err(|error| format!("reading the time of the sources, {epoch:?}: {error}"))?;
        if let Some(suffix) = &suffix {
            let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'.';
            if suffix.is_empty() || !suffix.bytes().all(plain) {
                return Err(format!("--suffix {suffix:?}: letters, digits and dots"));
            }
        }
        Ok(Self { number, suffix, epoch })
    }

    /// The version in Debian's form.
    pub(crate) fn debian(&self) -> String {
        match &self.suffix {
            Some(suffix) => format!("{}~{suffix}", self.number),
            None => self.number.clone(),
        }
    }

    /// Version and release in RPM's form.
    pub(crate) fn rpm(&self) -> (String, String) {
        let release = self.suffix.as_ref().map_or("1".to_owned(), |suffix| format!("0.{suffix}"));
        (self.number.clone(), release)
    }
}

/// How much effort to put into compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effort {
    /// Produce small files, and package debug symbols.
    Release,
    /// Be fast and omit debug symbols: for trials of installation.
    Trial,
}

/// The parts that the maintainer scripts of all package formats may include, and their files.
const PARTS: [(&str, &str); 2] =
    [("@AFTER_INSTALL@", "after-install.sh"), ("@BEFORE_REMOVAL@", "before-removal.sh")];

#[cfg(test)]
mod versions {
    use super::*;

    #[test]
    fn a_version_before_a_release_sorts_before_it_in_both_orders() {
        let version = |suffix: Option<&str>| Version {
            number: "0.1.0".to_owned(),
            suffix: suffix.map(str::to_owned),
            epoch: 0,
        };
        assert_eq!(version(Some("rc1")).debian(), "0.1.0~rc1");
        assert_eq!(version(None).rpm(), ("0.1.0".to_owned(), "1".to_owned()));
        assert_eq!(version(Some("rc1")).rpm().1, "0.rc1");
        let before = Command::new("dpkg")
            .args(["--compare-versions", &version(Some("rc1")).debian(), "lt", &version(None).debian()])
            .status();
        assert!(before.is_ok_and(|status| status.success()));
    }
}
