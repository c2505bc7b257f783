//! A batch file, command by command.

use std::io::{self, Read};

use crate::command::Command;
use crate::lines::Lines;
use crate::lookup::Lookup;
use crate::words::{self, Mistake, Spans, Words};

/// Why the next command could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The file could not be read further.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The line is wrong; the next one may be right.
    #[error("{0}")]
    Mistake(Box<Mistake>),
}

/// The commands of a file. It streams: memory does not grow with the file, and a command's memory is used again for
/// the next one.
#[derive(Debug)]
pub struct Batch<R> {
    lines: Lines<R>,
    spans: Spans,
    command: Command,
}

impl<R: Read> Batch<R> {
    /// The commands of this input.
    pub fn new(input: R) -> Self {
        Self { lines: Lines::new(input), spans: Spans::default(), command: Command::default() }
    }

    /// How many bytes of the file are behind us.
    pub const fn consumed(&self) -> u64 {
        self.lines.consumed()
    }

    /// The next command and its line; `None` at the end of the file. It is lent to be changed before it is encoded.
    ///
    /// # Errors
    /// [`ReadError::Mistake`] for a line that is wrong, after which reading may go on.
    pub fn next_command(
        &mut self,
        lookup: &mut dyn Lookup,
    ) -> Result<Option<(u32, &mut Command)>, ReadError> {
        loop {
            let Some(line) = self.lines.next_line()? else { return Ok(None) };
            let text = words::split(&line, &mut self.spans).map_err(ReadError::Mistake)?;
            if self.spans.is_empty() {
                continue;
            }
            let number = line.number;
            let mut words = Words::new(text, &self.spans);
            if let Err(wrong) = self.command.parse(&mut words, lookup) {
                return Err(ReadError::Mistake(Box::new(words.mistake(*wrong, &line))));
            }
            return Ok(Some((number, &mut self.command)));
        }
    }
}
