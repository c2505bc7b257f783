//! Tests policy files on a real device: plan, apply, verify, explain, roll back.

use std::process::Command;

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;
use model::{Nanoseconds, NapiKnob, Setting};
use testkit::operator::{Operator, flushes, flushes_of, somebody_else_sets};
use testkit::wire::Wire;
use testkit::{Need, test};

const SUSPEND20: &str = "[device.veth-server]\ndelivery = \"suspend20\"\n";

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension];
    vec![
        test("applied/a_policy_is_planned_applied_verified_and_rolled_back", NEEDS, round_trip),
        test("applied/applying_twice_changes_nothing_the_second_time", NEEDS, twice),
        test("applied/what_another_program_has_set_since_is_drift_and_is_left_alone", NEEDS, foreign_change),
        test("applied/a_device_that_is_not_there_is_named_and_nothing_is_changed", NEEDS, missing_device),
        test("applied/a_user_without_privileges_sees_the_required_capabilities", NEEDS, nobody),
        test("applied/set_gives_one_device_a_mode_without_a_file", NEEDS, set_device),
        test("applied/quiet_leaves_nothing_to_read_but_for_programs", NEEDS, quiet),
        test("applied/a_transaction_under_a_newer_one_is_not_pulled_out", NEEDS, overlaid),
        test(
            "applied/a_service_gets_both_halves_and_its_namesakes_elsewhere_get_none",
            &[Need::Root, Need::Suspension, Need::Memcached],
            service,
        ),
        test("applied/a_rollback_while_the_device_is_down_says_so_and_can_be_called_again", NEEDS, link_down),
        test("applied/a_rollback_needs_no_disk_that_can_be_written", NEEDS, read_only_disk),
        test(
            "applied/a_rollback_whose_report_cannot_be_printed_is_no_failure_to_roll_back",
            NEEDS,
            full_output,
        ),
        test(
            "applied/a_device_gets_settings_beside_its_mode_in_two_stages_and_goes_back",
            NEEDS,
            settings_of_a_device,
        ),
        test(
            "applied/two_stages_are_refused_before_the_first_where_the_second_would_be",
            &[Need::Root],
            second_stage_refused,
        ),
        test("applied/doctor_judges_settings_without_counting", NEEDS, doctor),
        // A NIC with interrupts exists only in a guest; `make test` runs this test in one.
        test(
            "applied/a_policy_for_a_nic_with_interrupts_is_applied_and_undone_exactly",
            &[Need::Root, Need::Suspension, Need::VirtioNics],
            on_a_nic,
        ),
    ]
}

/// The second stage would change settings that are on trial. netpolicy detects that before the first stage
/// recreates the queues.
fn second_stage_refused() -> Result<(), Failed> {
    let operator = Operator::new("second-stage", 2)?;
    operator.inside("ethtool -L veth-server rx 1")?;
    let device = "[device.veth-server]\npolicy = \"none\"\n";
    operator.asks(&format!("{device}settings = {{ rps_cpus = \"0\" }}\n"))?;
    operator.runs(&["try", "--seconds", "600"], 0)?;
    operator.asks(&format!("{device}settings = {{ rps_cpus = \"none\", rx-channels = 2 }}\n"))?;
    let refused = operator.runs(&["apply", "--disruptive"], 7)?;
    assert!(
        refused.words.contains("rps_cpus") && refused.words.contains("Nothing was changed"),
        "{}",
        refused.words
    );
    let history: serde_json::Value =
        serde_json::from_str(&operator.runs(&["-o", "json", "history"], 0)?.data)?;
    assert_eq!(history["data"]["transactions"].as_array().map(Vec::len), Some(1), "{history}");
    let devices = operator.devices()?;
    assert_eq!(devices.devices[0].rx_queues.len(), 1);
    operator.runs(&["rollback"], 0)?;
    operator.runs(&["apply", "--disruptive"], 0)?;
    Ok(())
}

