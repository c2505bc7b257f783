//! Tests `threaded` as an operator uses it: the mode is set, observed, engaged, lost by a reset and restored,
//! refused, and undone with and without netpolicy.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use bpf::delivery::{DeliveryCounter, between};
use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use model::{Host, KthreadState, Nanoseconds, NapiDelivered, Scheduling, Slice, Threading, UtilClamp};
use testkit::operator::{Operator, at_work, waited_for};
use testkit::{Need, test};

const DEVICE: &str = linux::lab::SERVER_DEVICE;
const PINNED: &str =
    "[device.veth-server]\ndelivery = \"threaded\"\nkthread = { cpus = \"0\", class = \"fifo:50\" }\n";

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::ThreadPerNapi];
    vec![
        test("kthreads/the_kernel_thread_alone_polls_on_its_cpus_and_goes_back", COUNTED, engaged),
        test("kthreads/a_reset_is_seen_as_drift_and_all_is_asserted_again", NEEDS, reset),
        test("kthreads/without_netpolicy_the_undo_script_gives_it_back", NEEDS, undo_script),
        test("kthreads/what_would_starve_others_is_refused", NEEDS, refused),
        test("kthreads/polling_without_a_pause_is_refused_or_done_as_the_kernel_has_it", NEEDS, busy),
        test(
            "kthreads/threads_that_poll_without_a_pause_are_lost_by_a_reset_and_asserted_again",
            &[Need::Root, Need::ThreadedBusy],
            busy_reset,
        ),
        test(
            "kthreads/a_utilisation_clamp_is_set_verified_and_goes_back",
            &[Need::Root, Need::ThreadPerNapi, Need::UtilClamps],
            clamped,
        ),
        test(
            "kthreads/a_kernel_without_utilisation_clamps_is_reported_before_anything_is_set",
            &[Need::Root, Need::ThreadPerNapi, Need::NoUtilClamps],
            without_clamps,
        ),
        test(
            "kthreads/a_slice_is_set_seen_explained_and_goes_back_with_netpolicy_and_without",
            SLICES,
            sliced,
        ),
        test(
            "kthreads/a_slice_is_refused_to_a_thread_that_is_real_time_before_anything_is_written",
            SLICES,
            slice_of_real_time,
        ),
        test("kthreads/another_mode_takes_the_threads_and_a_rollback_gives_them_back", NEEDS, overlaid),
        test(
            "kthreads/a_pinned_thread_survives_a_partition_of_cpusets_that_isolates_its_cpu_and_comes_back",
            &[Need::Root, Need::ThreadPerNapi, Need::VirtioNics],
            isolated,
        ),
    ]
}

const SLICES: &[Need] = &[Need::Root, Need::ThreadPerNapi, Need::Slices];
const COUNTED: &[Need] = &[Need::Root, Need::ThreadPerNapi, Need::Bpf, Need::Memcached];

/// Returns the states of the kernel threads of the device's queues, without their pids.
fn threads(host: &Host) -> Result<Vec<Option<KthreadState>>, Failed> {
    let device = host.devices.iter().find(|device| device.kind == "veth").ok_or("the device")?;
    let without_pid = |thread: &KthreadState| KthreadState { pid: None, ..thread.clone() };
    Ok(device.rx_queues.iter().map(|queue| queue.kthread.as_ref().map(without_pid)).collect())
}

fn are_pinned(host: &Host) -> Result<bool, Failed> {
    are_placed(host, Scheduling::Fifo(50))
}

/// Returns whether each thread has this class and may run only on CPU 0.
fn are_placed(host: &Host, class: Scheduling) -> Result<bool, Failed> {
    let placed = |thread: &Option<KthreadState>| {
        thread
            .as_ref()
            .is_some_and(|thread| thread.cpus.to_string() == "0" && thread.scheduling == Some(class))
    };
    Ok(threads(host)?.iter().all(placed))
}

