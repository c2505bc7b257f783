//! Determines why a library cannot be preloaded into an executable.

use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::{getgid, getuid};
use sys::error::KernelError;

use super::elf::Executable;

/// How many bytes of an executable are read: its headers and notes are at its beginning.
const LOOKED_AT_BYTES: u64 = 64 << 10;
/// The maximum number of nested interpreters before the program. Kernel: 6.18, `fs/exec.c` `exec_binprm()`.
const INTERPRETERS_MAX: usize = 5;

/// Returns why preloading cannot work if the caller starts this executable; `None` if it can work.
///
/// # Errors
/// If the executable, or the interpreter that it names, cannot be read.
pub fn refusal(exe: &Path) -> Result<Option<String>, KernelError> {
    let mut program = exe.to_owned();
    for _ in 0..=INTERPRETERS_MAX {
        let image = Image::open(&program)?;
        match image.interpreter() {
            // The mode bits of a script are irrelevant; those of the script's interpreter count.
            Some(interpreter) => program = interpreter,
            None => return Ok(image.refusal().map(|why| format!("{} {why}", program.display()))),
        }
    }
    Ok(Some(format!("{} has more than {INTERPRETERS_MAX} interpreters", exe.display())))
}

/// The mode of an executable file, and the bytes at its beginning.
struct Image {
    bytes: Vec<u8>,
    mode: u32,
    uid: u32,
    gid: u32,
    has_capabilities: bool,
}

impl Image {
    fn open(path: &Path) -> Result<Self, KernelError> {
        let failed = |error: &std::io::Error| KernelError::io(format!("read {}", path.display()), error);
        let file = File::open(path).map_err(|error| failed(&error))?;
        let metadata = file.metadata().map_err(|error| failed(&error))?;
        let mut bytes = Vec::new();
        (&file).take(LOOKED_AT_BYTES).read_to_end(&mut bytes).map_err(|error| failed(&error))?;
        let has_capabilities = match rustix::fs::fgetxattr(&file, "security.capability", &mut [0_u8; 0][..]) {
            Ok(_) => true,
            Err(Errno::NODATA | Errno::OPNOTSUPP) => false,
            Err(errno) => return Err(failed(&errno.into())),
        };
        Ok(Self { bytes, mode: metadata.mode(), uid: metadata.uid(), gid: metadata.gid(), has_capabilities })
    }

    /// Parses the interpreter in a script's first line.
    ///
    /// Kernel: 6.18, `fs/binfmt_script.c` `load_script()`.
    fn interpreter(&self) -> Option<PathBuf> {
        let line = self.bytes.strip_prefix(b"#!")?.split(|&b| b == b'\n').next()?;
        let path = line.trim_ascii().split(|b| matches!(b, b' ' | b'\t')).next()?;
        (!path.is_empty()).then(|| PathBuf::from(std::ffi::OsStr::from_bytes(path)))
    }

    /// Returns why the dynamic linker would not load a library into the program; the text completes a
    /// sentence that begins with the program's path.
    fn refusal(&self) -> Option<&'static str> {
        match Executable::read(&self.bytes) {
            Executable::NotElf => Some("is neither an ELF executable nor a script"),
            Executable::Foreign => Some("is built for another architecture, or is 32-bit"),
            Executable::Static => Some("is statically linked: there is no dynamic linker to load a library"),
            Executable::Go => Some("is built by Go, whose runtime calls the kernel without the C library"),
            Executable::Dynamic => self.secure().then_some(
                "changes its user, group or capabilities when it starts: the dynamic linker then ignores LD_PRELOAD (AT_SECURE)",
            ),
        }
    }

    /// Whether the kernel would set `AT_SECURE`, so that the dynamic linker ignores `LD_PRELOAD`.
    ///
    /// Kernel: 6.18, `security/commoncap.c` `cap_bprm_creds_from_file()` (`secureexec`).
    fn secure(&self) -> bool {
        const SETUID: u32 = 0o4000;
        const SETGID: u32 = 0o2000;
        const GROUP_EXECUTES: u32 = 0o010;
        let becomes_user = self.mode & SETUID != 0 && self.uid != getuid().as_raw();
        let gives_group = self.mode & (SETGID | GROUP_EXECUTES) == SETGID | GROUP_EXECUTES;
        let becomes_group = gives_group && self.gid != getgid().as_raw();
        let gains_capabilities = self.has_capabilities && !getuid().is_root();
        becomes_user || becomes_group || gains_capabilities
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn image(bytes: &[u8]) -> Image {
        Image {
            bytes: bytes.to_owned(),
            mode: 0o755,
            uid: getuid().as_raw(),
            gid: getgid().as_raw(),
            has_capabilities: false,
        }
    }

    #[test]
    fn a_script_is_judged_by_its_interpreter() {
        let interpreter = |text: &str| image(text.as_bytes()).interpreter();
        assert_eq!(interpreter("#! /usr/bin/env python3\nimport x\n"), Some("/usr/bin/env".into()));
        assert_eq!(interpreter("#!/bin/sh"), Some("/bin/sh".into()));
        assert_eq!(interpreter("#!\n"), None);
        assert_eq!(interpreter("\x7fELF"), None);
    }

    #[test]
    fn a_program_that_changes_its_user_is_secure() {
        let with = |change: fn(&mut Image)| {
            let mut image = image(b"");
            change(&mut image);
            image.secure()
        };
        assert!(!with(|_| {}));
        assert!(with(|image| (image.mode, image.uid) = (0o4755, image.uid + 1)));
        assert!(!with(|image| image.mode = 0o4755), "setuid to the current user changes nothing");
        assert!(with(|image| (image.mode, image.gid) = (0o2755, image.gid + 1)));
        assert!(
            !with(|image| (image.mode, image.gid) = (0o2745, image.gid + 1)),
            "this mode means mandatory locking"
        );
        assert_eq!(with(|image| image.has_capabilities = true), !getuid().is_root());
    }

    #[test]
    fn an_ordinary_program_can_be_preloaded() {
        assert_eq!(refusal(Path::new("/proc/self/exe")), Ok(None));
        let missing = refusal(Path::new("/nonexistent")).expect_err("missing");
        assert_eq!(missing.number(), Some(Errno::NOENT));
    }
}
