//! Reads scenarios and measured tables from files, or takes the shipped ones.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use session::{Exit, Fault};

use super::runs::rows;
use crate::evidence::{self, EVIDENCE_BYTES_MAX, Written, is_evidence};
use crate::scenario_file::{MeasuredTable, SHIPPED, ScenarioFile, measured, parse, parse_over, shipped};

/// A scenario and the place that it was read from.
#[derive(Debug)]
pub(crate) struct Source {
    /// The name of the shipped scenario, or the path of the file.
    pub(crate) name: String,
    pub(crate) file: ScenarioFile,
    path: Option<PathBuf>,
}

/// Reads a scenario: a file's path, the name of a shipped one, or `-` for standard input.
pub(crate) fn scenario(path: &Path) -> Result<Source, Fault> {
    let name = shown(path);
    let wrong = |mistakes| Fault::new(Exit::Usage, mistakes);
    if let Some(shipped) = path.to_str().and_then(shipped) {
        let file = parse(&format!("{name}.toml"), shipped.scenario).map_err(wrong)?;
        return Ok(Source { name, file, path: None });
    }
    let is_file = path.as_os_str() != STANDARD_INPUT;
    if is_file && !path.exists() && !name.contains(['/', '.']) {
        let names = SHIPPED.map(|shipped| shipped.name).join(", ");
        let words = format!("no scenario or file `{name}`; the scenarios are {names}");
        return Err(Fault::new(Exit::Usage, words));
    }
    let file = parse(&name, &scenario_text(path)?).map_err(wrong)?;
    Ok(Source { name, file, path: is_file.then(|| path.to_owned()) })
}

/// The file name of standard input.
const STANDARD_INPUT: &str = "-";
/// Maximum size of a scenario and of a table.
const SCENARIO_BYTES_MAX: u64 = 16 << 20;
const TABLE_BYTES_MAX: usize = 16 << 20;

/// Formats a path for messages.
fn shown(path: &Path) -> String {
    match path.as_os_str() == STANDARD_INPUT {
        true => "standard input".to_owned(),
        false => path.display().to_string(),
    }
}

/// Refuses a command line that reads two files from standard input.
pub(super) fn standard_input_once(files: &[(&str, Option<&Path>)]) -> Result<(), Fault> {
    let from_there = |file: &Path| file.as_os_str() == STANDARD_INPUT;
    let mut readers = files.iter().filter(|(_, file)| file.is_some_and(from_there)).map(|(name, _)| name);
    match (readers.next(), readers.next()) {
        (Some(one), Some(other)) => Err(Fault::new(
            Exit::Usage,
            format!("standard input can be read once, but is given for both {one} and {other}"),
        )
        .hint(format!("give {other} a file"))),
        _ => Ok(()),
    }
}

