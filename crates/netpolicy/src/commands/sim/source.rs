//! Where scenarios and measured tables come from: a file, or what is shipped.

use std::path::{Path, PathBuf};

use crate::exit::Exit;
use crate::fault::Fault;
use crate::scenario_file::{MeasuredTable, SHIPPED, ScenarioFile, measured, parse, shipped};

/// A scenario with its origin.
#[derive(Debug)]
pub(crate) struct Source {
    /// Its name: of the shipped scenario, or of the file.
    pub(crate) name: String,
    /// What it says.
    pub(crate) file: ScenarioFile,
    path: Option<PathBuf>,
}

/// Reads a scenario: a file's path, or the name of a shipped one.
pub(crate) fn scenario(name: &str) -> Result<Source, Fault> {
    if let Some(shipped) = shipped(name) {
        let file =
            parse(&format!("{name}.toml"), shipped.scenario).map_err(|m| Fault::new(Exit::Usage, m))?;
        return Ok(Source { name: name.to_owned(), file, path: None });
    }
    let path = Path::new(name);
    if !path.exists() && !name.contains(['/', '.']) {
        let names = SHIPPED.map(|shipped| shipped.name).join(", ");
        return Err(Fault::new(
            Exit::Usage,
            format!("there is no scenario `{name}`: there are {names}, or a file"),
        ));
    }
    let text = std::fs::read_to_string(path).map_err(|error| Fault::file(path, error))?;
    let file = parse(name, &text).map_err(|mistakes| Fault::new(Exit::Usage, mistakes))?;
    Ok(Source { name: name.to_owned(), file, path: Some(path.to_owned()) })
}

/// Whether a file can be written, before hours of work are put into what it is to hold. A file that is there stays as it is.
pub(super) fn writable(path: &Path) -> Result<(), Fault> {
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|error| Fault::file(path, error))
}

impl Source {
    /// The measured table that the scenario names, or another; of rows that `wanted` turns down, only the names.
    pub(super) fn measured(
        &self,
        other: Option<&Path>,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<MeasuredTable, Fault> {
        if other.is_none()
            && self.path.is_none()
            && let Some(shipped) = shipped(&self.name).filter(|shipped| !shipped.measured.is_empty())
        {
            let name = format!("{}.tsv", self.name);
            return measured(&name, shipped.measured, wanted).map_err(|m| Fault::new(Exit::Usage, m));
        }
        let named = self.file.calibration.as_ref().map(|calibration| calibration.measured.as_str());
        let beside = self.path.as_deref().and_then(Path::parent).unwrap_or_else(|| Path::new("."));
        let path = match (other, named) {
            (Some(path), _) => path.to_owned(),
            (None, Some(file)) if !file.is_empty() => beside.join(file),
            (None, _) => {
                return Err(Fault::new(Exit::Usage, format!("{} names no measured rows", self.name))
                    .hint("give a table with --measured FILE"));
            }
        };
        let text = std::fs::read_to_string(&path).map_err(|error| Fault::file(&path, error))?;
        measured(&path.display().to_string(), &text, wanted).map_err(|m| Fault::new(Exit::Usage, m))
    }
}