/// Sends requests to the lab's server one after another; returns the polls and packets in each context, of
/// the NAPI that delivered most packets.
fn asked(operator: &Operator, address: std::net::SocketAddr) -> Result<NapiDelivered, Failed> {
    const REQUESTS: usize = 2_000;
    let mut counter = DeliveryCounter::load()?;
    let earlier = counter.snapshot()?;
    let mut connection = operator.lab.client().run(|| TcpStream::connect(address))??;
    connection.set_nodelay(true)?;
    let mut answer = [0; 5];
    for _ in 0..REQUESTS {
        connection.write_all(b"get nothing\r\n")?;
        connection.read_exact(&mut answer)?;
    }
    let delivered = between(&earlier, &counter.snapshot()?);
    let host = operator.host()?;
    let ours = delivered.napis.into_iter().filter(|napi| host.napi(napi.napi).is_some());
    Ok(ours.max_by_key(|napi| napi.total().packets).ok_or("no NAPI was polled")?)
}

fn engaged() -> Result<(), Failed> {
    let operator = Operator::new("kthread-engaged", 1)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let before = operator.host()?;
    let softirq = asked(&operator, server.address())?;
    assert!(softirq.total() == softirq.interrupt && softirq.interrupt.packets > 1_000, "{softirq:?}");

    operator.asks(PINNED)?;
    operator.runs(&["apply"], 0)?;
    assert!(are_pinned(&operator.host()?)?);
    let shown = operator.runs(&["show", "--processes", "none"], 0)?.data;
    assert!(shown.contains("CPUs 0, fifo:50"), "{shown}");
    let threaded = asked(&operator, server.address())?;
    assert_eq!(threaded.total(), threaded.kthread, "no softirq polls the NAPI any more: {threaded:?}");
    assert!(threaded.kthread.packets > 1_000, "{threaded:?}");
    operator.runs(&["verify"], 0)?;

    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.host()?, before, "the whole host is as it was");
    let back = asked(&operator, server.address())?;
    assert_eq!(back.total(), back.interrupt, "{back:?}");
    Ok(())
}

fn reset() -> Result<(), Failed> {
    let operator = Operator::new("kthread-reset", 2)?;
    let before = operator.host()?;
    operator.asks(PINNED)?;
    operator.runs(&["apply"], 0)?;
    assert!(operator.runs(&["apply"], 0)?.words.contains("Nothing to change"));
    for state in ["down", "up"] {
        operator.sets_link(state)?;
    }
    let drift = operator.runs(&["verify"], 3)?.data;
    for knob in ["threaded", "kthread cpus_allowed", "kthread policy"] {
        assert!(drift.contains(knob), "{knob}: {drift}");
    }
    operator.runs(&["apply"], 0)?;
    assert!(are_pinned(&operator.host()?)?);
    operator.runs(&["verify"], 0)?;
    operator.runs(&["rollback"], 0)?;
    operator.runs(&["rollback"], 0)?;
    let after = operator.host()?;
    assert_eq!(threads(&after)?, threads(&before)?);
    assert_eq!(threaded(&after), threaded(&before));
    Ok(())
}

fn threaded(host: &Host) -> Vec<Option<Threading>> {
    host.devices.iter().flat_map(|device| &device.napis).map(|napi| napi.threaded).collect()
}

/// Without access to the netdev family, the undo script finds the threads by name and restores their
/// scheduling. It reports that it could not stop them.
fn undo_script() -> Result<(), Failed> {
    let operator = Operator::new("kthread-script", 1)?;
    // The device gets a unique name, so that no device or kernel thread of another lab has it.
    let name = format!("kt{}", std::process::id());
    for change in [&["down"][..], &["name", &name]] {
        operator.changes_link(DEVICE, change)?;
    }
    operator.changes_link(&name, &["up"])?;
    operator.asks(&PINNED.replace(DEVICE, &name))?;
    operator.runs(&["apply"], 0)?;
    let script = std::fs::read_dir(operator.state().join("journal"))?
        .find_map(|entry| Some(entry.ok()?.path().join("undo.sh")).filter(|script| script.exists()))
        .ok_or("a script")?;
    let output = Command::new("sh").arg(script).arg("--by-hand").env("YNL", "/no/such/ynl").output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    let host = operator.devices()?;
    let begins = host.kthread_begins.clone().ok_or("the initial parameters of threads")?;
    for thread in threads(&host)?.into_iter().flatten() {
        assert_eq!((thread.cpus, thread.scheduling), (begins.cpus.clone(), begins.scheduling), "{said}");
    }
    assert!(said.contains("kthread policy: restored to other"), "{said}");
    assert!(said.contains("kthread cpus_allowed: restored to"), "{said}");
    operator.runs(&["rollback"], 0)?;
    assert_eq!(threaded(&operator.host()?), [Some(Threading::Off)], "netpolicy ends what is left");
    Ok(())
}

