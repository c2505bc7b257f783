//! Fetches packages from this release, and from the backports of this release and of the next one. apt runs
//! with a private configuration, so the system's sources, lists and packages do not change.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use super::cache::{Cache, Lock};
use crate::files;
use crate::shell::{self, Result};

/// How old the package lists may be before they are fetched again.
const LISTS_STAY_FRESH: Duration = Duration::from_secs(24 * 3600);

/// The oldest kernel with everything that the tests need.
const OLDEST_KERNEL: &str = "6.18~";

/// A private apt, with its own sources and lists, but with the system's keys and the system's record of
/// installed packages.
pub(super) struct Apt {
    directory: PathBuf,
    release: String,
    suites: Vec<String>,
    _lock: Lock,
}

/// A package that the suites offer.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) package: String,
    pub(super) version: String,
    /// The suite's name in its repository: `bookworm-backports`.
    pub(super) suite: String,
}

/// A repository of the system: its address and key.
pub(crate) struct Mirror {
    pub(crate) uri: String,
    pub(crate) release: String,
    pub(crate) signed_by: Option<String>,
}

impl Apt {
    /// Finds the mirror and the suites, and fetches their lists unless they are fresh.
    pub(super) fn open(cache: &Cache) -> Result<Self> {
        let mirror = Mirror::of_this_system()?;
        let lock = cache.lock("apt")?;
        let release = mirror.release.clone();
        let mut apt = Self { directory: cache.at("apt"), release, suites: Vec::new(), _lock: lock };
        for below in ["lists/partial", "cache/archives/partial"] {
            files::make_directory(&apt.directory.join(below))?;
        }
        let stamp = apt.directory.join("fetched");
        let recorded = std::fs::read_to_string(&stamp).unwrap_or_default();
        let fresh = std::fs::metadata(&stamp)
            .and_then(|seen| seen.modified())
            .is_ok_and(|at| SystemTime::now().duration_since(at).is_ok_and(|age| age < LISTS_STAY_FRESH));
        if fresh && !recorded.is_empty() {
            apt.suites = recorded.lines().map(str::to_owned).collect();
            return Ok(apt);
        }
        // `stable-backports` names the next release, unless this is the latest one.
        let own = format!("{}-backports", mirror.release);
        let backports = apt.fetch(&mirror, &[&own, "stable-backports"])?;
        let suites = [mirror.release.clone()].into_iter().chain(backports).collect::<Vec<_>>();
        apt.suites = apt.fetch(&mirror, &suites.iter().map(String::as_str).collect::<Vec<_>>())?;
        if apt.suites.is_empty() {
            return Err(format!("{} offers none of the suites {}", mirror.uri, suites.join(", ")));
        }
        files::write(&stamp, &(apt.suites.join("\n") + "\n"))?;
        Ok(apt)
    }

    /// Fetches the package lists of those `suites` that the mirror has. Returns the names that the suites
    /// have in their repository.
    fn fetch(&self, mirror: &Mirror, suites: &[&str]) -> Result<Vec<String>> {
        let key = mirror.signed_by.as_ref().map_or(String::new(), |key| format!("[signed-by={key}] "));
        let lines: Vec<_> =
            suites.iter().map(|suite| format!("deb {key}{} {suite} main\n", mirror.uri)).collect();
        files::write(&self.directory.join("sources.list"), &lines.concat())?;
        eprintln!("guest: fetching the package lists of {} from {}", suites.join(", "), mirror.uri);
        // A suite that the mirror lacks makes `update` fail, but all other lists are fetched.
        let said = self.client("apt-get").args(["-q", "update"]).output();
        let said = said.map_err(|error| format!("apt-get: {error}"))?;
        let targets =
            self.client("apt-get").args(["indextargets", "--format", "$(FILENAME) $(CODENAME)"]).output();
        let targets = targets.map_err(|error| format!("apt-get indextargets: {error}"))?;
        let mut names: Vec<String> = Vec::new();
        for line in String::from_utf8_lossy(&targets.stdout).lines() {
            if let Some((file, codename)) = line.split_once(' ') {
                let there = Path::new(file).exists() && !codename.is_empty();
                if there && !names.iter().any(|name| name == codename) {
                    names.push(codename.to_owned());
                }
            }
        }
        if names.is_empty() {
            let complaint = String::from_utf8_lossy(&said.stderr);
            return Err(format!(
                "no package list could be fetched from {}: {}",
                mirror.uri,
                complaint.trim()
            ));
        }
        Ok(names)
    }

