//! The files of a transaction: a write-ahead log with the undo values, to which lines are appended, and a
//! script that undoes the transaction without netpolicy.
//!
//! docs/decisions/0002-journal.md explains which writes must be durable, and why the others need not be.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use model::Pid;

use crate::progress::TransactionProgress;
use crate::record::{Begin, JournalRecord, LineError, decode_line, encode_line};
use crate::regular;
use crate::transaction_name::TransactionName;

/// The journal's file name.
pub(crate) const JOURNAL: &str = "journal.jsonl";
/// The script's file name.
pub(crate) const UNDO_SCRIPT: &str = "undo.sh";
/// The name prefix of directories that are not yet, or no longer, transactions.
pub(crate) const UNBORN: &str = ".new-";

/// The maximum length of a journal. A plan of 10 000 changes takes 3 to 4 MiB.
pub const JOURNAL_BYTES_MAX: u64 = 16 << 20;

/// An error of the journal.
#[derive(Debug, thiserror::Error)]
pub enum JournalError {
    /// A file could not be read or written.
    #[error("cannot {doing} {}: {source}", file.display())]
    Io {
        /// The file or directory.
        file: PathBuf,
        /// The operation that failed.
        doing: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A line before the last one is damaged.
    #[error("{}:{line}: {why}", file.display())]
    Corrupt {
        /// The journal.
        file: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// The fault in the line.
        why: LineError,
    },
    /// The journal has no first line. The first line was complete before the directory got its transaction's
    /// name, so the file was damaged later.
    #[error("the first line of {} is missing", file.display())]
    Headless {
        /// The journal.
        file: PathBuf,
    },
    /// The journal is longer than [`JOURNAL_BYTES_MAX`], or the next record would make it so.
    #[error("{} has {bytes} bytes, the limit is {JOURNAL_BYTES_MAX}", file.display())]
    TooLong {
        /// The journal.
        file: PathBuf,
        /// The length.
        bytes: u64,
    },
    /// A transaction's journal cannot be read.
    #[error("{error}; {}", WayBack(script.as_deref()))]
    Unread {
        /// The cause.
        error: Box<JournalError>,
        /// The undo script, if it is a regular file.
        script: Option<PathBuf>,
    },
    /// Another process is writing.
    #[error("another netpolicy process holds the journal lock{}; waited {} s", Holder(*holder), waited.as_secs_f32())]
    Busy {
        /// The other process's pid, if it could be read.
        holder: Option<Pid>,
        /// How long this process waited.
        waited: Duration,
    },
    /// Another daemon uses this journal.
    #[error("another daemon uses {}{}", directory.display(), Holder(*by))]
    Kept {
        /// The other daemon's pid, if it could be read.
        by: Option<Pid>,
        /// The journal.
        directory: PathBuf,
    },
    /// The journal is a recording, and this transaction was already unreadable when the recording was made.
    #[error("{words}")]
    Recorded {
        /// The error that occurred when the journal was recorded.
        words: String,
        /// The undo script, if it was a regular file.
        script: Option<PathBuf>,
    },
    /// The requested transaction does not exist.
    #[error("there is no transaction {name} in {}", directory.display())]
    NoSuchTransaction {
        /// The requested name.
        name: TransactionName,
        /// The directory that was searched.
        directory: PathBuf,
    },
}

impl JournalError {
    /// Whether permission was denied.
    pub fn is_denied(&self) -> bool {
        match self {
            Self::Io { source, .. } => source.kind() == io::ErrorKind::PermissionDenied,
            Self::Unread { error, .. } => error.is_denied(),
            Self::Corrupt { .. }
            | Self::Headless { .. }
            | Self::TooLong { .. }
            | Self::Busy { .. }
            | Self::Kept { .. }
            | Self::Recorded { .. }
            | Self::NoSuchTransaction { .. } => false,
        }
    }
}

/// Formats the remedy for a transaction whose journal cannot be read, which is its undo script, if any.
struct WayBack<'a>(Option<&'a Path>);

impl std::fmt::Display for WayBack<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(script) => write!(f, "the script {} can still undo the transaction", script.display()),
            None => write!(f, "its {UNDO_SCRIPT} is missing as well"),
        }
    }
}

struct Holder(Option<Pid>);

impl std::fmt::Display for Holder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.map_or(Ok(()), |pid| write!(f, ": pid {pid}"))
    }
}

/// A journal that is open for writing.
#[derive(Debug)]
pub(crate) struct JournalFiles {
    path: PathBuf,
    file: File,
    /// The sequence number of the next line.
    seq: u64,
    /// The total length of the complete lines, in bytes.
    whole_bytes: u64,
    /// Whether a partial line may follow the complete lines.
    torn: bool,
    /// Whether the file system is read-only, as after a disk failure. This must not prevent an undo.
    read_only: bool,
    /// The undo script's file; `None` once the script and the directories are synced.
    script: Option<File>,
}

