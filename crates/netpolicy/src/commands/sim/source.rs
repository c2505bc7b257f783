//! Where scenarios and measured tables come from: a file, or what is shipped.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::runs::rows;
use crate::commands::bench::evidence::{self, EVIDENCE_BYTES_MAX, Written, is_evidence};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::scenario_file::{MeasuredTable, SHIPPED, ScenarioFile, measured, parse, parse_over, shipped};

/// A scenario with its origin.
#[derive(Debug)]
pub(crate) struct Source {
    /// Its name: of the shipped scenario, or of the file.
    pub(crate) name: String,
    /// What it says.
    pub(crate) file: ScenarioFile,
    path: Option<PathBuf>,
}

/// Reads a scenario: a file's path, the name of a shipped one, or `-` for standard input.
pub(crate) fn scenario(name: &str) -> Result<Source, Fault> {
    if let Some(shipped) = shipped(name) {
        let file =
            parse(&format!("{name}.toml"), shipped.scenario).map_err(|m| Fault::new(Exit::Usage, m))?;
        return Ok(Source { name: name.to_owned(), file, path: None });
    }
    let path = Path::new(name);
    if name == STANDARD_INPUT {
        let file = parse("standard input", &scenario_text(path)?).map_err(|m| Fault::new(Exit::Usage, m))?;
        return Ok(Source { name: "standard input".to_owned(), file, path: None });
    }
    if !path.exists() && !name.contains(['/', '.']) {
        let names = SHIPPED.map(|shipped| shipped.name).join(", ");
        return Err(Fault::new(
            Exit::Usage,
            format!("there is no scenario `{name}`: there are {names}, or a file"),
        ));
    }
    let text = scenario_text(path)?;
    let file = parse(name, &text).map_err(|mistakes| Fault::new(Exit::Usage, mistakes))?;
    Ok(Source { name: name.to_owned(), file, path: Some(path.to_owned()) })
}

/// The file name of standard input.
const STANDARD_INPUT: &str = "-";
/// The most that is read of a scenario.
const SCENARIO_BYTES_MAX: u64 = 16 << 20;

/// What is in a file, or comes from standard input.
fn bytes_of(path: &Path, most: u64) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    let read = if path.as_os_str() == STANDARD_INPUT {
        std::io::stdin().lock().take(most + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| Fault::file(path, error))?;
    if bytes.len() as u64 > most {
        let words = format!("{}: it is larger than {most} bytes", path.display());
        return Err(Fault::new(Exit::Usage, words));
    }
    Ok(bytes)
}

/// That, as text.
fn text(path: &Path, bytes: Vec<u8>) -> Result<String, Fault> {
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|&&byte| byte == b'\n').count() + 1;
        Fault::new(Exit::Usage, format!("{}: line {line} is not UTF-8 text", path.display()))
    })
}

fn scenario_text(path: &Path) -> Result<String, Fault> {
    text(path, bytes_of(path, SCENARIO_BYTES_MAX)?)
}

/// Whether a file can be written, before hours of work are put into what it is to hold. A file that is there stays as it is.
pub(super) fn writable(path: &Path) -> Result<(), Fault> {
    if path.as_os_str() == STANDARD_INPUT {
        return Err(Fault::new(Exit::Usage, "`-` is no file to be written: name one"));
    }
    let opened = std::fs::OpenOptions::new().append(true).create(true).open(path);
    opened.map(drop).map_err(|error| Fault::file(path, error))
}

impl Source {
    /// The same scenario with the parameters of another file, as a calibration writes it.
    pub(super) fn with_costs(mut self, costs: Option<&Path>) -> Result<Self, Fault> {
        if let Some(path) = costs {
            let text = scenario_text(path)?;
            let name = path.display().to_string();
            self.file = parse_over(&name, &text, self.file).map_err(|m| Fault::new(Exit::Usage, m))?;
        }
        Ok(self)
    }

    /// The measured table that the scenario names, or another, which may be a bench's evidence; of rows that `wanted` turns
    /// down, only the names.
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
        let bytes = bytes_of(&path, EVIDENCE_BYTES_MAX)?;
        if is_evidence(&bytes) {
            let Written::Results(results) = evidence::of(&path, &bytes)? else {
                return Err(Fault::new(
                    Exit::Usage,
                    format!("{}: only evidence of `bench memcached` has rows for a scenario", path.display()),
                ));
            };
            return rows(&results, &self.file.scenario, wanted);
        }
        let text = text(&path, bytes)?;
        measured(&path.display().to_string(), &text, wanted).map_err(|m| Fault::new(Exit::Usage, m))
    }
}
