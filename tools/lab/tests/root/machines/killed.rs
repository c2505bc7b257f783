//! What remains on both machines when an end of a bench is killed, stops, reboots or loses its device.

use std::io::Write;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use model::Chance;
use runs::Results;
use rustix::process::{Pid, Signal, kill_process};
use testkit::operator::waited_for;
use testkit::wire::run;
use testkit::{Need, test};

use super::{MACHINES, Machines, Settings, TASKSET, data, grid, service, text};

/// How often each end of a transport is killed; `make test-all` kills more often.
const KILLS: u32 = 5;

fn kills() -> u32 {
    std::env::var("NETPOLICY_TEST_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS)
}

/// How often each end of a bench is killed: a tenth, because there are many benches.
fn kills_of_bench() -> u32 {
    kills().div_ceil(10)
}

pub(crate) fn tests() -> Vec<Trial> {
    const SSHD: &[Need] = &[Need::Root, Need::Memcached, Need::Suspension, Need::Bpf, TASKSET, Need::Sshd];
    const WORKQUEUE: &[Need] = &[Need::Root, Need::WorkqueueNapis, TASKSET];
    let killed_benches = BENCHES.into_iter().map(|(name, bench)| {
        test(format!("machines/{name}_that_is_killed_at_either_end_leaves_nothing"), MACHINES, move || {
            killed(bench, &Victim::ENDS, kills_of_bench(), &mut Machines::new("machines-killed")?)
        })
    });
    let mut tests: Vec<Trial> = killed_benches.collect();
    tests.extend([
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
        test("machines/a_client_that_stops_leaves_nothing", MACHINES, stopped),
        test("machines/ctrl_c_restores_the_other_machine_and_shows_what_there_is", MACHINES, interrupted),
    ]);
    tests
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
                let what = format!("{kills} kills, {in_force} of them while settings were in force");
                writeln!(std::io::stderr(), "{bench}: {victim:?}: {what}")?;
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
    let kill = |find: &dyn Fn() -> Result<Option<Pid>, Failed>| {
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
pub(super) fn in_force(machines: &Machines, before: &Settings) -> Result<Child, Failed> {
    let mut client = machines.client(&format!("bench {MEMCACHED} {RUNS}"));
    let client = client.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
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
    // The client may name its own end of the veth, too.
    let is_named = said.contains("near0 no longer exists");
    let is_restored = said.trim_end().ends_with("The host was restored.");
    assert!(output.status.code() == Some(1) && is_named && is_restored, "{:?}: {said}", output.status);
    machines.wire.connect(2)?;
    machines.is_as(&machines.settings()?, Duration::from_secs(10))
}

/// Stops the client, so that it neither exits nor sends anything, like a client that lost its network.
fn stopped() -> Result<(), Failed> {
    let machines = Machines::new("machines-stopped")?;
    let before = machines.settings()?;
    let client = in_force(&machines, &before)?;
    let pid = Pid::from_child(&client);
    kill_process(pid, Signal::STOP)?;
    let restored = machines.is_as(&before, Duration::from_secs(40));
    kill_process(pid, Signal::CONT)?;
    let output = client.wait_with_output()?;
    let (status, said) = (output.status, text(&output.stderr));
    restored?;
    assert!(said.contains("was silent for 15s") && !status.success(), "{status}: {said}");
    Ok(())
}

fn interrupted() -> Result<(), Failed> {
    let machines = Machines::new("machines-interrupted")?;
    let before = machines.settings()?;
    let client = in_force(&machines, &before)?;
    kill_process(Pid::from_child(&client), Signal::INT)?;
    let output = client.wait_with_output()?;
    let said = text(&output.stderr);
    machines.is_as(&before, Duration::from_secs(10))?;
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("The server's machine was restored."), "{said}");
    Ok(())
}
