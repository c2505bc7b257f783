//! An operator who runs `netpolicy` on a host of the lab, with a separate journal and separate policy files.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use linux::lab::{Lab, LabOptions};
use linux::{Processes, observe};
use model::host::Device;
use model::{Host, Pid, Setting};

use crate::fits::misfit;
use crate::programs::netpolicy;
use crate::scratch::Scratch;

/// How long to wait for something that is about to happen, long enough for a very busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// An operator on a host of the lab. Dropping it removes the host and the journal.
pub struct Operator {
    pub lab: Lab,
    scratch: Scratch,
}

impl Operator {
    /// An operator on a host whose device has this many queues.
    pub fn new(name: &str, queues: u32) -> Result<Self, Failed> {
        let scratch = Scratch::new(&format!("root-{name}"))?;
        std::fs::create_dir(scratch.path("policy.d"))?;
        Ok(Self { lab: Lab::new(&LabOptions::with_queues(queues))?, scratch })
    }

    /// Writes the policy file.
    pub fn asks(&self, text: &str) -> Result<(), Failed> {
        Ok(std::fs::write(self.scratch.path("policy.d/10-test.toml"), text)?)
    }

    /// Writes a file and returns its path.
    pub fn file(&self, name: &str, bytes: &[u8]) -> Result<String, Failed> {
        use std::os::unix::fs::PermissionsExt;
        let path = self.scratch.path(name);
        std::fs::write(&path, bytes)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        Ok(path.display().to_string())
    }

    /// Sets the link of the host's device up or down.
    pub fn sets_link(&self, state: &str) -> Result<(), Failed> {
        self.changes_link(linux::lab::SERVER_DEVICE, &[state])
    }

    /// Changes a device of the host with `ip link set`.
    pub fn changes_link(&self, device: &str, change: &[&str]) -> Result<(), Failed> {
        let there = format!("--net=/proc/{}/ns/net", self.lab.server_pid());
        let status =
            Command::new("nsenter").args([&there, "ip", "link", "set", device]).args(change).status()?;
        status.success().then_some(()).ok_or_else(|| format!("ip link set {change:?}: {status}").into())
    }

    /// Runs a command on this host, and returns its output.
    pub fn inside(&self, command: &str) -> Result<String, Failed> {
        let there = format!("--net=/proc/{}/ns/net", self.lab.server_pid());
        let output = Command::new("nsenter").arg(&there).args(command.split(' ')).output()?;
        if !output.status.success() {
            return Err(format!("{command}: {}", String::from_utf8_lossy(&output.stderr)).into());
        }
        Ok(String::from_utf8(output.stdout)?)
    }

    /// The directory of the journal.
    pub fn state(&self) -> PathBuf {
        self.scratch.path("state")
    }

    /// Returns the netpolicy command with these arguments, to be run on the lab's host.
    pub fn netpolicy(&self, arguments: &[&str]) -> Command {
        let there = format!("--netns=pid:{}", self.lab.server_pid());
        self.netpolicy_here(&[&[there.as_str()], arguments].concat())
    }

    /// Returns the netpolicy command, to be run in the namespace of this test, with the operator's journal
    /// and policy files.
    pub fn netpolicy_here(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(netpolicy());
        command.arg("--state-dir").arg(self.state()).arg("--policy-dir").arg(self.scratch.path("policy.d"));
        let recipes = self.scratch.path("recipe.d");
        if recipes.exists() {
            command.arg("--recipe-dir").arg(recipes);
        }
        command.args(arguments).stdin(Stdio::null());
        command
    }

    /// Makes the recipe `latency` set on the lab's veth what it sets on devices with interrupts. Tests use
    /// this to check which settings a suspending mode makes, not its benefit.
    pub fn means_what_it_does_on_a_nic(&self) -> Result<(), Failed> {
        let text = "[driver.veth.latency.delivery]\nvalue = \"suspend20\"\n\
                    [driver.veth.latency.reuseport]\nvalue = \"by-queue\"\n\
                    why = \"an epoll's sockets share one NAPI; the hash deals them out\"\n";
        self.has_recipes(text)
    }

    /// Overrides recipes.
    pub fn has_recipes(&self, text: &str) -> Result<(), Failed> {
        let recipes = self.scratch.path("recipe.d");
        std::fs::create_dir_all(&recipes)?;
        Ok(std::fs::write(recipes.join("10-as-on-a-nic.toml"), text)?)
    }

    /// Runs the netpolicy command, and expects this exit code.
    pub fn runs(&self, arguments: &[&str], code: i32) -> Result<CommandOutput, Failed> {
        CommandOutput::of(arguments, &self.netpolicy(arguments).output()?, code)
    }

