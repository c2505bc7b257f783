//! Identifies the container and the pod of a process: its cgroup contains the ids, and files of the container
//! runtime contain the names.
//!
//! Kubernetes: `pkg/kubelet/cm` `cgroup_manager_linux.go` (`kubepods`, `pod` and its uid),
//! `pkg/kubelet/kuberuntime` `logSymlink()` (`/var/log/containers/POD_NAMESPACE_CONTAINER-ID.log`). Docker:
//! `config.v2.json` of the container.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use model::Patterns;

/// The maximum number of containers whose names are read.
const CONTAINERS_MAX: usize = 16_384;

/// The maximum number of bytes that are read of one container's file.
const FILE_BYTES_MAX: u64 = 256 * 1024;

/// The maximum number of bytes that are read of a list of containers.
const LIST_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The length of a container's id, in hexadecimal digits.
const ID_CHARS: usize = 64;

/// The length of the abbreviated ids that runtimes show.
const SHORT_ID_CHARS: usize = 12;

/// The container of a process, according to its cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Container {
    /// The container's id; `None` for a process that belongs only to a pod.
    pub id: Option<String>,
    /// The uid of the process's pod; `None` without a pod.
    pub pod: Option<String>,
}

impl Container {
    /// Parses a cgroup's path; `None` if the cgroup belongs to no container and no pod.
    ///
    /// The outermost container counts. Components below a service or scope for which `is_roots` returns false
    /// are ignored: a user can give the cgroups of a delegated subtree any name.
    pub fn of_cgroup(path: &str, is_roots: impl Fn(&str) -> bool) -> Option<Self> {
        let mut found = Self::default();
        let mut end = 0;
        for part in path.split('/') {
            end += part.len();
            found.pod = found.pod.or_else(|| pod_in(part));
            if let Some(id) = id_in(part) {
                found.id = Some(id.to_owned());
                break;
            }
            if super::cgroup::ends_the_slices(part) && !is_roots(&path[..end]) {
                break;
            }
            end += 1;
        }
        (found != Self::default()).then_some(found)
    }
}

/// Whether only root can create cgroups below this one, because it is not delegated to another user. False if
/// that is unknown.
pub(crate) fn belongs_to_root(cgroup: &str) -> bool {
    use std::os::unix::fs::MetadataExt;
    let found = super::place::MOUNTS.iter().find_map(|at| std::fs::metadata(format!("{at}{cgroup}")).ok());
    found.is_some_and(|directory| directory.uid() == 0)
}

/// Returns the name of a process's container, or the beginning of the container's id, from the text of
/// `/proc/PID/cgroup`. `names` is filled at the first use.
pub(crate) fn container_of(cgroup: &str, names: &mut Option<Names>) -> Option<String> {
    let container = Container::of_cgroup(super::cgroup::path(cgroup)?, belongs_to_root)?;
    let names = names.get_or_insert_with(|| Names::read(Path::new("/")));
    let short = || container.id.as_ref().map(|id| id.chars().take(SHORT_ID_CHARS).collect());
    names.of(&container).or_else(short)
}

/// Finds the id at the end of a component of a cgroup's path, such as `cri-containerd-ID.scope`,
/// `docker-ID.scope`, or `ID`.
fn id_in(part: &str) -> Option<&str> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let start = part.len().checked_sub(ID_CHARS)?;
    let (before, id) = part.split_at_checked(start)?;
    let is_id = id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    (is_id && (before.is_empty() || before.ends_with(['-', ':']))).then_some(id)
}

/// Finds the uid in `kubepods-burstable-podUID.slice`, where `_` stands for `-`, or in `podUID`.
fn pod_in(part: &str) -> Option<String> {
    let part = part.strip_suffix(".slice").unwrap_or(part);
    let uid = part.strip_prefix("pod").or_else(|| part.rsplit_once("-pod").map(|(_, uid)| uid))?;
    let uid = uid.replace('_', "-");
    let is_uid =
        matches!(uid.len(), 32 | 36) && uid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    is_uid.then_some(uid)
}

/// The names that runtimes gave to containers and pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// The names of containers, by id.
    containers: BTreeMap<String, ContainerName>,
    /// The namespaces and names of pods, by uid.
    pods: BTreeMap<String, (String, String)>,
}

/// The name of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ContainerName {
    name: String,
    /// The namespace and the name of the container's pod.
    pod: Option<(String, String)>,
}

