//! The windows of a watch, kept in a file: one JSON document a line.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use linux::machine::{Machine, seconds_since_1970};
use model::Schema;
use model::live::LiveWindow;
use serde::{Deserialize, Serialize};

use super::target::Target;
use crate::fault::Fault;

/// What the first line says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Header {
    /// The format.
    pub(crate) schema: Schema,
    /// `watch-record`.
    pub(crate) kind: String,
    /// What was watched.
    pub(crate) service: String,
    /// The ports.
    pub(crate) ports: Vec<u16>,
    /// The host's name.
    pub(crate) host: String,
    /// Its kernel.
    pub(crate) kernel: String,
    /// When it began, in seconds since 1970.
    pub(crate) started: u64,
}

/// What each other line says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Recorded {
    /// When the window ended, in seconds since 1970.
    pub(crate) at: u64,
    /// What was measured.
    pub(crate) window: LiveWindow,
}

/// A file that windows are written to.
#[derive(Debug)]
pub(crate) struct Record {
    path: PathBuf,
    file: BufWriter<File>,
}

impl Record {
    /// Makes the file, or empties it.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn create(path: &Path, target: &Target) -> Result<Self, Fault> {
        let file = File::create(path).map_err(|error| Fault::file(path, error))?;
        let mut record = Self { path: path.to_owned(), file: BufWriter::new(file) };
        let Machine { host, kernel, .. } = Machine::this();
        record.line(&Header {
            schema: Schema,
            kind: "watch-record".to_owned(),
            service: target.name.clone(),
            ports: target.ports.clone(),
            host,
            kernel,
            started: seconds_since_1970(),
        })?;
        Ok(record)
    }

    /// Adds a window. It is in the file when this returns.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn add(&mut self, window: &LiveWindow) -> Result<(), Fault> {
        self.line(&Recorded { at: seconds_since_1970(), window: window.clone() })
    }

    fn line(&mut self, document: &impl Serialize) -> Result<(), Fault> {
        let text = serde_json::to_string(document).map_err(Fault::failed)?;
        let written = writeln!(self.file, "{text}").and_then(|()| self.file.flush());
        written.map_err(|error| Fault::file(&self.path, error))
    }
}