/// Reads a file or standard input.
fn bytes_of(path: &Path, most: u64) -> Result<Vec<u8>, Fault> {
    let mut bytes = Vec::new();
    let read = if path.as_os_str() == STANDARD_INPUT {
        std::io::stdin().lock().take(most + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(most + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| Fault::file(path, error))?;
    if bytes.len() as u64 > most {
        return Err(too_large(path, most));
    }
    Ok(bytes)
}

fn too_large(path: &Path, most: u64) -> Fault {
    Fault::new(Exit::Usage, format!("{}: it is larger than {most} bytes", shown(path)))
}

/// Decodes the bytes as UTF-8 text and removes a byte order mark.
fn text(path: &Path, bytes: Vec<u8>) -> Result<String, Fault> {
    let text = String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|&&byte| byte == b'\n').count() + 1;
        Fault::new(Exit::Usage, format!("{}: line {line} is not UTF-8 text", shown(path)))
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

fn scenario_text(path: &Path) -> Result<String, Fault> {
    text(path, bytes_of(path, SCENARIO_BYTES_MAX)?)
}

/// Checks that a file can be written before hours of work produce its contents. An existing file is left
/// unchanged, and no new file is left behind.
pub(super) fn writable(option: &str, path: &Path, inputs: &[Option<&Path>]) -> Result<(), Fault> {
    if path.as_os_str() == STANDARD_INPUT {
        return Err(Fault::new(
            Exit::Usage,
            format!("{option}: `-` is not a file that can be written: give a file name"),
        ));
    }
    if let Some(input) = inputs.iter().flatten().find(|input| is_same(input, path)) {
        let words = format!("{option} {} would overwrite {}", path.display(), shown(input));
        return Err(Fault::new(Exit::Usage, words).hint("name a different file"));
    }
    let tried = match path.metadata() {
        Ok(found) if found.is_file() || found.is_dir() => {
            OpenOptions::new().append(true).open(path).map(drop)
        }
        // Do not open a pipe: closing it would signal the end of the data to its reader. A device has no
        // contents to lose.
        Ok(_) => Ok(()),
        Err(_) if path.is_symlink() => OpenOptions::new().append(true).create(true).open(path).map(drop),
        Err(_) => OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .and_then(|_| std::fs::remove_file(path)),
    };
    tried.map_err(|error| Fault::file(path, error))
}

/// Whether two paths refer to the same file.
fn is_same(one: &Path, other: &Path) -> bool {
    let found = |path: &Path| path.metadata().ok().map(|found| (found.dev(), found.ino()));
    found(one).is_some_and(|one| found(other) == Some(one))
}

impl Source {
    /// Replaces the scenario's parameters with those of another file, such as the output of a calibration.
    pub(super) fn with_costs(mut self, costs: Option<&Path>) -> Result<Self, Fault> {
        if let Some(path) = costs {
            let text = scenario_text(path)?;
            self.file = parse_over(&shown(path), &text, self.file).map_err(|m| Fault::new(Exit::Usage, m))?;
        }
        Ok(self)
    }

    /// Returns the path of the measured table: `other` if given, otherwise the file that the scenario names.
    pub(super) fn table(&self, other: Option<&Path>) -> Option<PathBuf> {
        let named = self.file.calibration.as_ref().map(|calibration| calibration.measured.as_str());
        let beside = self.path.as_deref().and_then(Path::parent).unwrap_or_else(|| Path::new(""));
        match (other, named) {
            (Some(path), _) => Some(path.to_owned()),
            // The name in a scenario always refers to a file, even if it is `-`.
            (None, Some(STANDARD_INPUT)) => Some(Path::new(".").join(beside).join(STANDARD_INPUT)),
            (None, Some(file)) if !file.is_empty() => Some(beside.join(file)),
            (None, _) => None,
        }
    }

    /// Reads the given measured table, which may be a bench's evidence, or else the table that the scenario
    /// names. For rows that `wanted` rejects, only the names are read.
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
            return measured(&name, shipped.measured, &self.file.scenario, wanted)
                .map_err(|m| Fault::new(Exit::Usage, m));
        }
        let Some(path) = self.table(other) else {
            return Err(Fault::new(Exit::Usage, format!("{} names no measured rows", self.name))
                .hint("give a table with --measured FILE"));
        };
        let bytes = bytes_of(&path, EVIDENCE_BYTES_MAX)?;
        if is_evidence(&bytes) {
            let Written::Results(results) = evidence::of(&path, &bytes)? else {
                return Err(Fault::new(
                    Exit::Usage,
                    format!("{}: only evidence of `bench memcached` has rows for a scenario", shown(&path)),
                ));
            };
            return rows(&shown(&path), &results, &self.file.scenario, wanted);
        }
        if bytes.len() > TABLE_BYTES_MAX {
            return Err(too_large(&path, TABLE_BYTES_MAX as u64));
        }
        let text = text(&path, bytes)?;
        measured(&shown(&path), &text, &self.file.scenario, wanted).map_err(|m| Fault::new(Exit::Usage, m))
    }
}