impl Names {
    /// Reads the runtimes' files below `root`, which is `/` or the root of a recorded host. Missing files are
    /// ignored.
    pub fn read(root: &Path) -> Self {
        let mut names = Self::default();
        for name in listed(&root.join("var/log/containers")) {
            names.log_of_container(&name);
        }
        for name in listed(&root.join("var/log/pods")) {
            if let Some((namespace, rest)) = name.split_once('_')
                && let Some((pod, uid)) = rest.rsplit_once('_')
            {
                names.pods.insert(uid.to_owned(), (namespace.to_owned(), pod.to_owned()));
            }
        }
        let docker = root.join("var/lib/docker/containers");
        for id in listed(&docker) {
            let mut text = Vec::new();
            let file = std::fs::File::open(docker.join(&id).join("config.v2.json"));
            let read = file.and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut text));
            if read.is_ok()
                && let Some(name) = docker_name(&String::from_utf8_lossy(&text))
            {
                names.containers.entry(id).or_insert(ContainerName { name, pod: None });
            }
        }
        for storage in ["var/lib/containers/storage", "run/containers/storage"] {
            for driver in ["overlay", "vfs", "btrfs", "zfs"] {
                let mut text = Vec::new();
                let path = root.join(storage).join(format!("{driver}-containers/containers.json"));
                let file = std::fs::File::open(path);
                if file.and_then(|file| file.take(LIST_BYTES_MAX).read_to_end(&mut text)).is_ok() {
                    names.containers_of_storage(&String::from_utf8_lossy(&text));
                }
            }
        }
        names
    }

    /// Parses the list of podman and CRI-O, `containers.json`: for each container first its `id`, then its
    /// `names`.
    ///
    /// containers/storage: `containers.go` `type Container struct`, written by Go's `encoding/json` without
    /// blanks.
    fn containers_of_storage(&mut self, text: &str) {
        for of_one in text.split("{\"id\":\"").skip(1).take(CONTAINERS_MAX) {
            let (id, rest) = of_one.split_once('"').unwrap_or_default();
            let name = rest.split_once("\"names\":[\"").and_then(|(_, names)| names.split('"').next());
            if let Some(name) = name.filter(|name| !name.is_empty() && name.chars().all(is_name)) {
                let name = ContainerName { name: name.to_owned(), pod: None };
                self.containers.entry(id.to_owned()).or_insert(name);
            }
        }
    }

    /// Parses the name of a log file, such as `cart-7d9f_shop_server-ID.log`.
    fn log_of_container(&mut self, name: &str) {
        let Some(name) = name.strip_suffix(".log") else { return };
        let Some((names, id)) = name.rsplit_once('-') else { return };
        let mut parts = names.splitn(3, '_');
        let (Some(pod), Some(namespace), Some(container)) = (parts.next(), parts.next(), parts.next()) else {
            return;
        };
        let pod = Some((namespace.to_owned(), pod.to_owned()));
        let name = ContainerName { name: container.to_owned(), pod };
        self.containers.insert(id.to_owned(), name);
    }

    /// Whether the patterns request a container: by its name, its id, or the beginning of its id.
    pub fn is_container(&self, container: &Container, asked: &Patterns) -> bool {
        let Some(id) = &container.id else { return false };
        let begins = |text: &str| text.len() >= SHORT_ID_CHARS && id.starts_with(text);
        asked.meet(id)
            || asked.iter().any(|glob| glob.is_literal() && begins(glob.as_str()))
            || self.containers.get(id).is_some_and(|known| asked.meet(&known.name))
    }

    /// Whether the patterns request a container's pod: by its name, its namespace and name, or its uid.
    pub fn is_pod(&self, container: &Container, asked: &Patterns) -> bool {
        let of_container = container.id.as_ref().and_then(|id| self.containers.get(id)?.pod.as_ref());
        let of_uid = container.pod.as_ref().and_then(|uid| self.pods.get(uid));
        let named = of_container.or(of_uid);
        container.pod.as_ref().is_some_and(|uid| asked.meet(uid))
            || named.is_some_and(|(namespace, name)| {
                asked.meet(name) || asked.meet(&format!("{namespace}/{name}"))
            })
    }

    /// Returns the name of a container, such as `shop/cart-7d9f server` or `web`, if a file contains it.
    pub fn of(&self, container: &Container) -> Option<String> {
        let known = self.containers.get(container.id.as_ref()?)?;
        Some(match &known.pod {
            Some((namespace, pod)) => format!("{namespace}/{pod} {}", known.name),
            None => known.name.clone(),
        })
    }
}

fn listed(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.take(CONTAINERS_MAX).collect()
}

/// Whether runtimes allow a character in a name.
const fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-')
}

/// Finds the name in Docker's description of a container: it is the only name that begins with a `/`.
fn docker_name(text: &str) -> Option<String> {
    const KEY: &str = "\"Name\":\"/";
    let rest = &text[text.find(KEY)? + KEY.len()..];
    let name = rest.split('"').next()?;
    (!name.is_empty() && name.chars().all(is_name)).then(|| name.to_owned())
}

#[cfg(test)]
mod test {
    use super::*;

