//! Tests the container image, built from the program under test. The image runs on a lab host with the
//! how-to's commands, and with exactly the capabilities that these commands give.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use libtest_mimic::{Failed, Trial};
use testkit::markdown::{Document, repository};
use testkit::operator::{Operator, Started, are, waited_for};
use testkit::{Need, test};

use crate::attached::{EpollMaker, SUSPENDING};
use crate::pages::OWN_FILES;

/// `gro-flush-timeout` of suspend20, in nanoseconds.
const SUSPEND20: u64 = 20_000;

/// Linux: `include/uapi/linux/capability.h`.
const CAPABILITIES: [(&str, u32); 7] = [
    ("DAC_OVERRIDE", 1),
    ("DAC_READ_SEARCH", 2),
    ("NET_ADMIN", 12),
    ("SYS_PTRACE", 19),
    ("SYS_NICE", 23),
    ("PERFMON", 38),
    ("BPF", 39),
];

/// The line in `/proc/PID/status` of a process with a seccomp filter. Kernel:
/// `Documentation/filesystems/proc.rst`.
const FILTERED: &str = "Seccomp:\t2";

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] =
        &[Need::Root, Need::Suspension, Need::Program("podman"), Need::Program("runc"), Need::Program("ldd")];
    vec![test("container/the_how_tos_commands_apply_a_policy_and_undo_all_of_it", NEEDS, by_the_page)]
}

/// A host of the lab with a private podman. Its storage, its configuration and `/run` are removed with it.
struct Host<'o> {
    operator: &'o Operator,
    /// The process that keeps the mount namespace alive.
    container: Started,
    scratch: PathBuf,
}

impl<'o> Host<'o> {
    fn of(operator: &'o Operator) -> Result<Self, Failed> {
        let scratch = operator.state().with_file_name("podman");
        std::fs::create_dir_all(&scratch)?;
        let storage = "[storage]\ndriver = \"vfs\"\ngraphroot = \"/var/lib/containers/storage\"\nrunroot = \"/run/containers/storage\"\n";
        std::fs::write(scratch.join("storage.conf"), storage)?;
        // Without CAP_SYS_RESOURCE, podman cannot raise limits to its defaults, so set lower ones.
        let engine = "[containers]\ndefault_ulimits = [\"nofile=1024:4096\", \"nproc=1024:1024\"]\n\
                      [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"none\"\n";
        std::fs::write(scratch.join("containers.conf"), engine)?;
        let files = scratch.join("files");
        std::fs::create_dir_all(&files)?;
        let keep = format!("{OWN_FILES}exec sleep 300");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", operator.lab.server_pid()));
        command.args(["unshare", "--mount", "sh", "-c", &keep]).arg(&files).stdin(Stdio::null());
        let host = Self { operator, container: Started { child: command.spawn()? }, scratch };
        waited_for("the host's own files", || Ok(host.runs("test -d /run/netpolicy").is_ok().then_some(())))?;
        Ok(host)
    }

    /// Runs shell commands on the host, in the repository's root directory, and returns their output.
    fn runs(&self, line: &str) -> Result<String, Failed> {
        let output = self.output(line)?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.success() {
            return Ok(said);
        }
        let words = String::from_utf8_lossy(&output.stderr);
        Err(format!("{line}: {}\n{said}{words}", output.status).into())
    }

    fn output(&self, line: &str) -> Result<Output, Failed> {
        // nsenter starts commands in the root directory of the mount namespace, so change the directory.
        let line = format!("set -e; cd '{}'\n{line}", repository().display());
        let mut command = Command::new("nsenter");
        command.args([
            "--target",
            &self.container.child.id().to_string(),
            "--mount",
            "--net",
            "sh",
            "-c",
            &line,
        ]);
        command.stdin(Stdio::null());
        command.env("CONTAINERS_CONF", self.scratch.join("containers.conf"));
        command.env("CONTAINERS_STORAGE_CONF", self.scratch.join("storage.conf"));
        Ok(command.output()?)
    }

    /// Returns `/proc/PID/status` of a container's main process.
    fn process(&self, container: &str) -> Result<String, Failed> {
        let pid = self.runs(&format!("podman inspect --format '{{{{.State.Pid}}}}' {container}"))?;
        Ok(std::fs::read_to_string(format!("/proc/{}/status", pid.trim()))?)
    }
}

impl Drop for Host<'_> {
    fn drop(&mut self) {
        let _ended_with_its_host = self.output("podman rm --all --force --time 1");
    }
}