fn round_trip() -> Result<(), Failed> {
    let operator = Operator::new("round-trip", 2)?;
    operator.asks(SUSPEND20)?;
    let before = operator.host()?;

    let plan = operator.runs(&["-o", "json", "plan"], 3)?;
    let plan: serde_json::Value = serde_json::from_str(&plan.data)?;
    assert_eq!(
        plan["data"]["changes"].as_array().map(Vec::len),
        Some(6),
        "two queues with three settings each"
    );
    assert_eq!(operator.host()?, before, "planning changes nothing");
    operator.runs(&["apply", "--dry-run"], 3)?;
    assert_eq!(operator.host()?, before, "a dry run changes nothing");

    operator.runs(&["apply"], 0)?;
    assert_eq!(flushes(&operator.devices()?), [20_000, 20_000]);
    assert!(operator.runs(&["verify"], 0)?.words.contains("No drift: 6 settings"));
    let explained = operator.runs(&["explain", "veth-server rx-1"], 0)?.data;
    assert!(explained.contains("10-test.toml:2") && !explained.contains("rx-0"), "{explained}");
    assert!(operator.runs(&["history"], 0)?.data.contains("kept"));

    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.host()?, before, "the whole host has its former state");
    assert!(operator.runs(&["history"], 0)?.data.contains("rolled back"));
    assert!(operator.runs(&["verify"], 0)?.words.contains("No transaction is in force."));
    Ok(())
}

fn on_a_nic() -> Result<(), Failed> {
    let operator = Operator::new("nic", 1)?;
    let wire = Wire::between("virtio")?;
    let in_near = |arguments: &[&str]| operator.runs_here(&[&["--netns", &wire.near], arguments].concat(), 0);
    let timeouts = || Ok::<_, Failed>(flushes(&wire.observe()?));
    let (device, before) = (wire.near0()?, timeouts()?);
    operator.asks("[device.near0]\ndelivery = \"suspend20\"\n")?;
    in_near(&["apply"])?;
    let of_device = flushes_of(&wire.observe()?, [&device]);
    assert!(!of_device.is_empty() && of_device.iter().all(|span| *span == 20_000), "{of_device:?}");
    in_near(&["verify"])?;
    in_near(&["rollback"])?;
    assert_eq!((wire.near0()?, timeouts()?), (device, before), "the NIC has its former state");
    Ok(())
}

