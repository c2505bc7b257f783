//! Reading the configuration files of other tools.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The maximum number of files that are read per directory, and of bytes that are read per file.
pub(super) const FILES_MAX: usize = 512;
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Returns the files in effect: of several files with the same name, the one in the first directory. An empty
/// file, or a link to `/dev/null` or to nothing, masks other files of its name.
pub(super) fn drop_ins(root: &Path, directories: &[&str], ending: &str) -> Vec<(PathBuf, String)> {
    let mut by_name: BTreeMap<std::ffi::OsString, PathBuf> = BTreeMap::new();
    for directory in directories {
        let entries = std::fs::read_dir(root.join(directory)).into_iter().flatten().flatten();
        for entry in entries.take(FILES_MAX) {
            if entry.path().extension().is_some_and(|found| found == ending) {
                by_name.entry(entry.file_name()).or_insert_with(|| entry.path());
            }
        }
    }
    by_name.into_values().filter_map(|path| text(&path).map(|text| (path, text))).collect()
}

/// The last component of a path.
pub(super) fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Reads the text of a regular file; `None` for anything else: reading a pipe or device might never end.
pub(super) fn text(path: &Path) -> Option<String> {
    if !std::fs::metadata(path).ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path).ok()?.take(FILE_BYTES_MAX).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns the place of a line as `PATH:LINE`, with the file's path as seen on the host.
pub(super) fn place(root: &Path, path: &Path, line: usize) -> String {
    let inside = path.strip_prefix(root).unwrap_or(path);
    format!("/{}:{}", inside.display(), line + 1)
}

/// Returns the keys of an INI file, each as line number, section, key and value.
pub(super) fn ini(text: &str) -> impl Iterator<Item = (usize, &str, &str, &str)> {
    let mut section = "";
    text.lines().enumerate().filter_map(move |(number, line)| {
        let line = line.trim();
        if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            section = name;
            return None;
        }
        let (key, value) = line.split_once('=').filter(|_| !line.starts_with(['#', ';']))?;
        Some((number, section, key.trim(), value.trim()))
    })
}

/// The directories in `/proc` of the processes with one of these names, each of at most 15 bytes, by pid.
pub(super) fn processes(root: &Path, names: &[&str]) -> Vec<(u32, PathBuf)> {
    let entries = std::fs::read_dir(root.join("proc")).into_iter().flatten().flatten();
    let pid = |entry: std::fs::DirEntry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path()));
    let has_name = |(_, path): &(u32, PathBuf)| {
        let comm = std::fs::read_to_string(path.join("comm"));
        comm.is_ok_and(|comm| names.contains(&comm.trim_end()))
    };
    let mut found: Vec<_> = entries.filter_map(pid).filter(has_name).collect();
    found.sort();
    found
}

/// The arguments of a process, its program first.
pub(super) fn arguments(process: &Path) -> Vec<String> {
    let mut bytes = Vec::new();
    if let Ok(file) = std::fs::File::open(process.join("cmdline")) {
        // A process that has exited has no arguments.
        let _ = file.take(FILE_BYTES_MAX).read_to_end(&mut bytes);
    }
    let arguments = bytes.split(|byte| *byte == 0).filter(|argument| !argument.is_empty());
    arguments.map(|argument| String::from_utf8_lossy(argument).into_owned()).collect()
}
