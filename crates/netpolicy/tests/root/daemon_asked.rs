//! Tests how the daemon handles requests of operators and applications, and when it releases them.

use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};
use linux::lab::SERVER_DEVICE;
use model::{Cpu, CpuSet, Nanoseconds, NapiKnob, Setting};
use testkit::operator::{Operator, Started, are, at_work, flushes, somebody_else_sets, threads, waited_for};
use testkit::{Need, test};

use crate::attached::EpollMaker;

/// `gro-flush-timeout` of defer50, in nanoseconds.
const DEFER50: u64 = 50_000;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension];
    const THREADS: &[Need] = &[Need::Root, Need::Suspension, Need::ThreadPerNapi];
    const EVENTS: &[Need] = &[Need::Root, Need::EventsOnly];
    const GUEST: &[Need] = &[Need::Root, Need::Suspension, Need::VirtioNics];
    vec![
        test("daemon/a_rollback_after_a_repair_leads_to_what_was_there_before_the_daemon", NEEDS, repaired),
        test("daemon/a_rollback_names_last_what_somebody_else_has_set_since", NEEDS, somebody_elses),
        test("daemon/a_second_one_in_the_same_namespace_is_refused_whatever_its_journal", NEEDS, elsewhere),
        test("daemon/a_changed_detail_is_written_alone", THREADS, detail),
        test("daemon/settings_that_are_asked_one_after_the_other_add_up_with_it_and_without", NEEDS, add_up),
        test("daemon/what_is_unset_goes_back_though_another_request_is_refused", NEEDS, unset_beside_refused),
        test("daemon/the_notes_of_a_set_are_those_without_it", NEEDS, notes),
        test("daemon/an_epoll_too_many_for_the_budget_stays_as_it_is_and_the_others_too", EVENTS, budget),
        test(
            "daemon/a_cpu_that_went_and_came_is_no_drift_and_everything_is_put_back",
            GUEST,
            hotplug_and_revert,
        ),
        test("daemon/a_cpu_that_goes_off_line_is_planned_without_and_with_again", GUEST, hotplug),
    ]
}

fn deferring() -> String {
    format!("[device.{SERVER_DEVICE}]\ndelivery = \"defer50\"\n")
}

fn somebody_sets_queue(operator: &Operator, span: u64) -> Result<(), Failed> {
    let queue = operator.devices()?.device_named(SERVER_DEVICE).ok_or("the device")?.rx_queues[1].id;
    somebody_else_sets(Setting::Napi(queue, NapiKnob::GroFlushTimeout(Nanoseconds(span))))
}

fn repaired() -> Result<(), Failed> {
    let operator = Operator::new("asked-repaired", 2)?;
    let before = operator.devices()?.devices;
    let _daemon = at_work(&operator, &deferring())?;
    are(&operator, &[DEFER50; 2])?;
    somebody_sets_queue(&operator, 7_000)?;
    are(&operator, &[DEFER50; 2])?;
    let said = operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.devices()?.devices, before, "and not the value that the repair found");
    assert!(said.words.contains("Rolled back all settings of the daemon: 4 settings."), "{}", said.words);
    assert!(!said.words.contains("NOT restored"), "{}", said.words);
    Ok(())
}

fn somebody_elses() -> Result<(), Failed> {
    let operator = Operator::new("asked-elses", 2)?;
    let mut daemon = at_work(&operator, &deferring())?;
    are(&operator, &[DEFER50; 2])?;
    // Without a running daemon, nothing restores the setting.
    daemon.child.kill()?;
    daemon.child.wait()?;
    somebody_sets_queue(&operator, 7_000)?;
    let said = operator.runs(&["rollback"], 0)?;
    let last = said.words.trim_end().lines().last().unwrap_or_default();
    assert!(
        last.starts_with("NOT restored") && last.contains("rx-1 gro-flush-timeout is 7us, and was 0 before"),
        "{}",
        said.words
    );
    assert_eq!(flushes(&operator.devices()?), [0, 7_000]);
    Ok(())
}