/// Reducing the queues recreates them, and the mode is set on the new ones.
fn settings_of_a_device() -> Result<(), Failed> {
    let operator = Operator::new("settings", 2)?;
    let before = operator.host()?;
    operator.asks(
        "[device.veth-server]\ndelivery = \"suspend20\"\n\
         settings = { rx-channels = 1, rx-udp-gro-forwarding = true, rps_flow_cnt = 1000, xps = true }\n",
    )?;
    let refused = operator.runs(&["apply"], 7)?;
    assert!(refused.words.contains("--disruptive"), "{}", refused.words);
    assert_eq!(operator.host()?, before, "a change that takes the link down needs an explicit option");

    let applied = operator.runs(&["apply", "--disruptive"], 0)?;
    for change in ["rx-channels", "rps_flow_cnt", "xps_cpus", "rx-udp-gro-forwarding", "irq-suspend-timeout"]
    {
        assert!(applied.data.contains(change), "{change}: {}", applied.data);
    }
    assert_eq!(flushes(&operator.devices()?), [20_000], "one queue is left, and it has the mode");
    assert!(operator.runs(&["apply", "--disruptive"], 0)?.words.contains("Nothing to change"));
    operator.runs(&["verify"], 0)?;
    operator.runs(&["rollback"], 0)?;
    operator.runs(&["rollback"], 0)?;
    let after = operator.host()?;
    let known = |host: &model::Host| {
        let device = host.device_named("veth-server").cloned().expect("the device");
        (device.channels, device.offloads, device.tx_queues, device.rx_queues.len(), flushes(host))
    };
    assert_eq!(known(&after), known(&before));

    // With checksums off, the kernel keeps the request for TSO but leaves TSO off.
    operator.inside("ethtool -K veth-server tso off")?;
    operator.inside("ethtool -K veth-server tx off")?;
    operator.asks(
        "[device.veth-server]\npolicy = \"latency\"\n\
         settings = { rx-channels = 1, tx-tcp-segmentation = true }\n",
    )?;
    let applied = operator.runs(&["apply", "--disruptive"], 0)?;
    let waits = "tx-tcp-segmentation is requested on and stays off";
    assert!(applied.words.contains(waits), "{}", applied.words);
    let tso = operator.inside("ethtool -k veth-server")?;
    assert!(tso.contains("tx-tcp-segmentation: off [requested on]\n"), "{tso}");
    operator.runs(&["rollback"], 0)?;
    operator.runs(&["rollback"], 0)?;
    let tso = operator.inside("ethtool -k veth-server")?;
    assert!(tso.contains("tx-tcp-segmentation: off\n"), "nor is TSO still requested: {tso}");
    operator.inside("ethtool -K veth-server tx on tso on")?;
    assert_eq!(known(&operator.host()?), known(&before), "no part of the transaction is left");
    let refused = operator.runs(&["try", "--disruptive"], 6)?;
    assert!(refused.words.contains("cannot recreate queues"), "{}", refused.words);
    assert_eq!(known(&operator.host()?), known(&before));

    let wrong = operator.runs(&["set", "device", "veth-server", "none", "--setting", "rx-usecs=8"], 6)?;
    assert!(wrong.words.contains("its driver has no rx-usecs"), "{}", wrong.words);
    let wrong = operator.runs(&["set", "device", "veth-server", "none", "--setting", "rx-usec=8"], 2)?;
    assert!(wrong.words.contains("did you mean `rx-usecs`?"), "{}", wrong.words);
    let set = operator.runs(&["set", "device", "veth-server", "none", "--setting", "rps_cpus=0"], 0)?;
    assert!(set.data.contains("rps_cpus"), "{}", set.data);
    operator.runs(&["rollback"], 0)?;
    assert_eq!(known(&operator.host()?), known(&before));
    Ok(())
}

fn link_down() -> Result<(), Failed> {
    let operator = Operator::new("down", 1)?;
    let before = operator.host()?;
    operator.runs(&["set", "device", "veth-server", "suspend20"], 0)?;
    operator.sets_link("down")?;
    let stuck = operator.runs(&["rollback"], 5)?;
    assert!(stuck.words.contains("for example because it is down"), "{}", stuck.words);
    operator.sets_link("up")?;
    operator.runs(&["rollback"], 0)?;
    assert_eq!(flushes(&operator.devices()?), flushes(&before));
    assert!(operator.runs(&["history"], 0)?.data.contains("rolled back"));
    Ok(())
}

