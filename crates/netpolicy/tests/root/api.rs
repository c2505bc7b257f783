//! Tests the daemon's sockets: access by other users, a kill at any moment, and a daemon that may not inspect
//! processes.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use daemon::api::CLIENTS_PER_USER_MAX;
use daemon::status::{RequestExtent, RequestStatus};
use libtest_mimic::{Failed, Trial};
use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use serde_json::{Value, json};
use testkit::operator::{Operator, Started, waited_for};
use testkit::{Need, test};

use crate::attached::{EpollMaker, SUSPENDING};
use crate::desk::{Desk, Talk};

const NOBODY: u32 = 65_534;
const TRUSTED: u32 = 4_242;

pub(crate) fn tests() -> Vec<Trial> {
    const ROOT: &[Need] = &[Need::Root];
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension];
    vec![
        test("api/another_user_sees_his_own_and_is_refused_the_rest_in_the_log", ROOT, another_user),
        test("api/a_member_of_the_group_may_what_root_may", ROOT, member),
        test("api/denied_calls_of_a_user_keep_no_line_of_others_out_of_the_log", ROOT, denied),
        test("api/one_user_cannot_take_all_the_room", ROOT, room),
        test("api/a_storm_of_connections_leaves_root_a_socket_to_connect_to", ROOT, storm),
        test("api/the_commands_go_through_a_daemon_that_runs", NEEDS, through_the_daemon),
        test("api/a_kill_in_the_middle_of_a_set_leaves_nothing_half_done", NEEDS, killed),
        test("api/an_unprivileged_daemon_sets_epolls_through_the_attach_service", NEEDS, attached),
    ]
}

/// Runs a closure as another user, on a separate thread, because the kernel records the credentials of the
/// thread that connects.
fn as_user<T: Send>(groups: &[u32], body: impl FnOnce() -> T + Send) -> Result<T, Failed> {
    let groups: Vec<Gid> = groups.iter().map(|group| Gid::from_raw(*group)).collect();
    let (uid, gid) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
    std::thread::scope(|scope| {
        let changed = scope.spawn(move || {
            set_thread_groups(&groups)?;
            set_thread_res_gid(gid, gid, gid)?;
            set_thread_res_uid(uid, uid, uid)?;
            Ok::<_, rustix::io::Errno>(body())
        });
        Ok(changed.join().map_err(|_| "the thread panicked")??)
    })
}

fn called(talk: &mut Talk, method: &str, parameters: &Value) -> Value {
    talk.ask(&json!({ "method": format!("io.netpolicy.{method}"), "parameters": parameters }).to_string())
}

fn set_eth0() -> Value {
    json!({ "target": { "device": "eth0" }, "request": "latency" })
}