impl JournalFiles {
    /// Creates a transaction's directory with its script and the first line of its journal. On return, other
    /// processes can read both, and the first line is on disk, which is enough for an undo; until then, the
    /// transaction does not exist. [`JournalFiles::sync`] makes the rest survive a power loss.
    pub(crate) fn create(
        state: &Path,
        name: TransactionName,
        begin: Box<Begin>,
        script: &str,
    ) -> Result<Self, JournalError> {
        let unborn = state.join(format!("{UNBORN}{name}"));
        let log = Self::create_in(&unborn, begin, script).and_then(|mut log| {
            let born = state.join(name.to_string());
            fs::rename(&unborn, &born).map_err(io_error(&born, "create"))?;
            log.path = born.join(JOURNAL);
            Ok(log)
        });
        if log.is_err() {
            // If the removal fails, the next writer removes the directory.
            let _swept_later = fs::remove_dir_all(&unborn);
        }
        log
    }

    /// Like [`JournalFiles::create`], for a transaction that is already decided: appends the given records
    /// after the first line.
    pub(crate) fn create_decided(
        state: &Path,
        name: TransactionName,
        begin: Box<Begin>,
        script: &str,
        records: &[JournalRecord],
    ) -> Result<(), JournalError> {
        let unborn = state.join(format!("{UNBORN}{name}"));
        let created = Self::create_in(&unborn, begin, script).and_then(|mut log| {
            records.iter().try_for_each(|record| log.append(record))?;
            log.sync_inside()?;
            let born = state.join(name.to_string());
            fs::rename(&unborn, &born).map_err(io_error(&born, "create"))?;
            sync_directory(state)
        });
        if created.is_err() {
            let _swept_later = fs::remove_dir_all(&unborn);
        }
        created
    }

    /// Removes the transaction's directory. Renames it first, so that an interruption cannot leave part of a
    /// transaction.
    pub(crate) fn discard(&self) -> bool {
        let directory = self.directory();
        let Some(name) = directory.file_name() else { return false };
        let unborn = directory.with_file_name(format!("{UNBORN}{}", name.to_string_lossy()));
        let is_gone = fs::rename(directory, &unborn).is_ok();
        let _swept_later = fs::remove_dir_all(&unborn);
        is_gone
    }

    fn create_in(directory: &Path, begin: Box<Begin>, script: &str) -> Result<Self, JournalError> {
        create_directory(directory)?;
        let script_path = directory.join(UNDO_SCRIPT);
        let mut script_file = create_file(&script_path, 0o700)?;
        script_file.write_all(script.as_bytes()).map_err(io_error(&script_path, "write"))?;

        let path = directory.join(JOURNAL);
        let mut log = Self {
            file: create_file(&path, 0o600)?,
            path,
            seq: 0,
            whole_bytes: 0,
            torn: false,
            read_only: false,
            script: Some(script_file),
        };
        log.append(&JournalRecord::Begin(begin))?;
        log.file.sync_data().map_err(io_error(&log.path, "sync"))?;
        Ok(log)
    }

    /// Opens a journal for writing.
    pub(crate) fn reopen(
        directory: &Path,
        lines: u64,
        whole_bytes: u64,
        torn_bytes: u64,
    ) -> Result<Self, JournalError> {
        let path = directory.join(JOURNAL);
        let (file, read_only) = match regular::open(&path, OpenOptions::new().append(true)) {
            Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => {
                (regular::open_to_read(&path), true)
            }
            file => (file, false),
        };
        let file = file.map_err(io_error(&path, "open"))?;
        Ok(Self { path, file, seq: lines, whole_bytes, torn: torn_bytes > 0, read_only, script: None })
    }

    /// Appends a record. On return, other processes can read the record even if this process is killed
    /// afterwards.
    pub(crate) fn append(&mut self, record: &JournalRecord) -> Result<(), JournalError> {
        if self.read_only {
            return Err(io_error(&self.path, "write")(io::ErrorKind::ReadOnlyFilesystem.into()));
        }
        let line = encode_line(self.seq, record);
        let bytes = self.whole_bytes.saturating_add(u64::try_from(line.len()).unwrap_or(u64::MAX));
        if bytes > JOURNAL_BYTES_MAX {
            return Err(JournalError::TooLong { file: self.path.clone(), bytes });
        }
        // No line may follow a truncated line, which this process or an earlier one may have left.
        if self.torn {
            self.file.set_len(self.whole_bytes).map_err(io_error(&self.path, "truncate"))?;
        }
        self.torn = true;
        self.file.write_all(&line).map_err(io_error(&self.path, "write"))?;
        self.torn = false;
        self.seq += 1;
        self.whole_bytes = bytes;
        Ok(())
    }

    /// Makes all appended records, and the transaction itself, survive a power loss.
    pub(crate) fn sync(&mut self) -> Result<(), JournalError> {
        let new = self.script.is_some();
        self.sync_inside()?;
        match self.directory().parent() {
            Some(state) if new => sync_directory(state),
            _ => Ok(()),
        }
    }

