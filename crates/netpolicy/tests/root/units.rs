//! Tests the units, run by systemd as process 1 of a guest: confined as shipped, killed, reloaded and
//! stopped.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use linux::{Netns, Processes, observe};
use model::{EpollParams, Host, Pid};
use testkit::operator::flushes_of;
use testkit::{Need, test};

use crate::attached::SUSPENDING;
use crate::requests;

const DAEMON: &str = "netpolicy.service";
const ATTACH: &str = "netpolicy-attach.service";

const DEVICE: &str = "virtio0";

/// The device at the other end of the cable.
const PEER: &str = "virtio1";

/// How long an emulated machine may take to boot systemd with only these units.
const PATIENCE: Duration = Duration::from_secs(120);

/// Capability numbers from `include/uapi/linux/capability.h`.
const NET_ADMIN: u32 = 12;
const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] =
        &[Need::Root, Need::Suspension, Need::Memcached, Need::VirtioNics, Need::GuestsInit];
    vec![test("units/systemd_confines_them_starts_again_what_is_killed_and_stops_them", NEEDS, units)]
}

fn units() -> Result<(), Failed> {
    let server = prepared()?;
    assert_eq!(server.flushes()?, [0; 2], "the test requires a NIC with the settings of the boot");
    let outcome = booted().and_then(|()| lived_through(&server)).and_then(|()| put_back(&server));
    // Ignore the exit code: `netpolicy status` exits with 3 if something is wrong, as it is after a failed
    // test.
    let status = Command::new("netpolicy").arg("status").output().map(|output| output.stdout);
    let _ = said("systemctl", &["stop", DAEMON, ATTACH]);
    outcome.map_err(|failed| {
        let log = said("dmesg", &[]).unwrap_or_default();
        let ours: Vec<&str> = log.lines().filter(|line| line.contains("netpolicy")).collect();
        let status = String::from_utf8_lossy(&status.unwrap_or_default()).into_owned();
        format!("{failed:?}\n{}\n{status}", ours.join("\n")).into()
    })
}

fn lived_through(server: &Server) -> Result<(), Failed> {
    // According to the kernel, the processes have exactly the capabilities that the units specify.
    let (daemon, attach) = (main_process(DAEMON)?, main_process(ATTACH)?);
    assert!(has(daemon, NET_ADMIN)? && !has(daemon, SYS_PTRACE)? && !has(daemon, SYS_ADMIN)?);
    assert!(has(attach, NET_ADMIN)? && has(attach, SYS_PTRACE)? && !has(attach, SYS_ADMIN)?);

    // The daemon sets the device; the attach service sets the epolls.
    until("the device and the server have their policy", || Ok(server.flushes()? == [20_000; 2]))?;
    until("the server's epolls have the mode", || Ok(server.epolls()? == [SUSPENDING; 2]))?;

    // Kill both services: settings stay, and the restarted services continue.
    let history = said("netpolicy", &["-o", "json", "history"])?;
    for unit in [DAEMON, ATTACH] {
        said("systemctl", &["kill", "--signal=KILL", "--kill-who=main", unit])?;
    }
    let changed = |unit: &str, before: Pid| Ok(main_process(unit).is_ok_and(|now| now != before));
    until("a new daemon is running", || changed(DAEMON, daemon))?;
    until("a new attach service is running", || changed(ATTACH, attach))?;
    until("the daemon is ready", || Ok(state(DAEMON)? == "active"))?;
    assert_eq!(server.flushes()?, [20_000; 2]);
    assert_eq!(server.epolls()?, [SUSPENDING; 2]);
    assert_eq!(said("netpolicy", &["-o", "json", "history"])?, history, "no new transaction was committed");

    // Reload the daemon with another policy file.
    asked("defer50")?;
    said("systemctl", &["reload", DAEMON])?;
    until("the device has the new mode", || Ok(server.flushes()? == [50_000; 2]))?;
    until("the epolls have their former parameters", || Ok(server.epolls()? == [EpollParams::default(); 2]))?;

    // Stop both services: packets are delivered as before, and rollback works without them.
    said("systemctl", &["stop", DAEMON, ATTACH])?;
    for unit in [DAEMON, ATTACH] {
        assert_eq!(
            (state(unit)?.as_str(), show(unit, "Result")?.as_str()),
            ("inactive", "success"),
            "{unit}"
        );
    }
    assert_eq!(server.flushes()?, [50_000; 2]);
    // Roll back all transactions.
    let history: serde_json::Value = serde_json::from_str(&said("netpolicy", &["-o", "json", "history"])?)?;
    let transactions = history["data"]["transactions"].as_array().into_iter().flatten();
    for _ in transactions.filter(|transaction| transaction["in_force"] != 0) {
        said("netpolicy", &["rollback"])?;
    }
    assert_eq!(server.flushes()?, [0; 2], "{history}");
    Ok(())
}

