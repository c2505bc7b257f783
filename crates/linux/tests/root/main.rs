//! Tests of the kernel room on the running kernel. They need root; what a test needs beyond that it names, and
//! a machine that lacks it skips the test loudly: it is listed as ignored, with the reason, and counted.

use libtest_mimic::{Arguments, Failed, Trial};

/// Something that not every machine has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Effective user 0.
    Root,
    /// BPF programs on tracepoints: `/sys/kernel/btf/vmlinux`.
    Bpf,
    /// `memcached` from the distribution.
    Memcached,
}

impl Need {
    fn missing(self) -> Option<&'static str> {
        let (there, what) = match self {
            Self::Root => (rustix::process::geteuid().is_root(), "needs root"),
            Self::Bpf => (std::path::Path::new("/sys/kernel/btf/vmlinux").exists(), "needs kernel BTF"),
            Self::Memcached => (std::path::Path::new("/usr/bin/memcached").exists(), "needs memcached"),
        };
        (!there).then_some(what)
    }
}

/// A test with what it needs.
pub fn test(name: &'static str, needs: &[Need], body: impl FnOnce() -> Result<(), Failed> + Send + 'static) -> Trial {
    match needs.iter().find_map(|need| need.missing()) {
        Some(reason) => Trial::test(name, body).with_kind(format!("SKIPPED, {reason}")).with_ignored_flag(true),
        None => Trial::test(name, body),
    }
}

fn main() {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1); // they count polls and packets of the same CPUs
    let trials = Vec::new();
    libtest_mimic::run(&arguments, trials).exit();
}
