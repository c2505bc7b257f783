//! Benches with the server on another machine. The machines are two network namespaces, connected by ssh, by
//! TCP, or by a script in place of ssh that enters one of them. The tests check counts and leftovers, not
//! times.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use model::{Chance, Evidence, Pid, Side};
use runs::{Grid, Results};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use testkit::operator::waited_for;
use testkit::programs::netpolicy;
use testkit::scratch::Scratch;
use testkit::wire::{Wire, run};
use testkit::{Need, last_cpu, repeated, test};

/// The number of times that each end of a transport is killed.
const KILLS: u32 = 5;

/// The variable that overrides [`KILLS`], because `make test-all` kills each end more times.
const KILLS_VARIABLE: &str = "NETPOLICY_TEST_KILLS";

fn kills() -> u32 {
    std::env::var(KILLS_VARIABLE).ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS)
}

/// Returns the number of times that each end of a bench is killed: a tenth of the kills of a transport,
/// because there are many benches.
fn kills_of_bench() -> u32 {
    kills().div_ceil(10)
}

pub(crate) fn tests() -> Vec<Trial> {
    const MACHINES: &[Need] = &[Need::Root, Need::Memcached, Need::Suspension, Need::Bpf, TASKSET];
    const TASKSET: Need = Need::Program("taskset");
    const NICS: &[Need] = &[Need::Root, Need::Memcached, Need::Suspension, Need::VirtioNics, TASKSET];
    const THREADS: &[Need] = &[Need::Root, Need::ThreadPerNapi, TASKSET];
    const SSHD: &[Need] = &[Need::Root, Need::Memcached, Need::Suspension, Need::Bpf, TASKSET, Need::Sshd];
    const WORKQUEUE: &[Need] = &[Need::Root, Need::WorkqueueNapis, TASKSET];
    let killed_benches = BENCHES.into_iter().map(|(name, bench)| {
        test(format!("machines/{name}_that_is_killed_at_either_end_leaves_nothing"), MACHINES, move || {
            killed(bench, &Victim::ENDS, kills_of_bench(), &mut Machines::new("machines-killed")?)
        })
    });
    let mut tests: Vec<Trial> = killed_benches.collect();
    tests.extend([
        test(
            "machines/memcached_on_another_machine_is_measured_and_both_are_described",
            MACHINES,
            repeated(memcached),
        ),
        test("machines/interrupts_of_a_nic_are_counted_and_suspension_leaves_few", NICS, interrupts),
        test("machines/kernel_threads_poll_on_the_other_machine", THREADS, repeated(exchanged)),
        test("machines/storage_of_the_other_machine_is_read_and_written", THREADS, repeated(storage)),
        test(
            "machines/policies_are_measured_on_another_machine_in_every_mixture",
            MACHINES,
            repeated(policies),
        ),
        test(
            "machines/policies_for_a_service_that_runs_there_already",
            MACHINES,
            repeated(policies_for_service),
        ),
        test("machines/a_client_that_waits_as_the_server_is_restored_too", MACHINES, repeated(both_sides)),
        test(
            "machines/memcached_that_runs_already_is_measured_and_keeps_running",
            MACHINES,
            repeated(running),
        ),
        test("machines/another_version_and_what_is_no_message_are_refused_by_name", &[Need::Root], refused),
        test("machines/a_daemon_on_the_other_machine_is_named_and_left_alone", &[Need::Root], daemon),
        test("machines/what_has_no_second_machine_says_so", &[Need::Root], unsupported),
        test("machines/a_token_authenticates_both_ends_of_a_connection_by_tcp", MACHINES, by_tcp),
        test("machines/a_connection_without_the_token_learns_and_changes_nothing", MACHINES, strangers),
        test("machines/ssh_that_is_killed_at_either_end_or_between_leaves_nothing", SSHD, || {
            let every = [Victim::Client, Victim::Connection, Victim::Server];
            killed(MEMCACHED, &every, kills(), &mut Machines::by_sshd("machines-killed")?)
        }),
        test("machines/tcp_that_is_killed_at_either_end_leaves_nothing", MACHINES, || {
            killed(MEMCACHED, &Victim::ENDS, kills(), &mut Machines::by_tcp("machines-killed")?)
        }),
        test(
            "machines/a_client_that_waits_as_the_server_leaves_nothing_when_either_is_killed",
            MACHINES,
            || {
                let mut machines = Machines::new("machines-killed")?;
                run(&format!("ip netns exec {} ethtool -K far0 gro on", machines.wire.far))?;
                for bench in [MEMCACHED, "tcp-rr --mode suspend20 --rate 500 --flows 2"] {
                    killed(&format!("{bench} --both-sides"), &Victim::ENDS, kills_of_bench(), &mut machines)?;
                }
                Ok(())
            },
        ),
        test(
            "machines/a_workqueue_polls_on_the_other_machine_and_is_left_by_what_is_killed",
            WORKQUEUE,
            workqueue,
        ),
        test("machines/a_server_that_reboots_is_noticed_and_measured_again", MACHINES, rebooted),
        test("machines/a_device_that_goes_away_is_named", MACHINES, removed),
        test("machines/a_device_without_the_feature_is_named_and_left_alone", MACHINES, lacking),
        test("machines/a_client_that_stops_leaves_nothing", MACHINES, stopped),
        test("machines/ctrl_c_restores_the_other_machine_and_shows_what_there_is", MACHINES, interrupted),
    ]);
    tests
}

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
            let path = machines.scratch.path(key);
            let made = Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(path)
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
    fn serving(&self) -> Result<Option<rustix::process::Pid>, Failed> {
        match &self.link {
            Link::Listener(_) => self.connection(),
            // A server that a client has just started writes its pid a moment later.
            Link::Script | Link::Sshd(_) => Self::pid_in(&self.scratch.path("server.pid")),
        }
    }

    /// Whether a process runs in the network namespace of the server's machine.
    fn is_near(&self, pid: rustix::process::Pid) -> bool {
        let namespace = |path: String| std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
        let near = namespace(format!("/run/netns/{}", self.wire.near));
        near.is_some() && namespace(format!("/proc/{}/ns/net", pid.as_raw_nonzero())) == near
    }

    /// Returns the process that the listener started for the connection.
    fn connection(&self) -> Result<Option<rustix::process::Pid>, Failed> {
        let listener = self.link.listener().ok_or("there is no listener")?.id();
        Self::pid_in(&PathBuf::from(format!("/proc/{listener}/task/{listener}/children")))
    }

    fn pid_in(file: &Path) -> Result<Option<rustix::process::Pid>, Failed> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        let first = text.split_whitespace().next().and_then(|pid| pid.parse().ok());
        Ok(first.and_then(rustix::process::Pid::from_raw))
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
                found.push(Pid(pid));
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

