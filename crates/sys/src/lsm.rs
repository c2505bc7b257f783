//! Names the security module that confines this process. It can deny a request even if the process has the
//! needed capability.

use std::sync::OnceLock;

/// The files in which AppArmor reports the profile of a process, and in which the first security module
/// reports its label. Kernel: 5.8, `fs/proc/base.c` `apparmor_attr_dir_stuff`, `attr_dir_stuff`.
const LABELS: [&str; 2] = ["/proc/self/attr/apparmor/current", "/proc/self/attr/current"];

/// The file that contains `1` if SELinux enforces its policy.
const SELINUX_ENFORCES: &str = "/sys/fs/selinux/enforce";

/// Returns the profile or domain that confines this process, such as `the AppArmor profile docker-default`.
/// Returns `None` if there is none, or if violations are only logged. The profile is read only once.
pub fn confinement() -> Option<&'static str> {
    static CONFINEMENT: OnceLock<Option<String>> = OnceLock::new();
    let read = || {
        let label = LABELS.iter().find_map(|path| std::fs::read_to_string(path).ok())?;
        let enforces = || std::fs::read_to_string(SELINUX_ENFORCES).is_ok_and(|text| text.trim() == "1");
        confinement_of(label.trim_end_matches(['\0', '\n']), enforces)
    };
    CONFINEMENT.get_or_init(read).as_deref()
}

/// Adds to `needs` the permission of the security module that confines this process, if one does.
pub fn needs_under_confinement(needs: String) -> String {
    match confinement() {
        Some(by) => format!("{needs}, and permission by {by}, which confines this process"),
        None => needs,
    }
}

/// Parses a label of AppArmor (`NAME (MODE)` or `unconfined`) or of SELinux (`USER:ROLE:TYPE[:LEVEL]`).
fn confinement_of(label: &str, selinux_enforces: impl Fn() -> bool) -> Option<String> {
    if let Some((profile, mode)) = label.strip_suffix(')').and_then(|label| label.rsplit_once(" (")) {
        let logs_only = matches!(mode, "complain" | "unconfined");
        return (!logs_only).then(|| format!("the AppArmor profile {profile}"));
    }
    let domain = label.split(':').nth(2)?;
    let confines = !domain.starts_with("unconfined") && selinux_enforces();
    confines.then(|| format!("the SELinux domain {domain}"))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn labels_of_apparmor_and_selinux_are_told_apart() {
        for (label, enforces, expected) in [
            ("unconfined", false, None),
            ("docker-default (enforce)", false, Some("the AppArmor profile docker-default")),
            (
                "cri-containerd.apparmor.d (kill)",
                false,
                Some("the AppArmor profile cri-containerd.apparmor.d"),
            ),
            ("a profile (of mine) (enforce)", false, Some("the AppArmor profile a profile (of mine)")),
            ("docker-default (complain)", false, None),
            ("system_u:system_r:container_t:s0:c1,c2", true, Some("the SELinux domain container_t")),
            ("system_u:system_r:container_t:s0:c1,c2", false, None),
            ("unconfined_u:unconfined_r:unconfined_t:s0-s0:c0.c1023", true, None),
            ("system_u:system_r:unconfined_service_t:s0", true, None),
            ("kernel", true, None),
            ("", true, None),
        ] {
            assert_eq!(confinement_of(label, || enforces).as_deref(), expected, "{label}");
        }
    }
}
