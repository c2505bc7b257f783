//! Runs the commands on the pages of the tutorial and the how-tos, and compares their output with the page.
//!
//! A page begins with a comment that names its stage:
//!
//! - `<!-- stage: lab -->`: a machine without network devices; the page creates its own lab.
//! - `<!-- stage: host queues=2 threads=2 load=8 -->`: a server whose device `eth0` has two queues, a
//!   memcached with two threads, and a client on another machine that keeps eight connections busy.
//!
//! `needs=NAME,…` in the comment names needs that not every kernel meets. `<!-- before: COMMAND -->` runs
//! before the client starts. Blocks are:
//!
//! - `console`: lines after `$ ` are commands, `> ` continues a command, and other lines are its output. A
//!   command exits with 0, unless a comment after it says otherwise: `# ends with 3`.
//! - `console background`: one command, which keeps running.
//! - `console interrupted`: the output of the last background command after Ctrl-C.
//! - `console killed`: the last background command is killed (SIGKILL).
//!
//! The number of spaces is ignored. `…` matches any text, and any lines if it is alone on a line. Numbers
//! must match, except pids, ids, rates and percentages. The first process that matches the page's
//! `memcached[812]` replaces 812 from then on. `SHOW=1` in the environment prints the output without
//! comparing it, which helps with writing pages.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Failed, Trial};
use linux::lab::{Lab, LabOptions, Memcached, MemcachedOptions};
use model::CpuSet;
use rustix::process::{Pid, Signal, kill_process, kill_process_group, setpriority_pgrp, setpriority_process};
use testkit::last_cpu;
use testkit::markdown::{Block, Document, markdown_below, repository};
use testkit::operator::waited_for;
use testkit::scratch::Scratch;
use testkit::{Need, test};

/// How often to run a page's commands until the output matches.
const PLAYS_MAX: u32 = 4;

/// The niceness of the server and its client, so that they run before other load.
const FIRST: i32 = -19;

/// The time limit of a command on a page.
const COMMAND_WITHIN: Duration = Duration::from_secs(60);

/// The time limit for a background command to print what the page shows.
const SAYS_WITHIN: Duration = Duration::from_secs(60);

/// How long an interrupted command may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(60);

/// The interval between checks whether a command has ended.
const PAUSE: Duration = Duration::from_millis(20);

/// Isolates the commands of a page: mounts sysfs for their network namespace, and temporary directories over
/// the places where netpolicy keeps files. `$0` is a scratch directory.
pub(crate) const OWN_FILES: &str = "set -e
mkdir $0/sys $0/etc
mount -t sysfs sysfs $0/sys
mount --rbind /sys/fs $0/sys/fs
mount --rbind /sys/kernel $0/sys/kernel
mount --rbind $0/sys /sys
cp -a /etc/. $0/etc
rm -rf $0/etc/netpolicy
mount --bind $0/etc /etc
mount -t tmpfs -o mode=755 tmpfs /var/lib
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/netpolicy
";

/// Commands that rename the server's device to a typical name.
const ETH0: &str = "ip link set veth-server down
ip link set veth-server name eth0
ip link set eth0 up
";

pub(crate) fn tests() -> Vec<Trial> {
    let docs = repository().join("docs");
    let pages = ["tutorial", "howto"].map(|folder| markdown_below(&docs.join(folder)));
    let readme = repository().join("README.md");
    // Skip pages without a console session: they have separate tests (container, Prometheus, packages).
    let has_session =
        |page: &PathBuf| std::fs::read_to_string(page).is_ok_and(|text| text.contains("```console"));
    let mut trials: Vec<Trial> =
        std::iter::once(readme).chain(pages.into_iter().flatten()).filter(has_session).map(trial).collect();
    trials.push(test("pages/a_line_that_differs_from_the_page_is_found", &[], differences_are_found));
    trials
}

