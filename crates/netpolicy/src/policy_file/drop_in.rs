//! Which files make up the policy: systemd's drop-in rules.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::parse::FILE_BYTES_MAX;

/// Where policy files are looked for, the least important directory first.
pub const DROP_IN_DIRS: [&str; 3] =
    ["/usr/lib/netpolicy/policy.d", "/run/netpolicy/policy.d", "/etc/netpolicy/policy.d"];

/// The most policy files that are read.
const FILES_MAX: usize = 1024;

/// Which files to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sources {
    /// The `*.toml` of these directories, the least important first: a file masks those of the same name in
    /// earlier directories, a link to `/dev/null` masks them without taking their place, and all are read in
    /// the order of their names, wherever they are.
    Dirs(Vec<PathBuf>),
    /// These files, in this order.
    Files(Vec<PathBuf>),
}

/// Finds and reads the files: name and text, in the order of merging.
///
/// # Errors
/// The file or directory that could not be read. A directory that does not exist has no files.
pub fn read(sources: &Sources) -> Result<Vec<(String, String)>, (PathBuf, io::Error)> {
    let paths = match sources {
        Sources::Files(files) => files.clone(),
        Sources::Dirs(dirs) => drop_ins(dirs)?,
    };
    if paths.len() > FILES_MAX {
        let message = format!("more than {FILES_MAX} policy files");
        return Err((paths[FILES_MAX].clone(), io::Error::other(message)));
    }
    paths.into_iter().map(|path| one(&path).map_err(|error| (path.clone(), error))).collect()
}

fn drop_ins(dirs: &[PathBuf]) -> Result<Vec<PathBuf>, (PathBuf, io::Error)> {
    let mut by_name: BTreeMap<OsString, PathBuf> = BTreeMap::new();
    for dir in dirs {
        let failed = |error| (dir.clone(), error);
        let entries = match fs::read_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.map_err(failed)?,
        };
        for entry in entries {
            let path = entry.map_err(failed)?.path();
            if path.extension().is_some_and(|extension| extension == "toml") {
                by_name.insert(path.file_name().unwrap_or_default().to_owned(), path);
            }
        }
    }
    Ok(by_name.into_values().filter(|path| !is_mask(path)).collect())
}

fn is_mask(path: &Path) -> bool {
    fs::read_link(path).is_ok_and(|target| target == Path::new("/dev/null"))
}

fn one(path: &Path) -> io::Result<(String, String)> {
    let too_large = || io::Error::other(format!("larger than {FILE_BYTES_MAX} bytes"));
    if fs::metadata(path)?.len() > FILE_BYTES_MAX as u64 {
        return Err(too_large());
    }
    Ok((path.display().to_string(), fs::read_to_string(path)?))
}