fn refused() -> Result<(), Failed> {
    let operator = Operator::new("kthread-refused", 1)?;
    let before = operator.host()?;
    let set = ["set", "device", "veth-server", "threaded"];
    for (arguments, code, words) in [
        (&["--kthread-class", "fifo:51"][..], 7, "no budget is given, and the default allows 50"),
        (&["--kthread-class", "fifo:20", "--rt-priority", "10"], 7, "the budget allows 10"),
        (&["--kthread-class", "fifo:100"], 2, "a priority from 1 to 99"),
        (&["--kthread-cpus", "8000"], 2, "none of the CPUs for its kernel thread (8000) are online"),
        (&["--kthread-cpus", "irq"], 6, "its interrupt is unknown"),
    ] {
        let said = operator.runs(&[&set[..], arguments].concat(), code)?;
        assert!(said.words.contains(words), "{words}: {}", said.words);
        assert_eq!(operator.host()?, before);
    }
    // `run` does not start the command if the requested thread class can never be set.
    let mark = operator.state().join("started");
    let touch = ["--", "touch", mark.to_str().ok_or("a path that is text")?];
    let run = ["run", "--delivery", "threaded", "--kthread-class", "fifo:51"];
    let said = operator.runs(&[&run[..], &touch].concat(), 7)?;
    assert!(
        said.words.contains("no budget is given, and the default allows 50") && !mark.exists(),
        "{}",
        said.words
    );
    let said = operator.runs(&["set", "device", "veth-server", "suspend20", "--kthread-cpus", "0"], 2)?;
    assert!(said.words.contains("no kernel thread polls under suspend20"), "{}", said.words);
    Ok(())
}

const CLAMPED: [&str; 6] = ["set", "device", "veth-server", "threaded", "--kthread-util-clamp", "256-768"];

fn clamped() -> Result<(), Failed> {
    let operator = Operator::new("kthread-clamped", 2)?;
    let before = operator.host()?;
    operator.runs(&CLAMPED, 0)?;
    let wanted = Some(UtilClamp { min: 256, max: 768 });
    let clamps = |host: &Host| -> Result<Vec<_>, Failed> {
        Ok(threads(host)?.into_iter().flatten().map(|thread| thread.util_clamp).collect())
    };
    assert_eq!(clamps(&operator.host()?)?, [wanted, wanted]);
    operator.runs(&["verify"], 0)?;
    let pid = linux::process::napi_threads_named(DEVICE)?;
    let other =
        Command::new("uclampset").args(["-p", &pid[0].to_string(), "-m", "0", "-M", "100"]).status()?;
    assert!(other.success(), "another program clamps one thread");
    let drifted = operator.runs(&["verify"], 3)?;
    assert!(drifted.data.contains("kthread util-clamp"), "{}", drifted.data);
    // A value that another program set stays until the thread ends.
    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.host()?, before);
    Ok(())
}

const SLICED: &str =
    "[device.veth-server]\ndelivery = \"threaded\"\nkthread = { class = \"other:-5\", slice = \"500us\" }\n";

fn sliced() -> Result<(), Failed> {
    let operator = Operator::new("kthread-sliced", 2)?;
    let before = operator.host()?;
    operator.asks(SLICED)?;
    operator.runs(&["apply"], 0)?;
    let own = Some(Slice::Own(Nanoseconds::from_micros(500)));
    let slices = |host: &Host| -> Result<Vec<_>, Failed> {
        Ok(threads(host)?.into_iter().flatten().map(|thread| thread.slice).collect())
    };
    assert_eq!(slices(&operator.host()?)?, [own, own]);
    let host = operator.devices()?;
    let device = host.devices.iter().find(|device| device.kind == "veth").ok_or("the device")?;
    let pids: Vec<_> = device.rx_queues.iter().filter_map(|queue| queue.kthread.as_ref()?.pid).collect();
    for pid in &pids {
        // Read the slice from the scheduler's statistics of the thread.
        let account = std::fs::read_to_string(format!("/proc/{pid}/sched"))?;
        let slice = account.lines().find_map(|line| line.strip_prefix("se.slice")?.split(':').nth(1));
        assert_eq!(slice.map(str::trim), Some("500000"), "{account}");
    }
    operator.runs(&["verify"], 0)?;
    let explained = operator.runs(&["explain", DEVICE], 0)?.data;
    assert!(explained.contains("kthread slice 500us (before: default)"), "{explained}");

    // Changing the class keeps the slice, which the kernel by itself would reset.
    operator.asks(&SLICED.replace("other:-5", "batch"))?;
    operator.runs(&["apply"], 0)?;
    assert_eq!(slices(&operator.host()?)?, [own, own]);

    for _ in ["the class", "the rest"] {
        operator.runs(&["rollback"], 0)?;
    }
    assert_eq!(operator.host()?, before);

    operator.asks(SLICED)?;
    operator.runs(&["apply"], 0)?;
    let output = Command::new("sh").arg(newest_script(&operator)?).arg("--by-hand").output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(said.contains("kthread slice: restored to default"), "{said}");
    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.host()?, before, "{said}");
    Ok(())
}