    /// Like [`Operator::runs`], in the namespace of this test.
    pub fn runs_here(&self, arguments: &[&str], code: i32) -> Result<CommandOutput, Failed> {
        CommandOutput::of(arguments, &self.netpolicy_here(arguments).output()?, code)
    }

    /// Returns the netpolicy command with the same policy files and another state directory.
    pub fn netpolicy_elsewhere(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(netpolicy());
        command.arg("--state-dir").arg(self.scratch.path("another"));
        command.arg("--policy-dir").arg(self.scratch.path("policy.d"));
        command.arg(format!("--netns=pid:{}", self.lab.server_pid())).args(arguments).stdin(Stdio::null());
        command
    }

    /// Like [`Operator::runs`], with another state directory.
    pub fn runs_elsewhere(&self, arguments: &[&str], code: i32) -> Result<CommandOutput, Failed> {
        CommandOutput::of(arguments, &self.netpolicy_elsewhere(arguments).output()?, code)
    }

    /// Like [`Operator::runs`], with this state directory.
    pub fn runs_with_state(
        &self,
        state: &Path,
        arguments: &[&str],
        code: i32,
    ) -> Result<CommandOutput, Failed> {
        let mut command = Command::new(netpolicy());
        command.arg("--state-dir").arg(state).arg("--policy-dir").arg(self.scratch.path("policy.d"));
        command.arg(format!("--netns=pid:{}", self.lab.server_pid())).args(arguments).stdin(Stdio::null());
        CommandOutput::of(arguments, &command.output()?, code)
    }

    /// Returns the netpolicy command, to be run in a private mount namespace with a file system of this size
    /// on the directory `at`.
    pub fn netpolicy_with_little_space(&self, at: &Path, kib: u32, arguments: &[&str]) -> Command {
        self.netpolicy_on_a_disk_of(&format!("size={kib}k"), at, arguments)
    }

    /// Like `netpolicy_with_little_space`, but with room for only this many files and directories.
    pub fn netpolicy_with_few_files(&self, at: &Path, files: u32, arguments: &[&str]) -> Command {
        self.netpolicy_on_a_disk_of(&format!("nr_inodes={files}"), at, arguments)
    }

    fn netpolicy_on_a_disk_of(&self, size: &str, at: &Path, arguments: &[&str]) -> Command {
        const SCRIPT: &str = "mount -t tmpfs -o $1,mode=0711 tmpfs \"$0\" && shift && exec \"$@\"";
        let whole = self.netpolicy(arguments);
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", SCRIPT]).arg(at).arg(size);
        command.arg(whole.get_program()).args(whole.get_args()).stdin(Stdio::null());
        command
    }

    /// Like [`Operator::runs`], as an unprivileged user with a separate journal.
    pub fn runs_as_nobody(&self, arguments: &[&str], code: i32) -> Result<CommandOutput, Failed> {
        self.runs_as_nobody_after("mount -t sysfs sysfs /sys", arguments, code)
    }

    /// Like [`Operator::runs_as_nobody`], but with the `/sys` of this test's namespace, as after `nsenter
    /// --net`.
    pub fn runs_as_nobody_with_our_sysfs(
        &self,
        arguments: &[&str],
        code: i32,
    ) -> Result<CommandOutput, Failed> {
        self.runs_as_nobody_after("true", arguments, code)
    }

    fn runs_as_nobody_after(
        &self,
        first: &str,
        arguments: &[&str],
        code: i32,
    ) -> Result<CommandOutput, Failed> {
        const NOBODY: u32 = 65_534;
        // Copy the program: only root may be able to enter the build directory.
        let (binary, state) = (self.scratch.path("netpolicy"), self.scratch.path("nobodys"));
        // Do not overwrite the program: workers of an earlier command may still be running it.
        if !binary.exists() {
            std::fs::copy(netpolicy(), &binary)?;
        }
        std::fs::create_dir_all(&state)?;
        std::os::unix::fs::chown(&state, Some(NOBODY), Some(NOBODY))?;
        // An unprivileged user can neither enter a namespace nor mount its sysfs, so root prepares both.
        let inside = format!("{first} && exec setpriv --reuid $0 --regid $0 --clear-groups -- \"$@\"");
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", self.lab.server_pid()));
        command.args(["unshare", "--mount", "sh", "-c", &inside, &NOBODY.to_string()]).arg(binary);
        command.arg("--state-dir").arg(&state).arg("--policy-dir").arg(self.scratch.path("policy.d"));
        CommandOutput::of(arguments, &command.args(arguments).stdin(Stdio::null()).output()?, code)
    }

    /// Starts the netpolicy command and leaves it running. Its output goes to a file, which
    /// [`Operator::said`] reads.
    pub fn starts(&self, arguments: &[&str]) -> Result<Started, Failed> {
        self.starts_command(self.netpolicy(arguments))
    }

