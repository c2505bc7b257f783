//! Benches with the server on another machine. The machines are two network namespaces, connected by ssh, by
//! TCP, or by a script in place of ssh that enters one of them. The tests check counts and leftovers, not
//! times.

pub(crate) mod benches;
pub(crate) mod killed;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use runs::Grid;
use rustix::process::Pid;
use serde_json::Value;
use testkit::operator::waited_for;
use testkit::programs::netpolicy;
use testkit::scratch::Scratch;
use testkit::wire::{Wire, run};
use testkit::{Need, last_cpu};

/// What two machines with memcached need.
const MACHINES: &[Need] = &[Need::Root, Need::Memcached, Need::Suspension, Need::Bpf, TASKSET];

const TASKSET: Need = Need::Program("taskset");

/// The environment variable for the command that replaces ssh.
const SSH: &str = "NETPOLICY_SSH_COMMAND";

/// The settings of a device, by the object that has the setting.
type Settings = BTreeMap<String, String>;

/// Two machines.
struct Machines {
    wire: Wire,
    scratch: Scratch,
    link: Link,
    /// The processes on the server's machine that were not started by a bench.
    own: Vec<u32>,
}

/// How the client reaches the server's machine.
enum Link {
    /// Through a script in place of ssh.
    Script,
    /// By ssh, through this sshd.
    Sshd(Child),
    /// By TCP, through this `bench serve --listen`.
    Listener(Child),
}

impl Link {
    /// The process that accepts connections.
    const fn listener(&self) -> Option<&Child> {
        match self {
            Self::Script => None,
            Self::Sshd(child) | Self::Listener(child) => Some(child),
        }
    }
}

/// The address on which `bench serve` listens.
const LISTENS: &str = "192.0.2.1:7100";

/// The port on which sshd listens.
const SSHD_PORT: &str = "7022";

impl Drop for Machines {
    fn drop(&mut self) {
        self.stop_listener();
    }
}

impl Machines {
    fn new(name: &str) -> Result<Self, Failed> {
        Self::connected_by(Wire::new(2)?, name)
    }

    fn connected_by(wire: Wire, name: &str) -> Result<Self, Failed> {
        for netns in [&wire.near, &wire.far] {
            run(&format!("ip -n {netns} link set lo up"))?;
        }
        let machines = Self { wire, scratch: Scratch::new(name)?, link: Link::Script, own: Vec::new() };
        // In the script, $1 is the machine and $2 is the program `netpolicy`.
        machines.write_script("ssh", "host=$1; shift 2", "ip netns exec $host")?;
        Ok(machines)
    }

    /// Writes a script that runs netpolicy on the server's CPU and writes its pid to `server.pid`.
    fn write_script(&self, name: &str, before: &str, through: &str) -> Result<(), Failed> {
        let script = format!(
            "#!/bin/sh\necho $$ > {}\n{before}\nexec taskset -c {} {through} {} --state-dir {} \"$@\"\n",
            self.scratch.path("server.pid").display(),
            last_cpu()?,
            netpolicy(),
            self.scratch.path("state").display(),
        );
        self.write(name, &script, 0o755)
    }