    /// Like [`JournalFiles::sync`], but does not sync the directory that contains the transaction.
    fn sync_inside(&mut self) -> Result<(), JournalError> {
        if let Some(script) = &self.script {
            script.sync_all().map_err(io_error(&self.directory().join(UNDO_SCRIPT), "sync"))?;
        }
        self.file.sync_data().map_err(io_error(&self.path, "sync"))?;
        if self.script.take().is_some() {
            sync_directory(self.directory())?;
        }
        Ok(())
    }

    /// The transaction's directory.
    pub(crate) fn directory(&self) -> &Path {
        self.path.parent().expect("a journal is in the directory of its transaction")
    }
}

/// The parsed content of a journal.
#[derive(Debug)]
pub(crate) struct Transcript {
    pub(crate) begin: Begin,
    pub(crate) progress: TransactionProgress,
    pub(crate) lines: u64,
    pub(crate) whole_bytes: u64,
    pub(crate) torn_bytes: u64,
}

impl Transcript {
    /// Reads the journal in a transaction's directory.
    pub(crate) fn read(directory: &Path) -> Result<Self, JournalError> {
        let path = directory.join(JOURNAL);
        let file = regular::open_to_read(&path).map_err(io_error(&path, "open"))?;
        let mut bytes = Vec::new();
        file.take(JOURNAL_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(io_error(&path, "read"))?;
        if length(&bytes) > JOURNAL_BYTES_MAX {
            return Err(JournalError::TooLong { file: path, bytes: length(&bytes) });
        }
        match Self::from_bytes(&bytes) {
            Ok(Some(transcript)) => Ok(transcript),
            Ok(None) => Err(JournalError::Headless { file: path }),
            Err((line, why)) => Err(JournalError::Corrupt { file: path, line, why }),
        }
    }

    /// Reads only the first line of the journal in a transaction's directory.
    pub(crate) fn head(directory: &Path) -> Option<Begin> {
        let file = regular::open_to_read(&directory.join(JOURNAL)).ok()?;
        let mut line = Vec::new();
        BufReader::new(file).take(JOURNAL_BYTES_MAX).read_until(b'\n', &mut line).ok()?;
        match decode_line(line.strip_suffix(b"\n")?) {
            Ok((0, JournalRecord::Begin(begin))) => Some(*begin),
            Ok(_) | Err(_) => None,
        }
    }

    /// Parses a journal; any bytes give a result or an error, never a panic. A last line without a newline
    /// was truncated and is ignored. Returns `None` without a complete first line. An error includes the line
    /// number, counted from 1.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Option<Self>, (usize, LineError)> {
        let whole_length = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |newline| newline + 1);
        let (whole, torn) = bytes.split_at(whole_length);
        let mut transcript: Option<Self> = None;
        for ((line, number), expected) in whole.split_inclusive(|&b| b == b'\n').zip(1..).zip(0_u64..) {
            let (found, record) =
                decode_line(line.strip_suffix(b"\n").unwrap_or(line)).map_err(|e| (number, e))?;
            if found != expected {
                return Err((number, LineError::Sequence { found, expected }));
            }
            match (&mut transcript, record) {
                (None, JournalRecord::Begin(begin)) => {
                    transcript = Some(Self {
                        begin: *begin,
                        progress: TransactionProgress::begun(),
                        lines: 1,
                        whole_bytes: length(whole),
                        torn_bytes: length(torn),
                    });
                }
                (None, record) => return Err((number, LineError::OutOfPlace(record.name()))),
                (Some(transcript), record) => {
                    transcript.progress.follow(&transcript.begin.plan, &record).map_err(|e| (number, e))?;
                    transcript.lines += 1;
                }
            }
        }
        Ok(transcript)
    }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).unwrap_or(u64::MAX)
}

/// Creates a directory that only its owner may read: commands in the journal may contain secrets.
///
/// Missing parent directories are created so that other users may traverse them, because a daemon's socket is
/// next to its journal.
pub(crate) fn create_directory(path: &Path) -> Result<(), JournalError> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        DirBuilder::new().recursive(true).mode(0o711).create(parent).map_err(io_error(parent, "create"))?;
    }
    DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(io_error(path, "create"))
}

fn create_file(path: &Path, mode: u32) -> Result<File, JournalError> {
    let mut options = OpenOptions::new();
    options.append(true).create_new(true).mode(mode).open(path).map_err(io_error(path, "create"))
}

fn sync_directory(path: &Path) -> Result<(), JournalError> {
    File::open(path).and_then(|d| d.sync_all()).map_err(io_error(path, "sync"))
}

pub(crate) fn io_error(path: &Path, doing: &'static str) -> impl FnOnce(io::Error) -> JournalError {
    move |source| JournalError::Io { file: path.to_owned(), doing, source }
}
