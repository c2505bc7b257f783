//! How a daemon is told to be: `/etc/netpolicy/daemon.toml`, and the command line over it.

use std::path::Path;

use serde::Deserialize;
use session::{Exit, Fault};

use crate::args::{Daemon, OnStop};

/// Where a daemon's own settings are, unless another file is named.
pub(crate) const CONFIG_FILE: &str = "/etc/netpolicy/daemon.toml";

/// The longest file that is read.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// How a daemon is told to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Options {
    /// What becomes of what it has set when it ends.
    pub(crate) on_stop: OnStop,
    /// What else it may do.
    pub(crate) allow: apply::Allow,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
struct File {
    on_stop: Option<OnStop>,
    #[serde(default)]
    disruptive: bool,
    #[serde(default)]
    allow_irreversible: bool,
}

impl Options {
    /// What the file says, and over it what the command line says.
    ///
    /// # Errors
    /// A file that was named and cannot be read, or that says what nobody understands.
    pub(crate) fn of(arguments: &Daemon) -> Result<Self, Fault> {
        let path = arguments.config.as_deref().unwrap_or(Path::new(CONFIG_FILE));
        let file = match read(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && arguments.config.is_none() => {
                File::default()
            }
            Err(error) => return Err(Fault { exit: Exit::Usage, ..Fault::file(path, error) }),
            Ok(text) => toml::from_str(&text).map_err(|error| {
                Fault::new(Exit::Usage, format!("{}: {}", path.display(), error.to_string().trim_end())).hint(
                    "a daemon's file knows on_stop = \"keep\" | \"revert\", disruptive, allow_irreversible",
                )
            })?,
        };
        Ok(Self {
            on_stop: arguments.on_stop.or(file.on_stop).unwrap_or(OnStop::Keep),
            allow: apply::Allow {
                disruptive: arguments.allow.disruptive || file.disruptive,
                irreversible: arguments.allow.allow_irreversible || file.allow_irreversible,
            },
        })
    }
}

fn read(path: &Path) -> std::io::Result<String> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)?.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
    Ok(text)
}