fn memcached() -> Result<(), Failed> {
    let machines = Machines::new("machines-memcached")?;
    let before = machines.settings()?;
    let report = machines.scratch.path("report.html");
    let output = machines.output(&format!(
        "-o json bench memcached --mode base,suspend200,napibusy --rate 2K,max --seconds 500ms --warmup 100ms --repeats 1 \
         --report {}",
        report.display()
    ))?;
    machines.is_as(&before, Duration::from_secs(10))?;
    let results: Results = serde_json::from_value(data(&output)?)?;
    assert_eq!(results.evidence.len(), 6, "{}", text(&output.stderr));
    let [server, client] = results.machines.as_slice() else { return Err("not two machines".into()) };
    assert_eq!((server.side, client.side), (Side::Server, Side::Client));
    let device = |machine: &model::MachineDescription| {
        let device = machine.device.as_ref()?;
        Some((device.id.name.as_str().to_owned(), device.rx_queues.len()))
    };
    assert_eq!(device(server), Some(("near0".to_owned(), 2)));
    assert_eq!(device(client), Some(("far0".to_owned(), 2)));
    assert_eq!(server.driver.as_ref().map(|driver| driver.driver.as_str()), Some("veth"));
    assert_eq!((server.cpus.len(), client.cpus.len()), (1, 1));
    for run in &results.evidence {
        assert!(run.requests.answered > 0, "{}: {:?}", run.label, run.requests);
        assert!(run.epoll_batch.is_some() && run.counters.is_some(), "{}", run.label);
        let cost = run.cpu_per_answer.and_then(|cost| cost.tasks_us);
        let client = run.client.as_ref().and_then(|client| client.cpu_per_answer?.tasks_us);
        assert!(cost > Some(0.0) && client > Some(0.0), "{}: {cost:?}, {client:?}", run.label);
    }
    let shares = |label: &str| {
        let of_label = results.evidence.iter().filter(|run| run.label == label);
        let share = |run: &Evidence| run.delivered.as_ref().and_then(model::Delivered::application_share);
        of_label.filter_map(share).collect::<Vec<_>>()
    };
    // On a busy machine the sample may have few packets (32 in one case), so allow a small share.
    assert!(shares("base").iter().all(|share| *share < 0.2), "{:?}", shares("base"));
    assert!(shares("suspend200").iter().any(|share| *share > 0.5), "{:?}", shares("suspend200"));
    let html = std::fs::read_to_string(report)?;
    assert!(html.contains("near0") && html.contains("far0"), "both machines are in the report");
    Ok(())
}

/// Measures over a guest's NICs, whose driver, unlike a veth, masks interrupts. The measured times are
/// meaningless in a guest.
fn interrupts() -> Result<(), Failed> {
    let machines = Machines::connected_by(Wire::between("virtio")?, "machines-interrupts")?;
    let before = machines.settings()?;
    let output = machines.output(
        "-o json bench memcached --mode base,suspend5000 --rate 300 --seconds 4s --warmup 500ms --repeats 1 --keys 100 --connections 8 \
         --threads 1 --sleep --uncounted",
    )?;
    machines.is_as(&before, Duration::from_secs(60))?;
    let results: Results = serde_json::from_value(data(&output)?)?;
    let of = |label: &str| {
        let run = results.evidence.iter().find(|run| run.label == label).ok_or("no run")?;
        run.interrupts_per_request.ok_or_else(|| Failed::from(format!("{label}: none were counted")))
    };
    let (untouched, suspended) = (of("base")?, of("suspend5000")?);
    assert!(untouched > 0.1 && suspended * 10.0 < untouched, "{untouched} and {suspended} for each answer");
    Ok(())
}

