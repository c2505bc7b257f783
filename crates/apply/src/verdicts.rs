//! Verdicts on a transaction, in a separate file next to its journal.
//!
//! Undo needs no verdicts, so they are not records of the journal. A version of netpolicy that does not know
//! verdicts reads, keeps and undoes such a transaction like any other. Damage to the file loses only the
//! verdicts.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use model::{FormatName, Judgement};
use serde::{Deserialize, Serialize};

use crate::log::{JournalError, io_error};
use crate::recorded::RecordedTransaction;
use crate::regular;

/// The file's name.
const VERDICTS: &str = "verdicts.json";

/// The temporary name of the verdicts file, which it has until it is complete.
const UNFINISHED: &str = ".verdicts.json";

/// The maximum number of verdicts per transaction; the newest are kept.
pub const VERDICTS_MAX: usize = 8;

/// The maximum size of the verdicts file. Eight verdicts take about 20 KiB.
const BYTES_MAX: u64 = 256 << 10;

#[derive(Deserialize)]
struct FileIn {
    verdicts: Vec<Judgement>,
}

#[derive(Serialize)]
struct FileOut<'a> {
    schema: FormatName,
    verdicts: &'a [Judgement],
}

/// The verdicts in a transaction's file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Verdicts {
    /// The verdicts, oldest first.
    pub(crate) known: Vec<Judgement>,
    /// Why the file could not be read; `None` if it was read.
    pub(crate) unread: Option<String>,
    /// The size of the file.
    bytes: u64,
}

impl Verdicts {
    /// Reads the verdicts in a transaction's directory. Most transactions have none.
    pub(crate) fn read(directory: &Path) -> Self {
        let path = directory.join(VERDICTS);
        let file = match regular::open_to_read(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == ErrorKind::NotFound => return Self::default(),
            Err(error) => return Self { unread: Some(error.to_string()), ..Self::default() },
        };
        let mut text = String::new();
        let read = file.take(BYTES_MAX).read_to_string(&mut text).map_err(|error| error.to_string());
        let parsed =
            read.and_then(|_| serde_json::from_str::<FileIn>(&text).map_err(|error| error.to_string()));
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        match parsed {
            Ok(FileIn { verdicts }) => Self { known: verdicts, unread: None, bytes },
            Err(error) => Self { known: Vec::new(), unread: Some(error), bytes },
        }
    }

    /// The verdicts of a recorded transaction.
    pub(crate) fn recorded(recorded: &RecordedTransaction) -> Self {
        Self { known: recorded.verdicts.clone(), unread: recorded.unread_verdicts.clone(), bytes: 0 }
    }

    /// Whether the file in this directory has the same size as before.
    pub(crate) fn is_as_it_was(&self, directory: &Path) -> bool {
        let bytes = fs::metadata(directory.join(VERDICTS)).map_or(0, |metadata| metadata.len());
        bytes == self.bytes
    }

    /// Writes the newest verdicts, at most [`VERDICTS_MAX`]. A reader never sees an incomplete file.
    pub(crate) fn write(directory: &Path, verdicts: &[Judgement]) -> Result<(), JournalError> {
        let verdicts = &verdicts[verdicts.len().saturating_sub(VERDICTS_MAX)..];
        let (unfinished, path) = (directory.join(UNFINISHED), directory.join(VERDICTS));
        let document = FileOut { schema: FormatName, verdicts };
        let mut text = serde_json::to_vec(&document).expect("verdicts serialize to JSON");
        text.push(b'\n');
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true).mode(0o600);
        let mut file = regular::open(&unfinished, &mut options).map_err(io_error(&unfinished, "create"))?;
        file.write_all(&text).and_then(|()| file.sync_data()).map_err(io_error(&unfinished, "write"))?;
        fs::rename(&unfinished, &path).map_err(io_error(&path, "write"))
    }
}
