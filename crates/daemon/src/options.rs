//! The daemon's options: `/etc/netpolicy/daemon.toml`, with overrides from the command line.

use std::path::Path;

use serde::Deserialize;
use session::{Exit, Fault};

/// The default path of the daemon's configuration.
pub(crate) const CONFIG_FILE: &str = "/etc/netpolicy/daemon.toml";

/// What happens to the daemon's settings when the daemon ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnStop {
    /// The settings stay in force.
    #[default]
    Keep,
    /// The settings are rolled back.
    Revert,
}

/// The daemon's options.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DaemonOptions {
    /// What happens to the daemon's settings when the daemon ends.
    pub on_stop: OnStop,
    /// Which disruptive or irreversible changes the daemon may make.
    pub allow: apply::Allow,
    /// Whether the daemon also pins an interrupt if the driver does not report the interrupt's queue.
    pub inferred: bool,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
struct File {
    on_stop: Option<OnStop>,
    #[serde(default)]
    disruptive: bool,
    #[serde(default)]
    allow_irreversible: bool,
    #[serde(default)]
    allow_inferred: bool,
}

impl DaemonOptions {
    /// Reads the configuration and applies the caller's overrides. `config` names a file to read instead of
    /// [`CONFIG_FILE`].
    ///
    /// # Errors
    /// If a named file cannot be read, or the file is not a valid configuration.
    pub fn read(
        config: Option<&Path>,
        on_stop: Option<OnStop>,
        allow: apply::Allow,
        inferred: bool,
    ) -> Result<Self, Fault> {
        let path = config.unwrap_or(Path::new(CONFIG_FILE));
        let file = match session::drop_in::read_text(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && config.is_none() => File::default(),
            Err(error) => return Err(Fault { exit: Exit::Usage, ..Fault::file(path, error) }),
            Ok(text) => toml::from_str(&text).map_err(|error| {
                Fault::new(Exit::Usage, format!("{}: {}", path.display(), error.to_string().trim_end())).hint(
                    "allowed keys: on_stop = \"keep\" | \"revert\", disruptive, allow_irreversible, allow_inferred",
                )
            })?,
        };
        Ok(Self {
            on_stop: on_stop.or(file.on_stop).unwrap_or(OnStop::Keep),
            allow: apply::Allow {
                disruptive: allow.disruptive || file.disruptive,
                irreversible: allow.irreversible || file.allow_irreversible,
            },
            inferred: inferred || file.allow_inferred,
        })
    }
}