fn by_tcp() -> Result<(), Failed> {
    let machines = Machines::by_tcp("machines-by-tcp")?;
    let before = machines.settings()?;
    let output = machines.output(
        "-o json bench memcached --mode base,suspend200 --rate 1K --seconds 300ms --warmup 50ms --repeats 1 --keys 100",
    )?;
    machines.is_as(&before, Duration::from_secs(10))?;
    let results: Results = serde_json::from_value(data(&output)?)?;
    assert_eq!(results.machines.len(), 2);
    assert!(results.evidence.len() == 2 && results.evidence.iter().all(|run| run.requests.answered > 0));
    // While the first client measures, a second one is refused, and the message states the reason.
    let mut first = machines.client(&long()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let begun = Instant::now();
    while machines.settings()? == before && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let second = machines.output("bench memcached --short");
    first.kill()?;
    first.wait()?;
    let second = second?;
    let said = text(&second.stderr);
    assert!(
        second.status.code() == Some(7) && said.contains("another client is using this machine"),
        "{said}"
    );
    machines.is_as(&before, Duration::from_secs(30))?;
    // When the listener is told to exit, it first ends the client's bench and restores the host.
    let mut client = machines.client(&long()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let begun = Instant::now();
    while machines.settings()? == before && begun.elapsed() < Duration::from_secs(30) {
        std::thread::sleep(Duration::from_millis(10));
    }
    let listener = machines.link.listener().ok_or("no listener")?.id();
    let listener = i32::try_from(listener).ok().and_then(rustix::process::Pid::from_raw).ok_or("no pid")?;
    kill_process(listener, Signal::TERM)?;
    assert!(!client.wait()?.success());
    machines.is_as(&before, Duration::from_secs(10))
}

/// Connects to the listener from the client's machine, sends these bytes, and reads until the connection ends.
fn stranger(machines: &Machines, bytes: &[u8]) -> Result<String, Failed> {
    let own = File::open("/proc/self/ns/net")?;
    let far = File::open(format!("/run/netns/{}", machines.wire.far))?;
    let enter = |netns: &File| rustix::thread::move_into_link_name_space(netns.as_fd(), None);
    enter(&far)?;
    let connected = TcpStream::connect(LISTENS);
    enter(&own)?;
    let mut stream = connected?;
    stream.set_read_timeout(Some(Duration::from_secs(20)))?;
    let mut said = Vec::new();
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let _ = stream.read_to_end(&mut said);
    Ok(text(&said))
}

fn strangers() -> Result<(), Failed> {
    let machines = Machines::by_tcp("machines-strangers")?;
    let before = machines.settings()?;
    machines.write("other", &"f".repeat(64), 0o600)?;
    machines.write("open", &"f".repeat(64), 0o644)?;
    let ask = |words: &str| -> Result<(Option<i32>, String), Failed> {
        let words = words.replace("DIR", &machines.scratch.path("").display().to_string());
        let output = machines.on_client(&format!("bench memcached --short {words}")).output()?;
        Ok((output.status.code(), text(&output.stderr)))
    };
    for (words, code, named) in [
        ("--server 192.0.2.1:7100 --token DIR/other", 7, "192.0.2.1:7100: it has a different token"),
        ("--server 192.0.2.1:7100 --token DIR/open", 7, "other users can access it (mode 644)"),
        ("--server 192.0.2.1:7100", 2, "needs --token"),
        ("--server ssh:h --token DIR/token", 2, "needs no --token"),
        ("--server 192.0.2.1:7101 --token DIR/token", 1, "192.0.2.1:7101"),
    ] {
        let (found, said) = ask(words)?;
        assert!(found == Some(code) && said.contains(named), "{words}: {found:?}: {said}");
    }
    let output = machines.listen("open").stderr(Stdio::piped()).output()?;
    assert!(
        output.status.code() == Some(7) && text(&output.stderr).contains("mode 644"),
        "{:?}",
        output.status
    );
    for bytes in [
        &b""[..],
        b"GET / HTTP/1.1\r\n\r\n",
        b"{\"hello\":{\"protocol\":3,\"netpolicy\":\"0.1.0\",\"kernel\":\"6.18.0\",\"benches\":[]}}\n",
        &[b' '; 4096],
    ] {
        let said = stranger(&machines, bytes)?;
        let mut lines = said.lines();
        let challenge = lines.next().is_some_and(|line| line.starts_with("{\"challenge\":"));
        let rest: Vec<&str> = lines.collect();
        // If the connection is reset, the last line may be lost.
        assert!(challenge && (rest.is_empty() || rest == ["\"refused\""]), "{said}");
    }
    let log = std::fs::read_to_string(machines.log())?;
    assert!(log.contains("it has a different token") && log.contains("is not a message"), "{log}");
    // Connections above the limit are closed, and the listener still serves later clients.
    let own = File::open("/proc/self/ns/net")?;
    let far = File::open(format!("/run/netns/{}", machines.wire.far))?;
    rustix::thread::move_into_link_name_space(far.as_fd(), None)?;
    let held: Vec<_> = (0..12).map(|_| TcpStream::connect(LISTENS)).collect();
    rustix::thread::move_into_link_name_space(own.as_fd(), None)?;
    assert!(held.iter().all(Result::is_ok), "{held:?}");
    waited_for("a refused connection", || {
        Ok(std::fs::read_to_string(machines.log())?.contains("there are 8 connections").then_some(()))
    })?;
    drop(held);
    machines.is_as(&before, Duration::from_secs(20))
}

/// Starts memcached on the server's machine.
fn service(machines: &Machines) -> Result<Child, Failed> {
    let mut service = Command::new("ip");
    service.args([
        "netns",
        "exec",
        &machines.wire.near,
        "memcached",
        "-u",
        "nobody",
        "-l",
        "192.0.2.1",
        "-t",
        "1",
    ]);
    let service = service.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let begun = Instant::now();
    let listens = || run(&format!("ip netns exec {} ss -Hltn sport = :11211", machines.wire.near));
    while listens()?.is_empty() && begun.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(service)
}

fn running() -> Result<(), Failed> {
    let machines = Machines::new("machines-running")?;
    let mut service = service(&machines)?;
    let before = machines.settings()?;
    let output = machines.output(
        "-o json bench memcached --service 11211 --mode base,suspend200 --rate 1K --seconds 300ms --warmup 50ms --repeats 1 --keys 100",
    );
    let after = machines.settings()?;
    let ended = service.try_wait()?;
    service.kill()?;
    service.wait()?;
    let results: Results = serde_json::from_value(data(&output?)?)?;
    assert!(after == before && ended.is_none(), "{after:?}, was {before:?}; {ended:?}");
    assert_eq!(results.evidence.len(), 2);
    assert!(results.evidence.iter().all(|run| run.requests.answered > 0), "{:?}", results.evidence);
    machines.is_as(&before, Duration::from_secs(10))
}

fn grid(output: &Output) -> Result<Grid, Failed> {
    Ok(serde_json::from_value(data(output)?)?)
}

fn exchanged() -> Result<(), Failed> {
    let machines = Machines::new("machines-tcp-rr")?;
    let before = machines.settings()?;
    for (bench, sizes) in [("tcp-rr", "1,5K"), ("udp-rr", "8,1K")] {
        let output = machines.output(&format!(
            "-o json bench {bench} --mode softirq,threaded+pinned --size {sizes} --flows 4 --rate 500 --repeats 1 \
             --seconds 500ms --warmup 50ms --background 1 --background-duty 10",
        ))?;
        machines.is_as(&before, Duration::from_secs(10))?;
        is_exchanged(&output)?;
    }
    Ok(())
}

fn is_exchanged(output: &Output) -> Result<(), Failed> {
    let grid = grid(output)?;
    assert_eq!(grid.machines.len(), 2);
    assert_eq!(grid.variants.len(), 2, "one per size: {}", text(&output.stderr));
    for variant in &grid.variants {
        for run in &variant.results.evidence {
            assert!(run.requests.answered > 0, "{} {}", variant.name, run.label);
            let napis = run.delivered.iter().flat_map(|delivered| &delivered.napis);
            let (kthread, softirq) = napis.fold((0, 0), |(kthread, softirq), napi| {
                (kthread + napi.kthread.polls, softirq + napi.softirq().polls)
            });
            assert_eq!(run.label == "softirq", kthread == 0, "{}: {kthread} polls by threads", run.label);
            assert!(run.label == "softirq" || kthread > softirq, "{}: {kthread}, {softirq}", run.label);
        }
    }
    Ok(())
}

fn storage() -> Result<(), Failed> {
    let machines = Machines::new("machines-storage")?;
    let before = machines.settings()?;
    let output = machines.output(
        "-o json bench storage --mode softirq,threaded --op 4K --flows 2 --rate 50 --span 1M --repeats 1 --seconds 300ms --warmup 50ms",
    )?;
    machines.is_as(&before, Duration::from_secs(10))?;
    let grid = grid(&output)?;
    let runs: Vec<_> = grid.variants.iter().flat_map(|variant| &variant.results.evidence).collect();
    assert!(runs.len() == 2 && runs.iter().all(|run| run.requests.answered > 0), "{}", text(&output.stderr));
    Ok(())
}

fn policies() -> Result<(), Failed> {
    let machines = Machines::new("machines-policies")?;
    let before = machines.settings()?;
    let output = machines.output(
        "-o json bench policies --meant-for 1 --at-once 2 --mix 1:1,0:1 --policy none,manual,latency,mix --delivery suspend200 \
         --repeats 1 --seconds 300ms --warmup 50ms",
    )?;
    machines.is_as(&before, Duration::from_secs(10))?;
    let grid = grid(&output)?;
    assert_eq!(grid.machines.len(), 2);
    let names: Vec<&str> = grid.variants.iter().map(|variant| variant.name.as_str()).collect();
    assert_eq!(
        names,
        [
            "2 at once: 2 latency-first",
            "2 at once: 1 throughput-first (alongside 1 latency-first)",
            "2 at once: 1 latency-first (alongside 1 throughput-first)"
        ],
        "{}",
        text(&output.stderr)
    );
    for variant in &grid.variants {
        assert_eq!(variant.results.evidence.len(), 5, "{}: skipped {:?}", variant.name, grid.skipped);
        for run in &variant.results.evidence {
            assert!(run.requests.answered > 0 && run.counters.is_some(), "{} {}", variant.name, run.label);
            let polls = run.delivered.iter().flat_map(|delivered| &delivered.napis);
            let own: u64 = polls.map(|napi| napi.application.polls).sum();
            assert!(run.label != "delivery suspend200" || own > 0, "{}: {own}", variant.name);
        }
    }
    for (label, words) in
        [("none", "sets nothing"), ("manual", "rps_cpus"), ("delivery suspend200", "irq-suspend-timeout")]
    {
        let note = grid.notes.iter().find(|note| note.starts_with(&format!("{label}: ")));
        assert!(note.is_some_and(|note| note.contains(words)), "{label}: {:?}", grid.notes);
    }
    Ok(())
}

fn policies_for_service() -> Result<(), Failed> {
    let machines = Machines::new("machines-policies-service")?;
    let mut service = service(&machines)?;
    let before = machines.settings()?;
    let output = machines.output(
        "-o json bench policies --service memcached --port 11211 --protocol memcached --rate 1K --connections 4 --policy none,cpu \
         --repeats 1 --seconds 300ms --warmup 50ms",
    );
    let (after, ended) = (machines.settings()?, service.try_wait()?);
    service.kill()?;
    service.wait()?;
    let grid = grid(&output?)?;
    assert!(after == before && ended.is_none(), "{after:?}, was {before:?}; {ended:?}");
    let [variant] = grid.variants.as_slice() else { return Err("not one variant".into()) };
    assert_eq!(variant.name, "memcached, 4 connection(s)");
    assert!(variant.results.evidence.len() == 2, "skipped {:?}", grid.skipped);
    assert!(variant.results.evidence.iter().all(|run| run.requests.answered > 0));
    machines.is_as(&before, Duration::from_secs(10))
}

/// Waits until the settings of the client's device have changed or the client has exited.
fn changed(machines: &Machines, client: &mut Child, before: &Settings) -> Result<Settings, Failed> {
    while client.try_wait()?.is_none() {
        let now = machines.client_settings()?;
        if now != *before {
            return Ok(now);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Err("the client's device had its former settings".into())
}

fn both_sides() -> Result<(), Failed> {
    let machines = Machines::new("machines-both")?;
    run(&format!("ip netns exec {} ethtool -K far0 gro on", machines.wire.far))?;
    let (before, own_before) = (machines.settings()?, machines.client_settings()?);
    for bench in ["tcp-rr --flows 2", "memcached --keys 100 --connections 2"] {
        let mut client = machines.client(&format!(
            "-o json --state-dir {} bench {bench} --both-sides --mode base,suspend200 --rate 500 --repeats 1 --seconds 1s --warmup 50ms",
            machines.scratch.path("client").display()
        ));
        let mut client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        let during = changed(&machines, &mut client, &own_before);
        let output = client.wait_with_output()?;
        let during =
            during.map_err(|error| format!("{error:?}: {}{}", text(&output.stdout), text(&output.stderr)))?;
        assert!(format!("{during:?}").contains("200000"), "{during:?}");
        let document = data(&output)?;
        assert!(document.to_string().contains("to which the configuration is applied, too"), "{document}");
        assert_eq!(machines.client_settings()?, own_before);
        machines.is_as(&before, Duration::from_secs(10))?;
    }
    Ok(())
}

/// Sends these bytes to a server, and returns its exit code and messages.
fn told(machines: &Machines, bytes: &[u8]) -> Result<(Option<i32>, String), Failed> {
    let mut server = machines.server()?;
    let mut stdin = server.stdin.take().ok_or("no standard input")?;
    // The server may exit before it has read everything.
    let _ = stdin.write_all(bytes);
    drop(stdin);
    let output = server.wait_with_output()?;
    Ok((output.status.code(), text(&output.stdout) + &text(&output.stderr)))
}

fn refused() -> Result<(), Failed> {
    let machines = Machines::new("machines-refused")?;
    let before = machines.settings()?;
    let hello = |version: &str| {
        format!(
            "{{\"hello\":{{\"protocol\":3,\"netpolicy\":\"{version}\",\"kernel\":\"6.18.0\",\"benches\":[]}}}}\n"
        )
    };
    let (code, said) = told(&machines, hello("9.9.9").as_bytes())?;
    assert!(code == Some(6) && said.contains("the client has netpolicy 9.9.9"), "{code:?}: {said}");
    let (code, said) = told(&machines, b"GET / HTTP/1.1\r\n\r\n")?;
    let is_told = said.contains("{\"failed\":{\"exit\":2,\"cause\":\"`GET / HTTP/1.1");
    assert!(code == Some(2) && is_told && said.contains("is not a message"), "{code:?}: {said}");
    let (code, said) = told(&machines, &vec![b' '; 9 << 20])?;
    assert!(code == Some(2) && said.contains("longer than"), "{code:?}: {said}");
    let own = hello(env!("CARGO_PKG_VERSION"));
    let (code, said) = told(&machines, format!("{own}\"restore\"\n").as_bytes())?;
    assert!(code == Some(2) && said.contains("does not prepare"), "{code:?}: {said}");
    let prepare = "{\"prepare\":{\"address\":\"192.0.2.77\",\"port\":null,\"cpus\":null,\"counted\":false,\"kthread_cpus\":null,\
                   \"background\":null,\"storage\":null}}\n";
    let (code, said) = told(&machines, format!("{own}{prepare}").as_bytes())?;
    assert!(
        code == Some(2) && said.contains("no device here has the address 192.0.2.77"),
        "{code:?}: {said}"
    );

    // The client's side.
    let asked = |ssh: &str| -> Result<(Option<i32>, String), Failed> {
        let mut command = machines.client("bench memcached --short");
        let output = command.env(SSH, ssh).output()?;
        assert!(output.stdout.is_empty(), "{}", text(&output.stdout));
        Ok((output.status.code(), text(&output.stderr)))
    };
    let old = machines.scratch.path("old");
    std::fs::write(&old, format!("#!/bin/sh\nprintf '%s' '{}'\nexec cat > /dev/null\n", hello("0.0.1")))?;
    std::fs::set_permissions(&old, std::fs::Permissions::from_mode(0o755))?;
    let (code, said) = asked(&old.display().to_string())?;
    let both = said.contains("has netpolicy 0.0.1") && said.contains("this machine has netpolicy");
    assert!(code == Some(6) && both, "{code:?}: {said}");
    // The scripts act as a server of the same version that exits with the code of an invalid message.
    for (name, more, words) in [
        ("mistaken", "", "is lost"),
        (
            "failing",
            "{\"failed\":{\"exit\":2,\"cause\":\"`x` is no message\",\"hint\":null,\"stuck\":null,\"restored\":false}}\n",
            "`x` is no message",
        ),
    ] {
        let path = machines.scratch.path(name);
        let script = format!(
            "#!/bin/sh\nprintf '%s' '{own}'\nread hello\nread prepare\nprintf '%s' '{more}'\nexit 2\n"
        );
        std::fs::write(&path, script)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))?;
        let (code, said) = asked(&path.display().to_string())?;
        let honest = said.contains(words) && !said.contains("another version");
        assert!(matches!(code, Some(1 | 2)) && honest, "{name}: {code:?}: {said}");
    }
    let (code, said) = asked("echo Welcome to")?;
    assert!(code == Some(1) && said.contains("`Welcome to"), "{code:?}: {said}");
    let (code, said) = asked("no-such-program")?;
    assert!(code == Some(6) && said.contains("is not installed"), "{code:?}: {said}");
    let (code, said) = asked("false")?;
    assert!(code == Some(1) && said.contains("is lost"), "{code:?}: {said}");
    machines.is_as(&before, Duration::from_secs(10))
}

fn daemon() -> Result<(), Failed> {
    let machines = Machines::new("machines-daemon")?;
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &machines.wire.near, netpolicy(), "--state-dir"]);
    command.arg(machines.scratch.path("daemon")).arg("daemon");
    let mut daemon = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut said = String::new();
    let mut stderr = BufReader::new(daemon.stderr.take().ok_or("no standard error")?);
    while !said.contains("at work") && stderr.read_line(&mut said)? > 0 {}
    let output = machines.output("bench memcached --short");
    let ended = daemon.try_wait()?;
    daemon.kill()?;
    daemon.wait()?;
    let (output, said) = (output?, said + " / ");
    let words = said + &text(&output.stderr);
    assert!(ended.is_none() && output.status.code() == Some(7), "{:?}: {words}", output.status);
    assert!(words.contains("manages this network namespace"), "{words}");
    Ok(())
}