/// Tests that output that matches a page is accepted, and that other output is not.
fn differences_are_found() -> Result<(), Failed> {
    let of = |text: &str| lines(text);
    for (shown, said, agree) in [
        ("eth0 rx-0  defer  0 → 100", "eth0 rx-0 defer 0 → 100", true),
        ("eth0 rx-0  defer  0 → 100", "eth0 rx-0 defer 0 → 50", false),
        ("memcached[812] epoll 3: 81 % of 13 packets/s", "memcached[9] epoll 3: 7 % of 5012 packets/s", true),
        ("memcached[812] epoll 3", "memcached[9] epoll 4", false),
        ("a\n…\nc", "a\nb\nb\nc", true),
        ("a\n…\nc", "a\nb", false),
        ("Rolled back ….", "Rolled back 20261122T181638.058658Z-42a0.", true),
        ("a", "a\nb", false),
        ("a", "", false),
    ] {
        if pairs(&of(shown), &of(said)).is_some() != agree {
            return Err(format!("`{shown}` and `{said}`: {agree} is wrong").into());
        }
    }
    Ok(())
}

/// Creates the test of a page.
fn trial(path: PathBuf) -> Trial {
    let name = path.file_stem().map(|stem| stem.to_string_lossy().replace('-', "_")).unwrap_or_default();
    let text = std::fs::read_to_string(&path).unwrap_or_default();
    let mut needs = vec![
        Need::Root,
        Need::Bpf,
        Need::Memcached,
        Need::Suspension,
        Need::ThreadPerNapi,
        Need::Program("memcaslap"),
        Need::Program("nsenter"),
    ];
    needs.extend(words(&text, "needs").iter().flat_map(|needs| needs.split(',')).map(need));
    test(format!("pages/{name}_does_what_it_shows"), &needs, move || play_often(&path, &text))
}

/// Returns the additional need with this name.
fn need(name: &str) -> Need {
    match name {
        "gact" => Need::GACT,
        "flower" => Need::FLOWER,
        "threaded-busy" => Need::ThreadedBusy,
        "util-clamps" => Need::UtilClamps,
        "redis-server" => Need::Program("redis-server"),
        unknown => panic!("a page's stage needs {unknown:?}, which no test can check"),
    }
}

/// Returns the value of a word in a page's `<!-- stage: -->` comment.
fn words<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    let (_, rest) = text.split_once("<!-- stage:")?;
    let (stage, _) = rest.split_once("-->")?;
    stage.split_whitespace().find_map(|pair| pair.strip_prefix(word)?.strip_prefix('='))
}

/// Runs a page until its output matches. Whether a mode is engaged depends on when the server gets CPU time,
/// and thus on other load.
fn play_often(path: &Path, text: &str) -> Result<(), Failed> {
    let mut played = play(path, text);
    for _ in 1..PLAYS_MAX {
        if played.is_ok() {
            break;
        }
        played = play(path, text);
    }
    played
}

/// Runs a page's blocks in order.
fn play(path: &Path, text: &str) -> Result<(), Failed> {
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    if !text.contains("<!-- stage:") {
        return Err(format!("{}: no comment specifies the stage of this page", path.display()).into());
    }
    let mut stage = Stage::new(&name, text)?;
    for block in Document::of(text).blocks {
        let played = match block.info.trim() {
            "console" => stage.types(&block),
            "console background" => stage.starts(&block),
            "console interrupted" => stage.interrupts(&block),
            "console killed" => stage.kills(),
            info if info.starts_with("console") => Err(format!("`{info}` is not a kind of block").into()),
            _ => Ok(()),
        };
        played.map_err(|failed| format!("{}:{}: {failed:?}", path.display(), block.line))?;
    }
    Ok(())
}

/// The hosts and files on which a page's commands run. Dropping it removes all of them.
struct Stage {
    /// The process that holds the stage's namespaces.
    holder: Group,
    background: Vec<Group>,
    /// Maps the pids and ids on the page to the actual ones.
    here: BTreeMap<String, String>,
    /// The client's load and the server with its hosts. They are stopped in this order.
    load: Option<Group>,
    server: Option<(Memcached, Lab)>,
    scratch: Scratch,
}

