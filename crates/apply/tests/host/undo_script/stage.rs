//! A directory with an undo script, and child processes whose settings the script undoes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use apply::{Begin, FORMAT, Moment, ObjectCookies, TransactionOrigin, undo_script};
use libtest_mimic::Failed;
use model::{Change, Label, Nanoseconds, Pid, Plan, ProcessId, Step, ThreadId};
use tempfile::TempDir;

pub(crate) const TRANSACTION: &str = "20261121T040500.123456Z-1a2b";

/// The programs of a Debian system with only essential and required packages that a script may use. Perl is
/// such a program, but is not listed here.
const PLAIN: [&str; 14] = [
    "sh", "cat", "stat", "dirname", "readlink", "tr", "sed", "cut", "true", "mount", "nsenter", "unshare",
    "sort", "wc",
];

/// A directory in which an undo script runs. Its `bin` directory comes first in PATH.
pub(crate) struct Stage {
    directory: TempDir,
}

impl Stage {
    pub(crate) fn new(changes: &[Change]) -> Result<Self, Failed> {
        Self::asked_by("netpolicy set device eth0 latency", changes)
    }

    pub(crate) fn asked_by(command: &str, changes: &[Change]) -> Result<Self, Failed> {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Self::of_boot(boot_id.trim(), command, changes)
    }

    pub(crate) fn of_boot(boot_id: &str, command: &str, changes: &[Change]) -> Result<Self, Failed> {
        Self::with_cookies(boot_id, command, changes, ObjectCookies::new())
    }

    /// Creates a stage whose transaction has recorded these object cookies.
    pub(crate) fn knowing(object_cookies: ObjectCookies, changes: &[Change]) -> Result<Self, Failed> {
        let boot_id = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
        Self::with_cookies(boot_id.trim(), "netpolicy set device eth0 latency", changes, object_cookies)
    }

    fn with_cookies(
        boot_id: &str,
        command: &str,
        changes: &[Change],
        object_cookies: ObjectCookies,
    ) -> Result<Self, Failed> {
        let directory = TempDir::with_prefix_in("undo-script-", env!("CARGO_TARGET_TMPDIR"))?;
        fs::create_dir(directory.path().join("bin"))?;
        let at = Moment { unix_micros: 1_795_233_900_000_000, since_boot: Nanoseconds(1) };
        let (kernel_release, netpolicy) = ("6.18.44".to_owned(), "0.1.0".to_owned());
        let asked =
            TransactionOrigin { at, command: command.to_owned(), kernel_release, netpolicy, deadline: None };
        let plan = Plan { steps: changes.iter().map(|c| Step::new(vec![c.clone()])).collect() };
        let begin = Begin {
            format: FORMAT,
            boot_id: boot_id.to_owned(),
            asked,
            owned_by: None,
            left_in_force: false,
            kept_by_daemon: false,
            replaces: Vec::new(),
            object_cookies,
            plan,
        };
        let stage = Self { directory };
        fs::write(stage.script(), undo_script(TRANSACTION.parse()?, &begin))?;
        Ok(stage)
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn script(&self) -> PathBuf {
        self.directory().join("undo.sh")
    }

    /// Adds a program to the directory that comes first in the script's PATH.
    pub(crate) fn program(&self, name: &str, text: &str) -> Result<(), Failed> {
        let file = self.directory().join("bin").join(name);
        fs::write(&file, text)?;
        Ok(fs::set_permissions(file, fs::Permissions::from_mode(0o755))?)
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Result<(i32, String), Failed> {
        self.run_with(arguments, &[])
    }

    /// Runs the script with only the programs of a minimal Debian and the programs in `others`.
    pub(crate) fn run_where_only(&self, others: &[&str]) -> Result<(i32, String), Failed> {
        let directory = self.directory().join(format!("only-{}", others.join("-")));
        let _there_already = fs::create_dir(&directory);
        for program in PLAIN.iter().chain(others) {
            let places = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
            let found = places.iter().map(|place| Path::new(place).join(program)).find(|path| path.exists());
            let found = found.ok_or_else(|| format!("{program} is not installed"))?;
            let _linked_already = std::os::unix::fs::symlink(found, directory.join(program));
        }
        let path = directory.display().to_string();
        let output =
            Command::new("/bin/sh").arg(self.script()).arg("--by-hand").env("PATH", path).output()?;
        let said = [output.stdout, output.stderr].concat();
        Ok((
            output.status.code().ok_or("the script was killed")?,
            String::from_utf8_lossy(&said).into_owned(),
        ))
    }

    /// Runs the script; returns its exit status and its output.
    pub(crate) fn run_with(&self, arguments: &[&str], env: &[(&str, &str)]) -> Result<(i32, String), Failed> {
        self.run_by_with(&["sh"], arguments, env)
    }

    /// Like [`Stage::run`], but in this shell.
    pub(crate) fn run_by(&self, shell: &[&str], arguments: &[&str]) -> Result<(i32, String), Failed> {
        self.run_by_with(shell, arguments, &[])
    }

    fn run_by_with(
        &self,
        shell: &[&str],
        arguments: &[&str],
        env: &[(&str, &str)],
    ) -> Result<(i32, String), Failed> {
        let path = format!("{}:{}", self.directory().join("bin").display(), std::env::var("PATH")?);
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).arg(self.script()).args(arguments).current_dir(self.directory());
        let output = command.env("PATH", path).envs(env.iter().copied()).output()?;
        let said = [output.stdout, output.stderr].concat();
        Ok((
            output.status.code().ok_or("the script was killed")?,
            String::from_utf8_lossy(&said).into_owned(),
        ))
    }
}

/// A child process whose settings the script undoes. It is killed when this value is dropped.
pub(crate) struct Child {
    process: std::process::Child,
    said: String,
}

impl Child {
    pub(crate) fn python(program: &str) -> Result<Self, Failed> {
        Self::run("python3", &["-c", program])
    }