fn slice_of_real_time() -> Result<(), Failed> {
    let operator = Operator::new("kthread-real-time-slice", 1)?;
    let set = ["set", "device", DEVICE, "threaded"];
    operator.runs(&[&set[..], &["--kthread-class", "fifo:10"]].concat(), 0)?;
    let before = operator.host()?;
    let said = operator.runs(&[&set[..], &["--kthread-slice", "500us"]].concat(), 7)?.words;
    for words in ["kthread slice 500us cannot be set", "has class fifo:10 now", "--kthread-class other"] {
        assert!(said.contains(words), "{said}");
    }
    assert_eq!(operator.host()?, before);
    let with_class = ["--kthread-slice", "500us", "--kthread-class", "other"];
    operator.runs(&[&set[..], &with_class].concat(), 0)?;
    let show = operator.runs(&["show", "--processes", "none"], 0)?.data;
    assert!(show.contains(", other, slice 500us)"), "{show}");
    for _ in ["the slice", "the threads"] {
        operator.runs(&["rollback"], 0)?;
    }
    Ok(())
}

/// Returns the undo script of the newest transaction.
fn newest_script(operator: &Operator) -> Result<std::path::PathBuf, Failed> {
    let mut scripts: Vec<_> = std::fs::read_dir(operator.state().join("journal"))?
        .filter_map(|entry| Some(entry.ok()?.path().join("undo.sh")).filter(|script| script.exists()))
        .collect();
    scripts.sort();
    scripts.pop().ok_or_else(|| "a script".into())
}

