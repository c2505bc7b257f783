//! Which benches have their server on another machine, and whom both ends refuse.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use libtest_mimic::{Failed, Trial};
use model::{Evidence, Side};
use runs::Results;
use rustix::process::{Pid, Signal, kill_process};
use testkit::operator::waited_for;
use testkit::programs::netpolicy;
use testkit::wire::{Wire, run};
use testkit::{Need, repeated, test};

use super::killed::in_force;
use super::{LISTENS, MACHINES, Machines, SSH, Settings, TASKSET, data, grid, service, text};

pub(crate) fn tests() -> Vec<Trial> {
    const NICS: &[Need] = &[Need::Root, Need::Memcached, Need::Suspension, Need::VirtioNics, TASKSET];
    const THREADS: &[Need] = &[Need::Root, Need::ThreadPerNapi, TASKSET];
    vec![
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
        test("machines/a_device_without_the_feature_is_named_and_left_alone", MACHINES, lacking),
    ]
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
    let mut first = in_force(&machines, &before)?;
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
    let mut client = in_force(&machines, &before)?;
    kill_process(Pid::from_child(machines.link.listener().ok_or("no listener")?), Signal::TERM)?;
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
        ("--server 192.0.2.1:7101 --token DIR/token", 1, "bench serve --listen 192.0.2.1:7101"),
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
