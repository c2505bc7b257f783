//! The guard of a load: in which namespace it undoes the load, even if namespaces are renamed meanwhile, and
//! what it reports if it fails.

use std::io::Write;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Output, Stdio};
use std::time::Instant;

use libtest_mimic::{Failed, Trial};
use linux::Netns;
use rustix::process::{Pid, Signal, kill_process};
use testkit::{Need, test};

use crate::rules::{HOOK, LOOK_AGAIN, SOON, Stage, rules, text};

pub(crate) fn tests() -> Vec<Trial> {
    let root = [Need::Root];
    vec![
        test("the_guard_leaves_a_namespace_alone_that_was_made_again_under_the_name", &root, made_again),
        test("the_guard_undoes_in_a_namespace_that_has_lost_its_name", &root, nameless),
        test("the_guard_undoes_in_a_namespace_whose_process_is_gone", &root, orphaned),
        test("a_guard_that_has_heard_only_half_removes_nothing", &root, half_heard),
        test("a_guard_names_what_it_could_not_remove", &root, not_removed),
        test("an_atomic_load_without_permission_changes_nothing", &root, unprivileged),
        test("an_atomic_load_that_a_shared_block_refuses_leaves_nothing", &root, shared_block),
    ]
}

/// Enough rules to observe the load while it runs.
const MANY: u32 = 60_000;

/// A named namespace, which is removed when this value is dropped.
struct Named(String);

impl Named {
    fn new(name: &str) -> Self {
        let named = Self(format!("netpolicy-test-{}-{name}", std::process::id()));
        named.ip("add");
        named
    }

