//! Where scenarios and measured tables come from: a file, or what is shipped.

use std::fs::File;
use std::io::Read;
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

/// Reads a scenario: a file's path, the name of a shipped one, or `-` for standard input.
pub(crate) fn scenario(name: &str) -> Result<Source, Fault> {
    if let Some(shipped) = shipped(name) {
        let file =
            parse(&format!("{name}.toml"), shipped.scenario).map_err(|m| Fault::new(Exit::Usage, m))?;
        return Ok(Source { name: name.to_owned(), file, path: None });
    }
    let path = Path::new(name);
    if name == STANDARD_INPUT {
        let file = parse("standard input", &text_of(path)?).map_err(|m| Fault::new(Exit::Usage, m))?;
        return Ok(Source { name: "standard input".to_owned(), file, path: None });
    }
    if !path.exists() && !name.contains(['/', '.']) {
        let names = SHIPPED.map(|shipped| shipped.name).join(", ");
        return Err(Fault::new(
            Exit::Usage,
            format!("there is no scenario `{name}`: there are {names}, or a file"),
        ));
    }
    let text = text_of(path)?;
    let file = parse(name, &text).map_err(|mistakes| Fault::new(Exit::Usage, mistakes))?;
    Ok(Source { name: name.to_owned(), file, path: Some(path.to_owned()) })
}

/// The file name of standard input.
const STANDARD_INPUT: &str = "-";
/// The most that is read of a scenario or a table: a table of as many rows as one may have.
const TEXT_BYTES_MAX: u64 = 16 << 20;

/// The text in a file, or of standard input.
fn text_of(path: &Path) -> Result<String, Fault> {
    let mut bytes = Vec::new();
    let read = if path.as_os_str() == STANDARD_INPUT {
        std::io::stdin().lock().take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes)
    } else {
        File::open(path).and_then(|file| file.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes))
    };
    read.map_err(|error| Fault::file(path, error))?;
    let wrong = |what: String| Fault::new(Exit::Usage, format!("{}: {what}", path.display()));
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(wrong(format!("it is larger than {TEXT_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|&&byte| byte == b'\n').count() + 1;
        wrong(format!("line {line} is not UTF-8 text"))
    })
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
        let text = text_of(&path)?;
        measured(&path.display().to_string(), &text, wanted).map_err(|m| Fault::new(Exit::Usage, m))
    }
}
