//! Sets up a lab host with a daemon and the watched processes.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use linux::Netns;
use linux::lab::{Lab, LabOptions, SERVER_DEVICE};
use model::{IfIndex, Pid};
use tempfile::TempDir;

use crate::{Done, role};

/// The maximum time until a daemon is running.
const PATIENCE: Duration = Duration::from_secs(20);

/// The address of a pod's server, in the lab's network.
const POD: &str = "192.0.2.3";

pub(crate) struct Stage {
    lab: Lab,
    beside: Vec<Child>,
    /// The write end of the pipe from which the idle processes read: they exit when it is closed, even if
    /// this process is killed.
    held: Vec<OwnedFd>,
    scratch: TempDir,
}

impl Stage {
    pub(crate) fn new(name: &str, queues: u32) -> Done<Self> {
        let scratch = TempDir::with_prefix(format!("netpolicy-bench-{name}-"))?;
        fs::create_dir(scratch.path().join("policy.d"))?;
        let own = std::env::current_exe()?;
        for image in [role::UNMATCHED, role::MEANT] {
            fs::copy(&own, scratch.path().join(image))?;
        }
        Ok(Self {
            lab: Lab::new(&LabOptions::with_queues(queues))?,
            beside: Vec::new(),
            held: Vec::new(),
            scratch,
        })
    }

