//! Interprets `/proc/PID/cgroup`: the place of a process in its service manager's hierarchy.

use model::{Glob, Patterns};

/// Returns the path of a process in the hierarchy that systemd uses: the unified one, or `name=systemd` if
/// cgroup v1 is also mounted. Without either, the first hierarchy in the list.
///
/// Kernel: 6.18, `kernel/cgroup/cgroup.c` `proc_cgroup_show()`: one line `ID:CONTROLLERS:PATH` for each
/// hierarchy.
pub(crate) fn path(text: &str) -> Option<&str> {
    let lines = || {
        text.lines().filter_map(|line| {
            let (_, rest) = line.split_once(':')?;
            rest.split_once(':')
        })
    };
    let of = |controllers: &str| lines().find(|(c, _)| *c == controllers).map(|(_, path)| path);
    // A hybrid host has both hierarchies; the unified hierarchy then contains only the root cgroup.
    let chosen = [of("").filter(|path| *path != "/"), of("name=systemd"), of("")];
    chosen.into_iter().flatten().next().or_else(|| lines().next().map(|(_, path)| path))
}

/// Whether a process at `path` is in the cgroup `asked` or in one of its descendants. Leading and trailing
/// slashes are ignored.
pub(crate) fn is_within(path: &str, asked: &str) -> bool {
    let (path, asked) = (path.trim_matches('/'), asked.trim_matches('/'));
    asked.is_empty() || path.strip_prefix(asked).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a process at `path` is in a cgroup that matches any of these patterns, or in a descendant of one.
pub(crate) fn is_within_any(path: &str, asked: &Patterns) -> bool {
    asked.iter().any(|glob| {
        if glob.is_literal() {
            return is_within(path, glob.as_str());
        }
        let Ok(glob) = glob.as_str().trim_matches('/').parse::<Glob>() else { return false };
        let path = path.trim_matches('/');
        let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
        ends.map(|end| &path[..end]).any(|begin| glob.meets(begin))
    })
}

/// Returns the units into which systemd itself has put a process at `path`: its slices, and the one service
/// or scope in them. systemd delegates cgroups below a service or scope, for example to a user's service
/// manager or a container; the owner of a delegated subtree can give its cgroups any name.
///
/// systemd puts `_` before a component that could be mistaken for a file of the kernel (systemd,
/// `src/basic/cgroup-util.c` `cg_escape()`). In a cgroup namespace, a path begins with one `/..` per level
/// above the namespace's root.
fn units(path: &str) -> impl Iterator<Item = &str> {
    let mut is_below = false;
    path.split('/')
        .filter(|part| !part.is_empty() && *part != "..")
        .map(|part| part.strip_prefix('_').unwrap_or(part))
        .take_while(move |part| {
            let is_unit = !is_below && (part.ends_with(".slice") || ends_the_slices(part));
            is_below = !part.ends_with(".slice");
            is_unit
        })
}

/// Whether a component is a unit other than a slice: systemd does not manage the cgroups below such a unit.
pub(super) fn ends_the_slices(part: &str) -> bool {
    part.ends_with(".service") || part.ends_with(".scope")
}

/// Like [`is_of_unit`], for any unit that matches a pattern.
pub(crate) fn is_of_any_unit(path: &str, asked: &Patterns) -> bool {
    asked.iter().any(|glob| {
        if glob.is_literal() {
            return is_of_unit(path, glob.as_str());
        }
        let typed = [".service", ".scope", ".slice"].iter().any(|suffix| glob.as_str().ends_with(suffix));
        units(path).any(|unit| {
            let bare = unit.strip_suffix(".service").filter(|_| !typed);
            glob.meets(bare.unwrap_or(unit)) && (typed || bare.is_some())
        })
    })
}

/// Whether a process at `path` belongs to a unit of the system's service manager. A name without a type means
/// a service, as in systemctl.
pub(crate) fn is_of_unit(path: &str, unit: &str) -> bool {
    let typed = [".service", ".scope", ".slice"].iter().any(|suffix| unit.ends_with(suffix));
    let unit = if typed { unit.to_owned() } else { format!("{unit}.service") };
    units(path).any(|of| of == unit)
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_service_managers_hierarchy_is_chosen_on_every_kind_of_host() {
        let unified = "0::/system.slice/memcached.service\n";
        let hybrid = "9:name=systemd:/system.slice/memcached.service\n4:memory:/elsewhere\n0::/\n";
        let legacy = "4:memory:/elsewhere\n1:name=systemd:/system.slice/memcached.service\n";
        for text in [unified, hybrid, legacy] {
            assert_eq!(path(text), Some("/system.slice/memcached.service"), "{text}");
        }
        assert_eq!(path("4:memory:/only\n"), Some("/only"));
        assert_eq!(path("0::/with:colon\n"), Some("/with:colon"));
        assert_eq!(path("nonsense"), None);
    }

    #[test]
    fn a_cgroup_holds_what_is_below_it_and_not_what_begins_like_it() {
        assert!(is_within("/system.slice/a.service/worker", "system.slice/a.service/"));
        assert!(is_within("/system.slice/a.service", "/system.slice/a.service"));
        assert!(!is_within("/system.slice/a.service2", "/system.slice/a.service"));
        assert!(is_within("/anything", "/"));
    }

    #[test]
    fn a_pattern_finds_the_cgroups_and_units_that_meet_it() {
        let asked = |text: &str| text.parse::<Patterns>().expect("a pattern");
        let path = "/kubepods.slice/kubepods-pod1.slice/cri-2.scope/sub";
        assert!(is_within_any(path, &asked("kubepods.slice/*/cri-*")));
        assert!(is_within_any(path, &asked("/kubepods.slice/kubepods-pod?.slice")));
        assert!(!is_within_any(path, &asked("kubepods.slice/cri-*")));
        let path = "/system.slice/system-memcached.slice/memcached@1.service/sub";
        assert!(is_of_any_unit(path, &asked("memcached@*")));
        assert!(is_of_any_unit(path, &asked("memcached@?.service")));
        assert!(!is_of_any_unit(path, &asked("system-*")), "a name without a type means a service");
        assert!(is_of_any_unit(path, &asked("system-*.slice")));
    }

    #[test]
    fn a_cgroup_of_a_unit_s_name_below_what_is_delegated_is_no_unit() {
        let web: Patterns = "web*".parse().expect("a pattern");
        for path in [
            "/user.slice/user-65534.slice/user@65534.service/app.slice/web.service",
            "/user.slice/user-65534.slice/user@65534.service/web.service",
            "/user.slice/user-65534.slice/session-3.scope/web.service",
            "/system.slice/docker-1.scope/system.slice/web.service",
            "/web.service.d/x",
            "/lxc/one/web.service",
            "/mine/web.service",
        ] {
            assert!(!is_of_unit(path, "web") && !is_of_unit(path, "web.service"), "{path}");
            assert!(!is_of_any_unit(path, &web), "{path}");
        }
        for path in ["/system.slice/web.service/worker", "/../../system.slice/web.service", "/web.service"] {
            assert!(is_of_unit(path, "web") && is_of_any_unit(path, &web), "{path}");
        }
        let path = "/user.slice/user-1000.slice/user@1000.service/app.slice/web.service";
        assert!(is_of_unit(path, "user@1000") && is_of_unit(path, "user-1000.slice"));
        assert!(!is_of_unit(path, "app.slice"));
    }

    #[test]
    fn a_unit_is_a_component_of_the_path() {
        let path = "/system.slice/system-memcached.slice/memcached@1.service/sub";
        assert!(is_of_unit(path, "memcached@1.service"));
        assert!(is_of_unit(path, "memcached@1"));
        assert!(is_of_unit(path, "system.slice"));
        assert!(!is_of_unit(path, "memcached"));
        assert!(is_of_unit("/system.slice/_cpu.service", "cpu.service"));
    }
}
