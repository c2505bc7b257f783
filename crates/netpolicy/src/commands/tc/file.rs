//! A batch file that can be read more than once.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rules::batch::ReadError;
use rules::{Batch, Command, Lookup};

use crate::exit::Exit;
use crate::fault::Fault;

/// How much of standard input is kept: it cannot be read twice.
const STDIN_BYTES_MAX: u64 = 1 << 30;

/// A shorter file is read by one thread: to begin another one takes as long as to read this much.
const HALVED_BYTES_MIN: u64 = 256 * 1024;

/// How far the end of a line is looked for.
const MIDDLE_BYTES: usize = 4096;

/// A batch file.
#[derive(Debug)]
pub(super) enum BatchFile {
    /// One with a name.
    At(PathBuf),
    /// Standard input, as it came.
    Stdin(Vec<u8>),
}

impl BatchFile {
    /// The file with this name; - is standard input, which is read now.
    pub(super) fn named(path: &Path) -> Result<Self, Fault> {
        if path != Path::new("-") {
            return Ok(Self::At(path.to_owned()));
        }
        let mut bytes = Vec::new();
        let read = io::stdin().lock().take(STDIN_BYTES_MAX + 1).read_to_end(&mut bytes);
        read.map_err(|error| Fault::file("standard input", error))?;
        if bytes.len() as u64 > STDIN_BYTES_MAX {
            return Err(Fault::new(
                Exit::Usage,
                "standard input has more than 1 GiB: give the rules as a file",
            ));
        }
        Ok(Self::Stdin(bytes))
    }

    /// Its name, for people.
    pub(super) fn name(&self) -> String {
        match self {
            Self::At(path) => path.display().to_string(),
            Self::Stdin(_) => "-".to_owned(),
        }
    }

    /// How long it is, if that is known.
    pub(super) fn length(&self) -> Option<u64> {
        match self {
            Self::At(path) => {
                std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file).map(|m| m.len())
            }
            Self::Stdin(bytes) => u64::try_from(bytes.len()).ok(),
        }
    }

    /// Its commands from the beginning.
    pub(super) fn commands(&self) -> Result<Batch<Box<dyn Read + '_>>, Fault> {
        self.commands_of(0, u64::MAX)
    }

    /// The commands of this many bytes from this byte on, where a line begins.
    pub(super) fn commands_of(&self, start: u64, length: u64) -> Result<Batch<Box<dyn Read + '_>>, Fault> {
        Ok(Batch::new(match self {
            Self::At(path) => {
                let failed = |error| self.unreadable(path, error);
                let mut file = File::open(path).map_err(failed)?;
                if start > 0 {
                    file.seek(SeekFrom::Start(start)).map_err(failed)?;
                }
                if length == u64::MAX { Box::new(file) } else { Box::new(file.take(length)) }
            }
            Self::Stdin(bytes) => {
                let rest = usize::try_from(start).ok().and_then(|start| bytes.get(start..)).unwrap_or(&[]);
                Box::new(rest.take(length))
            }
        }))
    }

    /// The byte where a line begins, about in the middle, if it is worth while to read both halves at the same time.
    pub(super) fn middle(&self) -> Option<u64> {
        let length = self.length().filter(|length| *length >= HALVED_BYTES_MIN)?;
        let near = length / 2;
        let mut around = [0; MIDDLE_BYTES];
        let count = match self {
            Self::At(path) => File::open(path).ok()?.read_at(&mut around, near).ok()?,
            Self::Stdin(bytes) => {
                let rest = &bytes[usize::try_from(near).ok()?..];
                rest.take(MIDDLE_BYTES as u64).read(&mut around).ok()?
            }
        };
        // A backslash before the newline may join the next line to this one.
        let end = around[..count].windows(2).position(|two| two[0] != b'\\' && two[1] == b'\n')?;
        Some(near + u64::try_from(end).ok()? + 2)
    }

    /// Gives each command with its line; with `wrong` for lines that are wrong.
    pub(super) fn each(
        &self,
        lookup: &mut dyn Lookup,
        command: impl FnMut(u32, &mut Command, u64) -> Result<bool, Fault>,
        wrong: impl FnMut(rules::Mistake) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        self.each_of(&mut self.commands()?, lookup, command, wrong)
    }

    /// The same for a part of it.
    pub(super) fn each_of(
        &self,
        batch: &mut Batch<Box<dyn Read + '_>>,
        lookup: &mut dyn Lookup,
        mut command: impl FnMut(u32, &mut Command, u64) -> Result<bool, Fault>,
        mut wrong: impl FnMut(rules::Mistake) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        loop {
            let behind = batch.consumed();
            match batch.next_command(lookup) {
                Ok(Some((line, found))) => {
                    if !command(line, found, behind)? {
                        return Ok(());
                    }
                }
                Ok(None) => return Ok(()),
                Err(ReadError::Mistake(mistake)) => wrong(*mistake)?,
                Err(ReadError::Io(error)) => return Err(self.unreadable(Path::new(&self.name()), error)),
            }
        }
    }

    fn unreadable(&self, path: &Path, error: io::Error) -> Fault {
        let mut fault = Fault::file(path, error);
        fault.exit = Exit::Usage;
        fault
    }
}