impl Stage {
    fn new(name: &str, text: &str) -> Result<Self, Failed> {
        let scratch = Scratch::new(&format!("page-{name}"))?;
        let number = |word| words(text, word).map_or(Ok(0), str::parse::<u32>);
        let (queues, threads, connections) = (number("queues")?, number("threads")?, number("load")?);
        let mut unshare = Command::new("unshare");
        unshare.args(["--mount", "--propagation", "private"]);
        let (server, script) = if queues == 0 {
            unshare.arg("--net");
            (None, format!("{OWN_FILES}ip link set lo up\n"))
        } else {
            let lab = Lab::new(&LabOptions::with_queues(queues))?;
            // A server with a single thread has the last CPU to itself; the client uses CPU 0.
            let cpus = if threads > 1 { CpuSet::new() } else { [last_cpu()?].into_iter().collect() };
            let options = MemcachedOptions { threads: threads.max(1), cpus, ..MemcachedOptions::default() };
            let memcached = lab.start_memcached(&options)?;
            goes_first(memcached.process().pid)?;
            (Some((memcached, lab)), format!("{OWN_FILES}{ETH0}"))
        };
        let mut command = match &server {
            Some((_, lab)) => {
                let mut inside = Command::new("nsenter");
                inside.arg(format!("--net=/proc/{}/ns/net", lab.server_pid())).arg("unshare");
                inside.args(unshare.get_args());
                inside
            }
            None => unshare,
        };
        let ready = scratch.path("ready");
        let script = format!("{script}touch $0/ready\nexec sleep 900");
        let holder =
            Group::of(command.args(["sh", "-c", &script]).arg(scratch.directory()), &scratch.path("holder"))?;
        let mut stage =
            Self { holder, background: Vec::new(), here: BTreeMap::new(), load: None, server, scratch };
        waited_for("the stage", || Ok(ready.exists().then_some(())))
            .map_err(|failed| format!("{failed:?}: {}", stage.holder.said().unwrap_or_default()))?;
        if let Some(before) = text.split_once("<!-- before: ").and_then(|(_, rest)| rest.split_once(" -->")) {
            let mut group = Group::of(&mut stage.command(before.0), &stage.scratch.path("said"))?;
            if group.ends(COMMAND_WITHIN)? != Some(0) {
                return Err(format!("`{}`: {}", before.0, group.said()?).into());
            }
        }
        // The page's setup is complete, so the device has NAPIs from here on.
        if let Some((_, lab)) = stage.server.as_ref().filter(|_| connections > 0) {
            stage.load = Some(client(lab, connections, &stage.scratch)?);
        }
        Ok(stage)
    }

    /// Runs the commands of a block, one after another.
    #[expect(clippy::print_stderr, reason = "the output of commands is shown to the author of a page")]
    fn types(&mut self, block: &Block) -> Result<(), Failed> {
        for step in steps(block)? {
            let command = self.as_here(&step.command);
            let mut group = Group::of(&mut self.command(&command), &self.scratch.path("said"))?;
            let code = group.ends(COMMAND_WITHIN)?;
            let said = group.said()?;
            // On a busy machine, the service may miss its goal, which doctor reports with exit code 3.
            let finds_more = step.code == 0 && code == Some(3) && command.starts_with("netpolicy doctor");
            if code != Some(step.code) && !finds_more {
                return Err(format!("`{command}` ended with {code:?}, not {}:\n{said}", step.code).into());
            }
            let shown: Vec<String> = step.shows.iter().map(|line| self.as_here(line)).collect();
            let written = std::env::var_os("SHOW").is_some();
            if written {
                eprintln!("$ {command}\n{said}");
            }
            match pairs(&shown, &lines(&said)) {
                Some(pairs) => pairs.iter().for_each(|(shown, said)| self.learn_process(shown, said)),
                None if written => {}
                None => {
                    let shown = shown.join("\n");
                    return Err(format!("`{command}` is shown with\n{shown}\nbut printed\n{said}").into());
                }
            }
        }
        Ok(())
    }