fn unsupported() -> Result<(), Failed> {
    for (words, code, named) in [
        ("bench policies --server ssh:h --port 1 --protocol echo", 2, "--service"),
        ("bench policies --service x --protocol echo", 2, "--server"),
        ("bench policies --server ssh:h --simulated", 2, "--simulated"),
        ("bench memcached --both-sides", 2, "--server"),
        ("bench tcp-rr --both-sides", 2, "--loopback"),
        ("bench judge --server ssh:h", 2, "--server"),
        ("bench selfcheck --server ssh:h", 2, "--server"),
        ("bench memcached --server h", 2, "write ssh:HOST or HOST:PORT"),
        ("bench serve --token f", 2, "--listen"),
        ("bench serve --listen 127.0.0.1:1 --token f --size 5K", 2, "--size"),
        ("bench memcached --server ssh:-oProxyCommand=x", 2, "write ssh:HOST"),
        ("bench tcp-rr --server ssh:h --loopback", 2, "--loopback"),
        ("bench tcp-rr --server ssh:h --queues 2", 2, "--queues"),
        ("bench serve --stdio --listen 127.0.0.1:1", 2, "--stdio"),
    ] {
        let output = Command::new(netpolicy()).args(words.split(' ')).stdin(Stdio::null()).output()?;
        let said = text(&output.stderr);
        assert!(output.status.code() == Some(code) && said.contains(named), "{words}: {said}");
    }
    Ok(())
}