fn read_only_disk() -> Result<(), Failed> {
    /// `$0` is the journal's directory; the remaining arguments are netpolicy with its options. The script
    /// runs in a private mount namespace.
    const SCRIPT: &str = "set -e; mount -t tmpfs -o mode=755 none \"$0\"; \"$@\" set device veth-server suspend20; \
                          mount -o remount,ro \"$0\"; exec \"$@\" rollback";
    let operator = Operator::new("read-only", 1)?;
    std::fs::create_dir_all(operator.state())?;
    let before = operator.host()?;
    let netpolicy = operator.netpolicy(&[]);
    let mut script = Command::new("unshare");
    script.args(["--mount", "sh", "-c", SCRIPT]).arg(operator.state());
    let output = script.arg(netpolicy.get_program()).args(netpolicy.get_args()).output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && words.contains("Set and read back"), "{words}");
    assert!(words.contains("The journal is incomplete"), "{words}");
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn full_output() -> Result<(), Failed> {
    let operator = Operator::new("full-output", 1)?;
    let before = operator.host()?;
    operator.runs(&["set", "device", "veth-server", "suspend20"], 0)?;
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full")?;
    let output = operator.netpolicy(&["rollback"]).stdout(full).output()?;
    let words = String::from_utf8_lossy(&output.stderr);
    assert!(words.contains("The host was restored."), "{words}");
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn twice() -> Result<(), Failed> {
    let operator = Operator::new("twice", 1)?;
    operator.asks(SUSPEND20)?;
    operator.runs(&["apply"], 0)?;
    let once = operator.host()?;
    let again = operator.runs(&["apply"], 0)?;
    assert!(again.words.contains("Nothing to change"), "{}", again.words);
    assert_eq!(operator.host()?, once);
    let history = operator.runs(&["-o", "jsonl", "history"], 0)?;
    assert_eq!(history.data.lines().count(), 1, "no setting was changed, so the journal has no transaction");
    Ok(())
}

fn foreign_change() -> Result<(), Failed> {
    let operator = Operator::new("foreign", 2)?;
    operator.asks(SUSPEND20)?;
    operator.runs(&["apply"], 0)?;
    let queue = operator.devices()?.device_named("veth-server").ok_or("device")?.rx_queues[1].id;
    somebody_else_sets(Setting::Napi(queue, NapiKnob::GroFlushTimeout(Nanoseconds::from_micros(77))))?;

    let drift = operator.runs(&["-o", "jsonl", "verify"], 3)?;
    let drift: serde_json::Value = serde_json::from_str(&drift.data)?;
    assert_eq!(
        (drift["data"]["applied"].as_str(), drift["data"]["found"].as_str()),
        (Some("20us"), Some("77us"))
    );

    let rollback = operator.runs(&["rollback"], 0)?;
    assert!(rollback.data.contains("left alone"), "{}", rollback.data);
    assert_eq!(
        flushes(&operator.devices()?),
        [0, 77_000],
        "netpolicy's setting is restored, the other program's stays"
    );
    Ok(())
}

fn missing_device() -> Result<(), Failed> {
    let operator = Operator::new("missing", 1)?;
    operator
        .asks("[device.veth-server]\ndelivery = \"suspend20\"\n[device.nowhere0]\npolicy = \"bulk\"\n")?;
    let before = operator.host()?;
    let failed = operator.runs(&["apply"], 1)?;
    for words in ["nowhere0", "no such device", "10-test.toml:4", "Nothing was changed."] {
        assert!(failed.words.contains(words), "{words}: {}", failed.words);
    }
    assert_eq!(operator.host()?, before, "not even the existing device has changed");
    Ok(())
}

fn nobody() -> Result<(), Failed> {
    let operator = Operator::new("nobody", 1)?;
    operator.asks(SUSPEND20)?;
    let before = operator.host()?;
    let shown = operator.runs_as_nobody(&["-o", "json", "show", "--processes", "none"], 0)?;
    assert!(shown.data.contains("veth-server"), "inspecting devices needs no privileges");
    let elsewhere = operator.runs_as_nobody_with_our_sysfs(&["show", "--processes", "none"], 0)?.data;
    assert!(elsewhere.contains("/sys/class/net: sysfs was mounted in another network"), "{elsewhere}");
    let planned = operator.runs_as_nobody_with_our_sysfs(&["plan"], 1)?.words;
    for words in ["none of the queues of veth-server could be read", "in another network namespace"] {
        assert!(planned.contains(words), "{planned}");
    }
    let failed = operator.runs_as_nobody(&["apply"], 1)?;
    for words in ["veth-server rx-0", "EPERM", "hint: run netpolicy as root", "Nothing was changed."] {
        assert!(failed.words.contains(words), "{words}: {}", failed.words);
    }
    assert_eq!(operator.host()?, before);
    let pid = operator.lab.server_pid().to_string();
    let failed = operator.runs_as_nobody(&["attach", &pid, "--delivery", "suspend20"], 1)?;
    assert!(failed.words.contains("Nothing was changed."), "{}", failed.words);
    Ok(())
}

fn set_device() -> Result<(), Failed> {
    let operator = Operator::new("set", 2)?;
    let before = operator.host()?;
    operator.runs(&["set", "device", "veth-server", "defer50"], 0)?;
    assert_eq!(flushes(&operator.devices()?), [50_000, 50_000]);
    operator.runs(&["set", "device", "veth-server", "latency"], 0)?;
    assert_eq!(
        flushes(&operator.devices()?),
        [0, 0],
        "a device without interrupts of its own cannot suspend them"
    );
    operator.runs(&["rollback"], 0)?;
    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.host()?, before);
    Ok(())
}