    /// Starts the command of a block, and waits until it has printed what the block shows.
    fn starts(&mut self, block: &Block) -> Result<(), Failed> {
        let [step] = &steps(block)?[..] else {
            return Err("a background block has exactly one command".into());
        };
        let command = self.as_here(&step.command);
        let words = self.scratch.path(&format!("background-{}", self.background.len()));
        let group = Group::of(&mut self.command(&command), &words)?;
        group.goes_first()?;
        let mut shown: Vec<String> = step.shows.iter().map(|line| self.as_here(line)).collect();
        shown.push(ANY.to_owned());
        let deadline = Instant::now() + SAYS_WITHIN;
        let pairs = loop {
            let said = lines(&group.said()?);
            if let Some(pairs) = pairs(&shown, &said) {
                break pairs;
            }
            if Instant::now() > deadline {
                let (shown, said) = (shown.join("\n"), said.join("\n"));
                return Err(format!("`{command}` is shown with\n{shown}\nbut printed\n{said}").into());
            }
            std::thread::sleep(PAUSE);
        };
        pairs.iter().for_each(|(shown, said)| self.learn(shown, said));
        self.background.push(group);
        Ok(())
    }

    /// Interrupts the last background command, and compares what it prints with the block.
    fn interrupts(&mut self, block: &Block) -> Result<(), Failed> {
        let mut group = self.background.pop().ok_or("no background command is running")?;
        let before = lines(&group.said()?).len();
        group.signal(Signal::INT);
        group.ends(ENDS_WITHIN)?;
        let said: Vec<String> = lines(&group.said()?).split_off(before);
        let shown: Vec<String> =
            block.lines.iter().filter(|line| *line != "^C").map(|line| self.as_here(line)).collect();
        match pairs(&shown, &said) {
            Some(_) => Ok(()),
            None => Err(format!(
                "Ctrl-C is shown with\n{}\nbut the command printed\n{}",
                shown.join("\n"),
                said.join("\n")
            )
            .into()),
        }
    }

    /// Kills the last background command.
    fn kills(&mut self) -> Result<(), Failed> {
        let mut group = self.background.pop().ok_or("no background command is running")?;
        group.signal(Signal::KILL);
        group.ends(ENDS_WITHIN).map(drop)
    }

    /// Creates the command that runs a line in the stage's namespaces.
    fn command(&self, line: &str) -> Command {
        let program = Path::new(env!("CARGO_BIN_EXE_netpolicy"));
        let path = std::env::var("PATH").unwrap_or_default();
        let beside = program.parent().unwrap_or(Path::new("/")).display();
        let mut command = Command::new("nsenter");
        command.arg(format!("--target={}", self.holder.child.id())).args(["--mount", "--net"]);
        // A shell starts background jobs with SIGINT ignored, and all their children inherit that.
        command.args(["env", "--default-signal=INT,QUIT", "bash", "-c"]);
        command.arg(format!("cd '{}' && {{\n{line}\n}}", self.scratch.directory().display()));
        command
            .env("PATH", format!("{beside}:/usr/sbin:/sbin:{path}"))
            .env("COLUMNS", "120")
            .env_remove("BASH_ENV");
        command
    }

    /// Replaces the page's pids and ids in a line with the actual ones.
    fn as_here(&self, line: &str) -> String {
        let mut line = line.to_owned();
        // Replace the longest words first, because they may contain a shorter one.
        let mut words: Vec<_> = self.here.iter().collect();
        words.sort_by_key(|(page, _)| std::cmp::Reverse(page.len()));
        for (page, here) in words {
            line = line.replace(page.as_str(), here);
        }
        line
    }