/// Builds the container image of the netpolicy binary under test, and returns the path of the archive.
fn image(into: &Path) -> Result<PathBuf, Failed> {
    let archive = into.join("netpolicy.oci.tar");
    // `cargo xtask` has already built the program; a nested cargo might wait for another build.
    let built = Path::new(env!("CARGO_BIN_EXE_netpolicy")).with_file_name("xtask");
    let mut command = if built.is_file() {
        Command::new(built)
    } else {
        let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        cargo.args(["run", "--quiet", "--package", "xtask", "--"]);
        cargo
    };
    command.current_dir(repository()).args(["image", "--program", env!("CARGO_BIN_EXE_netpolicy"), "--out"]);
    let output = command.arg(&archive).output()?;
    if !output.status.success() {
        return Err(format!("cargo xtask image: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok(archive)
}

/// Parses the capabilities in one of the page's commands into a mask.
fn given(command: &str) -> Result<u64, Failed> {
    let words =
        command.split_whitespace().skip_while(|word| *word != "--cap-add").nth(1).ok_or("--cap-add")?;
    let mut mask = 0;
    for word in words.split(',') {
        let known = CAPABILITIES.iter().find(|(name, _)| *name == word);
        mask |= 1_u64 << known.ok_or_else(|| format!("{word} is not a capability of the units"))?.1;
    }
    Ok(mask)
}

/// Checks that a container's process has these capabilities, and cannot gain others.
fn has_no_more(status: &str, mask: u64) -> Result<(), Failed> {
    for line in ["CapPrm", "CapEff", "CapBnd"] {
        let wanted = format!("{line}:\t{mask:016x}");
        assert!(status.contains(&wanted), "{wanted} in\n{status}");
    }
    assert!(status.contains("NoNewPrivs:\t1") && status.contains(FILTERED), "{status}");
    Ok(())
}

fn by_the_page() -> Result<(), Failed> {
    let operator = Operator::new("container", 1)?;
    let untouched = operator.host()?;
    let host = Host::of(&operator)?;
    let archive = image(&host.scratch)?;
    host.runs(&format!("podman load --quiet --input {}", archive.display()))?;
    let listed = host.runs("podman run --rm --network host localhost/netpolicy:0.1.0 --version")?;
    assert!(listed.starts_with("netpolicy "), "{listed}");

    let page = Document::of(&std::fs::read_to_string(repository().join("docs/howto/container.md"))?);
    let commands: Vec<String> =
        page.blocks.iter().filter(|block| block.info == "sh").map(|block| block.lines.join("\n")).collect();
    let [prepare, daemon, attach, rollback] = &commands[..] else {
        return Err(format!("the page has different commands: {commands:?}").into());
    };
    host.runs(prepare)?;
    let maker = EpollMaker::new(host.operator)?;
    let plain = maker.epolls(&operator)?;
    let exe = std::env::current_exe()?;
    let exe = exe.file_name().ok_or("a name")?.to_string_lossy();
    let policy = format!(
        "[service.maker]\nmatch = {{ exe = \"{exe}\" }}\npolicy = \"latency\"\ndelivery = \"suspend20\"\n"
    );
    host.runs(&format!("printf '%s' '{policy}' > /etc/netpolicy/policy.d/10-test.toml"))?;
    host.runs(attach)?;
    host.runs(daemon)?;
    let log = || host.runs("podman logs netpolicy netpolicy-attach 2>&1").unwrap_or_default();
    // The daemon sets the device, and the attach container sets the process's epolls.
    let in_force = || {
        are(&operator, &[SUSPEND20])?;
        waited_for("the epoll's parameters", || Ok((maker.epolls(&operator)? == [SUSPENDING]).then_some(())))
    };
    in_force().map_err(|failed| Failed::from(format!("{failed:?}\n{}", log())))?;
    has_no_more(&host.process("netpolicy")?, given(daemon)?)?;
    has_no_more(&host.process("netpolicy-attach")?, given(attach)?)?;
    host.runs("podman healthcheck run netpolicy")?;

    // A restarted container resumes the policy.
    host.runs("podman restart --time 5 netpolicy")?;
    waited_for("the daemon", || Ok(host.runs("podman healthcheck run netpolicy").is_ok().then_some(())))?;
    in_force()?;
    host.runs(rollback)?;
    assert_eq!(maker.epolls(&operator)?, plain);
    host.runs("podman stop --time 5 netpolicy netpolicy-attach")?;
    assert!(host.runs("podman healthcheck run netpolicy").is_err(), "no one answers");
    drop(maker);
    waited_for("the host as it was", || Ok((operator.host()? == untouched).then_some(())))
}