fn another_user() -> Result<(), Failed> {
    let desk = Desk::new(None);
    let mut sleeper = Command::new("sleep");
    std::os::unix::process::CommandExt::uid(&mut sleeper, NOBODY);
    let mut sleeper = sleeper.arg("60").spawn()?;
    let pids = [std::process::id(), sleeper.id()];
    desk.change(move |status| {
        let of = |pid: u32| RequestStatus {
            target: format!("task {pid}"),
            policy: "latency".to_owned(),
            delivery: "suspend20".to_owned(),
            origin: "test".to_owned(),
            extent: RequestExtent { queues: 1, processes: 1, epolls: 1, wanted: 4, set: 4 },
            engaged: None,
            search: None,
            proof: None,
            expected: None,
            goal: model::Goal::default(),
            measured: None,
            notes: Vec::new(),
        };
        status.requests = pids.map(of).to_vec();
    });
    std::thread::sleep(Duration::from_millis(100));
    let socket = desk.socket.clone();
    let (state, refused) = as_user(&[], || {
        let mut talk = Talk::to(&socket);
        let state = called(&mut talk, "Status", &json!({}))["parameters"]["status"].clone();
        let methods = ["Findings", "Settings", "Rollback", "Reload", "Plan", "Verify", "Explain"];
        let mut refused: Vec<Value> =
            methods.iter().map(|method| called(&mut talk, method, &json!({}))["error"].clone()).collect();
        refused.push(called(&mut talk, "Set", &set_eth0())["error"].clone());
        // The daemon refuses unauthorised clients before it validates their call.
        refused.push(called(&mut talk, "Set", &json!({}))["error"].clone());
        for method in ["Watch", "Compare", "Tune", "Try", "Confirm", "Cancel"] {
            refused.push(called(&mut talk, method, &json!({ "session": 1 }))["error"].clone());
        }
        (state, refused)
    })?;
    sleeper.kill()?;
    sleeper.wait()?;
    assert_eq!(state["whole"], false);
    let seen: Vec<&Value> =
        state["requests"].as_array().into_iter().flatten().map(|r| &r["target"]).collect();
    assert_eq!(seen, [&json!(format!("task {}", pids[1]))], "his own alone");
    assert_eq!((&state["policy"], &state["counters"]), (&Value::Null, &Value::Null));
    assert!(refused.iter().all(|error| error == "org.varlink.service.PermissionDenied"), "{refused:?}");
    let log = desk.log();
    let lines =
        log.iter().filter(|line| line.contains("uid 65534") && line.contains("was refused io.netpolicy."));
    // The log has at most ten lines per user and minute.
    assert_eq!(lines.count(), 10, "{log:?}");
    // None of the refused calls reached the daemon, but root's calls do.
    assert!(!log.iter().any(|line| line.contains(" calls ")), "{log:?}");
    assert_eq!(
        called(&mut desk.connect(), "Set", &set_eth0())["parameters"]["summary"],
        "device eth0 is set"
    );
    Ok(())
}

fn denied() -> Result<(), Failed> {
    let desk = Desk::new(Some(TRUSTED));
    as_user(&[], || {
        let mut talk = Talk::to(&desk.socket);
        for _ in 0..45 {
            assert_eq!(
                called(&mut talk, "Set", &set_eth0())["error"],
                "org.varlink.service.PermissionDenied"
            );
        }
    })?;
    called(&mut desk.connect(), "Set", &set_eth0());
    as_user(&[TRUSTED], || {
        called(&mut Talk::to(&desk.socket), "Unset", &json!({ "target": { "device": "eth0" } }))
    })?;
    let log = desk.log();
    let has = |who: &str, what: &str| log.iter().any(|line| line.contains(who) && line.ends_with(what));
    assert!(has("uid 0 ", "calls io.netpolicy.Set"), "{log:?}");
    assert!(has("uid 65534 ", "calls io.netpolicy.Unset"), "{log:?}");
    assert!(log.len() < 20, "{log:?}");
    Ok(())
}

fn member() -> Result<(), Failed> {
    let desk = Desk::new(Some(TRUSTED));
    let ask = |groups: &[u32]| as_user(groups, || called(&mut Talk::to(&desk.socket), "Set", &set_eth0()));
    assert_eq!(ask(&[TRUSTED])?["parameters"]["summary"], "device eth0 is set");
    assert_eq!(ask(&[TRUSTED + 1])?["error"], "org.varlink.service.PermissionDenied");
    Ok(())
}

fn room() -> Result<(), Failed> {
    let desk = Desk::new(None);
    let talks =
        as_user(&[], || (0..CLIENTS_PER_USER_MAX + 5).map(|_| Talk::to(&desk.socket)).collect::<Vec<_>>())?;
    waited_for("some that are rejected", || {
        let away = desk.log().iter().filter(|line| line.contains("uid 65534 was rejected")).count();
        Ok((away == 5).then_some(()))
    })?;
    assert_eq!(
        called(&mut desk.connect(), "Settings", &json!({}))["parameters"]["settings"][0]["value"],
        "100"
    );
    drop(talks);
    Ok(())
}