/// A memcached bench; the options in [`RUNS`] make it long.
const MEMCACHED: &str = "memcached --mode suspend20 --rate 1K --keys 100";

/// The name of every bench in a test, and its options.
const BENCHES: [(&str, &str); 10] = [
    ("memcached", MEMCACHED),
    ("an_idle_memcached", "memcached --mode suspend20 --rate 0 --keys 100"),
    ("tcp_rr", "tcp-rr --mode suspend20 --rate 500 --flows 2"),
    ("tcp_stream", "tcp-stream --mode threaded --flows 1"),
    ("udp_rr", "udp-rr --mode suspend20 --rate 500 --flows 2"),
    ("udp_stream", "udp-stream --mode threaded --flows 1"),
    (
        "threaded",
        "threaded --mode threaded+pinned,threaded@0+fifo --size 1 --rate 500 --flows 4 --background 1",
    ),
    ("storage", "storage --mode threaded --op 4K --rate 50 --flows 2 --span 1M"),
    ("policies", "policies --policy manual,mix --delivery suspend200 --meant-for 1 --at-once 2 --mix 1:1"),
    (
        "policies_for_a_service",
        "policies --policy cpu --delivery suspend200 --service memcached --port 11211 --protocol memcached --rate 1K --connections 4",
    ),
];

