//! A loaded BPF object, and the messages of libbpf and the verifier if loading failed.

use std::cell::RefCell;
use std::fmt;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Once;

use libbpf_rs::{
    Link, MapCore, MapFlags, Object, ObjectBuilder, OpenObject, PrintLevel, Program, ProgramMut,
};
use rustix::io::Errno;
use sys::error::{Cause, KernelError};

/// The capabilities needed to load programs.
const CAPABILITIES: &str = "CAP_BPF and CAP_PERFMON";

/// The maximum number of bytes that are kept of libbpf's and the verifier's messages. The end is kept,
/// because the verifier's error comes last.
const WORDS_BYTES_MAX: usize = 4096;

thread_local! {
    static WORDS: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A loaded BPF object. Dropping it unloads its programs.
pub(super) struct Loaded {
    name: &'static str,
    // Declared before `object`: links must be dropped before the programs that they attach.
    links: Vec<(String, Link)>,
    object: Object,
}

impl fmt::Debug for Loaded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loaded({}, {} links)", self.name, self.links.len())
    }
}

impl Loaded {
    /// Loads a compiled object after `prepare` has configured the opened object.
    pub(super) fn load(
        name: &'static str,
        bytes: &[u8],
        prepare: impl FnOnce(&mut OpenObject) -> libbpf_rs::Result<()>,
    ) -> Result<Self, KernelError> {
        if !Path::new("/sys/kernel/btf/vmlinux").exists() {
            let needs = "a kernel that describes its types (CONFIG_DEBUG_INFO_BTF)";
            return Err(KernelError::absent(format!("BPF programs {name}"), needs, None));
        }
        listen_to_libbpf();
        let object = ObjectBuilder::default()
            .name(name)
            .and_then(|builder| builder.open_memory(bytes))
            .and_then(|mut open| prepare(&mut open).map(|()| open))
            .and_then(OpenObject::load)
            .map_err(|_| refused(format!("load BPF programs {name}")).needing(CAPABILITIES))?;
        Ok(Self { name, links: Vec::new(), object })
    }

    /// Attaches every program as its section specifies.
    pub(super) fn attach(&mut self) -> Result<(), KernelError> {
        self.attach_by(|_| true, |program| program.attach())
    }

    /// Attaches only the programs for whose names `wanted` returns true.
    pub(super) fn attach_if(&mut self, wanted: impl Fn(&str) -> bool) -> Result<(), KernelError> {
        self.attach_by(wanted, |program| program.attach())
    }

    /// Whether the object contains this program and has loaded it.
    pub(super) fn has(&self, name: &str) -> bool {
        self.object.progs().any(|program| program.name() == name && program.autoload())
    }

    /// Attaches to a cgroup those programs for whose names `wanted` returns true.
    pub(super) fn attach_to_cgroup(
        &mut self,
        cgroup: BorrowedFd<'_>,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<(), KernelError> {
        self.attach_by(wanted, |program| program.attach_cgroup(cgroup.as_raw_fd()))
    }

    fn attach_by(
        &mut self,
        wanted: impl Fn(&str) -> bool,
        attach: impl Fn(&mut ProgramMut<'_>) -> libbpf_rs::Result<Link>,
    ) -> Result<(), KernelError> {
        for mut program in self.object.progs_mut().filter(|program| program.autoload()) {
            let name = program.name().to_string_lossy().into_owned();
            if !wanted(&name) {
                continue;
            }
            let link = attach(&mut program).map_err(|_| refused(format!("attach BPF program {name}")))?;
            self.links.push((name, link));
        }
        Ok(())
    }

    /// Pins every attachment in a directory of a BPF file system, under the program's name, so that the
    /// attachments remain when this object is dropped.
    pub(super) fn pin_links(&mut self, directory: &Path) -> Result<(), KernelError> {
        for (name, link) in &mut self.links {
            let path = directory.join(&name);
            link.pin(&path).map_err(|_| refused(format!("pin {}", path.display())))?;
        }
        Ok(())
    }

    /// Pins a map in a directory of a BPF file system, under the map's name.
    pub(super) fn pin_map(&mut self, name: &str, directory: &Path) -> Result<(), KernelError> {
        let path = directory.join(name);
        let mut map = self.object.maps_mut().find(|map| map.name() == name).ok_or_else(|| {
            KernelError::malformed(format!("BPF programs {}", self.name), format!("no map {name}"))
        })?;
        map.pin(&path).map_err(|_| refused(format!("pin {}", path.display())))
    }

    /// Detaches all programs. They stay loaded, and their maps keep their content.
    pub(super) fn detach(&mut self) {
        self.links.clear();
    }

    /// Whether this program is attached.
    pub(super) fn is_attached(&self, name: &str) -> bool {
        self.links.iter().any(|(attached, _)| attached == name)
    }

    /// The object.
    pub(super) fn object(&self) -> &Object {
        &self.object
    }

    /// Returns a program by name.
    pub(super) fn program(&self, name: &str) -> Result<Program<'_>, KernelError> {
        self.object.progs().find(|program| program.name() == name).ok_or_else(|| {
            KernelError::malformed(format!("BPF programs {}", self.name), format!("no program {name}"))
        })
    }

    /// Returns a map by name.
    pub(super) fn map(&self, name: &'static str) -> Result<Table<'_>, KernelError> {
        let map = self.object.maps().find(|map| map.name() == name);
        let map = map.ok_or_else(|| {
            KernelError::malformed(format!("BPF programs {}", self.name), format!("no map {name}"))
        })?;
        Ok(Table { name, map })
    }
}

/// A map of a loaded object.
pub(super) struct Table<'a> {
    name: &'static str,
    map: libbpf_rs::Map<'a>,
}

