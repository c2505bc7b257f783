//! Reads the CPUs on which a process's cgroup allows it to run.

use std::collections::BTreeMap;
use std::path::Path;

use model::CpuSet;

/// The hierarchies that may have the cpuset controller: unified, unified in addition to v1, and v1. Each
/// entry is the mount point, the name of the file, and the controller's name in `/proc/PID/cgroup`.
const HIERARCHIES: [(&str, &str, &str); 3] = [
    ("/sys/fs/cgroup", "cpuset.cpus.effective", ""),
    ("/sys/fs/cgroup/unified", "cpuset.cpus.effective", ""),
    ("/sys/fs/cgroup/cpuset", "cpuset.effective_cpus", "cpuset"),
];

/// The maximum number of levels that are searched upwards for a cgroup that has the controller.
const LEVELS_MAX: usize = 32;

/// A cache of the CPU sets of cgroups, because many processes share a cgroup.
#[derive(Debug, Default)]
pub(crate) struct Cpusets {
    known: BTreeMap<String, Option<CpuSet>>,
}

impl Cpusets {
    /// Returns the CPU set of a process, from its `/proc/PID/cgroup`; `None` if no hierarchy has the
    /// controller.
    ///
    /// Kernel: Documentation/admin-guide/cgroup-v2.rst, `cpuset.cpus.effective`.
    pub(crate) fn of(&mut self, cgroups: &str) -> Option<CpuSet> {
        if let Some(known) = self.known.get(cgroups) {
            return known.clone();
        }
        let found = HIERARCHIES.iter().find_map(|(mount, file, controller)| {
            let path = path_in(cgroups, controller)?;
            effective(Path::new(mount), path, file)
        });
        self.known.insert(cgroups.to_owned(), found.clone());
        found
    }
}

/// Returns the path of a process in the hierarchy with this controller; an empty controller means the unified
/// hierarchy.
fn path_in<'t>(cgroups: &'t str, controller: &str) -> Option<&'t str> {
    cgroups.lines().find_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, path) = rest.split_once(':')?;
        controllers.split(',').any(|one| one == controller).then_some(path)
    })
}

/// Reads the file in the cgroup, or in the nearest ancestor that has the file.
fn effective(mount: &Path, path: &str, file: &str) -> Option<CpuSet> {
    let whole = mount.join(path.trim_start_matches('/'));
    let above = whole.ancestors().take(LEVELS_MAX).take_while(|level| level.starts_with(mount));
    let text = above.filter_map(|level| std::fs::read_to_string(level.join(file)).ok()).next()?;
    text.parse().ok().filter(|cpus: &CpuSet| !cpus.is_empty())
}

/// Reads the CPUs of isolated cpuset partitions; empty before Linux 6.7. Kernel: 6.7,
/// `kernel/cgroup/cpuset.c` `isolated_cpus_show()`.
pub(crate) fn isolated_partitions() -> CpuSet {
    let files = ["/sys/fs/cgroup/cpuset.cpus.isolated", "/sys/fs/cgroup/unified/cpuset.cpus.isolated"];
    let text = files.iter().find_map(|file| std::fs::read_to_string(file).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_hierarchy_with_the_controller_is_found_on_every_kind_of_host() {
        let hybrid = "9:name=systemd:/a.service\n4:cpu,cpuset:/caged\n0::/unified.scope\n";
        assert_eq!(path_in(hybrid, "cpuset"), Some("/caged"));
        assert_eq!(path_in(hybrid, ""), Some("/unified.scope"));
        assert_eq!(path_in("0::/x\n", "cpuset"), None);
    }

    #[test]
    fn a_cgroup_without_the_controller_has_the_set_of_the_nearest_above_it() {
        let dir = tempfile::TempDir::with_prefix("netpolicy-cpuset-").expect("a directory");
        std::fs::create_dir_all(dir.path().join("outer/inner")).expect("directories");
        std::fs::write(dir.path().join("outer/cpuset.cpus.effective"), "2-3\n").expect("file");
        let of = |path| effective(dir.path(), path, "cpuset.cpus.effective").map(|cpus| cpus.to_string());
        assert_eq!(of("/outer/inner"), Some("2-3".to_owned()));
        assert_eq!(of("/outer"), Some("2-3".to_owned()));
        assert_eq!(of("/elsewhere"), None);
    }
}