fn quiet() -> Result<(), Failed> {
    let operator = Operator::new("quiet", 1)?;
    operator.asks(SUSPEND20)?;
    for (arguments, code) in [(&["-q", "apply"][..], 0), (&["-q", "rollback"], 0)] {
        let said = operator.runs(arguments, code)?;
        assert_eq!((said.data.as_str(), said.words.as_str()), ("", ""), "{arguments:?}");
    }
    let planned = operator.runs(&["-q", "plan"], 3)?;
    assert!(planned.data.contains("irq-suspend-timeout"), "the plan is the requested one: {}", planned.data);
    let set = operator.runs(&["-q", "-o", "json", "set", "device", "veth-server", "defer50"], 0)?;
    assert!(set.data.contains("gro-flush-timeout"), "{}", set.data);
    operator.runs(&["rollback"], 0)?;
    Ok(())
}

fn overlaid() -> Result<(), Failed> {
    let operator = Operator::new("overlaid", 1)?;
    operator.runs(&["set", "device", "veth-server", "defer50"], 0)?;
    operator.runs(&["set", "device", "veth-server", "defer200"], 0)?;
    let history = operator.runs(&["-o", "json", "history"], 0)?;
    let history: serde_json::Value = serde_json::from_str(&history.data)?;
    let older = history["data"]["transactions"][1]["id"].as_str().ok_or("id")?.to_owned();
    let refused = operator.runs(&["rollback", &older], 7)?;
    assert!(refused.words.contains("cannot be rolled back on its own"), "{}", refused.words);
    assert_eq!(flushes(&operator.devices()?), [200_000], "nothing was changed");
    Ok(())
}

fn doctor() -> Result<(), Failed> {
    let operator = Operator::new("doctor", 1)?;
    let queue = operator.devices()?.device_named("veth-server").ok_or("device")?.rx_queues[0].id;
    let healthy = operator.runs(&["-o", "json", "doctor", "--seconds", "0", "--processes", "none"], 0)?;
    let healthy: serde_json::Value = serde_json::from_str(&healthy.data)?;
    assert!(healthy["data"]["delivered"].is_null(), "nothing was counted");
    // The setting is accepted, but suspension has no effect without deferral.
    somebody_else_sets(Setting::Napi(queue, NapiKnob::IrqSuspendTimeout(Nanoseconds::from_millis(20))))?;
    let sick = operator.runs(&["doctor", "--seconds", "0", "--processes", "none"], 3)?;
    assert!(sick.data.contains("veth-server"), "{}", sick.data);
    Ok(())
}

fn service() -> Result<(), Failed> {
    let (operator, elsewhere) = (Operator::new("service", 2)?, Operator::new("namesake", 1)?);
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    let _namesake = elsewhere.lab.start_memcached(&MemcachedOptions::default())?;
    let (before, theirs) = (operator.host()?, elsewhere.host()?);
    operator.means_what_it_does_on_a_nic()?;
    operator
        .asks("[service.cache]\nmatch = { exe = \"memcached\", port = 11211 }\npolicy = \"latency\"\n")?;
    operator.runs(&["apply"], 0)?;
    let host = operator.host()?;
    let params =
        host.process(server.process().pid).into_iter().flat_map(|p| &p.epolls).filter_map(|e| e.params);
    assert!(params.clone().count() == 2 && params.into_iter().all(|params| params.prefer_busy_poll));
    assert!(flushes(&host).contains(&20_000));
    assert_eq!(elsewhere.host()?, theirs);
    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.host()?, before);
    Ok(())
}
