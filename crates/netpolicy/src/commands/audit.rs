//! `audit`: finds the issues that the reports of many hosts have in common.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::fleet::{Audit as Hosts, HOSTS_MAX, REPORT_BYTES_MAX};
use session::{Exit, Fault};

use crate::args::Audit;
use cli::Context;

/// Reads the reports and prints the result.
pub(crate) fn run(arguments: &Audit, context: &Context) -> Result<Exit, Fault> {
    let expected = arguments.expect.as_deref().map(expected).transpose()?;
    let mut hosts = Hosts::new(linux::machine::seconds_since_1970());
    for from in &arguments.from {
        for file in files(from)? {
            let name = file.display().to_string();
            match bytes(&file) {
                Ok(text) => hosts.add(&name, &text),
                Err(why) => hosts.unreadable(&name, why),
            }
        }
    }
    let report = hosts.finish(expected.as_ref(), arguments.max_age * 3600);
    if let Some(html) = &arguments.html {
        std::fs::write(html, report.html()).map_err(|error| Fault::file(html, error))?;
    }
    context.console.report(&report)?;
    Ok(if report.fails(arguments.gate) { Exit::Pending } else { Exit::Done })
}

/// The maximum length of a host name. Source: RFC 1035, 2.3.4, without the length bytes of the wire format.
const HOST_NAME_BYTES_MAX: usize = 253;

/// Reads the host names in the file of expected hosts.
fn expected(file: &Path) -> Result<BTreeSet<String>, Fault> {
    let text = bytes(file).map_err(|why| Fault::new(Exit::Usage, format!("{}: {why}", file.display())))?;
    let text = String::from_utf8_lossy(&text);
    let mut names = BTreeSet::new();
    for (line, number) in text.lines().zip(1..) {
        let name = line.split('#').next().unwrap_or_default().trim();
        let is_foreign = |c: char| c.is_control() || c.is_whitespace() || c == char::REPLACEMENT_CHARACTER;
        if name.len() > HOST_NAME_BYTES_MAX || name.contains(is_foreign) {
            let why = format!("{}: line {number} is not a host name", file.display());
            return Err(Fault::new(Exit::Usage, why));
        }
        if !name.is_empty() {
            names.insert(name.to_owned());
        }
    }
    if names.is_empty() || names.len() > HOSTS_MAX {
        let why = format!("{}: it names {} hosts, not 1 to {HOSTS_MAX}", file.display(), names.len());
        return Err(Fault::new(Exit::Usage, why));
    }
    Ok(names)
}

/// Lists the file itself, or the reports in the directory, sorted by name.
fn files(from: &Path) -> Result<Vec<PathBuf>, Fault> {
    let of = |error| Fault::file(from, error);
    if !std::fs::metadata(from).map_err(of)?.is_dir() {
        return Ok(vec![from.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(from).map_err(of)? {
        let path = entry.map_err(of)?.path();
        if path.extension().is_some_and(|ending| ending == "json" || ending == "jsonl") {
            files.push(path);
        }
    }
    files.sort();
    if files.is_empty() {
        return Err(Fault::new(Exit::Usage, format!("{}: no *.json or *.jsonl there", from.display()))
            .hint("`netpolicy -o json report` prints the report of a host"));
    }
    Ok(files)
}

/// Reads a regular file of limited size. Other files are refused: a FIFO would block the audit.
fn bytes(file: &Path) -> Result<Vec<u8>, String> {
    let metadata = std::fs::metadata(file).map_err(|error| error.to_string())?;
    if !metadata.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    if metadata.len() > REPORT_BYTES_MAX {
        return Err(format!("it is larger than {REPORT_BYTES_MAX} bytes"));
    }
    let mut text = Vec::new();
    let opened = File::open(file).map_err(|error| error.to_string())?;
    opened.take(REPORT_BYTES_MAX).read_to_end(&mut text).map_err(|error| error.to_string())?;
    Ok(text)
}