impl<'a> Table<'a> {
    /// The map itself.
    pub(super) fn map(&self) -> &libbpf_rs::Map<'a> {
        &self.map
    }

    /// Sets the value for a key.
    pub(super) fn set(&self, key: &[u8], value: &[u8]) -> Result<(), KernelError> {
        self.map
            .update(key, value, MapFlags::ANY)
            .map_err(|_| refused(format!("BPF map {}: update", self.name)))
    }

    /// Removes a key; a missing key is not an error.
    pub(super) fn remove(&self, key: &[u8]) -> Result<(), KernelError> {
        match self.map.delete(key) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == libbpf_rs::ErrorKind::NotFound => Ok(()),
            Err(_) => Err(refused(format!("BPF map {}: delete", self.name))),
        }
    }

    /// Returns the value for a key.
    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, KernelError> {
        let value = self.map.lookup(key, MapFlags::ANY);
        value.map_err(|_| refused(format!("BPF map {}: lookup", self.name)))
    }

    /// Returns the per-CPU values for a key.
    pub(super) fn get_per_cpu(&self, key: &[u8]) -> Result<Vec<Vec<u8>>, KernelError> {
        let values = self.map.lookup_percpu(key, MapFlags::ANY);
        values.map(Option::unwrap_or_default).map_err(|_| refused(format!("BPF map {}: lookup", self.name)))
    }

    /// Removes every entry and returns the values. No program may add entries at the same time.
    pub(super) fn drain(&self) -> Result<Vec<Vec<u8>>, KernelError> {
        /// The maximum number of entries per system call.
        const BATCH: u32 = 1024;
        let most = usize::try_from(self.map.max_entries()).unwrap_or(usize::MAX);
        let mut values = Vec::new();
        // Call repeatedly: the kernel ends a batch early if the next bucket does not fit
        // (`__htab_map_lookup_and_delete_batch()`), and libbpf-rs mistakes that for the end of the map.
        loop {
            let before = values.len();
            let refused = |_| refused(format!("BPF map {}: drain", self.name));
            let batch =
                self.map.lookup_and_delete_batch(BATCH, MapFlags::ANY, MapFlags::ANY).map_err(refused)?;
            values.extend(batch.take(most - before).map(|(_, value)| value));
            if values.len() == before || values.len() >= most {
                return Ok(values);
            }
        }
    }

    /// Returns the map's keys: at most as many as its capacity, even if the map changes during the iteration.
    pub(super) fn keys(&self) -> impl Iterator<Item = Vec<u8>> {
        self.map.keys().take(usize::try_from(self.map.max_entries()).unwrap_or(usize::MAX))
    }
}

/// Creates the error of the last call on this thread, from `errno` and libbpf's messages.
pub(super) fn refused(what: String) -> KernelError {
    let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(0);
    let errno = Errno::from_raw_os_error(number);
    let message = words_of(&WORDS.take());
    let cause = if message.is_empty() { Cause::Errno(errno) } else { Cause::Extack { errno, message } };
    KernelError { what, cause }
}

/// Returns libbpf's messages on one line. Omits the messages that libbpf always prints when loading is not
/// permitted: a failed attempt to raise RLIMIT_MEMLOCK, and advice about that limit. Since Linux 5.11, the
/// limit does not apply to programs and maps (`kernel/bpf/syscall.c` `bpf_map_save_memcg()`); a missing
/// capability is the real reason.
fn words_of(said: &str) -> String {
    const ADVICE: &str = " Make sure your kernel supports BPF (CONFIG_BPF_SYSCALL=y) and/or that RLIMIT_MEMLOCK is set to big enough value.";
    let lines = said.lines().map(|line| line.trim_start_matches("libbpf: ").replace(ADVICE, ""));
    let is_of_limit = |line: &str| {
        line.contains("ulimit -l") || line.contains("RLIMIT_MEMLOCK") || line.contains("trivial BPF program")
    };
    lines.filter(|line| !is_of_limit(line)).collect::<Vec<_>>().join("; ")
}

/// Redirects libbpf's messages from stderr to this module.
fn listen_to_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        libbpf_rs::set_print(Some((PrintLevel::Warn, |_, words| keep(&words))));
    });
    WORDS.take();
}

fn keep(words: &str) {
    WORDS.with_borrow_mut(|kept| {
        kept.push_str(words);
        if kept.len() > WORDS_BYTES_MAX {
            let mut start = kept.len() - WORDS_BYTES_MAX;
            while !kept.is_char_boundary(start) {
                start += 1;
            }
            kept.drain(..start);
        }
    });
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn libbpfs_advice_about_a_limit_that_does_not_count_is_left_out() {
        let said = "libbpf: Error in bpf_object__probe_loading(): -EPERM. Couldn't load trivial BPF program. Make sure your \
                    kernel supports BPF (CONFIG_BPF_SYSCALL=y) and/or that RLIMIT_MEMLOCK is set to big enough value.\n\
                    libbpf: permission error while running as root; try raising 'ulimit -l'? current value: 8.0 MiB\n";
        assert_eq!(
            words_of(said),
            "",
            "without other messages, the text has the error number and the needed capabilities"
        );
        let said = "libbpf: Failed to bump RLIMIT_MEMLOCK (err = -EPERM), you might need to do it explicitly!\n\
                    libbpf: prog 'polled': BPF program load failed: -EINVAL\n";
        assert_eq!(words_of(said), "prog 'polled': BPF program load failed: -EINVAL");
    }
}