fn storm() -> Result<(), Failed> {
    let desk = Desk::new(None);
    let mut of_root = desk.socket.clone().into_os_string();
    of_root.push(".root");
    let mode = std::fs::metadata(&of_root)?.permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let storm = as_user(&[], || (0..300).map(|_| UnixStream::connect(&desk.socket)).collect::<Vec<_>>())?;
    let mut talk = Talk::to(Path::new(&of_root));
    assert!(talk.ask(r#"{"method":"org.varlink.service.GetInfo"}"#)["parameters"].is_object());
    drop(storm);
    Ok(())
}

/// Starts a daemon whose sockets are in the journal's directory.
fn daemon(operator: &Operator) -> Result<Started, Failed> {
    let daemon = operator.starts(&["daemon"])?;
    operator.waits_to_hear("at work")?;
    waited_for("its socket", || Ok(operator.state().join("io.netpolicy").exists().then_some(())))?;
    Ok(daemon)
}

fn through_the_daemon() -> Result<(), Failed> {
    let operator = Operator::new("api-commands", 1)?;
    operator.runs(&["status"], 1)?;
    let daemon = daemon(&operator)?;
    let device = linux::lab::SERVER_DEVICE;
    let said = operator.runs(&["set", "device", device, "defer50"], 0)?;
    assert!(said.words.contains("Set by the daemon: "), "{}", said.words);
    let status = operator.runs(&["-o", "json", "status"], 0)?.data;
    assert!(status.to_string().contains(&format!("device {device}")), "{status}");
    let gone = operator.runs(&["unset", "device", device], 0)?;
    assert!(gone.words.contains("Set by the daemon: "), "{}", gone.words);
    let refused = operator.runs(&["unset", "device", device], 1)?;
    assert!(refused.words.contains(device), "{}", refused.words);
    // The daemon refuses a service without criteria, which would match every process.
    let anybody = json!({ "target": { "service": "any", "match": {} }, "request": "latency" });
    let answer = called(&mut Talk::to(&operator.state().join("io.netpolicy")), "Set", &anybody);
    assert_eq!(answer["parameters"]["exit"], 2, "{answer}");
    assert_eq!(daemon.terminated()?, Some(0));
    // Without a daemon, `set` applies the policy itself.
    let said = operator.runs(&["set", "device", device, "defer50"], 0)?;
    assert!(!said.words.contains("Set by the daemon"), "{}", said.words);
    operator.runs(&["rollback"], 0)?;
    Ok(())
}

fn timeouts(operator: &Operator) -> Result<Vec<u64>, Failed> {
    let host = operator.devices()?;
    let napis = host.devices.iter().flat_map(|device| &device.napis);
    Ok(napis.filter_map(|napi| napi.gro_flush_timeout).map(|span| span.0).collect())
}

fn killed() -> Result<(), Failed> {
    const KILLS: u64 = 6;
    let operator = Operator::new("api-killed", 2)?;
    let before = timeouts(&operator)?;
    let device = linux::lab::SERVER_DEVICE;
    for kill in 0..KILLS {
        let mut daemon = daemon(&operator)?;
        let mut talk = Talk::to(&operator.state().join("io.netpolicy"));
        let mode = format!("defer{}", 20 + kill);
        let set = json!({ "target": { "device": device }, "request": mode });
        talk.say(&json!({ "method": "io.netpolicy.Set", "parameters": set }).to_string());
        std::thread::sleep(Duration::from_micros(700 * kill));
        daemon.child.kill()?;
        daemon.child.wait()?;
    }
    let daemon = daemon(&operator)?;
    // After the kill, the policy file has all sections of the last accepted policy, or none.
    waited_for("both queues with the same value", || {
        let now = timeouts(&operator)?;
        Ok(now.windows(2).all(|pair| pair[0] == pair[1]).then_some(()))
    })?;
    assert_eq!(daemon.terminated()?, Some(0));
    let history = operator.runs(&["-o", "json", "history"], 0)?.data.to_string();
    assert!(!history.contains("unfinished"), "{history}");
    operator.runs(&["rollback"], 0)?;
    assert_eq!(timeouts(&operator)?, before);
    Ok(())
}

/// Starts a daemon with all capabilities except CAP_SYS_PTRACE, in the network namespace of the lab's server.
fn daemon_without_right(operator: &Operator, attach: &str) -> Result<Started, Failed> {
    let there = format!("--net=/proc/{}/ns/net", operator.lab.server_pid());
    let ours = operator.netpolicy_here(&["daemon", "--attach-socket", attach]);
    let mut command = Command::new("nsenter");
    command.arg(there).args(["setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace", "--"]);
    command.arg(ours.get_program()).args(ours.get_args()).stdin(Stdio::null());
    let log = std::fs::File::create(operator.state().with_extension("log"))?;
    let child = command.stdout(log.try_clone()?).stderr(log).spawn()?;
    waited_for("its socket", || Ok(operator.state().join("io.netpolicy").exists().then_some(())))?;
    Ok(Started { child })
}

fn attached() -> Result<(), Failed> {
    let operator = Operator::new("api-attach", 1)?;
    std::fs::create_dir_all(operator.state())?;
    let socket = operator.state().join("attach");
    let socket = socket.to_string_lossy().into_owned();
    let maker = EpollMaker::new(&operator)?;
    let plain = maker.epolls(&operator)?;
    let set = json!({ "target": { "task": maker.pid() }, "request": "suspend20" });
    let ask = || {
        let mut talk = Talk::to(&operator.state().join("io.netpolicy"));
        called(&mut talk, "Set", &set)
    };

    // Without the attach service, the request must fail; otherwise the rest of the test would prove nothing.
    let mut without = daemon_without_right(&operator, &socket)?;
    let said = ask();
    assert_eq!(maker.epolls(&operator)?, plain, "{said}");
    without.child.kill()?;
    without.child.wait()?;
    std::fs::remove_file(operator.state().join("io.netpolicy"))?;

    let alive = ["attach-service", "--socket", &socket, "--alive"];
    let said = operator.runs_here(&alive, 1)?;
    assert!(said.words.contains("no attach service answers"), "{}", said.words);
    let service =
        operator.netpolicy_here(&["attach-service", "--socket", &socket]).stderr(Stdio::null()).spawn()?;
    let _service = Started { child: service };
    waited_for("the service", || Ok(std::path::Path::new(&socket).exists().then_some(())))?;
    operator.runs_here(&alive, 0)?;
    let daemon = daemon_without_right(&operator, &socket)?;
    let said = ask();
    waited_for(&format!("its parameters ({said})"), || {
        Ok((maker.epolls(&operator)? == [SUSPENDING]).then_some(()))
    })?;
    assert_eq!(daemon.terminated()?, Some(0));

    // Reading the link to a process's executable needs the same privilege, so the daemon uses the attach
    // service for that, too.
    let exe = std::env::current_exe()?;
    let exe = exe.to_str().ok_or("a path in UTF-8")?;
    operator.asks(&format!(
        "[service.maker]\nmatch = {{ exe = \"{exe}\" }}\npolicy = \"latency\"\ndelivery = \"suspend20\"\n"
    ))?;
    let another = EpollMaker::new(&operator)?;
    let daemon = daemon_without_right(&operator, &socket)?;
    waited_for("its parameters, too", || Ok((another.epolls(&operator)? == [SUSPENDING]).then_some(())))?;
    assert_eq!(daemon.terminated()?, Some(0));
    // The attach service answers only root.
    let rejected = as_user(&[], || std::os::unix::net::UnixStream::connect(&socket).is_err())?;
    assert!(rejected);
    Ok(())
}
