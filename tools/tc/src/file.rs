//! A batch file that can be read more than once.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create};
use session::{Exit, Fault};
use tc_rules::batch::ReadError;
use tc_rules::{Batch, Command, Listings, Lookup};

/// The maximum number of bytes to keep of an input that can only be read once: standard input, a pipe, a
/// FIFO, a device.
const SPOOLED_BYTES_MAX: u64 = 1 << 30;

/// How long to wait for the writer of a FIFO.
const WRITER_SECONDS: i64 = 10;

/// One thread reads a file that is shorter than this: starting another thread takes as long as reading this
/// much.
const HALVED_BYTES_MIN: u64 = 256 * 1024;

/// How many bytes after the middle of a file to search for the end of a line.
const MIDDLE_BYTES: usize = 4096;

/// A batch file. It stays open, so that every read is of the same file, even if its name is reused.
#[derive(Debug)]
pub(super) struct BatchFile {
    name: String,
    file: File,
    length: u64,
    /// Whether lines that only tc understands are accepted as commands.
    with_tc: bool,
}

/// A part of a file, read concurrently with others.
struct Part<'f> {
    file: &'f File,
    at: u64,
    left: u64,
}

impl Read for Part<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.file.read_at(&mut buffer[..most], self.at)?;
        let read = u64::try_from(count).unwrap_or(u64::MAX);
        (self.at, self.left) = (self.at + read, self.left - read);
        Ok(count)
    }
}

impl BatchFile {
    /// Opens the file with this name; - is standard input. Anything but a regular file is read completely
    /// now, and kept.
    pub(super) fn named(path: &Path) -> Result<Self, Fault> {
        if path == Path::new("-") {
            return Self::spooled("-".to_owned(), Path::new("standard input"), io::stdin().lock());
        }
        let unreadable = |error| unreadable(path, error);
        let file = open(path)?;
        let metadata = file.metadata().map_err(unreadable)?;
        let name = path.display().to_string();
        match metadata.is_file() {
            true => Ok(Self { name, file, length: metadata.len(), with_tc: false }),
            false => Self::spooled(name, path, file),
        }
    }

    /// Returns the file that this process inherited as its standard output, for reading.
    pub(super) fn inherited() -> Result<Self, Fault> {
        const NAME: &str = "the rules of the load";
        let failed = |error| Fault::file(NAME, error);
        let file = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(failed)?);
        let length = file.metadata().map_err(failed)?.len();
        Ok(Self { name: NAME.to_owned(), file, length, with_tc: false })
    }

    /// Reads an input into memory.
    fn spooled(name: String, path: &Path, input: impl Read) -> Result<Self, Fault> {
        let unreadable = |error| unreadable(path, error);
        let memory = memfd_create("netpolicy-rules", MemfdFlags::CLOEXEC);
        let mut file = File::from(memory.map_err(|error| unreadable(error.into()))?);
        let length = io::copy(&mut input.take(SPOOLED_BYTES_MAX + 1), &mut file).map_err(unreadable)?;
        if length > SPOOLED_BYTES_MAX {
            return Err(Fault::new(
                Exit::Usage,
                format!("{} has more than 1 GiB: use a regular file for the rules", path.display()),
            ));
        }
        Ok(Self { name, file, length, with_tc: false })
    }

    /// Selects whether lines that only tc understands are commands ([`Command::Foreign`]) or wrong.
    pub(super) fn with_tc(self, with_tc: bool) -> Self {
        Self { with_tc, ..self }
    }

    /// The file's name, for messages.
    pub(super) fn name(&self) -> String {
        self.name.clone()
    }

    /// The file's length when it was opened.
    pub(super) const fn length(&self) -> u64 {
        self.length
    }

    /// Returns a handle of the file to pass to another process.
    pub(super) fn handle(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// Iterates over the commands from the beginning.
    pub(super) fn commands(&self) -> Batch<Box<dyn Read + '_>> {
        self.commands_of(0, u64::MAX)
    }

    /// Iterates over the commands in `length` bytes from the offset `start`, at which a line begins.
    pub(super) fn commands_of(&self, start: u64, length: u64) -> Batch<Box<dyn Read + '_>> {
        let part: Box<dyn Read + '_> = Box::new(Part { file: &self.file, at: start, left: length });
        Batch::new(part).with_foreign(self.with_tc)
    }

    /// The offset of a line near the middle, if reading both halves in parallel is worthwhile.
    pub(super) fn middle(&self) -> Option<u64> {
        if self.length < HALVED_BYTES_MIN {
            return None;
        }
        let near = self.length / 2;
        let mut around = [0; MIDDLE_BYTES];
        let count = self.file.read_at(&mut around, near).ok()?;
        // A backslash before the newline may join the next line to this one.
        let end = around[..count].windows(2).position(|two| two[0] != b'\\' && two[1] == b'\n')?;
        Some(near + u64::try_from(end).ok()? + 2)
    }

    /// Passes each command with its line to `command`, and each wrong line to `wrong`. Returns the lines that
    /// only list rules.
    pub(super) fn each(
        &self,
        lookup: &mut dyn Lookup,
        command: impl FnMut(u32, &mut Command, u64) -> Result<bool, Fault>,
        wrong: impl FnMut(tc_rules::Mistake) -> Result<(), Fault>,
    ) -> Result<Listings, Fault> {
        let mut batch = self.commands();
        self.each_of(&mut batch, lookup, command, wrong)?;
        Ok(batch.listings())
    }

    /// Passes the commands and wrong lines of a part of the file, as `each` does for the whole file.
    pub(super) fn each_of(
        &self,
        batch: &mut Batch<Box<dyn Read + '_>>,
        lookup: &mut dyn Lookup,
        mut command: impl FnMut(u32, &mut Command, u64) -> Result<bool, Fault>,
        mut wrong: impl FnMut(tc_rules::Mistake) -> Result<(), Fault>,
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
                Err(ReadError::Io(error)) => return Err(unreadable(Path::new(&self.name), error)),
            }
        }
    }
}

/// Opens a file. For a FIFO, waits for a writer, up to a limit.
fn open(path: &Path) -> Result<File, Fault> {
    let unreadable = |error| unreadable(path, error);
    let is_fifo = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_fifo());
    if !is_fifo {
        return File::open(path).map_err(unreadable);
    }
    let nonblocking = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or(0);
    let file = File::options().read(true).custom_flags(nonblocking).open(path).map_err(unreadable)?;
    let mut waits = [PollFd::new(&file, PollFlags::IN)];
    let within = Timespec { tv_sec: WRITER_SECONDS, tv_nsec: 0 };
    if poll(&mut waits, Some(&within)).map_err(|error| unreadable(error.into()))? == 0 {
        let words = format!("{}: no program wrote to this FIFO within {WRITER_SECONDS} s", path.display());
        return Err(Fault::new(Exit::Usage, words).hint("start the program that writes the rules first"));
    }
    let blocking = fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags - OFlags::NONBLOCK));
    blocking.map_err(|error| unreadable(error.into()))?;
    Ok(file)
}

fn unreadable(path: &Path, error: io::Error) -> Fault {
    Fault::file(path, error)
}