/// Options for many runs, each long enough for a kill while settings are in force.
const RUNS: &str = "--seconds 1s --warmup 20ms --repeats 200";

/// Returns the words of a memcached bench with many runs.
fn long() -> String {
    format!("bench {MEMCACHED} {RUNS}")
}

/// What is killed.
#[derive(Clone, Copy, Debug)]
enum Victim {
    Client,
    /// sshd's process for the connection.
    Connection,
    Server,
}

impl Victim {
    const ENDS: [Self; 2] = [Self::Client, Self::Server];
}

/// Kills each of these at random moments while a bench runs. Every second kill waits for settings in force, so at
/// least a third must meet them.
fn killed(bench: &str, victims: &[Victim], kills: u32, machines: &mut Machines) -> Result<(), Failed> {
    let mut service = if bench.contains("--service") { Some(service(machines)?) } else { None };
    machines.own.extend(service.as_ref().map(Child::id));
    let before = machines.settings_of_both()?;
    let mut chance = Chance::stream(std::process::id().into(), &[]);
    let mut killed = || -> Result<(), Failed> {
        for victim in victims {
            let mut in_force = 0;
            for kill in 0..kills {
                let was = kill_once(bench, *victim, kill % 2 == 0, &mut chance, &before, machines);
                in_force += u32::from(was.map_err(|error| format!("{victim:?}, kill {kill}: {error:?}"))?);
            }
            if kills > KILLS {
                let words = format!(
                    "{bench}: {victim:?}: {kills} kills, {in_force} of them while settings were in force\n"
                );
                std::io::stderr().write_all(words.as_bytes())?;
            }
            assert!(
                in_force * 3 >= kills,
                "{victim:?}: only {in_force} of {kills} kills met settings in force"
            );
        }
        Ok(())
    };
    let killed = killed();
    if let Some(service) = &mut service {
        let ended = service.try_wait()?;
        service.kill()?;
        service.wait()?;
        assert!(ended.is_none(), "the service: {ended:?}");
    }
    killed
}

