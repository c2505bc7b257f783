//! The windows of a watch, recorded in a file with one JSON document per line.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use linux::Processes;
use linux::machine::{Machine, seconds_since_1970};
use model::live::LiveWindow;
use model::{FormatName, Host};
use serde::{Deserialize, Serialize};

use session::Fault;

use crate::live::target::MeasuredService;

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchHeader {
    /// The format.
    pub schema: FormatName,
    /// `watch-record`.
    pub kind: String,
    /// The watched service.
    pub service: String,
    /// The ports.
    pub ports: Vec<u16>,
    /// The host's name.
    pub host: String,
    /// The kernel.
    pub kernel: String,
    /// When the watch started, in seconds since 1970.
    pub started: u64,
}

/// Each line after the first: one window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedWindow {
    /// When the window ended, in seconds since 1970. Based on the wall clock at the start of the recording,
    /// so later changes of the clock have no effect.
    pub at: u64,
    /// What was measured.
    pub window: LiveWindow,
    /// The delivery settings of the host's queues, if they differ from the last recorded ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub settings: Option<Vec<String>>,
}

/// A file to which windows are written.
#[derive(Debug)]
pub struct WatchRecord {
    path: PathBuf,
    file: BufWriter<File>,
    started: u64,
    began: Instant,
    settings: Vec<String>,
}

impl WatchRecord {
    /// Creates the file.
    ///
    /// # Errors
    /// As for [`new_file`].
    pub fn create(path: &Path, target: &MeasuredService) -> Result<Self, Fault> {
        let file = new_file(path)?;
        let (started, began) = (seconds_since_1970(), Instant::now());
        let (path, file) = (path.to_owned(), BufWriter::new(file));
        let mut record = Self { path, file, started, began, settings: Vec::new() };
        let Machine { host, kernel, .. } = Machine::this();
        record.line(&WatchHeader {
            schema: FormatName,
            kind: "watch-record".to_owned(),
            service: target.name.clone(),
            ports: target.ports.all(),
            host,
            kernel,
            started,
        })?;
        Ok(record)
    }

    /// Appends a window. On return, the file contains the window.
    ///
    /// # Errors
    /// If the window cannot be written.
    pub fn add(&mut self, window: &LiveWindow, target: &MeasuredService) -> Result<(), Fault> {
        let now = settings(&linux::observe(&target.netns, &Processes::None)?);
        let changed = (now != self.settings).then(|| now.clone());
        self.settings = now;
        let at = self.started.saturating_add(self.began.elapsed().as_secs());
        self.line(&RecordedWindow { at, window: window.clone(), settings: changed })
    }

    fn line(&mut self, document: &impl Serialize) -> Result<(), Fault> {
        let text = serde_json::to_string(document).map_err(Fault::failed)?;
        let written = writeln!(self.file, "{text}").and_then(|()| self.file.flush());
        written.map_err(|error| Fault::file(&self.path, error))
    }
}

/// Creates a file for a recording. Does not overwrite a file with contents, but accepts pipes and devices.
///
/// # Errors
/// If a non-empty file exists, or the file cannot be written.
pub fn new_file(path: &Path) -> Result<File, Fault> {
    if path.metadata().is_ok_and(|found| found.is_file() && found.len() > 0) {
        return Err(Fault::failed(format!("{}: the file is not empty", path.display()))
            .hint("records are not overwritten: name another file, or remove this one"));
    }
    File::create(path).map_err(|error| Fault::file(path, error))
}

/// Formats the delivery settings of a host's queues, one line per queue.
fn settings(host: &Host) -> Vec<String> {
    let mut lines = Vec::new();
    for queue in host.devices.iter().flat_map(|device| &device.rx_queues) {
        let Some(napi) = host.napi_of(queue.id) else { continue };
        let mut words = Vec::new();
        words.extend(napi.defer_hard_irqs.map(|value| format!("defer-hard-irqs {value}")));
        words.extend(napi.gro_flush_timeout.map(|value| format!("gro-flush-timeout {value}")));
        words.extend(napi.irq_suspend_timeout.map(|value| format!("irq-suspend-timeout {value}")));
        words.extend(napi.threaded.map(|value| format!("threaded {value}")));
        lines.push(format!("{}: {}", queue.id, words.join(", ")));
    }
    lines
}

/// A recording of a watch.
#[derive(Clone, Debug)]
pub struct RecordedWindows {
    /// The first line.
    pub header: WatchHeader,
    /// All other lines.
    pub windows: Vec<RecordedWindow>,
}

impl RecordedWindows {
    /// Whether a text begins like the recording of a watch.
    pub fn begins(text: &str) -> bool {
        text.lines().next().is_some_and(|line| serde_json::from_str::<WatchHeader>(line).is_ok())
    }

    /// Parses a recording. The last line may be incomplete, because the process that wrote it may have been
    /// killed.
    ///
    /// # Errors
    /// The first malformed line, except for an incomplete last line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().enumerate().peekable();
        let wrong = |line: usize, error: serde_json::Error| format!("line {}: {error}", line + 1);
        let Some((at, first)) = lines.next() else { return Err("it is empty".to_owned()) };
        let header: WatchHeader = serde_json::from_str(first).map_err(|error| wrong(at, error))?;
        let mut windows = Vec::new();
        while let Some((at, line)) = lines.next() {
            match serde_json::from_str(line) {
                Ok(window) => windows.push(window),
                Err(error) if error.is_eof() && lines.peek().is_none() => {}
                Err(error) => return Err(wrong(at, error)),
            }
        }
        Ok(Self { header, windows })
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn to_text(document: &impl Serialize) -> String {
        serde_json::to_string(document).expect("written")
    }

    #[test]
    fn an_earlier_record_is_not_overwritten() {
        let directory = tempfile::TempDir::with_prefix("netpolicy-record-").expect("a directory");
        let path = directory.path().join("record.jsonl");
        new_file(&path).expect("a new one").write_all(b"evidence\n").expect("written");
        let fault = new_file(&path).expect_err("there is one");
        assert!(fault.cause.to_string().contains(".jsonl: ") && fault.hint.is_some(), "{}", fault.cause);
        assert_eq!(std::fs::read(&path).expect("read"), b"evidence\n");
        std::fs::write(&path, "").expect("emptied");
        assert!(new_file(&path).is_ok(), "an empty file, as created by mktemp, has no contents to lose");
        assert!(new_file(Path::new("/dev/null")).is_ok());
    }

    #[test]
    fn a_record_whose_writer_was_killed_is_read_without_its_last_line() {
        let header = WatchHeader {
            schema: FormatName,
            kind: "watch-record".to_owned(),
            service: "cache".to_owned(),
            ports: vec![11_211],
            host: "host".to_owned(),
            kernel: "6.18".to_owned(),
            started: 1,
        };
        let window = RecordedWindow { at: 2, window: LiveWindow::default(), settings: None };
        let text = format!("{}\n{}\n{{\"at\": 3, \"win", to_text(&header), to_text(&window));
        let read = RecordedWindows::parse(&text).expect("reads");
        assert_eq!((read.header, read.windows), (header.clone(), vec![window]));
        assert!(RecordedWindows::begins(&text) && !RecordedWindows::begins("{}"));
        let broken = format!("{}\n{{}}\n{{}}\n", to_text(&header));
        assert!(RecordedWindows::parse(&broken).expect_err("is none").starts_with("line 2: "));
    }
}