fn without_clamps() -> Result<(), Failed> {
    let operator = Operator::new("kthread-unclamped", 1)?;
    let before = operator.host()?;
    let said = operator.runs(&CLAMPED, 6)?;
    assert!(said.words.contains("needs a kernel with CONFIG_UCLAMP_TASK"), "{}", said.words);
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn busy() -> Result<(), Failed> {
    let operator = Operator::new("kthread-busy", 1)?;
    let before = operator.host()?;
    let set = ["set", "device", "veth-server", "threaded-busy"];
    let within = [&set[..], &["--polling-cpus", "1"]].concat();
    if before.capabilities.napi_threaded_busy {
        let over = operator.runs(&set, 7)?;
        let expected = "keeps 1 CPU(s) polling without traffic, but the budget allows 0";
        assert!(over.words.contains(expected), "{}", over.words);
        operator.runs(&within, 0)?;
        assert_eq!(threaded(&operator.host()?), [Some(Threading::BusyPoll)]);
        operator.runs(&["rollback"], 0)?;
    } else {
        for arguments in [&set[..], &within] {
            let lacking = operator.runs(arguments, 6)?;
            assert!(lacking.words.contains("2 (busy-poll) fails with ERANGE"), "{}", lacking.words);
        }
    }
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn busy_reset() -> Result<(), Failed> {
    const BUSY: &str = "[device.veth-server]\ndelivery = \"threaded-busy\"\nbudget = { polling_cpus = 2 }\n\
                        kthread = { cpus = \"0\", class = \"batch:5\" }\n";
    const CLASS: Scheduling = Scheduling::Batch(5);
    let operator = Operator::new("kthread-busy-reset", 2)?;
    let before = operator.host()?;
    operator.asks(BUSY)?;
    let both = vec![Some(Threading::BusyPoll); 2];
    operator.runs(&["apply"], 0)?;
    assert_eq!(threaded(&operator.host()?), both);
    assert!(are_placed(&operator.host()?, CLASS)?);
    for state in ["down", "up"] {
        operator.sets_link(state)?;
    }
    let drift = operator.runs(&["verify"], 3)?.data;
    assert!(drift.contains("kthread policy"), "a new thread has the initial parameters: {drift}");
    operator.runs(&["apply"], 0)?;
    assert_eq!(threaded(&operator.host()?), both);
    assert!(are_placed(&operator.host()?, CLASS)?);
    operator.runs(&["verify"], 0)?;
    for _ in 0..2 {
        operator.runs(&["rollback"], 0)?;
    }
    let after = operator.host()?;
    assert_eq!((threads(&after)?, threaded(&after)), (threads(&before)?, threaded(&before)));
    Ok(())
}

fn overlaid() -> Result<(), Failed> {
    let operator = Operator::new("kthread-overlaid", 1)?;
    let before = operator.host()?;
    operator.asks(PINNED)?;
    operator.runs(&["apply"], 0)?;
    operator.runs(&["set", "device", "veth-server", "defer20"], 0)?;
    assert_eq!(threaded(&operator.host()?), [Some(Threading::Off)]);
    operator.runs(&["rollback"], 0)?;
    assert!(are_pinned(&operator.host()?)?, "the thread is a new one with the former scheduling parameters");
    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.host()?, before);
    Ok(())
}

/// A cpuset partition that isolates CPU 1. Dropping it ends the isolation.
struct Partition(&'static str);

impl Partition {
    fn new() -> Result<Self, Failed> {
        const ROOT: &str = "/sys/fs/cgroup";
        let partition = Self("/sys/fs/cgroup/netpolicy-test-partition");
        std::fs::write(format!("{ROOT}/cgroup.subtree_control"), "+cpuset")?;
        std::fs::create_dir(partition.0)?;
        std::fs::write(format!("{}/cpuset.cpus", partition.0), "1")?;
        std::fs::write(format!("{}/cpuset.cpus.partition", partition.0), "isolated")?;
        let state = std::fs::read_to_string(format!("{}/cpuset.cpus.partition", partition.0))?;
        assert_eq!(state.trim(), "isolated");
        Ok(partition)
    }
}

impl Drop for Partition {
    fn drop(&mut self) {
        let _ = std::fs::write(format!("{}/cpuset.cpus.partition", self.0), "member");
        let _ = std::fs::remove_dir(self.0);
    }
}

/// Changes the machine's own cpusets, so it only runs in a guest.
fn isolated() -> Result<(), Failed> {
    let operator = Operator::new("kthread-isolated", 1)?;
    let before = operator.host()?;
    let policy = "[device.veth-server]\ndelivery = \"threaded\"\nkthread = { cpus = \"1\" }\n";
    let daemon = at_work(&operator, policy)?;
    let on_cpu_1 = |what: &str| {
        waited_for(what, || {
            let threads = threads(&operator.devices()?)?;
            let pinned = |thread: &Option<KthreadState>| {
                thread.as_ref().is_some_and(|thread| thread.cpus.to_string() == "1")
            };
            Ok(threads.iter().all(pinned).then_some(()))
        })
    };
    on_cpu_1("the thread on CPU 1")?;
    let partition = Partition::new()?;
    assert_eq!(operator.host()?.topology.isolated.to_string(), "1");
    let moved = threads(&operator.devices()?)?;
    assert!(moved.iter().all(Option::is_some), "the thread stayed there: {moved:?}");
    // Newer kernels move threads off an isolated CPU; only tasks in the partition may use it.
    let stays = moved.iter().flatten().all(|thread| thread.cpus.to_string() == "1");
    if !stays {
        operator.waits_to_hear("CPUs 1 belong to an isolated cpuset partition")?;
        let polled = operator
            .host()?
            .devices
            .iter()
            .flat_map(|device| &device.napis)
            .all(|napi| napi.kthread.is_some());
        assert!(polled, "a thread polls nevertheless");
    }
    drop(partition);
    assert!(operator.host()?.topology.isolated.is_empty());
    on_cpu_1("the thread on CPU 1, which is no longer isolated")?;
    operator.runs(&["verify"], 0)?;
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["rollback"], 0)?;
    assert_eq!(threads(&operator.devices()?)?, threads(&before)?);
    Ok(())
}