/// Kills one of them, at any moment or, with `while_in_force`, while settings are in force. Returns whether they were.
fn kill_once(
    bench: &str,
    victim: Victim,
    while_in_force: bool,
    chance: &mut Chance,
    before: &[Settings; 2],
    machines: &Machines,
) -> Result<bool, Failed> {
    // Remove the pid of an earlier server: another process may have it by now.
    let _ = std::fs::remove_file(machines.scratch.path("server.pid"));
    let state = machines.scratch.path("client");
    let mut command = machines.client(&format!("--state-dir {} bench {bench} {RUNS}", state.display()));
    let mut client = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let begun = Instant::now();
    let (at_least, range) = if while_in_force { (0, 800) } else { (300, 1_700) };
    let mut is_waiting =
        || Ok::<_, Failed>(client.try_wait()?.is_none() && begun.elapsed() < Duration::from_secs(20));
    // A busy machine may have settings late, and a run may end during the random delay: then the kill waits for those
    // of the next run.
    let in_force = loop {
        while while_in_force && machines.settings_of_both()? == *before && is_waiting()? {
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(at_least + chance.bits() % range));
        let in_force = machines.settings_of_both()? != *before;
        if in_force || !while_in_force || !is_waiting()? {
            break in_force;
        }
    };
    let kill = |find: &dyn Fn() -> Result<Option<rustix::process::Pid>, Failed>| {
        // On a busy machine, it takes a moment until a process serves the client.
        waited_for("a process that serves the client", || {
            // If the process has just ended, the kill fails: look again.
            Ok(find()?.filter(|found| kill_process(*found, Signal::KILL).is_ok()))
        })
    };
    match victim {
        Victim::Client => client.kill()?,
        Victim::Connection => drop(kill(&|| machines.connection())?),
        // An earlier server may have written its pid late, and another process may have that pid by now.
        Victim::Server => drop(kill(&|| Ok(machines.serving()?.filter(|pid| machines.is_near(*pid))))?),
    }
    let output = client.wait_with_output()?;
    let (status, said) = (output.status, text(&output.stderr));
    let is_named = matches!(victim, Victim::Client) || said.contains("is lost") && status.code() == Some(1);
    assert!(!status.success() && is_named, "{status}: {said}");
    waited_for("the former state of the client's device", || {
        Ok((machines.client_settings()? == before[1]).then_some(()))
    })?;
    machines.is_as(&before[0], Duration::from_secs(30)).map_err(|error| format!("{error:?}; {said}"))?;
    Ok(in_force)
}

/// The module parameter, in a test kernel, that selects what polls threaded NAPIs.
const WORKQUEUE: &str = "/sys/module/napi/parameters/workqueue";

fn workqueue() -> Result<(), Failed> {
    let mut machines = Machines::new("machines-workqueue")?;
    let before = machines.settings()?;
    let parameter = || Ok::<_, Failed>(std::fs::read_to_string(WORKQUEUE)?.trim().to_owned());
    let was = parameter()?;
    let mut client = machines.client(
        "-o json bench threaded --mode softirq,workqueue,workqueue+bound --size 1 --flows 4 --rate 200 --repeats 1 \
         --seconds 2s --warmup 100ms --uncounted",
    );
    let client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    waited_for("a workqueue that polls", || Ok((parameter()? != was).then_some(())))?;
    let output = client.wait_with_output()?;
    machines.is_as(&before, Duration::from_secs(60))?;
    assert_eq!(parameter()?, was);
    let grid = grid(&output)?;
    let runs: Vec<_> = grid.variants.iter().flat_map(|variant| &variant.results.evidence).collect();
    assert!(runs.len() == 3 && runs.iter().all(|run| run.requests.answered > 0), "{}", text(&output.stderr));
    let bench = "threaded --mode workqueue,workqueue+bound --size 1 --rate 200 --flows 4";
    killed(bench, &Victim::ENDS, kills_of_bench(), &mut machines)?;
    waited_for("the former value of the parameter", || Ok((parameter()? == was).then_some(())))
}