    /// The same machines, connected by ssh. sshd has its own `/run` and a user for privilege separation.
    fn by_sshd(name: &str) -> Result<Self, Failed> {
        let mut machines = Self::new(name)?;
        machines.write_script("server", "", "")?;
        for key in ["host", "user"] {
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(machines.scratch.path(key))
                .status()?;
            assert!(made.success(), "{made}");
        }
        let at = |name: &str| machines.scratch.path(name).display().to_string();
        let config = format!(
            "ListenAddress 192.0.2.1:{SSHD_PORT}\nHostKey {}\nAuthorizedKeysFile {}\nStrictModes no\nUsePAM no\n\
             PidFile none\nPermitRootLogin prohibit-password\n",
            at("host"),
            at("user.pub"),
        );
        machines.write("sshd_config", &config, 0o600)?;
        let mut users = std::fs::read_to_string("/etc/passwd")?;
        if !users.lines().any(|line| line.starts_with("sshd:")) {
            users += "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin\n";
        }
        machines.write("passwd", &users, 0o644)?;
        // Mounts do not change the host, because `ip netns exec` has a separate mount namespace.
        let script = format!(
            "mount --bind {} /etc/passwd && mount -t tmpfs none /run && mkdir /run/sshd && exec {} -D -e -f {}",
            at("passwd"),
            testkit::unpacked::sshd().ok_or("no sshd")?.display(),
            at("sshd_config"),
        );
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &machines.wire.near, "sh", "-c", &script]).stdin(Stdio::null());
        let log = File::create(machines.log())?;
        machines.link = Link::Sshd(command.stdout(Stdio::null()).stderr(log).spawn()?);
        waited_for("an sshd that listens", || {
            Ok(std::fs::read_to_string(machines.log())?.contains("Server listening").then_some(()))
        })?;
        Ok(machines)
    }

    /// Two machines that are connected through TCP with a token.
    fn by_tcp(name: &str) -> Result<Self, Failed> {
        let mut machines = Self::new(name)?;
        machines.start_listener()?;
        Ok(machines)
    }

    fn start_listener(&mut self) -> Result<(), Failed> {
        self.write("token", &"0123456789abcdef".repeat(4), 0o600)?;
        let mut listener = self.listen("token").stderr(Stdio::piped()).spawn()?;
        let mut stderr = BufReader::new(listener.stderr.take().ok_or("no standard error")?);
        let mut said = String::new();
        stderr.read_line(&mut said)?;
        assert!(said.contains("Waiting for clients"), "{said}");
        // Copy the listener's further output to a file.
        let log = File::create(self.log())?;
        std::thread::spawn(move || std::io::copy(&mut stderr, &mut &log));
        self.link = Link::Listener(listener);
        Ok(())
    }

    fn stop_listener(&mut self) {
        if let Link::Sshd(child) | Link::Listener(child) = &mut self.link {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn log(&self) -> PathBuf {
        self.scratch.path("listener.log")
    }

    fn write(&self, name: &str, content: &str, mode: u32) -> Result<(), Failed> {
        let path = self.scratch.path(name);
        std::fs::write(&path, content)?;
        Ok(std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode))?)
    }

    /// Returns the command `netpolicy bench serve --listen` on the server's machine. If the file `boot_id`
    /// exists, its contents replace the machine's boot id. `ip` and the shell exec netpolicy, so its child is
    /// the connection's process.
    fn listen(&self, token: &str) -> Command {
        const SERVE: &str = "if [ -e \"$1\" ]; then mount --bind \"$1\" /proc/sys/kernel/random/boot_id; fi; shift; exec \"$@\"";
        let mut command = Command::new("ip");
        let cpu = last_cpu().map_or("0".to_owned(), |cpu| cpu.to_string());
        command
            .args(["netns", "exec", &self.wire.near, "sh", "-c", SERVE, "sh"])
            .arg(self.scratch.path("boot_id"));
        command.args(["taskset", "-c", &cpu, netpolicy(), "--state-dir"]);
        command.arg(self.scratch.path("state")).args(["bench", "serve", "--listen", LISTENS, "--token"]);
        command.arg(self.scratch.path(token)).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn ssh(&self) -> PathBuf {
        self.scratch.path("ssh")
    }

    /// Returns the process on the server's machine that serves the client.
    fn serving(&self) -> Result<Option<Pid>, Failed> {
        match &self.link {
            Link::Listener(_) => self.connection(),
            // A server that a client has just started writes its pid a moment later.
            Link::Script | Link::Sshd(_) => Self::pid_in(&self.scratch.path("server.pid")),
        }
    }

    /// Whether a process runs in the network namespace of the server's machine.
    fn is_near(&self, pid: Pid) -> bool {
        let namespace = |path: String| std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
        let near = namespace(format!("/run/netns/{}", self.wire.near));
        near.is_some() && namespace(format!("/proc/{}/ns/net", pid.as_raw_nonzero())) == near
    }

    /// Returns the process that the listener started for the connection.
    fn connection(&self) -> Result<Option<Pid>, Failed> {
        let listener = self.link.listener().ok_or("there is no listener")?.id();
        Self::pid_in(&PathBuf::from(format!("/proc/{listener}/task/{listener}/children")))
    }

    fn pid_in(file: &Path) -> Result<Option<Pid>, Failed> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let first = text.split_whitespace().next().and_then(|pid| pid.parse().ok());
        Ok(first.and_then(Pid::from_raw))
    }

    /// Returns a command that runs netpolicy on the client's machine.
    fn on_client(&self, words: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.wire.far, "taskset", "-c", "0", netpolicy()]);
        let ssh = match self.link {
            Link::Script | Link::Listener(_) => self.ssh().display().to_string(),
            // Do not check the host key: the server's machine has a new one in each test.
            Link::Sshd(_) => format!(
                "ssh -F none -q -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -p {SSHD_PORT} -i {}",
                self.scratch.path("user").display()
            ),
        };
        command.args(words.split(' ')).env(SSH, ssh).stdin(Stdio::null());
        command
    }

    /// Returns the `netpolicy` command on the client, with the options that connect it to the server.
    fn client(&self, words: &str) -> Command {
        let mut command = self.on_client(words);
        match self.link {
            Link::Script => {
                command.args(["--server", &format!("ssh:{}", self.wire.near)]);
                command.args(["--server-address", "192.0.2.1"])
            }
            Link::Sshd(_) => {
                command.args(["--server", "ssh:root@192.0.2.1", "--server-program"]);
                command.arg(self.scratch.path("server"))
            }
            Link::Listener(_) => {
                command.args(["--server", LISTENS, "--token"]).arg(self.scratch.path("token"))
            }
        };
        command
    }

    fn output(&self, words: &str) -> Result<Output, Failed> {
        Ok(self.client(words).output()?)
    }

    /// Starts `netpolicy bench serve --stdio` on the server.
    fn server(&self) -> Result<Child, Failed> {
        let mut command = Command::new(self.ssh());
        command.args([&self.wire.near, "netpolicy", "bench", "serve", "--stdio"]);
        Ok(command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
    }

    /// The settings of the server's device.
    fn settings(&self) -> Result<Settings, Failed> {
        Ok(Self::settings_of(&self.wire.near0()?))
    }

    /// The settings of the client's device.
    fn client_settings(&self) -> Result<Settings, Failed> {
        let host = linux::observe(&linux::Netns::named(&self.wire.far)?, &linux::Processes::None)?;
        Ok(Self::settings_of(host.device_named("far0").ok_or("far0 was not observed")?))
    }

    /// The settings of both devices.
    fn settings_of_both(&self) -> Result<[Settings; 2], Failed> {
        Ok([self.settings()?, self.client_settings()?])
    }

    fn settings_of(device: &model::host::Device) -> Settings {
        let of_napi = |napi: &model::host::Napi| {
            let (defer, flush) = (napi.defer_hard_irqs, napi.gro_flush_timeout);
            format!("{defer:?} {flush:?} {:?} {:?}", napi.irq_suspend_timeout, napi.threaded)
        };
        let napis = device.napis.iter().map(|napi| (format!("napi {}", napi.id.0), of_napi(napi)));
        let rx = device.rx_queues.iter().map(|queue| {
            (format!("{}", queue.id.index), format!("{} {:?}", queue.rps_cpus, queue.rps_flow_cnt))
        });
        let tx = device
            .tx_queues
            .iter()
            .map(|queue| (format!("tx {}", queue.index), format!("{} {:?}", queue.xps_cpus, queue.xps_rxqs)));
        napis.chain(rx).chain(tx).collect()
    }

    /// The processes in the server's namespace.
    fn processes(&self) -> Result<Vec<Pid>, Failed> {
        let own = std::fs::metadata(format!("/run/netns/{}", self.wire.near))?.ino();
        let mut found = Vec::new();
        for entry in std::fs::read_dir("/proc")? {
            let name = entry?.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            let netns = std::fs::metadata(format!("/proc/{pid}/ns/net"));
            let is_listener = self.link.listener().is_some_and(|listener| listener.id() == pid);
            let is_own = is_listener || self.own.contains(&pid);
            if netns.is_ok_and(|netns| netns.ino() == own) && !is_own {
                found.extend(Pid::from_raw(pid.cast_signed()));
            }
        }
        Ok(found)
    }

    /// Waits until a bench has left no process on the server's machine and the settings of its device equal
    /// the earlier ones, and checks that no transaction is left.
    fn is_as(&self, before: &Settings, within: Duration) -> Result<(), Failed> {
        let begun = Instant::now();
        loop {
            let (settings, processes) = (self.settings()?, self.processes()?);
            if settings == *before && processes.is_empty() {
                break;
            }
            if begun.elapsed() > within {
                let log = std::fs::read_to_string(self.scratch.path("state/guard.log")).unwrap_or_default();
                return Err(format!(
                    "left after {within:?}: {settings:?}, was {before:?}; processes {processes:?}; {log}"
                )
                .into());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        let state = self.scratch.path("state");
        let history = run(&format!("{} --state-dir {} -o json history", netpolicy(), state.display()))?;
        let history: Value = serde_json::from_str(&history)?;
        let transactions = history["data"]["transactions"].as_array().ok_or("no list")?;
        let live: Vec<_> = transactions
            .iter()
            .filter(|one| !matches!(one["standing"].as_str(), Some("rolled-back" | "rebooted")))
            .collect();
        assert!(live.is_empty(), "{live:?}");
        Ok(())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the data that a bench printed. On a busy machine any run may be void; the exit code is 1 if all
/// are.
fn data(output: &Output) -> Result<Value, Failed> {
    let said = text(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{:?}: {said}", output.status);
    let document: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("{error}: {said}"))?;
    Ok(document["data"].clone())
}

fn grid(output: &Output) -> Result<Grid, Failed> {
    Ok(serde_json::from_value(data(output)?)?)
}

/// Starts memcached on the server's machine.
fn service(machines: &Machines) -> Result<Child, Failed> {
    let mut service = Command::new("ip");
    service.args(["netns", "exec", &machines.wire.near]);
    service.args(["memcached", "-u", "nobody", "-l", "192.0.2.1", "-t", "1"]);
    let service = service.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let begun = Instant::now();
    let listens = || run(&format!("ip netns exec {} ss -Hltn sport = :11211", machines.wire.near));
    while listens()?.is_empty() && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(service)
}