    /// Returns a command of apt that uses the private configuration.
    fn client(&self, program: &str) -> Command {
        let mut command = shell::tied(program);
        let set = |name: &str, below: &str| format!("{name}={}", self.directory.join(below).display());
        command.env("LC_ALL", "C").env("DEBIAN_FRONTEND", "noninteractive");
        for option in [
            set("Dir::Etc::sourcelist", "sources.list"),
            "Dir::Etc::sourceparts=-".to_owned(),
            set("Dir::State::lists", "lists"),
            set("Dir::Cache", "cache"),
            // The cache belongs to root, so apt's unprivileged download user cannot write there.
            "APT::Sandbox::User=root".to_owned(),
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        command
    }

    /// The available suites.
    pub(super) fn suites(&self) -> String {
        self.suites.join(", ")
    }

    /// The suites of this release itself, whose packages run on this system.
    pub(super) fn own_suites(&self) -> [String; 2] {
        [self.release.clone(), format!("{}-backports", self.release)]
    }

    /// The newest version of a package that this release's own suites offer.
    pub(super) fn own_newest(&self, package: &str) -> Result<Offer> {
        let own = self.own_suites();
        let mut offers = self.offers(package)?;
        offers.retain(|offer| offer.package == package && own.contains(&offer.suite));
        newest(offers).ok_or_else(|| format!("no package {package} is available in {}", own.join(", ")))
    }

    /// All available versions of packages with this prefix.
    pub(super) fn offers(&self, prefix: &str) -> Result<Vec<Offer>> {
        let names = shell::output(self.client("apt-cache").args(["pkgnames", prefix]))?;
        let names: Vec<_> = names.split_whitespace().collect();
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let table = shell::output(self.client("apt-cache").arg("madison").args(names))?;
        Ok(read_madison(&table))
    }

    /// Downloads packages of exact versions into a directory.
    pub(super) fn download(&self, packages: &[(&str, &str)], into: &Path) -> Result {
        let exact = packages.iter().map(|(package, version)| format!("{package}={version}"));
        let mut command = self.client("apt-get");
        shell::run(command.current_dir(into).args(["-q", "download"]).args(exact))
    }

    /// Downloads a package, with those of its dependencies that are not installed.
    pub(super) fn download_with_dependencies(&self, package: &str, suite: &str, into: &Path) -> Result {
        files::make_directory(&into.join("partial"))?;
        let mut command = self.client("apt-get");
        command.arg("-o").arg(format!("Dir::Cache::archives={}", into.display()));
        command.args(["-o", "Debug::NoLocking=true", "-q", "-y", "--no-install-recommends"]);
        shell::run(command.args(["--download-only", "-t", suite, "install", package]))
    }
}

/// Unpacks every package in a directory.
pub(super) fn unpack_all(packages: &Path, into: &Path) -> Result {
    for package in files::entries(packages)? {
        if package.extension().is_some_and(|ending| ending == "deb") {
            shell::run(shell::tied("dpkg").arg("-x").arg(&package).arg(into))?;
        }
    }
    Ok(())
}

/// The newest of these offers.
fn newest(offers: Vec<Offer>) -> Option<Offer> {
    offers.into_iter().reduce(|one, other| if newer(&other.version, &one.version) { other } else { one })
}

/// The newest kernel among these offers with everything that the tests need.
pub(super) fn newest_kernel(mut offers: Vec<Offer>) -> Option<Offer> {
    offers.retain(|offer| newer(&offer.version, OLDEST_KERNEL));
    newest(offers)
}

/// Replaces the characters of a version that shells and makefiles treat specially.
pub(super) fn path_letters(version: &str) -> String {
    version.chars().map(|c| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' }).collect()
}

/// Whether Debian's ordering puts `left` after `right`.
pub(super) fn newer(left: &str, right: &str) -> bool {
    let compared = Command::new("dpkg").args(["--compare-versions", left, "gt", right]).status();
    compared.is_ok_and(|status| status.success())
}

impl Mirror {
    /// Returns the repository of this system's release.
    pub(crate) fn of_this_system() -> Result<Self> {
        let release = files::read(Path::new("/etc/os-release"))?;
        let field = |name: &str| {
            let line = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
            line.map(|value| value.trim_matches('"').to_owned())
        };
        let Some(codename) = field("VERSION_CODENAME") else {
            return Err(
                "/etc/os-release has no VERSION_CODENAME: guests are made of Debian packages".to_owned()
            );
        };
        let format = "$(SITE)\t$(RELEASE)\t$(COMPONENT)";
        let mut apt = Command::new("apt-get");
        apt.env("LC_ALL", "C").args(["indextargets", "--format", format, "Identifier: Packages"]);
        let targets = shell::output(&mut apt)?;
        let uri = read_targets(&targets, &codename).ok_or_else(|| {
            format!("no source of `{codename} main` in this system's apt configuration: guests are made of its packages")
        })?;
        // `indextargets` does not show which key a source names, but the vendor's keyring has a fixed path.
        let keyring = format!("/usr/share/keyrings/{}-archive-keyring.gpg", field("ID").unwrap_or_default());
        let signed_by = Path::new(&keyring).is_file().then_some(keyring);
        Ok(Self { uri, release: codename, signed_by })
    }
}

/// Finds the address of a release's repository in the output of `apt-get indextargets`.
fn read_targets(targets: &str, release: &str) -> Option<String> {
    targets.lines().find_map(|line| {
        let fields: Vec<_> = line.split('\t').collect();
        let [site, suite, component] = fields[..] else { return None };
        (suite == release && component == "main").then(|| site.to_owned())
    })
}

/// Reads the table of `apt-cache madison`.
fn read_madison(table: &str) -> Vec<Offer> {
    let rows = table.lines().filter_map(|line| {
        let mut columns = line.split('|').map(str::trim);
        let (package, version) = (columns.next()?, columns.next()?);
        let origin = columns.next()?;
        let suite = origin.split_whitespace().nth(1)?.split('/').next()?.to_owned();
        let binary = origin.ends_with("Packages");
        binary.then(|| Offer { package: package.to_owned(), version: version.to_owned(), suite })
    });
    rows.collect()
}

#[cfg(test)]
mod reading {
    use super::*;

    #[test]
    fn the_table_of_versions_is_read_and_sources_are_left_out() {
        let table = "linux-source-7.2 | 7.2.12-1 | http://mirror testing/main amd64 Packages\n\
                     linux | 7.2.12-1 | http://mirror testing/main Sources\nbroken line\n";
        let offers = read_madison(table);
        assert_eq!(offers.len(), 1);
        assert_eq!(
            (offers[0].package.as_str(), offers[0].version.as_str()),
            ("linux-source-7.2", "7.2.12-1")
        );
        assert_eq!(offers[0].suite, "testing");
    }

    #[test]
    fn the_mirror_is_that_of_the_release_and_not_of_another_vendor() {
        let targets = "https://vendor\tnodistro\tmain\nhttp://mirror/updates\tbookworm-updates\tmain\n\
                       http://mirror/debian\tbookworm\tmain\n";
        assert_eq!(read_targets(targets, "bookworm").as_deref(), Some("http://mirror/debian"));
        assert!(read_targets(targets, "trixie").is_none());
    }

    #[test]
    fn the_newest_is_taken_as_debian_orders_versions_and_no_old_kernel_is() {
        let offers = |versions: &[&str]| {
            let lines =
                versions.iter().map(|version| format!("l | {version} | http://m s/main amd64 Packages\n"));
            read_madison(&lines.collect::<String>())
        };
        let newest = |versions: &[&str]| newest_kernel(offers(versions)).map(|offer| offer.version);
        assert_eq!(
            newest(&["6.12.107-1", "7.3.4-1~bpo13+1", "7.2.12-1"]).as_deref(),
            Some("7.3.4-1~bpo13+1")
        );
        assert_eq!(newest(&["7.2.12-1~bpo13+1", "7.2.12-1"]).as_deref(), Some("7.2.12-1"));
        assert_eq!(newest(&["6.9-1"]), None);
        assert_eq!(path_letters("7.3.4-1~bpo13+1"), "7.3.4-1-bpo13-1");
    }
}
