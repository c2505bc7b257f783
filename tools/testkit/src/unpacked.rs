//! Programs of packages that `cargo xtask setup` unpacks but does not install, because their packages would
//! start a service.

use std::path::{Path, PathBuf};

/// A program of a package, by its path below `/`: installed, or unpacked.
pub fn program(package: &str, path: &str) -> Option<PathBuf> {
    let base = match (std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME")) {
        (Some(cache), _) if Path::new(&cache).is_absolute() => Some(PathBuf::from(cache)),
        (_, home) => home.map(|home| PathBuf::from(home).join(".cache")),
    };
    let unpacked = base.map(|base| base.join("netpolicy/guest").join(package).join(path));
    [Some(Path::new("/").join(path)), unpacked].into_iter().flatten().find(|path| path.is_file())
}

/// The distribution's Prometheus.
pub fn prometheus() -> Option<PathBuf> {
    program("prometheus", "usr/bin/prometheus")
}