fn elsewhere() -> Result<(), Failed> {
    let operator = Operator::new("asked-elsewhere", 1)?;
    let daemon = at_work(&operator, &deferring())?;
    let another = || operator.netpolicy_elsewhere(&["daemon"]);
    // Make three attempts, more than the listener's backlog holds.
    for _ in 0..3 {
        let refused = another().output()?;
        let words = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(7), "{words}");
        assert!(words.contains(&format!("process {}", daemon.child.id())), "{words}");
        assert!(words.contains("another state directory"), "{words}");
    }
    // The refusal names the daemon's systemd service, or else its pid.
    let ends = linux::process::service_of(model::Pid(daemon.child.id()))
        .map_or(format!("kill {}", daemon.child.id()), |service| format!("systemctl stop {service}"));
    for command in ["set device veth-server suspend20", "apply", "try --seconds 5"] {
        let words = operator.runs_elsewhere(&command.split(' ').collect::<Vec<_>>(), 7)?.words;
        assert!(words.contains(&format!("process {} is the daemon", daemon.child.id())), "{words}");
        assert!(words.contains(&ends), "{words}");
    }
    operator.runs_elsewhere(&["apply", "--dry-run"], 0)?;
    operator.runs(&["apply"], 0)?;
    assert_eq!(flushes(&operator.devices()?), [DEFER50]);
    assert_eq!(daemon.terminated()?, Some(0));
    // The lock ends with the daemon, and each namespace has its own lock.
    let elsewhere = Operator::new("asked-elsewhere-2", 1)?;
    let _there = at_work(&elsewhere, &deferring())?;
    let mut next = Started { child: another().stdout(Stdio::null()).stderr(Stdio::null()).spawn()? };
    are(&operator, &[DEFER50])?;
    waited_for("the next daemon's socket", || {
        let socket = operator.state().with_file_name("another").join("io.netpolicy");
        Ok(socket.exists().then_some(()))
    })?;
    assert!(next.child.try_wait()?.is_none(), "it works");
    Ok(())
}

fn detail() -> Result<(), Failed> {
    let operator = Operator::new("asked-detail", 2)?;
    let _daemon = at_work(&operator, &deferring())?;
    let set = |class: &'static str| {
        ["set", "device", SERVER_DEVICE, "threaded", "--kthread-class", class, "--rt-priority", "60"]
    };
    operator.runs(&set("fifo:10"), 0)?;
    let before = threads(&operator)?;
    assert!(before.iter().all(Option::is_some), "{before:?}");
    let said = operator.runs(&set("fifo:60"), 0)?;
    let changes: Vec<&str> = said.data.lines().collect();
    let expected =
        [0, 1].map(|queue| format!("{SERVER_DEVICE} rx-{queue}: kthread policy fifo:10 → fifo:60"));
    assert_eq!(changes, expected);
    assert_eq!(threads(&operator)?, before, "the same threads");
    Ok(())
}

/// Returns whether each of the device's two TCP segmentation offloads is on.
fn segmentation(operator: &Operator) -> Result<[Option<bool>; 2], Failed> {
    let features = operator.inside(&format!("ethtool -k {SERVER_DEVICE}"))?;
    let on = |name: &str| {
        let line = features.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(": "));
        line.map(|word| word.starts_with("on"))
    };
    Ok([on("tx-tcp-segmentation"), on("tx-tcp6-segmentation")])
}

fn add_up() -> Result<(), Failed> {
    let operator = Operator::new("asked-add-up", 1)?;
    let set = |setting: &'static str| ["set", "device", SERVER_DEVICE, "interrupt", "--setting", setting];
    let both = || -> Result<(), Failed> {
        assert_eq!(segmentation(&operator)?, [Some(true); 2]);
        operator.runs(&set("tx-tcp-segmentation=off"), 0)?;
        operator.runs(&set("tx-tcp6-segmentation=off"), 0)?;
        assert_eq!(segmentation(&operator)?, [Some(false); 2]);
        // Of two requests for the same setting, the last one counts.
        operator.runs(&set("tx-tcp-segmentation=on"), 0)?;
        assert_eq!(segmentation(&operator)?, [Some(true), Some(false)]);
        Ok(())
    };
    both()?;
    for _ in 0..3 {
        operator.runs(&["rollback"], 0)?;
    }
    let _daemon = at_work(&operator, "# nothing\n")?;
    both()?;
    operator.runs(&["unset", "device", SERVER_DEVICE], 0)?;
    assert_eq!(segmentation(&operator)?, [Some(true); 2], "one command restores all of them");
    Ok(())
}

fn own_name() -> Result<String, Failed> {
    let exe = std::env::current_exe()?;
    Ok(exe.file_name().ok_or("a name")?.to_string_lossy().into_owned())
}

fn unset_beside_refused() -> Result<(), Failed> {
    let operator = Operator::new("asked-unset", 1)?;
    let _maker = EpollMaker::new(&operator)?;
    // This request is always refused: it has no budget, or the kernel lacks the patches.
    let refused = format!(
        "[service.maker]\nmatch = {{ exe = \"{}\" }}\npolicy = \"latency\"\ndelivery = \"eventbusy\"\n",
        own_name()?
    );
    let _daemon = at_work(&operator, &refused)?;
    operator.waits_to_hear("service maker: ")?;
    operator.runs(&["set", "device", SERVER_DEVICE, "defer50"], 0)?;
    are(&operator, &[DEFER50])?;
    let said = operator.runs(&["unset", "device", SERVER_DEVICE], 0)?;
    assert_eq!(flushes(&operator.devices()?), [0], "{}", said.words);
    assert!(said.data.contains("gro-flush-timeout 50us → 0"), "{}", said.data);
    Ok(())
}

