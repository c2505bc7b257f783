//! A batch file that can be read more than once.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use rules::batch::ReadError;
use rules::{Batch, Command, Group, Hook, Lookup, Verb};

use crate::exit::Exit;
use crate::fault::Fault;
use crate::policy_file::{Mistake, Mistakes, nearest};

/// How much of standard input is kept: it cannot be read twice.
const STDIN_BYTES_MAX: u64 = 1 << 30;

/// How many mistakes are kept to be drawn.
const MISTAKES_MAX: usize = 1000;

/// A batch file.
#[derive(Debug)]
pub(super) enum BatchFile {
    /// One with a name.
    At(PathBuf),
    /// Standard input, as it came.
    Stdin(Vec<u8>),
}

/// What a file says, from reading all of it.
#[derive(Debug, Default)]
pub(super) struct Survey {
    pub(super) commands: u64,
    pub(super) rules: u64,
    pub(super) groups: BTreeSet<Group>,
    pub(super) mistakes: Vec<Mistake>,
    pub(super) wrong: usize,
    /// The first line that cannot be taken back by removing what it adds.
    pub(super) irreversible: Option<u32>,
    /// The first line that takes something away.
    pub(super) removes: Option<u32>,
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
        Ok(Batch::new(match self {
            Self::At(path) => Box::new(File::open(path).map_err(|error| self.unreadable(path, error))?),
            Self::Stdin(bytes) => Box::new(&bytes[..]),
        }))
    }

    /// Gives each command with its line; with `wrong` for lines that are wrong.
    pub(super) fn each(
        &self,
        lookup: &mut dyn Lookup,
        mut command: impl FnMut(u32, &mut Command, u64) -> Result<bool, Fault>,
        mut wrong: impl FnMut(&rules::Mistake) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut batch = self.commands()?;
        loop {
            let behind = batch.consumed();
            match batch.next_command(lookup) {
                Ok(Some((line, found))) => {
                    if !command(line, found, behind)? {
                        return Ok(());
                    }
                }
                Ok(None) => return Ok(()),
                Err(ReadError::Mistake(mistake)) => wrong(&mistake)?,
                Err(ReadError::Io(error)) => return Err(self.unreadable(Path::new(&self.name()), error)),
            }
        }
    }

    /// Reads all of it and says what it says.
    pub(super) fn survey(
        &self,
        lookup: &mut dyn Lookup,
        mut take: impl FnMut(u32, &mut Command, u64) -> Result<(), Fault>,
    ) -> Result<Survey, Fault> {
        let (mut survey, mut mistakes, mut wrong) = (Survey::default(), Vec::new(), 0);
        let mut last = Group::default();
        let name = self.name();
        self.each(
            lookup,
            |line, command, behind| {
                survey.commands += 1;
                if !matches!(command, Command::Filter(rule) if rule.verb == Verb::Add && rule.classifier.kind().is_some() && !rule.is_chain) {
                    survey.irreversible.get_or_insert(line);
                }
                if command.removes() {
                    survey.removes.get_or_insert(line);
                }
                let Some(rule) = command.rule() else {
                    take(line, command, behind)?;
                    return Ok(true);
                };
                survey.rules += 1;
                let group = rule.group();
                if group != last || survey.rules == 1 {
                    survey.groups.insert(group);
                    last = group;
                }
                take(line, command, behind)?;
                Ok(true)
            },
            |mistake| {
                wrong += 1;
                if mistakes.len() < MISTAKES_MAX {
                    mistakes.push(drawn(&name, mistake));
                }
                Ok(())
            },
        )?;
        (survey.mistakes, survey.wrong) = (mistakes, wrong);
        Ok(survey)
    }

    fn unreadable(&self, path: &Path, error: io::Error) -> Fault {
        let mut fault = Fault::file(path, error);
        fault.exit = Exit::Usage;
        fault
    }
}

impl Survey {
    /// The hooks of its rules.
    pub(super) fn hooks(&self) -> BTreeSet<Hook> {
        self.groups.iter().map(|group| group.hook).collect()
    }

    /// The fault of a file with wrong lines.
    pub(super) fn mistaken(&mut self) -> Option<Fault> {
        if self.mistakes.is_empty() {
            return None;
        }
        Some(Fault::new(Exit::Usage, Mistakes(std::mem::take(&mut self.mistakes))))
    }
}

/// A mistake with its place in the file and the nearest word that would have been right.
fn drawn(file: &str, mistake: &rules::Mistake) -> Mistake {
    let meant = nearest(&mistake.found, mistake.expected.iter().copied());
    let help = match meant {
        Some(word) => Some(format!("did you mean `{word}`?")),
        None if mistake.expected.is_empty() => None,
        None => Some(format!("one of: {}", mistake.expected.join(", "))),
    };
    let line = usize::try_from(mistake.line).unwrap_or(usize::MAX);
    let start = mistake.column - 1;
    Mistake::of_line(file, line, &mistake.text, start..start + mistake.width, mistake.message.clone(), help)
}
