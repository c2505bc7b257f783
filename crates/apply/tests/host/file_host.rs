//! A host whose settings are files. Like the kernel's settings, they outlive the program that sets them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use apply::Knobs;
use model::Setting;

/// The duration of a write: long enough for a kill to happen during it.
const WRITE_TAKES: Duration = Duration::from_micros(300);

pub(crate) struct FileHost {
    directory: PathBuf,
}

impl FileHost {
    pub(crate) fn new(directory: &Path, settings: &[Setting]) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let host = Self { directory: directory.to_owned() };
        settings.iter().try_for_each(|setting| host.put(setting))?;
        Ok(host)
    }

    pub(crate) fn open(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// Returns all settings, by name.
    pub(crate) fn settings(&self) -> io::Result<Vec<(String, String)>> {
        let mut all = Vec::new();
        for file in fs::read_dir(&self.directory)? {
            let file = file?;
            let name = file.file_name().to_string_lossy().into_owned();
            if !name.ends_with(".new") {
                all.push((name, fs::read_to_string(file.path())?));
            }
        }
        all.sort();
        Ok(all)
    }

    fn file(&self, knob: &Setting) -> PathBuf {
        let name = format!("{} {}", knob.object(), knob.knob());
        self.directory.join(name.replace(|c: char| !c.is_ascii_alphanumeric(), "-"))
    }

    /// Replaces the file atomically: as in the kernel, a setting has either its old or its new value.
    fn put(&self, setting: &Setting) -> io::Result<()> {
        let file = self.file(setting);
        let new = file.with_extension("new");
        fs::write(&new, serde_json::to_vec(setting)?)?;
        fs::rename(new, file)
    }
}

impl Knobs for FileHost {
    type Error = io::Error;

    fn read(&mut self, like: &[Setting]) -> io::Result<Vec<Setting>> {
        like.iter().map(|knob| Ok(serde_json::from_slice(&fs::read(self.file(knob))?)?)).collect()
    }

    fn write(&mut self, settings: &[Setting]) -> io::Result<()> {
        for setting in settings {
            thread::sleep(WRITE_TAKES);
            self.put(setting)?;
        }
        Ok(())
    }

    fn is_gone(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::NotFound
    }
}