    /// Like [`Operator::starts`], with a prepared command.
    pub fn starts_command(&self, mut command: Command) -> Result<Started, Failed> {
        let words = std::fs::File::create(self.words())?;
        let child = command.stdout(words.try_clone()?).stderr(words).process_group(0).spawn()?;
        Ok(Started { child })
    }

    /// Waits until a started command has printed this text.
    pub fn waits_to_hear(&self, words: &str) -> Result<(), Failed> {
        self.waits_to_hear_for(PATIENCE, words)
    }

    /// Waits until a started command has printed this text, with a time limit.
    pub fn waits_to_hear_for(&self, patience: Duration, words: &str) -> Result<(), Failed> {
        let heard = || Ok::<_, Failed>(std::fs::read_to_string(self.words())?.contains(words).then_some(()));
        waited(&format!("`{words}`"), patience, heard, less_often).map_err(|failed| {
            format!("{failed:?}, heard:\n{}", std::fs::read_to_string(self.words()).unwrap_or_default())
                .into()
        })
    }

    /// Returns the output of a started command so far.
    pub fn said(&self) -> Result<String, Failed> {
        Ok(std::fs::read_to_string(self.words())?)
    }

    fn words(&self) -> PathBuf {
        self.scratch.path("words")
    }

    /// Observes the whole host, without changing counters.
    pub fn host(&self) -> Result<Host, Failed> {
        self.observed(&Processes::Networking)
    }

    /// Observes the whole host without its processes: much faster, for tests that poll a device.
    pub fn devices(&self) -> Result<Host, Failed> {
        self.observed(&Processes::None)
    }

    /// Waits until the whole host is again in the state `before`. A server that lacks CPU time is late to
    /// close the connections of clients that have gone.
    pub fn is_again(&self, before: &Host) -> Result<(), Failed> {
        let mut last = None;
        let same = || {
            let host = self.host()?;
            let same = host == *before;
            last = Some(host);
            Ok(same.then_some(()))
        };
        waited("the former state of the host", PATIENCE, same, less_often).map_err(|failed: Failed| {
            format!("{failed:?}: the state is {last:?}; before, it was {before:?}").into()
        })
    }

    fn observed(&self, processes: &Processes) -> Result<Host, Failed> {
        let mut host = observe(self.lab.server(), processes)?;
        host.processes.retain(|process| process.netns == Some(self.lab.server().id()));
        for process in &mut host.processes {
            process.threads.iter_mut().for_each(|thread| thread.waits_on = None);
        }
        host.irqs.clear();
        host.unread.clear();
        Ok(host)
    }
}

/// A running command. Dropping it kills it.
pub struct Started {
    pub child: Child,
}

impl Started {
    /// Sends SIGTERM to the program, and returns its exit code.
    pub fn terminated(mut self) -> Result<Option<i32>, Failed> {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).ok_or("pid")?;
        rustix::process::kill_process(pid, rustix::process::Signal::TERM)?;
        Ok(self.child.wait()?.code())
    }
}

impl Started {
    /// Sends a signal to the program.
    pub fn signalled(&self, signal: rustix::process::Signal) -> Result<(), Failed> {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).ok_or("pid")?;
        Ok(rustix::process::kill_process(pid, signal)?)
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The output of a command: its data, and its messages.
pub struct CommandOutput {
    pub data: String,
    pub words: String,
}

impl CommandOutput {
    fn of(arguments: &[&str], output: &Output, code: i32) -> Result<Self, Failed> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let said = Self { data: text(&output.stdout), words: text(&output.stderr) };
        if output.status.code() == Some(code) {
            // If the exit code is as expected, check JSON output against its schema.
            return match misfit(arguments, &output.stdout) {
                Some(wrong) => Err(format!("netpolicy {arguments:?} printed {}: {wrong}", said.data).into()),
                None => Ok(said),
            };
        }
        let (status, Self { data, words }) = (output.status, said);
        Err(format!("netpolicy {arguments:?} ended with {status}, not {code}:\n{data}\n{words}").into())
    }
}

/// The polling interval.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Waits for a state that is about to appear and stays. The interval grows with the wait, so that polling
/// does not take the CPU from what is awaited.
pub fn waited_for<T>(what: &str, look: impl FnMut() -> Result<Option<T>, Failed>) -> Result<T, Failed> {
    waited(what, PATIENCE, look, less_often)
}