fn notes() -> Result<(), Failed> {
    let operator = Operator::new("asked-notes", 1)?;
    let maker = EpollMaker::new(&operator)?;
    let pid = maker.pid().to_string();
    let set = ["set", "task", pid.as_str(), "latency"];
    let task_lines = |words: &str| -> Vec<String> {
        words.lines().filter(|line| line.starts_with("task ")).map(str::to_owned).collect()
    };
    let without = task_lines(&operator.runs(&set, 0)?.words);
    assert!(!without.is_empty(), "the server has sockets that have received nothing");
    operator.runs(&["rollback"], 0)?;
    let _daemon = at_work(&operator, "# nothing\n")?;
    let with = operator.runs(&set, 0)?.words;
    assert!(with.contains("Set by the daemon"), "{with}");
    assert_eq!(task_lines(&with), without);
    Ok(())
}

fn budget() -> Result<(), Failed> {
    let operator = Operator::new("asked-budget", 1)?;
    let mut maker = EpollMaker::new(&operator)?;
    // Match by port, because other processes of the lab have the same executable.
    maker.send("listen 11998")?;
    let policy = format!(
        "[service.maker]\nmatch = {{ port = 11998 }}\ndelivery = \"eventbusy\"\nbudget = {{ polling_cpus = 1 }}\n\
         [device.{SERVER_DEVICE}]\ndelivery = \"defer50\"\n",
    );
    let _daemon = at_work(&operator, &policy)?;
    let waiting = |maker: &EpollMaker| -> Result<usize, Failed> {
        Ok(maker.epolls(&operator)?.iter().filter(|params| params.events_only).count())
    };
    waited_for("an epoll that busy-waits", || Ok((waiting(&maker)? == 1).then_some(())))?;
    let used = || -> Result<bool, Failed> {
        let output = operator.netpolicy(&["-o", "json", "status"]).output()?;
        let said: serde_json::Value = serde_json::from_slice(&output.stdout)?;
        Ok(said["data"]["polling"] == serde_json::json!({ "used": 1, "allowed": 1 }))
    };
    waited_for("one CPU that polls", || Ok(used()?.then_some(())))?;
    maker.send("thread")?;
    maker.send("another")?;
    operator.waits_to_hear("the budget allows 1")?;
    assert_eq!(maker.epolls(&operator)?.len(), 2);
    assert_eq!(waiting(&maker)?, 1, "the former settings stay, and no new ones are added");
    assert_eq!(flushes(&operator.devices()?), [DEFER50]);
    Ok(())
}

