//! Compares reading all devices of a namespace with other programs that report the same about its only
//! device. `ethtool` and `ip` report no NAPIs, qdisc backlogs or per-queue files, so there are three sums:
//! ten commands of these two; the same with `tc` and a `grep` over the files of all queues; and the latter
//! with two dumps of `ynl`, which report queues and NAPIs, if `NETPOLICY_BENCH_YNL` names the kernel's
//! `cli.py`. Only the third sum covers the same information.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use linux::Processes;
use linux::lab::{Lab, LabOptions, SERVER_DEVICE};
use tempfile::TempDir;

use super::{Done, ROUNDS, Times, scratch};

/// Runs netpolicy and the other programs in alternation, so that other load affects both.
pub(super) fn observe(queues: u32) -> Done<()> {
    let lab = Lab::new(&LabOptions::with_queues(queues))?;
    let sysfs = Mounted::in_namespace_of(&lab)?;
    let ynl = std::env::var("NETPOLICY_BENCH_YNL").ok();
    let groups = [
        ("ethtool and ip", of_ethtool_and_ip()),
        ("and tc and one grep over the queues' files", of_the_queues(&sysfs, queues)),
        ("and ynl", ynl.map(|ynl| of_ynl(&ynl)).unwrap_or_default()),
    ];
    let mut ours = Vec::with_capacity(ROUNDS);
    let mut theirs: [Vec<Duration>; 3] = Default::default();
    for round in 0..=ROUNDS {
        let began = Instant::now();
        let host = linux::observe(lab.server(), &Processes::None)?;
        let observed = began.elapsed();
        let device = host.device_named(SERVER_DEVICE).ok_or("the device was not observed")?;
        if device.rx_queues.len() != usize::try_from(queues)? {
            return Err("not all queues were observed".into());
        }
        let mut sum = Duration::ZERO;
        for ((_, commands), times) in groups.iter().zip(&mut theirs) {
            let began = Instant::now();
            lab.server().run(|| commands.iter().try_for_each(|command| ask(command)))??;
            sum += began.elapsed();
            // The first round fills caches, so it is not counted.
            if round > 0 {
                times.push(sum);
            }
        }
        if round > 0 {
            ours.push(observed);
        }
    }
    let ours = Times(ours);
    println!("observe, {queues} queues: {ours}");
    let mut count = 0;
    for ((what, commands), times) in groups.iter().zip(theirs) {
        if commands.is_empty() {
            continue;
        }
        count += commands.len();
        let times = Times(times);
        let ratio = times.median().as_secs_f64() / ours.median().as_secs_f64();
        println!("  {count} commands, {what}: {times}; {ratio:.1} times as long");
    }
    Ok(())
}

fn of_ethtool_and_ip() -> Vec<Vec<String>> {
    let questions = ["-l", "-g", "-c", "-k", "-x", "-i", "--show-priv-flags", "--show-fec", "-n"];
    let ethtool = questions.map(|question| ["ethtool", question, SERVER_DEVICE].map(str::to_owned).to_vec());
    let ip = ["ip", "-d", "-s", "link", "show", "dev", SERVER_DEVICE].map(str::to_owned).to_vec();
    ethtool.into_iter().chain([ip]).collect()
}

fn of_the_queues(sysfs: &Mounted, queues: u32) -> Vec<Vec<String>> {
    let tc = ["tc", "qdisc", "show", "dev", SERVER_DEVICE].map(str::to_owned).to_vec();
    let device = sysfs.0.path().join("class/net").join(SERVER_DEVICE);
    let of_device = ["napi_defer_hard_irqs", "gro_flush_timeout", "threaded", "tx_queue_len"];
    let of_queue = |queue| {
        ["rx-#/rps_cpus", "rx-#/rps_flow_cnt", "tx-#/xps_cpus", "tx-#/xps_rxqs"]
            .map(|file| format!("queues/{}", file.replace('#', &format!("{queue}"))))
    };
    let files = of_device.map(str::to_owned).into_iter().chain((0..queues).flat_map(of_queue));
    let path = |file: String| device.join(file).to_string_lossy().into_owned();
    let grep = ["grep", "-s", "."].map(str::to_owned).into_iter().chain(files.map(path)).collect();
    vec![tc, grep]
}

fn of_ynl(program: &str) -> Vec<Vec<String>> {
    ["queue-get", "napi-get"]
        .map(|dump| ["python3", program, "--family", "netdev", "--dump", dump].map(str::to_owned).to_vec())
        .to_vec()
}

/// The sysfs of the lab's server, mounted where other programs can read it.
struct Mounted(TempDir);

impl Mounted {
    fn in_namespace_of(lab: &Lab) -> Done<Self> {
        let mounted = Self(scratch()?);
        let mount = |at: &Path| Command::new("mount").args(["-t", "sysfs", "sysfs"]).arg(at).status();
        let status = lab.server().run(|| mount(mounted.0.path()))??;
        if status.success() { Ok(mounted) } else { Err(format!("mount ended with {status}").into()) }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0.path()).status();
    }
}

/// Runs a command. Its exit status is ignored, because a driver may have nothing to report.
fn ask(command: &[String]) -> Result<(), std::io::Error> {
    let mut tool = Command::new(&command[0]);
    tool.args(&command[1..])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map(drop)
}
