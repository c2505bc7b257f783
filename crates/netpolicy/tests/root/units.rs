//! The units, run by systemd as process 1 of a guest: confined as they are shipped, killed, reloaded and stopped.

use std::collections::BTreeMap;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use linux::{Netns, Processes, observe};
use model::{EpollParams, Host, Pid};

use crate::attached::SUSPENDING;
use crate::operator::flushes_of;
use crate::{Need, test};

/// What `cargo xtask guest` shares with a guest; the host has none.
const STAGE: &str = "/run/guest/begun";

/// The distribution's process 1.
const SYSTEMD: &str = "/lib/systemd/systemd";

const DAEMON: &str = "netpolicy.service";
const ATTACH: &str = "netpolicy-attach.service";

const DEVICE: &str = "virtio0";

/// How long an emulated machine may take to boot systemd with nothing but these units.
const PATIENCE: Duration = Duration::from_secs(120);

/// Numbers of capabilities, of `include/uapi/linux/capability.h`.
const NET_ADMIN: u32 = 12;
const SYS_PTRACE: u32 = 19;
const SYS_ADMIN: u32 = 21;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] =
        &[Need::Root, Need::Suspension, Need::Memcached, Need::VirtioNics, Need::GuestsInit];
    vec![test("units/systemd_confines_them_starts_again_what_is_killed_and_stops_them", NEEDS, units)]
}

/// Whether process 1 is a guest's own, and systemd is there to take its place.
pub(crate) fn can_be_booted() -> bool {
    Path::new(STAGE).exists() && Path::new(SYSTEMD).exists()
}

fn units() -> Result<(), Failed> {
    let server = prepared()?;
    let outcome = booted().and_then(|()| lived_through(&server));
    outcome.map_err(|failed| {
        let log = said("dmesg", &[]).unwrap_or_default();
        let ours: Vec<&str> = log.lines().filter(|line| line.contains("netpolicy")).collect();
        format!("{failed:?}\n{}\n{}", ours.join("\n"), said("netpolicy", &["status"]).unwrap_or_default())
            .into()
    })
}

fn lived_through(server: &Server) -> Result<(), Failed> {
    // What each may do is what its unit says, and the kernel has it so.
    let (daemon, attach) = (main_process(DAEMON)?, main_process(ATTACH)?);
    assert!(has(daemon, NET_ADMIN)? && !has(daemon, SYS_PTRACE)? && !has(daemon, SYS_ADMIN)?);
    assert!(has(attach, NET_ADMIN)? && has(attach, SYS_PTRACE)? && !has(attach, SYS_ADMIN)?);

    // The device by the daemon, the epolls by the other one.
    until("the device and the server have their policy", || Ok(server.flushes()? == [20_000; 2]))?;
    until("the server's epolls have it", || Ok(server.epolls()? == [SUSPENDING; 2]))?;

    // Killed, both: nothing changes, and what comes in their place goes on.
    let history = said("netpolicy", &["-o", "json", "history"])?;
    for unit in [DAEMON, ATTACH] {
        said("systemctl", &["kill", "--signal=KILL", "--kill-who=main", unit])?;
    }
    let changed = |unit: &str, before: Pid| Ok(main_process(unit).is_ok_and(|now| now != before));
    until("another daemon is there", || changed(DAEMON, daemon))?;
    until("another attach service is there", || changed(ATTACH, attach))?;
    until("the daemon is ready", || Ok(state(DAEMON)? == "active"))?;
    assert_eq!(server.flushes()?, [20_000; 2]);
    assert_eq!(server.epolls()?, [SUSPENDING; 2]);
    assert_eq!(said("netpolicy", &["-o", "json", "history"])?, history, "nothing was committed again");

    // Reloaded: other files, another mode.
    asked("defer50")?;
    said("systemctl", &["reload", DAEMON])?;
    until("the device has the new mode", || Ok(server.flushes()? == [50_000; 2]))?;
    until("the epolls are as they were", || Ok(server.epolls()? == [EpollParams::default(); 2]))?;

    // Stopped: packets go on as they did, and it can all be put back without them.
    said("systemctl", &["stop", DAEMON, ATTACH])?;
    for unit in [DAEMON, ATTACH] {
        assert_eq!(
            (state(unit)?.as_str(), show(unit, "Result")?.as_str()),
            ("inactive", "success"),
            "{unit}"
        );
    }
    assert_eq!(server.flushes()?, [50_000; 2]);
    said("netpolicy", &["rollback"])?;
    assert_eq!(server.flushes()?, [0; 2]);
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

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Installs what is shipped, as it is; everything that is written here is in the guest's memory.
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

    // Nothing of the machine's own is started, and nothing says that this were a container.
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

/// Writes the policy file.
fn asked(delivery: &str) -> Result<(), Failed> {
    let text = format!(
        "[device.{DEVICE}]\npolicy = \"latency\"\ndelivery = \"{delivery}\"\n\n\
         [service.cache]\nmatch = {{ exe = \"/usr/bin/memcached\" }}\npolicy = \"latency\"\ndelivery = \"{delivery}\"\n"
    );
    Ok(std::fs::write("/etc/netpolicy/policy.d/10-test.toml", text)?)
}

/// Process 1 becomes systemd, and the units are at work.
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

/// Whether a process has a capability in effect.
fn has(process: Pid, capability: u32) -> Result<bool, Failed> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"))?;
    let fields: BTreeMap<&str, &str> = status.lines().filter_map(|line| line.split_once(":\t")).collect();
    let effective = fields.get("CapEff").ok_or("no CapEff")?;
    Ok(u64::from_str_radix(effective, 16)? & (1 << capability) != 0)
}

/// Runs a program and gives what it printed.
fn said(program: &str, arguments: &[&str]) -> Result<String, Failed> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?);
    }
    Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// Waits until something is so.
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