/// A CPU of the guest that is offline until this value is dropped.
struct Offline(&'static str);

impl Offline {
    fn begin(file: &'static str) -> Result<Self, Failed> {
        std::fs::write(file, "0")?;
        Ok(Self(file))
    }
}

impl Drop for Offline {
    fn drop(&mut self) {
        let _ = std::fs::write(self.0, "1");
    }
}

fn hotplug() -> Result<(), Failed> {
    const DEVICE: &str = "virtio0";
    let operator = Operator::new("asked-hotplug", 1)?;
    operator.asks(&format!("[device.{DEVICE}]\ndelivery = \"interrupt\"\ncpus = \"0-1\"\n"))?;
    Command::new("ip").args(["link", "set", DEVICE, "up"]).status()?;
    let said = operator.file("hotplug-words", b"")?;
    let file = std::fs::OpenOptions::new().append(true).open(&said)?;
    // Run the daemon in the guest's own namespace, because the lab's device has no interrupt.
    let mut command = operator.netpolicy_here(&["daemon"]);
    let child = command.stdout(file.try_clone()?).stderr(file).spawn()?;
    let daemon = Started { child };
    let status = || -> Result<serde_json::Value, Failed> {
        let output = operator.netpolicy_here(&["-o", "json", "status"]).output()?;
        Ok(serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap_or_default()["data"].clone())
    };
    let in_order = |events: u64| -> Result<Option<()>, Failed> {
        let status = status()?;
        let request = &status["requests"][0];
        let heard = status["counters"]["events"]["cpu"].as_u64().unwrap_or(0);
        Ok((heard >= events && request["set"].as_u64() > Some(0) && request["set"] == request["wanted"])
            .then_some(()))
    };
    let masks = || -> Result<Vec<CpuSet>, Failed> {
        let host = linux::observe(&linux::Netns::own()?, &linux::Processes::None)?;
        let device = host.device_named(DEVICE).ok_or("the device")?;
        let irqs = device.napis.iter().filter_map(|napi| host.irq(napi.irq?.irq));
        Ok(irqs.map(|irq| irq.affinity.clone()).collect())
    };
    let outcome = waited_for("the interrupts have the requested affinity", || in_order(0)).and_then(|()| {
        let before = masks()?;
        assert!(
            before.iter().any(|cpus| cpus.contains(Cpu(1))),
            "an interrupt has the second CPU: {before:?}"
        );
        let offline = Offline::begin("/sys/devices/system/cpu/cpu1/online")?;
        waited_for("a plan without the second CPU", || in_order(1))?;
        let without = masks()?;
        assert!(without.iter().all(|cpus| cpus.contains(Cpu(0))), "{without:?}");
        drop(offline);
        waited_for("a plan with it", || in_order(2))?;
        waited_for("masks in their former state", || Ok((masks()? == before).then_some(())))
    });
    let log = format!(
        "{}\n{}",
        std::fs::read_to_string(&said).unwrap_or_default(),
        status().map(|status| status["requests"].to_string()).unwrap_or_default()
    );
    outcome.map_err(|failed| Failed::from(format!("{failed:?}\n{log}")))?;
    assert_eq!(daemon.terminated()?, Some(0));
    operator.runs(&["rollback"], 0)?;
    Ok(())
}

/// virtio-net spreads its transmit queues again whenever a CPU goes offline or comes online (6.18,
/// `drivers/net/virtio_net.c` `virtnet_set_affinity()`). Settings made while the CPU was offline are then no
/// longer in force, so the daemon does not restore them when it stops.
fn hotplug_and_revert() -> Result<(), Failed> {
    const DEVICE: &str = "virtio0";
    let operator = Operator::new("hotplug-revert", 1)?;
    operator.asks(&format!("[device.{DEVICE}]\npolicy = \"latency\"\n"))?;
    Command::new("ip").args(["link", "set", DEVICE, "up"]).status()?;
    let settings = || -> Result<(Vec<String>, Vec<CpuSet>), Failed> {
        let host = linux::observe(&linux::Netns::own()?, &linux::Processes::None)?;
        let device = host.device_named(DEVICE).ok_or("the device")?;
        let napis = device.napis.iter().map(|napi| format!("{napi:?}")).collect();
        Ok((napis, device.tx_queues.iter().map(|queue| queue.xps_cpus.clone()).collect()))
    };
    let before = settings()?;
    let said = operator.file("hotplug-words", b"")?;
    let file = std::fs::OpenOptions::new().append(true).open(&said)?;
    let mut command = operator.netpolicy_here(&["daemon", "--on-stop", "revert"]);
    let child = command.stdout(file.try_clone()?).stderr(file).spawn()?;
    let daemon = Started { child };
    let in_order = |events: u64| -> Result<Option<()>, Failed> {
        let output = operator.netpolicy_here(&["-o", "json", "status"]).output()?;
        let status = serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap_or_default();
        let (request, counters) = (&status["data"]["requests"][0], &status["data"]["counters"]);
        let heard = counters["events"]["cpu"].as_u64().unwrap_or(0);
        let all = request["set"].as_u64() > Some(0) && request["set"] == request["wanted"];
        Ok((heard >= events && all).then_some(()))
    };
    let ends = |words: &[&str]| -> Result<Option<i32>, Failed> {
        Ok(operator.netpolicy_here(words).output()?.status.code())
    };
    let outcome = waited_for("the policy", || in_order(0)).and_then(|()| {
        for turn in [1, 3] {
            let offline = Offline::begin("/sys/devices/system/cpu/cpu1/online")?;
            waited_for("a plan without the second CPU", || in_order(turn))?;
            drop(offline);
            waited_for("a plan with it", || in_order(turn + 1))?;
            waited_for("no drift", || Ok((ends(&["verify"])? == Some(0)).then_some(())))?;
            assert_eq!((ends(&["plan"])?, ends(&["status"])?), (Some(0), Some(0)), "they agree");
        }
        Ok(())
    });
    let verified = operator.netpolicy_here(&["verify"]).output()?;
    let log = std::fs::read_to_string(&said).unwrap_or_default();
    outcome.map_err(|failed| {
        let verified = String::from_utf8_lossy(&verified.stdout);
        Failed::from(format!("{failed:?}\n{log}\n{verified}"))
    })?;
    assert_eq!(daemon.terminated()?, Some(0));
    let log = std::fs::read_to_string(&said)?;
    assert!(!log.contains("NOT restored"), "{log}");
    assert_eq!(settings()?, before, "{log}");
    Ok(())
}