    pub(crate) fn image(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    pub(crate) fn asks(&self, text: &str) -> Done<()> {
        Ok(fs::write(self.scratch.path().join("policy.d/10-bench.toml"), text)?)
    }

    pub(crate) fn device(&self) -> Done<IfIndex> {
        let host = linux::observe(self.lab.server(), &linux::Processes::None)?;
        Ok(host.device_named(SERVER_DEVICE).ok_or("the device")?.id.ifindex)
    }

    /// Adds a veth pair with NAPIs, with both ends in the server's namespace.
    pub(crate) fn adds_device(&self, name: &str, queues: u32) -> Done<()> {
        let peer = format!("{name}p");
        let queues = queues.to_string();
        let shape = ["numrxqueues", &queues, "numtxqueues", &queues];
        let add =
            [&["ip", "link", "add", name][..], &shape, &["type", "veth", "peer", &peer], &shape].concat();
        let commands = [
            add,
            vec!["ethtool", "-K", name, "gro", "on"],
            vec!["ip", "link", "set", name, "up"],
            vec!["ip", "link", "set", &peer, "up"],
        ];
        self.inside(|| commands.iter().try_for_each(|command| run(command)))
    }

    /// Runs a closure in the server's namespace.
    pub(crate) fn inside<T: Send>(&self, body: impl FnOnce() -> Done<T> + Send) -> Done<T> {
        let done = self.lab.server().run(|| body().map_err(|error| error.to_string()))?;
        Ok(done?)
    }

    /// Fills the host with idle processes.
    pub(crate) fn fill(&mut self, processes: usize) -> Done<()> {
        let (waited_at, end) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        self.held.push(end);
        let mut started = Vec::with_capacity(processes);
        let began = self.lab.server().run(|| {
            for _ in 0..processes {
                let mut cat = Command::new("cat");
                cat.stdin(waited_at.try_clone()?).stdout(Stdio::null()).stderr(Stdio::null());
                started.push(cat.spawn()?);
            }
            Ok::<(), std::io::Error>(())
        })?;
        self.beside.append(&mut started);
        Ok(began?)
    }

    /// Starts a daemon of this program, and waits until the daemon is running.
    pub(crate) fn daemon(&self, program: &str) -> Done<Daemon> {
        self.daemon_by(Command::new(program))
    }

    /// Starts a daemon that cannot read BTF, and therefore receives no events from BPF.
    pub(crate) fn daemon_without_bpf(&self, program: &str) -> Done<Daemon> {
        let mut command = Command::new("unshare");
        command.args(["--mount", "sh", "-c", "mount -t tmpfs tmpfs /sys/kernel/btf && exec \"$@\"", "sh"]);
        command.arg(program);
        self.daemon_by(command)
    }

    fn daemon_by(&self, mut command: Command) -> Done<Daemon> {
        command.arg(format!("--netns=pid:{}", self.lab.server_pid()));
        command.arg("--state-dir").arg(self.scratch.path().join("state"));
        command.arg("--policy-dir").arg(self.scratch.path().join("policy.d")).arg("daemon");
        let words = self.scratch.path().join("words");
        let file = fs::File::create(&words)?;
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file).spawn()?;
        let daemon = Daemon { child };
        let begun = Instant::now();
        while !fs::read_to_string(&words)?.contains("at work") {
            if begun.elapsed() > PATIENCE {
                return Err(format!("no daemon: {}", fs::read_to_string(&words)?).into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        // Wait, because the daemon reports its first plan before it applies the plan.
        std::thread::sleep(Duration::from_millis(500));
        Ok(daemon)
    }

    /// Creates a network namespace with a macvlan on the lab's device.
    pub(crate) fn pod(&mut self) -> Done<Netns> {
        let holder =
            Command::new("unshare").args(["--net", "sleep", "infinity"]).stdin(Stdio::null()).spawn()?;
        let pid = holder.id();
        self.beside.push(holder);
        let own = fs::read_link("/proc/self/ns/net")?;
        let begun = Instant::now();
        while fs::read_link(format!("/proc/{pid}/ns/net"))? == own {
            if begun.elapsed() > PATIENCE {
                return Err("the pod has no namespace".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let (add, address) = (format!("{pid}"), format!("{POD}/24"));
        let device = ["ip", "link", "add", "link", SERVER_DEVICE, "name", "pod0", "netns", &add];
        self.inside(|| run(&[&device[..], &["type", "macvlan", "mode", "bridge"]].concat()))?;
        let pod = Netns::of_process(Pid(pid))?;
        let inside = pod.run(|| {
            let commands =
                [vec!["ip", "addr", "add", &address, "dev", "pod0"], vec!["ip", "link", "set", "pod0", "up"]];
            commands.iter().try_for_each(|command| run(command)).map_err(|error| error.to_string())
        })?;
        inside?;
        Ok(pod)
    }

    /// Connects the lab's client to the pod's server.
    pub(crate) fn connects(&self) -> Done<TcpStream> {
        Ok(self.lab.client().run(|| TcpStream::connect((POD, role::PORT)))??)
    }

    /// Sends a datagram from the lab's client to the pod's server.
    pub(crate) fn sends(&self) -> Done<()> {
        let sent = self.lab.client().run(|| {
            UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b".", (POD, role::PORT)))
        })?;
        Ok(sent.map(|_| ())?)
    }

    /// Starts a process that plays a role.
    pub(crate) fn role(&self, role: &str) -> Done<Role> {
        self.role_in(self.lab.server(), role)
    }

    /// Starts a process that plays a role in a network namespace.
    pub(crate) fn role_in(&self, netns: &Netns, role: &str) -> Done<Role> {
        let mut command = Command::new(self.scratch.path().join(role::UNMATCHED));
        command.env(role::ROLE, role).env(role::NEXT, self.scratch.path().join(role::MEANT));
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let child = netns.run(|| command.spawn())??;
        let mut role = Role { child };
        role.begun()?;
        Ok(role)
    }
}

fn run(command: &[&str]) -> Done<()> {
    let status = Command::new(command[0]).args(&command[1..]).status()?;
    Ok(status.success().then_some(()).ok_or_else(|| format!("{command:?}: {status}"))?)
}

impl Drop for Stage {
    fn drop(&mut self) {
        for child in &mut self.beside {
            let _ = child.kill();
        }
        for child in &mut self.beside {
            let _ = child.wait();
        }
    }
}

/// A running daemon. Dropping this value ends the daemon.
pub(crate) struct Daemon {
    child: Child,
}

impl Daemon {
    fn file(&self, name: &str) -> Done<String> {
        Ok(fs::read_to_string(Path::new("/proc").join(self.child.id().to_string()).join(name))?)
    }

    /// Returns the CPU time of the daemon, which has one thread.
    pub(crate) fn cpu(&self) -> Done<Duration> {
        let text = self.file("schedstat")?;
        let first = text.split_ascii_whitespace().next().ok_or("schedstat")?;
        Ok(Duration::from_nanos(first.parse()?))
    }

    pub(crate) fn memory(&self) -> Done<String> {
        let text = self.file("status")?;
        let lines = text.lines().filter(|line| line.starts_with("VmRSS") || line.starts_with("RssAnon"));
        Ok(lines
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect::<Vec<_>>()
            .join(", "))
    }

    pub(crate) fn hang_up(&self) -> Done<()> {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw).ok_or("pid")?;
        Ok(rustix::process::kill_process(pid, rustix::process::Signal::HUP)?)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A process that plays a role. Dropping this value ends the process.
pub(crate) struct Role {
    child: Child,
}

impl Role {
    /// Waits until the process has started to play its role.
    fn begun(&mut self) -> Done<()> {
        let out = self.child.stdout.as_mut().ok_or("its words")?;
        let mut byte = [0];
        out.read_exact(&mut byte)?;
        Ok(())
    }

    /// Waits for the process to exit, and returns its measurements in order.
    pub(crate) fn wait(mut self) -> Done<Vec<Duration>> {
        let out = self.child.stdout.take().ok_or("its words")?;
        let mut took = Vec::new();
        for line in BufReader::new(out).lines() {
            took.push(Duration::from_nanos(line?.parse()?));
        }
        let status = self.child.wait()?;
        if status.success() { Ok(took) } else { Err(format!("a role ended with {status}").into()) }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn median(times: &mut [Duration]) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Replaces this process with the image. Returns only if that fails.
pub(crate) fn becomes(image: &str, role: &str, words: [String; 2]) -> std::io::Error {
    Command::new(image).env(role::ROLE, role).args(words).exec()
}
