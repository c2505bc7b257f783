//! Finds the policy files, following systemd's drop-in rules.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use policy_file::FILE_BYTES_MAX;

/// The directories of policy files, in ascending order of precedence.
pub const DROP_IN_DIRS: [&str; 3] =
    ["/usr/lib/netpolicy/policy.d", "/run/netpolicy/policy.d", "/etc/netpolicy/policy.d"];

/// The maximum number of policy files.
const FILES_MAX: usize = 1024;

/// How long to wait for further bytes of a pipe.
const PIPE_PATIENCE: Duration = Duration::from_secs(5);

/// How long to read from a pipe.
const PIPE_TIME_MAX: Duration = Duration::from_secs(60);
const PIPE_PAUSE: Duration = Duration::from_millis(10);

/// With this flag, neither opening nor reading a pipe waits for its writer.
const NONBLOCK: i32 = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();

/// Where to read policy files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sources {
    /// The `*.toml` files of these directories, in ascending order of precedence. A file masks files of the
    /// same name in earlier directories; a link to `/dev/null` only masks them. All files are read in the
    /// order of their names, whatever their directories.
    Dirs(Vec<PathBuf>),
    /// These files, in this order.
    Files(Vec<PathBuf>),
}

/// Finds and reads the files. Returns their names and texts in the order of merging.
///
/// # Errors
/// If a file or directory cannot be read, or if any user can write to a file that was found in a directory. A
/// directory that does not exist has no files.
pub fn read(sources: &Sources) -> Result<Vec<(String, String)>, (PathBuf, io::Error)> {
    let paths = match sources {
        Sources::Files(files) => files.clone(),
        Sources::Dirs(dirs) => drop_ins(dirs)?,
    };
    if paths.len() > FILES_MAX {
        let message = format!("more than {FILES_MAX} policy files");
        return Err((paths[FILES_MAX].clone(), io::Error::other(message)));
    }
    let found = matches!(sources, Sources::Dirs(_));
    paths.into_iter().map(|path| one(&path, found).map_err(|error| (path.clone(), error))).collect()
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
            // Skip hidden files, which editors keep next to the edited ones.
            let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
            if !hidden && path.extension().is_some_and(|extension| extension == "toml") {
                by_name.insert(path.file_name().unwrap_or_default().to_owned(), path);
            }
        }
    }
    Ok(by_name.into_values().filter(|path| !is_mask(path)).collect())
}

fn is_mask(path: &Path) -> bool {
    fs::read_link(path).is_ok_and(|target| target == Path::new("/dev/null"))
}

/// Reads one file. A file that was found in a directory, and not named by the operator, must not be writable
/// by all users.
fn one(path: &Path, found: bool) -> io::Result<(String, String)> {
    if found && fs::metadata(path)?.permissions().mode() & 0o002 != 0 {
        return Err(io::Error::other("any user can write to it and change the policy: chmod o-w"));
    }
    Ok((path.display().to_string(), read_text(path)?))
}

/// Reads the text of a file, which may be a pipe, up to a maximum size and time.
///
/// # Errors
/// As for [`read_at_most`], and if the file is too large or is not UTF-8 text.
pub fn read_text(path: &Path) -> io::Result<String> {
    let bytes = read_at_most(path, FILE_BYTES_MAX)?;
    if bytes.len() > FILE_BYTES_MAX {
        return Err(io::Error::other(format!("larger than {FILE_BYTES_MAX} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let valid = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = valid.iter().filter(|&&byte| byte == b'\n').count() + 1;
        io::Error::other(format!("line {line} is not UTF-8 text"))
    })
}

/// Reads a file, which may be a pipe, up to a maximum size and time. Returns one byte more than the maximum
/// of a larger file.
///
/// # Errors
/// If the file cannot be read, or no process writes to the pipe or closes it in time.
pub fn read_at_most(path: &Path, bytes_max: usize) -> io::Result<Vec<u8>> {
    let mut options = fs::OpenOptions::new();
    let mut file = options.read(true).custom_flags(NONBLOCK).open(path)?;
    let mut bytes = Vec::new();
    let (began, mut deadline) = (Instant::now(), Instant::now() + PIPE_PATIENCE);
    loop {
        let known = bytes.len();
        let room = bytes_max.saturating_add(1).saturating_sub(bytes.len());
        match file.by_ref().take(room as u64).read_to_end(&mut bytes) {
            Ok(_) if bytes.is_empty() && file.metadata()?.file_type().is_fifo() => {
                return Err(io::Error::other("no process writes to this pipe"));
            }
            Ok(_) => return Ok(bytes),
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            Err(_) if bytes.len() > known && began.elapsed() < PIPE_TIME_MAX => {
                deadline = Instant::now() + PIPE_PATIENCE;
            }
            Err(_) if Instant::now() >= deadline => {
                let seconds = began.elapsed().as_secs();
                let why = format!("the process that writes to this pipe has not closed it after {seconds} s");
                return Err(io::Error::other(why));
            }
            Err(_) => std::thread::sleep(PIPE_PAUSE),
        }
    }
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    struct Scratch(TempDir);

    impl Scratch {
        fn new() -> Self {
            Self(TempDir::with_prefix("netpolicy-drop-in-").expect("a directory"))
        }

        fn dir(&self, name: &str, files: &[(&str, &str)]) -> PathBuf {
            let dir = self.0.path().join(name);
            std::fs::create_dir(&dir).expect("directory");
            for (name, text) in files {
                std::fs::write(dir.join(name), text).expect("file");
            }
            dir
        }
    }

    #[test]
    fn drop_ins_are_read_in_the_order_of_their_names_and_masked_from_above() {
        let scratch = Scratch::new();
        let usr = scratch.dir(
            "usr",
            &[("10-a.toml", "# usr a"), ("20-b.toml", "# usr b"), ("30-c.toml", "# usr c"), ("x.conf", "no")],
        );
        let run = scratch.dir("run", &[("05-z.toml", "# run z"), ("10-a.toml", "# run a")]);
        let etc = scratch.dir("etc", &[("20-b.toml", "# etc b")]);
        symlink("/dev/null", etc.join("30-c.toml")).expect("link");
        let missing = scratch.0.path().join("missing");
        let files = read(&Sources::Dirs(vec![usr, run, missing, etc])).expect("reads");
        let texts: Vec<_> = files.iter().map(|(_, text)| text.as_str()).collect();
        assert_eq!(texts, ["# run z", "# run a", "# etc b"]);
    }

    #[test]
    fn a_policy_file_that_any_user_can_write_to_is_refused_unless_it_was_named() {
        let scratch = Scratch::new();
        let dir = scratch.dir("d", &[("10-a.toml", "# a")]);
        let file = dir.join("10-a.toml");
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o666)).expect("mode");
        let (path, error) = read(&Sources::Dirs(vec![dir])).expect_err("writable");
        assert!(path == file && error.to_string().contains("chmod o-w"), "{error}");
        assert_eq!(read(&Sources::Files(vec![file])).expect("named").len(), 1);
    }

    #[test]
    fn a_policy_file_that_cannot_be_read_is_named() {
        let scratch = Scratch::new();
        let dir = scratch.dir("d", &[]);
        symlink("/nonexistent/target", dir.join("10-a.toml")).expect("link");
        let (path, error) = read(&Sources::Dirs(vec![dir.clone()])).expect_err("dangling link");
        assert_eq!((path, error.kind()), (dir.join("10-a.toml"), std::io::ErrorKind::NotFound));
    }
}