    /// Finds the actual process for the page's `memcached[812]`.
    fn learn_process(&mut self, shown: &str, said: &str) {
        for (shown, said) in shown.split_whitespace().zip(said.split_whitespace()) {
            let process = |word: &str| {
                let (name, rest) = word.split_once('[')?;
                Some((name.to_owned(), rest.split_once(']')?.0.parse::<u32>().ok()?))
            };
            if let (Some((page, shown)), Some((here, said))) = (process(shown), process(said))
                && page == here
                && shown != said
            {
                self.here.insert(shown.to_string(), said.to_string());
            }
        }
    }

    /// Learns the actual values of the page's pids and ids.
    fn learn(&mut self, shown: &str, said: &str) {
        let (shown, said): (Vec<_>, Vec<_>) =
            (shown.split_whitespace().collect(), said.split_whitespace().collect());
        if shown.len() != said.len() {
            return;
        }
        for (shown, said) in
            shown.into_iter().zip(said).filter(|(shown, said)| shown != said && !shown.contains(ANY))
        {
            let (page, here) = (numbers(shown), numbers(said));
            self.here.insert(shown.to_owned(), said.to_owned());
            for (page, here) in page.into_iter().zip(here).filter(|(page, _)| page.len() >= PID_DIGITS) {
                self.here.insert(page, here);
            }
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // First stop processes that may hold settings, then those that own the devices.
        for group in self.background.drain(..) {
            group.signal(Signal::INT);
            drop(group);
        }
        // Kill processes that a command left behind, such as the guard process of a confirmed trial. They
        // share the stage's mount namespace.
        for pid in in_mount_namespace_of(self.holder.child.id()) {
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// Gives all threads of a process the niceness `FIRST`.
fn goes_first(pid: model::Pid) -> Result<(), Failed> {
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let tid = task?.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        setpriority_process(tid, FIRST)?;
    }
    Ok(())
}

/// Returns the processes in the private mount namespace of a process, including that process.
fn in_mount_namespace_of(holder: u32) -> Vec<Pid> {
    let namespace = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let theirs = namespace(&holder.to_string());
    if theirs.is_none() || theirs == namespace("self") {
        return Vec::new();
    }
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let pids =
        names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()) && namespace(name) == theirs);
    pids.filter_map(|name| name.parse().ok().and_then(Pid::from_raw)).collect()
}

/// Starts a client that keeps connections to the server busy until the client is dropped.
fn client(lab: &Lab, connections: u32, scratch: &Scratch) -> Result<Group, Failed> {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={}", lab.client_path().display())).args([
        "taskset",
        "-c",
        "0",
        "nice",
        "-n",
        &FIRST.to_string(),
    ]);
    command.args(["memcaslap", "-T", "1"]);
    command.args(["-s", "192.0.2.1:11211", "-t", "15m", "-c", &connections.to_string()]);
    Group::of(&mut command, &scratch.path("client"))
}

/// A command with its descendants. Dropping it kills all of them.
struct Group {
    child: Child,
    words: PathBuf,
}