    const ID: &str = "3f1c9a0b7d2e4f6a8b0c1d2e3f4a5b6c7d8e9f0a1b2c3d4e5f6a7b8c9d0e1f2a";
    const UID: &str = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9";

    fn patterns(text: &str) -> Patterns {
        text.parse().expect("a pattern")
    }

    #[test]
    fn the_cgroups_of_every_runtime_say_the_container_and_its_pod() {
        let escaped = UID.replace('-', "_");
        for (path, id, pod) in [
            (
                format!(
                    "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{escaped}.slice/cri-containerd-{ID}.scope"
                ),
                true,
                true,
            ),
            (format!("/kubepods.slice/kubepods-pod{escaped}.slice/crio-{ID}.scope/container"), true, true),
            (format!("/kubepods/besteffort/pod{UID}/{ID}"), true, true),
            (format!("/kubepods/besteffort/pod{UID}"), false, true),
            (format!("/system.slice/docker-{ID}.scope"), true, false),
            (format!("/docker/{ID}"), true, false),
            (format!("/machine.slice/libpod-{ID}.scope/container"), true, false),
        ] {
            let expected = Container { id: id.then(|| ID.to_owned()), pod: pod.then(|| UID.to_owned()) };
            assert_eq!(Container::of_cgroup(&path, |_| false), Some(expected), "{path}");
        }
        for path in ["/system.slice/nginx.service", "/", "/user.slice/podman-1.scope", &format!("/x{ID}")] {
            assert_eq!(Container::of_cgroup(path, |_| false), None, "{path}");
        }
    }

    #[test]
    fn a_cgroup_of_a_containers_name_below_what_is_delegated_is_no_container() {
        let inner = "b".repeat(64);
        let user = "/user.slice/user-65534.slice/user@65534.service";
        for below in
            [format!("docker-{ID}.scope"), format!("kubepods/pod{UID}/{ID}"), format!("x.slice/{ID}")]
        {
            assert_eq!(Container::of_cgroup(&format!("{user}/{below}"), |_| false), None, "{below}");
        }
        let nested = format!("/docker/{ID}/docker/{inner}");
        let outermost = Container { id: Some(ID.to_owned()), pod: None };
        assert_eq!(Container::of_cgroup(&nested, |_| true), Some(outermost.clone()));
        // A runtime may keep its containers below its own service, which belongs to root.
        let path = format!("/system.slice/containerd.service/{ID}");
        assert_eq!(
            Container::of_cgroup(&path, |at| at == "/system.slice/containerd.service"),
            Some(outermost)
        );
        assert_eq!(Container::of_cgroup(&path, |_| false), None);
    }

    #[test]
    fn a_container_is_found_by_its_name_its_pods_name_and_the_begin_of_its_id() {
        let mut names = Names::default();
        names.log_of_container(&format!("cart-7d9f-x2_shop_server-{ID}.log"));
        let container = Container { id: Some(ID.to_owned()), pod: Some(UID.to_owned()) };
        for (asked, container_is, pod_is) in [
            ("server", true, false),
            ("cart-*", false, true),
            ("shop/cart-*", false, true),
            ("other/cart-*", false, false),
            (&ID[..12], true, false),
            (&ID[..6], false, false),
            (UID, false, true),
        ] {
            let asked = patterns(asked);
            assert_eq!(names.is_container(&container, &asked), container_is, "{asked}");
            assert_eq!(names.is_pod(&container, &asked), pod_is, "{asked}");
        }
        assert_eq!(names.of(&container).as_deref(), Some("shop/cart-7d9f-x2 server"));
    }

    #[test]
    fn podmans_list_of_containers_has_their_names() {
        let mut names = Names::default();
        let text =
            format!(r#"[{{"id":"{ID}","names":["web-1"],"image":"7a","layer":"9"}},{{"id":"other"}}]"#);
        names.containers_of_storage(&text);
        let container = Container { id: Some(ID.to_owned()), pod: None };
        assert_eq!(names.of(&container).as_deref(), Some("web-1"));
        names.containers_of_storage("[{\"id\":\"");
        let cgroup = format!("0::/machine.slice/libpod-{ID}.scope/container\n");
        assert_eq!(container_of(&cgroup, &mut Some(names)).as_deref(), Some("web-1"));
        assert_eq!(container_of(&cgroup, &mut Some(Names::default())).as_deref(), Some(&ID[..12]));
        assert_eq!(container_of("0::/system.slice/nginx.service\n", &mut None), None);
    }

    #[test]
    fn dockers_description_of_a_container_has_its_name() {
        let text = r#"{"State":{"Pid":7},"Config":{"Image":"nginx"},"Name":"/web-1","MountPoints":{"a":{"Name":"vol"}}}"#;
        assert_eq!(docker_name(text).as_deref(), Some("web-1"));
        assert_eq!(docker_name(r#"{"Name":"vol"}"#), None);
    }
}