/// Tests that the other processes of the daemon's unit roll back the trial if only the daemon is killed.
/// systemd does not restart the daemon in this test.
fn put_back(server: &Server) -> Result<(), Failed> {
    let drop_in = Path::new("/etc/systemd/system").join(format!("{DAEMON}.d"));
    std::fs::create_dir_all(&drop_in)?;
    std::fs::write(drop_in.join("50-test.conf"), "[Service]\nRestart=no\n")?;
    said("systemctl", &["daemon-reload"])?;
    let policy = "[service.cache]\nmatch = { exe = \"/usr/bin/memcached\" }\npolicy = \"latency\"\n\
                  delivery = \"suspend20\"\nguard = { p50 = \"+1000%\", p90 = \"+1000%\", cpu = \"+1000%\", within = \"3600s\" }\n";
    std::fs::write(POLICY_FILE, policy)?;
    while_asked(|| {
        // First kill only the daemon, as the OOM killer would: systemd then terminates its guard process. The
        // second time, kill the whole unit.
        for whom in ["--kill-who=main", "--kill-who=all"] {
            said("systemctl", &["start", DAEMON, ATTACH])?;
            stopped_in_the_middle(server)?;
            if whom == "--kill-who=all" {
                // Restoring epolls needs the attach service, which systemd restarts a second later.
                said("systemctl", &["kill", "--signal=KILL", whom, ATTACH])?;
            }
            said("systemctl", &["kill", "--signal=KILL", whom, DAEMON])?;
            until("the daemon is dead", || Ok(state(DAEMON)? == "failed"))?;
            until(&format!("the change on trial is restored after {whom}"), || server.has_nothing_set())?;
        }
        // Stop the unit, as an operator does.
        said("systemctl", &["start", DAEMON, ATTACH])?;
        until("a change is on trial", || Ok(server.flushes()? != [0; 2]))?;
        said("systemctl", &["stop", DAEMON, ATTACH])?;
        assert!(server.has_nothing_set()?);
        assert_eq!((state(DAEMON)?.as_str(), show(DAEMON, "Result")?.as_str()), ("inactive", "success"));
        Ok(())
    })
}

/// Stops the daemon (SIGSTOP) while the change on trial is in force, so that the change stays in force.
fn stopped_in_the_middle(server: &Server) -> Result<(), Failed> {
    let signalled = |signal: &str| said("systemctl", &["kill", signal, "--kill-who=main", DAEMON]);
    until("a change is on trial", || {
        if server.flushes()? == [0; 2] {
            return Ok(false);
        }
        signalled("--signal=STOP")?;
        let is_in_force = server.flushes()? != [0; 2];
        if !is_in_force {
            signalled("--signal=CONT")?;
        }
        Ok(is_in_force)
    })
}

/// [`PEER`] in a separate namespace. Dropping this returns the NIC to the next test.
struct Lent(Netns);

impl Lent {
    const CLIENT: &str = "client";

    fn new() -> Result<Self, Failed> {
        const CLIENT: &str = Lent::CLIENT;
        said("ip", &["netns", "add", CLIENT])?;
        let lent = Self(Netns::named(CLIENT)?);
        for words in [
            &["link", "set", PEER, "netns", CLIENT][..],
            &["-n", CLIENT, "address", "add", "192.0.2.2/24", "dev", PEER],
            &["-n", CLIENT, "link", "set", PEER, "up"],
        ] {
            said("ip", words)?;
        }
        Ok(lent)
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let _ = said("ip", &["-n", Self::CLIENT, "link", "set", PEER, "down", "netns", "1"]);
        let _ = said("ip", &["netns", "delete", Self::CLIENT]);
    }
}

/// Runs `body` while memcached receives requests over the cable.
fn while_asked<T>(body: impl FnOnce() -> Result<T, Failed>) -> Result<T, Failed> {
    let client = Lent::new()?;
    requests::beside(|stop| ask(&client.0, stop), body)
}

/// Sends requests one after another, with a pause after each answer.
fn ask(client: &Netns, stop: &AtomicBool) -> Result<(), Failed> {
    const BETWEEN: Duration = Duration::from_millis(2);
    let address = (Ipv4Addr::new(192, 0, 2, 1), 11_211);
    let mut stream = client.run(|| TcpStream::connect(address))??;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = [0; 64];
    while !stop.load(Ordering::Relaxed) {
        stream.write_all(b"get nothing\r\n")?;
        if stream.read(&mut answer)? == 0 {
            return Err("memcached closed the connection".into());
        }
        std::thread::sleep(BETWEEN);
    }
    Ok(())
}

/// A memcached on [`DEVICE`]. Dropping it kills it.
struct Server(Child);

impl Server {
    fn host(&self) -> Result<Host, Failed> {
        let pid = Pid(self.0.id());
        Ok(observe(&Netns::own()?, &Processes::Only(vec![pid]))?)
    }

    fn flushes(&self) -> Result<Vec<u64>, Failed> {
        let host = self.host()?;
        Ok(flushes_of(&host, host.device_named(DEVICE)))
    }

    fn epolls(&self) -> Result<Vec<EpollParams>, Failed> {
        let host = self.host()?;
        Ok(host
            .processes
            .iter()
            .flat_map(|process| &process.epolls)
            .filter_map(|epoll| epoll.params)
            .collect())
    }
}