/// Starts a bench with many runs, and waits until its settings are in force.
fn in_force(machines: &Machines, before: &Settings) -> Result<Child, Failed> {
    let client = machines.client(&long()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    waited_for("settings in force", || Ok((machines.settings()? != *before).then_some(())))?;
    Ok(client)
}

/// Simulates a reboot of the server's machine: it stops without a message, and returns with the settings that
/// it had at the start.
fn rebooted() -> Result<(), Failed> {
    let mut machines = Machines::new("machines-rebooted")?;
    machines.write("boot_id", "5c5ea7c1-0f8e-4a6e-9d57-0f6d6f3a2b1c\n", 0o600)?;
    machines.start_listener()?;
    let client = in_force(&machines, &machines.settings()?)?;
    machines.wire.in_near("ip link set near0 down")?;
    machines.stop_listener();
    for pid in machines.processes()? {
        let pid = i32::try_from(pid.0).ok().and_then(rustix::process::Pid::from_raw).ok_or("no pid")?;
        let _ = kill_process(pid, Signal::KILL);
    }
    let stopped = Instant::now();
    let output = client.wait_with_output()?;
    let said = text(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("192.0.2.1:7100 is lost"),
        "{:?}: {said}",
        output.status
    );
    assert!(stopped.elapsed() < Duration::from_secs(60), "{:?}", stopped.elapsed());
    run(&format!("ip -n {} link del near0", machines.wire.near))?;
    machines.wire.connect(2)?;
    std::fs::remove_file(machines.scratch.path("boot_id"))?;
    machines.start_listener()?;
    let before = machines.settings()?;
    let output = machines.output(
        "-o json bench memcached --mode base,suspend200 --rate 1K --seconds 300ms --warmup 50ms --repeats 1 --keys 100",
    )?;
    machines.is_as(&before, Duration::from_secs(10))?;
    let results: Results = serde_json::from_value(data(&output)?)?;
    assert_eq!(results.evidence.len(), 2, "{}", text(&output.stderr));
    Ok(())
}

fn removed() -> Result<(), Failed> {
    let machines = Machines::new("machines-removed")?;
    let client = in_force(&machines, &machines.settings()?)?;
    // Deleting one end of a veth deletes both.
    machines.wire.in_near("ip link del near0")?;
    let output = client.wait_with_output()?;
    let said = text(&output.stderr);
    let names_both = ["near0", "far0"].iter().all(|end| said.contains(&format!("{end} no longer exists")));
    let is_restored = said.trim_end().ends_with("The host was restored.");
    assert!(output.status.code() == Some(1) && names_both && is_restored, "{:?}: {said}", output.status);
    machines.wire.connect(2)?;
    machines.is_as(&machines.settings()?, Duration::from_secs(10))
}

fn lacking() -> Result<(), Failed> {
    let machines = Machines::new("machines-lacking")?;
    machines.wire.in_near("ethtool -K near0 gro off")?;
    let before = machines.settings()?;
    const WHY: &str = "has no NAPI to configure: a veth has NAPIs only with GRO or XDP";
    for (bench, code) in [
        ("memcached --mode base,suspend200 --rate 500 --keys 100", 0),
        ("memcached --mode suspend200 --rate 500 --keys 100", 6),
        ("threaded --mode softirq,threaded --size 1 --flows 2 --rate 500", 0),
        ("udp-rr --mode suspend200 --flows 2 --rate 500", 6),
    ] {
        let output = machines.output(&format!("bench {bench} --seconds 300ms --warmup 50ms --repeats 1"))?;
        let said = text(&output.stderr) + &text(&output.stdout);
        // On a busy machine, the load generator may be too late for the run to count.
        let is_void = code == 0 && output.status.code() == Some(1) && said.contains("No run counts");
        assert!(
            (output.status.code() == Some(code) || is_void) && said.contains(WHY),
            "{bench}: {:?}: {said}",
            output.status
        );
        machines.is_as(&before, Duration::from_secs(10))?;
    }
    Ok(())
}

/// Stops the client, so that it neither exits nor sends anything, like a client that lost its network.
fn stopped() -> Result<(), Failed> {
    let machines = Machines::new("machines-stopped")?;
    let before = machines.settings()?;
    let mut client = machines.client(&long()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let begun = Instant::now();
    while machines.settings()? == before {
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing was applied");
        std::thread::sleep(Duration::from_millis(10));
    }
    let pid = i32::try_from(client.id()).ok().and_then(rustix::process::Pid::from_raw).ok_or("no pid")?;
    kill_process(pid, Signal::STOP)?;
    let restored = machines.is_as(&before, Duration::from_secs(40));
    kill_process(pid, Signal::CONT)?;
    let mut said = String::new();
    client.stderr.take().ok_or("no standard error")?.read_to_string(&mut said)?;
    let status = client.wait()?;
    restored?;
    assert!(said.contains("was silent for 15s") && !status.success(), "{status}: {said}");
    Ok(())
}

fn interrupted() -> Result<(), Failed> {
    let machines = Machines::new("machines-interrupted")?;
    let before = machines.settings()?;
    let mut client = machines.client(&long()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    let mut stderr = BufReader::new(client.stderr.take().ok_or("no standard error")?);
    let mut said = String::new();
    stderr.read_line(&mut said)?;
    std::thread::sleep(Duration::from_millis(700));
    let pid = i32::try_from(client.id()).ok().and_then(rustix::process::Pid::from_raw).ok_or("no pid")?;
    kill_process(pid, Signal::INT)?;
    stderr.read_to_string(&mut said)?;
    let status = client.wait()?;
    machines.is_as(&before, Duration::from_secs(10))?;
    assert_eq!(status.code(), Some(130), "{said}");
    assert!(said.contains("The server's machine was restored."), "{said}");
    Ok(())
}