impl Group {
    /// Starts a command whose output goes to a file.
    fn of(command: &mut Command, words: &Path) -> Result<Self, Failed> {
        let file = File::create(words)?;
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).process_group(0);
        Ok(Self { child: command.spawn()?, words: words.to_owned() })
    }

    /// Returns the command's output so far.
    fn said(&self) -> Result<String, Failed> {
        Ok(std::fs::read_to_string(&self.words)?)
    }

    /// Gives the process group, and the children that it starts later, the niceness of the server and its
    /// client.
    fn goes_first(&self) -> Result<(), Failed> {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        Ok(setpriority_pgrp(group, FIRST)?)
    }

    fn signal(&self, signal: Signal) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, signal);
        }
    }

    /// Waits until the command exits, and returns its exit code.
    fn ends(&mut self, within: Duration) -> Result<Option<i32>, Failed> {
        let deadline = Instant::now() + within;
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status.code());
            }
            if Instant::now() > deadline {
                return Err(format!(
                    "the command did not end within {within:?}, and printed\n{}",
                    self.said()?
                )
                .into());
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Do not signal the group of a reaped child: the pid may have been reused.
        if let Ok(None) = self.child.try_wait() {
            let _ = self.ends(PAUSE);
            self.signal(Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// A command of a block, and the expected output.
#[derive(Default)]
struct Step {
    command: String,
    code: i32,
    shows: Vec<String>,
}

/// The prefix of a comment on the page that gives a command's exit code.
const ENDS_WITH: &str = "# ends with ";

fn steps(block: &Block) -> Result<Vec<Step>, Failed> {
    let mut steps: Vec<Step> = Vec::new();
    for line in &block.lines {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) => {
                let code = command.split_once(ENDS_WITH).map_or(Ok(0), |(_, code)| code.trim().parse())?;
                steps.push(Step { command: command.to_owned(), code, shows: Vec::new() });
            }
            (None, None) => return Err("a console block begins with a command, after `$ `".into()),
            (None, Some(step)) => match line.strip_prefix("> ").or((line == ">").then_some("")) {
                Some(more) if step.shows.is_empty() => {
                    step.command.push('\n');
                    step.command.push_str(more);
                }
                _ => step.shows.push(line.clone()),
            },
        }
    }
    Ok(steps)
}

/// The mark that stands for any text; on a line without other text, it stands for any number of lines.
const ANY: &str = "…";

/// The minimum number of digits of a pid or an id.
const PID_DIGITS: usize = 3;

/// Text before a number that differs between machines.
const VARIES_BEHIND: [&str; 10] =
    ["task ", "[", "pid:", "/proc/", "/fd/", "napi ", "attach ", "memcached ", "irq ", "process "];

/// Text after a number that differs between machines.
const VARIES_BEFORE: [&str; 4] = ["/s", " %", "?", " packets"];

fn lines(said: &str) -> Vec<String> {
    said.lines().map(str::to_owned).collect()
}

/// Pairs each line on the page with the printed line that matches it. Returns `None` if the output does not
/// match.
fn pairs(shown: &[String], said: &[String]) -> Option<Vec<(String, String)>> {
    let Some((first, rest)) = shown.split_first() else {
        return said.iter().all(|line| line.trim().is_empty()).then(Vec::new);
    };
    if first.trim() == ANY {
        return (0..=said.len()).find_map(|skipped| pairs(rest, &said[skipped..]));
    }
    let (line, later) = said.split_first()?;
    if first.trim().is_empty() != line.trim().is_empty() || !is_like(&plain(first), &plain(line)) {
        return None;
    }
    let mut found = pairs(rest, later)?;
    found.insert(0, (first.clone(), line.clone()));
    Some(found)
}

/// Returns whether a printed line matches a line on the page, which may contain `…`.
fn is_like(shown: &str, said: &str) -> bool {
    let Some((before, after)) = shown.split_once(ANY) else { return shown == said };
    let Some(rest) = said.strip_prefix(before) else { return false };
    after.is_empty() || (0..=rest.len()).any(|at| rest.is_char_boundary(at) && is_like(after, &rest[at..]))
}

/// Normalises a line: collapses spaces, and replaces numbers that differ between machines with `#`.
fn plain(line: &str) -> String {
    let line = line.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut text = String::new();
    let mut rest = line.as_str();
    while let Some(begin) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, number) = rest.split_at(begin);
        text.push_str(before);
        let length = number.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(number.len());
        let (number, behind) = number.split_at(length);
        let varies = VARIES_BEHIND.iter().any(|word| text.ends_with(word))
            || VARIES_BEFORE.iter().any(|word| behind.starts_with(word));
        text.push_str(if varies { "#" } else { number });
        rest = behind;
    }
    text + rest
}

/// Returns the numbers in a word.
fn numbers(word: &str) -> Vec<String> {
    word.split(|c: char| !c.is_ascii_digit()).filter(|number| !number.is_empty()).map(str::to_owned).collect()
}