    /// Starts a program and waits for its first line of output.
    pub(crate) fn run(program: &str, arguments: &[&str]) -> Result<Self, Failed> {
        let mut process = Command::new(program).args(arguments).stdout(Stdio::piped()).spawn()?;
        let mut said = String::new();
        BufReader::new(process.stdout.take().ok_or("no pipe")?).read_line(&mut said)?;
        Ok(Self { process, said: said.trim().to_owned() })
    }

    /// Returns the child's first line of output.
    pub(crate) fn said(&self) -> &str {
        &self.said
    }

    pub(crate) fn process(&self) -> Result<ProcessId, Failed> {
        let pid = self.process.id();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
        let after_name = stat.rsplit_once(") ").ok_or("no name")?.1;
        let started = after_name.split(' ').nth(19).ok_or("no start time")?.parse()?;
        Ok(ProcessId { pid: Pid(pid), started, comm: Label::new("child") })
    }

    /// The main thread.
    pub(crate) fn thread(&self) -> Result<ThreadId, Failed> {
        let process = self.process()?;
        Ok(ThreadId { process, tid: process.pid, started: process.started, comm: process.comm })
    }

    /// Returns the list of CPUs on which the child may run.
    pub(crate) fn affinity(&self) -> Result<String, Failed> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        let line = status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:")).ok_or("no list")?;
        Ok(line.trim().to_owned())
    }

    pub(crate) fn set_affinity(&self, cpus: &str) -> Result<(), Failed> {
        let output = Command::new("taskset").args(["-cp", cpus, &self.process.id().to_string()]).output()?;
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    }

    /// The network namespace.
    pub(crate) fn netns(&self) -> Result<u64, Failed> {
        Ok(fs::metadata(format!("/proc/{}/ns/net", self.process.id()))?.ino())
    }

    /// Returns the inode number of a device's sysfs directory, in the child's network namespace.
    pub(crate) fn number(&self, device: &str) -> Result<String, Failed> {
        let netns = format!("--net=/proc/{}/ns/net", self.process.id());
        let stat = format!("mount -t sysfs sysfs /sys && stat -Lc %i /sys/class/net/{device}");
        let output =
            Command::new("nsenter").args([&netns, "unshare", "--mount", "sh", "-c", &stat]).output()?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    }

    /// Returns the index of a device in the child's network namespace.
    pub(crate) fn ifindex(&self, device: &str) -> Result<u32, Failed> {
        let netns = format!("--net=/proc/{}/ns/net", self.process.id());
        let output = Command::new("nsenter").args([&netns, "ip", "-o", "link", "show", device]).output()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        Ok(text.split(':').next().ok_or("no index")?.parse()?)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _gone_already = self.process.kill();
        let _status = self.process.wait();
    }
}

/// Whether a program exits successfully with these arguments.
pub(crate) fn runs(program: &str, arguments: &[&str]) -> bool {
    let output = Command::new(program).args(arguments).output();
    output.is_ok_and(|output| output.status.success())
}
