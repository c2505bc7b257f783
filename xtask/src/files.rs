//! File operations that name the file in errors.

use std::fmt::Display;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::shell::{self, Result};

/// Adds to an error what it is about.
pub(crate) trait About<T> {
    /// Prefixes the error with the path of the file.
    fn about(self, path: &Path) -> Result<T>;
}

impl<T, E: Display> About<T> for std::result::Result<T, E> {
    fn about(self, path: &Path) -> Result<T> {
        self.map_err(|error| format!("{}: {error}", path.display()))
    }
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).about(path)
}

/// Writes a file, and creates its parent directories.
pub(crate) fn write(path: &Path, text: &str) -> Result {
    make_room(path)?;
    std::fs::write(path, text).about(path)
}

/// Writes an executable file.
pub(crate) fn write_script(path: &Path, text: &str) -> Result {
    write(path, text)?;
    set_mode(path, 0o755)
}

/// Copies a file under a temporary name, and then renames it, so that it does not overwrite a running
/// program.
pub(crate) fn put(from: &Path, to: &Path, mode: u32) -> Result {
    make_room(to)?;
    let beside = to.with_extension("new");
    std::fs::copy(from, &beside).about(from)?;
    set_mode(&beside, mode)?;
    rename(&beside, to)
}

/// Renames a file or directory.
pub(crate) fn rename(from: &Path, to: &Path) -> Result {
    make_room(to)?;
    std::fs::rename(from, to).map_err(|error| format!("{} to {}: {error}", from.display(), to.display()))
}

/// Sets the mode of a file or directory.
pub(crate) fn set_mode(path: &Path, mode: u32) -> Result {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).about(path)
}

/// Creates a directory and its parents.
pub(crate) fn make_directory(path: &Path) -> Result {
    std::fs::create_dir_all(path).about(path)
}

fn make_room(path: &Path) -> Result {
    path.parent().map_or(Ok(()), make_directory)
}

/// The entries of a directory, in the order of their names.
pub(crate) fn entries(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut paths: Vec<_> =
        std::fs::read_dir(directory).about(directory)?.flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths)
}

/// The files of a directory, in the order of their names.
pub(crate) fn files_of(directory: &Path) -> Result<Vec<PathBuf>> {
    Ok(entries(directory)?.into_iter().filter(|path| path.is_file()).collect())
}

/// Removes a file, or a directory with its contents, if it exists.
pub(crate) fn remove(path: &Path) -> Result {
    let removed = if path.is_dir() && !path.is_symlink() {
        std::fs::remove_dir_all(path)
    } else {
        std::fs::remove_file(path)
    };
    match removed {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).about(path),
        _ => Ok(()),
    }
}

/// Returns a value in the workspace's manifest, such as `version` or `rust-version`.
pub(crate) fn manifest_value(key: &str) -> Result<String> {
    let manifest = shell::root().join("Cargo.toml");
    let text = read(&manifest)?;
    let begins = format!("{key} = \"");
    let value = text.lines().find_map(|line| line.strip_prefix(&begins)?.strip_suffix('"'));
    value.map(str::to_owned).ok_or_else(|| format!("{}: no {key}", manifest.display()))
}
