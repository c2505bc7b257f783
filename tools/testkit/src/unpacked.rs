//! Finds programs of packages that `cargo xtask setup` unpacks but does not install, because an installed
//! package would start a service.

use std::path::{Path, PathBuf};

/// Returns a program of a package, by its path below `/`: the installed one or, without one, the unpacked
/// one.
pub fn program(package: &str, path: &str) -> Option<PathBuf> {
    let base = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        (Some(cache), _) if Path::new(&cache).is_absolute() => Some(PathBuf::from(cache)),
        (_, home) => home.map(|home| PathBuf::from(home).join(".cache")),
    };
    let unpacked = base.map(|base| base.join("netpolicy/guest").join(package).join(path));
    [Some(Path::new("/").join(path)), unpacked].into_iter().flatten().find(|path| path.is_file())
}

/// helm: the user's own, or the one that `cargo xtask setup` built.
pub fn helm() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let own =
        std::env::split_paths(&path).map(|directory| directory.join("helm")).find(|path| path.is_file());
    own.or_else(|| program("helm", "bin/helm"))
}

/// Returns the directory into which `cargo xtask setup` installed ansible-core, ansible-lint and
/// kubernetes-validate, so that Python can import them from it.
pub fn ansible() -> Option<PathBuf> {
    let directory = program("ansible", "bin/ansible-playbook")?.parent()?.parent()?.to_path_buf();
    directory.join("ansible").is_dir().then_some(directory)
}

/// The distribution's Prometheus.
pub fn prometheus() -> Option<PathBuf> {
    program("prometheus", "usr/bin/prometheus")
}

/// The distribution's sshd.
pub fn sshd() -> Option<PathBuf> {
    program("openssh-server", "usr/sbin/sshd")
}