/// Like [`waited_for`], with a longer limit: some guards take that long, or twice as long if a busy machine
/// leaves too few valid windows. Retries after errors, because the object may not exist yet.
pub fn waited_long_for<T>(
    what: &str,
    mut look: impl FnMut() -> Result<Option<T>, Failed>,
) -> Result<T, Failed> {
    const LONG: Duration = Duration::from_secs(300);
    const LONGEST: Duration = Duration::from_secs(1);
    let mut failed = None;
    let again = || match look() {
        Ok(seen) => Ok(seen),
        Err(why) => {
            failed = Some(why);
            Ok(None)
        }
    };
    let pause = |so_far: Duration| (so_far / 8).clamp(LOOK_AGAIN, LONGEST);
    waited(what, LONG, again, pause).map_err(|vain: Failed| format!("{vain:?}; at last: {failed:?}").into())
}

/// Returns the interval until the next poll, given how long the wait has taken so far.
fn less_often(so_far: Duration) -> Duration {
    const LONGEST: Duration = Duration::from_millis(250);
    (so_far / 8).clamp(LOOK_AGAIN, LONGEST)
}

/// Like [`waited_for`], for a state that lasts only a moment and that a late poll would miss.
pub fn caught<T>(what: &str, look: impl FnMut() -> Result<Option<T>, Failed>) -> Result<T, Failed> {
    waited(what, PATIENCE, look, |_| LOOK_AGAIN)
}

fn waited<T>(
    what: &str,
    patience: Duration,
    mut look: impl FnMut() -> Result<Option<T>, Failed>,
    pause: impl Fn(Duration) -> Duration,
) -> Result<T, Failed> {
    let begun = Instant::now();
    loop {
        if let Some(seen) = look()? {
            return Ok(seen);
        }
        let so_far = begun.elapsed();
        if so_far >= patience {
            return Err(format!("waited {patience:?} for {what}, in vain").into());
        }
        std::thread::sleep(pause(so_far));
    }
}

/// Starts a daemon with this policy, and waits until it has made its first plan.
pub fn at_work(operator: &Operator, policy: &str) -> Result<Started, Failed> {
    at_work_with(operator, policy, &[])
}

/// Starts a daemon with this policy and these options, and waits until it has made its first plan.
pub fn at_work_with(operator: &Operator, policy: &str, options: &[&str]) -> Result<Started, Failed> {
    operator.asks(policy)?;
    let daemon = operator.starts(&[&["daemon"], options].concat())?;
    operator.waits_to_hear("at work")?;
    waited_for("the daemon's first plan", || {
        let said = operator.netpolicy(&["-o", "json", "status"]).output()?.stdout;
        // A daemon without an API prints no status.
        let Ok(said) = serde_json::from_slice::<serde_json::Value>(&said) else { return Ok(Some(())) };
        Ok((said["data"]["phase"] != "starting").then_some(()))
    })?;
    Ok(daemon)
}

/// Waits until the queues have these values of `gro-flush-timeout`.
pub fn are(operator: &Operator, wanted: &[u64]) -> Result<(), Failed> {
    waited_for(&format!("the queues' timeouts {wanted:?}"), || {
        Ok((flushes(&operator.devices()?) == wanted).then_some(()))
    })
}

/// Returns the kernel thread of each NAPI, if it has one.
pub fn threads(operator: &Operator) -> Result<Vec<Option<Pid>>, Failed> {
    let host = operator.devices()?;
    let napis = host.devices.iter().flat_map(|device| &device.napis);
    Ok(napis.map(|napi| napi.kthread).collect())
}

/// Returns the `gro-flush-timeout` of each queue of a host, in order.
pub fn flushes(host: &Host) -> Vec<u64> {
    flushes_of(host, &host.devices)
}

/// Returns the `gro-flush-timeout` of each queue of these devices of a host.
pub fn flushes_of<'a>(host: &Host, devices: impl IntoIterator<Item = &'a Device>) -> Vec<u64> {
    let queues = devices.into_iter().flat_map(|device| &device.rx_queues);
    queues.filter_map(|queue| host.napi_of(queue.id)?.gro_flush_timeout).map(|span| span.0).collect()
}

/// Returns the state of the server's device that disruptive changes affect: its queues with their timeouts,
/// its features and its qdiscs.
pub fn delivered_by(operator: &Operator) -> Result<String, Failed> {
    let host = operator.devices()?;
    let device = host.device_named(linux::lab::SERVER_DEVICE).ok_or("the device")?;
    let disciplines = operator.inside(&format!("tc qdisc show dev {}", linux::lab::SERVER_DEVICE))?;
    Ok(format!("{:?} {:?} {:?} {disciplines}", device.channels, device.offloads, flushes(&host)))
}

/// Changes a setting without netpolicy, as another program would.
pub fn somebody_else_sets(setting: Setting) -> Result<(), Failed> {
    Ok(apply::Knobs::write(&mut linux::Kernel::new(), &[setting])?)
}