impl Server {
    /// Returns whether the device's queues and the epolls have default values.
    fn has_nothing_set(&self) -> Result<bool, Failed> {
        Ok(self.flushes()? == [0; 2] && self.epolls()? == [EpollParams::default(); 2])
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Installs the shipped files unchanged, and starts the server. All files are written to the guest's memory.
fn prepared() -> Result<Server, Failed> {
    let packaging = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging");
    std::fs::copy(env!("CARGO_BIN_EXE_netpolicy"), "/usr/sbin/netpolicy")?;
    std::fs::set_permissions("/usr/sbin/netpolicy", std::fs::Permissions::from_mode(0o755))?;
    let own = Path::new("/etc/systemd/system");
    for unit in [DAEMON, ATTACH] {
        std::fs::copy(packaging.join("systemd").join(unit), own.join(unit))?;
    }
    for (kind, program, argument) in
        [("sysusers", "systemd-sysusers", None), ("tmpfiles", "systemd-tmpfiles", Some("--create"))]
    {
        let path = packaging.join(kind).join("netpolicy.conf").display().to_string();
        said(program, &argument.into_iter().chain([path.as_str()]).collect::<Vec<_>>())?;
    }
    assert!(std::fs::read_to_string("/etc/group")?.lines().any(|line| line.starts_with("netpolicy:")));
    assert_eq!(std::fs::metadata("/var/lib/netpolicy")?.permissions().mode() & 0o777, 0o700);

    // Make systemd start no unit by default.
    for list in ["sysinit.target.wants", "sockets.target.wants", "timers.target.wants"] {
        for directory in [own, Path::new("/lib/systemd/system")] {
            let _ = std::fs::remove_dir_all(directory.join(list));
        }
    }
    std::fs::write("/etc/fstab", "")?;
    let _ = std::fs::remove_file("/.dockerenv");
    let target =
        "[Unit]\nDescription=Both of netpolicy's\nWants=netpolicy.service netpolicy-attach.service\n";
    std::fs::write(own.join("netpolicy-test.target"), target)?;
    let _ = std::fs::remove_file(own.join("default.target"));
    symlink("netpolicy-test.target", own.join("default.target"))?;

    for words in [&["link", "set", DEVICE, "up"][..], &["address", "add", "192.0.2.1/24", "dev", DEVICE]] {
        said("ip", words)?;
    }
    asked("suspend20")?;
    let mut memcached = Command::new("/usr/bin/memcached");
    memcached.args(["-u", "root", "-l", "192.0.2.1", "-U", "0", "-t", "1"]).stdin(Stdio::null());
    Ok(Server(memcached.spawn()?))
}

/// The daemon's policy file.
const POLICY_FILE: &str = "/etc/netpolicy/policy.d/10-test.toml";

/// Writes the policy file with this delivery mode.
fn asked(delivery: &str) -> Result<(), Failed> {
    let text = format!(
        "[device.{DEVICE}]\npolicy = \"latency\"\ndelivery = \"{delivery}\"\n\n\
         [service.cache]\nmatch = {{ exe = \"/usr/bin/memcached\" }}\npolicy = \"latency\"\ndelivery = \"{delivery}\"\n"
    );
    Ok(std::fs::write(POLICY_FILE, text)?)
}

/// Makes process 1 run systemd, and waits until systemd has started the units.
fn booted() -> Result<(), Failed> {
    rustix::process::kill_process(rustix::process::Pid::INIT, rustix::process::Signal::USR1)?;
    for unit in [ATTACH, DAEMON] {
        until(&format!("systemd has started {unit}"), || {
            Ok(state(unit).is_ok_and(|state| state == "active"))
        })?;
    }
    Ok(())
}

fn state(unit: &str) -> Result<String, Failed> {
    show(unit, "ActiveState")
}

fn main_process(unit: &str) -> Result<Pid, Failed> {
    match show(unit, "MainPID")?.parse()? {
        0 => Err(format!("{unit} has no process").into()),
        pid => Ok(Pid(pid)),
    }
}

fn show(unit: &str, property: &str) -> Result<String, Failed> {
    let line = said("systemctl", &["show", &format!("--property={property}"), "--value", unit])?;
    Ok(line.trim().to_owned())
}

/// Returns whether a process has a capability in its effective set.
fn has(process: Pid, capability: u32) -> Result<bool, Failed> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let fields: BTreeMap<&str, &str> = status.lines().filter_map(|line| line.split_once(":\t")).collect();
    let effective = fields.get("CapEff").ok_or("no CapEff")?;
    Ok(u64::from_str_radix(effective, 16)? & (1 << capability) != 0)
}

/// Runs a program and returns its output.
fn said(program: &str, arguments: &[&str]) -> Result<String, Failed> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?);
    }
    Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// Polls until a condition is true.
fn until(what: &str, mut look: impl FnMut() -> Result<bool, Failed>) -> Result<(), Failed> {
    let begun = Instant::now();
    while !look()? {
        if begun.elapsed() > PATIENCE {
            return Err(format!("after {} s still not: {what}", PATIENCE.as_secs()).into());
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(())
}