    fn ip(&self, what: &str) {
        let output = Stage::command("ip", &["netns", what, &self.0]).output().expect("ip");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn stage(&self, scratch: &str) -> Stage {
        Stage::within(Netns::named(&self.0).expect("named"), scratch)
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        let _ = Stage::command("ip", &["netns", "del", &self.0]).output();
    }
}

/// Loads the hook, and begins an atomic load in the namespace with this name; it is stopped in the middle.
fn stopped(stage: &Stage, netns: &str) -> Child {
    assert_eq!(stage.netpolicy(&["tc", "load", text(&stage.file(HOOK))]).0, 0);
    let file = stage.file(&rules(3, MANY));
    let arguments = ["--netns", netns, "tc", "load", "--atomic", text(&file)];
    let child = Stage::command(testkit::programs::netpolicy(), &arguments).spawn().expect("started");
    let began = Instant::now();
    while !stage.has(1000) {
        assert!(began.elapsed() < SOON, "it never began");
        std::thread::sleep(LOOK_AGAIN);
    }
    kill_process(pid(&child), Signal::STOP).expect("stopped");
    child
}

fn pid(child: &Child) -> Pid {
    i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("a pid")
}

/// Kills a load; returns what its guard, which shares its standard error, printed until it exited.
fn killed(mut child: Child) -> String {
    child.kill().expect("killed");
    let output = child.wait_with_output().expect("waited");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn made_again() -> Result<(), Failed> {
    let named = Named::new("again");
    let old = named.stage("made_again");
    let load = stopped(&old, &named.0);
    named.ip("del");
    named.ip("add");
    let new = named.stage("made_again_new");
    assert_eq!(new.hook(), old.hook(), "the numbers refer to the same place in both namespaces");
    let others = new.file(&format!("{HOOK}{}", rules(3, 10)));
    assert_eq!(new.netpolicy(&["tc", "load", text(&others)]).0, 0);
    let said = killed(load);
    assert_eq!((new.rules(), old.rules()), (11, 0), "{said}");
    assert!(said.contains("was interrupted and undone"), "{said}");
    Ok(())
}

fn nameless() -> Result<(), Failed> {
    let named = Named::new("nameless");
    let stage = named.stage("nameless");
    let load = stopped(&stage, &named.0);
    named.ip("del");
    let said = killed(load);
    assert_eq!(stage.rules(), 0, "{said}");
    Ok(())
}

fn orphaned() -> Result<(), Failed> {
    let stage = Stage::new("orphaned");
    let sleeper = stage.netns.run(|| Stage::command("sleep", &["60"]).spawn());
    let mut sleeper = sleeper.expect("inside").expect("started");
    let load = stopped(&stage, &format!("pid:{}", sleeper.id()));
    sleeper.kill().expect("killed");
    sleeper.wait().expect("waited");
    let said = killed(load);
    assert_eq!(stage.rules(), 0, "{said}");
    Ok(())
}

/// Runs the guard of a load of these rules with this input.
fn guarded(stage: &Stage, command: &[&str], rules: &Path, heard: &str) -> Output {
    let rules: OwnedFd = std::fs::File::open(rules).expect("a file").into();
    let mut guard = Stage::command(command[0], &[&command[1..], &["tc", "guard"]].concat());
    guard.stdin(Stdio::piped()).stdout(rules);
    let mut guard = stage.netns.run(|| guard.spawn()).expect("inside").expect("started");
    guard.stdin.take().expect("a pipe").write_all(heard.as_bytes()).expect("written");
    guard.wait_with_output().expect("waited")
}

/// A guard's input line for a priority.
fn priority(stage: &Stage, kind: &str, priority: &str) -> String {
    let hook = stage.hook();
    format!("{kind} {} {} {} 0 {priority}", hook.device.0, hook.block, hook.parent)
}

fn half_heard() -> Result<(), Failed> {
    let stage = Stage::new("half_heard");
    let file = stage.file(&format!("{HOOK}{}", rules(1, 10)));
    assert_eq!(stage.netpolicy(&["tc", "load", text(&file)]).0, 0);
    // A load that is killed while it writes priority 12 may have written only the first digit.
    for heard in [priority(&stage, "fresh", "1"), format!("{}\n", priority(&stage, "fresh", "1"))] {
        let output = guarded(&stage, &[testkit::programs::netpolicy()], &file, &heard);
        assert_eq!((output.status.code(), stage.rules()), (Some(0), 11), "{heard}");
    }
    let heard = format!("{}\narmed\n", priority(&stage, "fresh", "1"));
    let output = guarded(&stage, &[testkit::programs::netpolicy()], &file, &heard);
    assert_eq!((output.status.code(), stage.rules()), (Some(4), 0));
    Ok(())
}

/// Copies the program to where every user may start it.
fn for_everyone(stage: &Stage) -> String {
    text(&testkit::programs::copy_all(stage.scratch.directory()).expect("copied")).to_owned()
}

/// The prefix of a command that an unprivileged user runs.
const UNPRIVILEGED: [&str; 6] = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];

fn not_removed() -> Result<(), Failed> {
    let stage = Stage::new("not_removed");
    let table = "filter add dev d0 ingress protocol ip prio 5 handle 9: u32 divisor 1\n";
    let link =
        "filter add dev d0 ingress protocol ip prio 5 handle 805::1 u32 ht 805: link 9: match u32 0 0\n";
    let root = "filter add dev d0 ingress protocol ip prio 5 handle 805: u32 divisor 1\n";
    let file = stage.file(&format!("{HOOK}{table}{root}{link}"));
    let (code, report) = stage.netpolicy(&["tc", "load", text(&file)]);
    assert_eq!(code, 0, "{report}");
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    // A table that another program's rule links to. The load's own file creates it in its second line.
    let load = stage.scratch.path("load.batch");
    std::fs::write(&load, format!("# the load\n{table}"))?;
    let heard = format!("{}\narmed\n", priority(&stage, "shared", "5"));
    let output = guarded(&stage, &[testkit::programs::netpolicy()], &load, &heard);
    let words = said(&output);
    assert_eq!(output.status.code(), Some(5), "{words}");
    assert!(words.contains("NOT restored:\n  the rules of the load:2: "), "{words}");
    // Remove a whole priority, without permission.
    let program = for_everyone(&stage);
    let heard = format!("{}\narmed\n", priority(&stage, "fresh", "5"));
    let output = guarded(&stage, &[&UNPRIVILEGED[..], &[&program]].concat(), &load, &heard);
    let words = said(&output);
    assert_eq!(output.status.code(), Some(5), "{words}");
    assert!(
        words.contains("NOT restored:\n  d0 ingress, priority 5: ") && words.contains("EPERM"),
        "{words}"
    );
    Ok(())
}

fn unprivileged() -> Result<(), Failed> {
    let stage = Stage::new("unprivileged");
    assert_eq!(stage.netpolicy(&["tc", "load", text(&stage.file(HOOK))]).0, 0);
    let (file, program) = (stage.file(&rules(7, 300)), for_everyone(&stage));
    let arguments = [&UNPRIVILEGED[1..], &[&program, "tc", "load", "--atomic", text(&file)]].concat();
    let output = stage.run(UNPRIVILEGED[0], &arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Nothing was changed") && !said.contains("restored"), "{said}");
    Ok(())
}

fn shared_block() -> Result<(), Failed> {
    let stage = Stage::new("shared_block");
    let hooks = stage.file("qdisc add dev d0 ingress_block 7 clsact\nqdisc add dev d1 clsact\n");
    assert_eq!(stage.netpolicy(&["tc", "load", text(&hooks)]).0, 0);
    let block = stage.file("filter add block 7 protocol ip prio 7 u32 match u32 0 0 classid 1:1\n");
    assert_eq!(stage.netpolicy(&["tc", "load", text(&block)]).0, 0);
    let refused = rules(7, 10);
    let load = |text_of: &str| {
        let file = stage.file(text_of);
        let output = stage.run(testkit::programs::netpolicy(), &["tc", "load", "--atomic", text(&file)]);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // Nothing in the file was loaded.
    let (code, said) = load(&refused);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("Nothing was changed"), "{said}");
    // Some rules were loaded on the other device, and none of this priority.
    let (code, said) = load(&format!("{}{refused}", refused.replace("dev d0", "dev d1")));
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("The host was restored"), "{said}");
    let left = |parent: &[&str]| {
        let dumped = stage.run(testkit::programs::netpolicy(), &[&["tc", "dump", "--dev"], parent].concat());
        String::from_utf8_lossy(&dumped.stdout).lines().count()
    };
    assert_eq!((left(&["d1"]), left(&["d0"])), (0, 1), "the rule of the block stays");
    Ok(())
}
