//! Tests attacks by an unprivileged user (uid 65534) on the daemon, the commands and their files.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use apply::{Begin, FORMAT, Moment, ObjectCookies, TransactionOrigin, undo_script};
use libtest_mimic::{Failed, Trial};
use model::{
    Change, Fd, Nanoseconds, Pid, Plan, ProcessKnob, Reason, Setting, SocketId, SocketPolling, Step, ThreadId,
};
use testkit::operator::{Operator, Started, are, at_work, at_work_with, waited_for, waited_long_for};
use testkit::{Need, test};

use crate::monitored::fetched;

const NOBODY: u32 = 65_534;

pub(crate) fn tests() -> Vec<Trial> {
    const ROOT: &[Need] = &[Need::Root];
    const PYTHON: &[Need] = &[Need::Root, Need::Program("/usr/bin/python3")];
    const FUSE: &[Need] = &[Need::Root, Need::FuseForAll];
    vec![
        test("unprivileged/an_epoll_whose_lock_is_held_for_ever_keeps_nothing_waiting", FUSE, || {
            holds_a_lock("epoll")
        }),
        test("unprivileged/a_socket_whose_lock_is_held_for_ever_keeps_nothing_waiting", FUSE, || {
            holds_a_lock("send")
        }),
        test("unprivileged/a_socket_whose_lock_is_held_for_ever_keeps_no_undo_script_waiting", FUSE, || {
            holds_a_lock_of_undo(&["python3"])?;
            holds_a_lock_of_undo(&["perl"])
        }),
        test(
            "unprivileged/a_lock_that_is_taken_amid_a_commit_keeps_no_rollback_waiting",
            FUSE,
            amid_a_commit,
        ),
        test("unprivileged/connections_without_a_request_keep_no_collector_out", PYTHON, silent_connections),
        test("unprivileged/subordinate_uids_keep_no_other_user_out", PYTHON, subordinate_uids),
        test(
            "unprivileged/a_name_that_changes_the_direction_of_text_does_so_in_no_output",
            PYTHON,
            misleading_name,
        ),
        test("unprivileged/more_epolls_than_a_server_has_are_reported_and_not_managed", PYTHON, many_epolls),
        test("unprivileged/epolls_that_are_recreated_leave_log_and_journal_short", PYTHON, recreated_epolls),
        test("unprivileged/links_and_pipes_in_place_of_the_metrics_file_lead_nowhere", ROOT, metrics_file),
        test("unprivileged/a_state_directory_below_another_users_directory_is_refused", ROOT, below_theirs),
        test(
            "unprivileged/a_state_directory_that_an_access_control_list_opens_is_refused",
            ROOT,
            opened_by_acl,
        ),
        test("unprivileged/a_socket_below_another_users_directory_is_refused", ROOT, socket_below_theirs),
        test("unprivileged/a_command_that_fails_for_lack_of_rights_begins_with_who_may", ROOT, who_may),
    ]
}

/// Runs a program without privileges.
fn as_nobody(program: &str, arguments: &[&str]) -> Result<(), Failed> {
    let mut command = Command::new(program);
    command.args(arguments).uid(NOBODY).gid(NOBODY);
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// Returns the refusal of a command that must exit by itself. If a daemon starts instead, it is killed and
/// the test fails.
fn refused(operator: &Operator, arguments: &[&str]) -> Result<String, Failed> {
    let whole = operator.netpolicy(arguments);
    let mut command = Command::new("timeout");
    command.arg("20").arg(whole.get_program()).args(whole.get_args()).stdin(Stdio::null());
    let output = command.output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    match output.status.code() {
        Some(1) => Ok(said),
        code => Err(format!("{arguments:?} ended with {code:?}, not 1: {said}").into()),
    }
}

/// Creates a directory that belongs to the unprivileged user and that everyone may enter.
fn their_directory(operator: &Operator, name: &str) -> Result<PathBuf, Failed> {
    let directory = PathBuf::from(operator.file("nothing", b"")?).with_file_name(name);
    fs::create_dir(&directory)?;
    fs::set_permissions(&directory, Permissions::from_mode(0o755))?;
    chown(&directory, Some(NOBODY), Some(NOBODY))?;
    Ok(directory)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// Creates a file that only root may read or write.
fn precious(operator: &Operator) -> Result<PathBuf, Failed> {
    let path = PathBuf::from(operator.file("precious", b"precious")?);
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok(path)
}

fn is_untouched(precious: &Path) -> Result<(), Failed> {
    assert_eq!(fs::read(precious)?, b"precious");
    assert_eq!(fs::metadata(precious)?.permissions().mode() & 0o777, 0o600);
    Ok(())
}

fn metrics_file() -> Result<(), Failed> {
    let operator = Operator::new("their-metrics", 1)?;
    let (directory, precious) = (their_directory(&operator, "textfile")?, precious(&operator)?);
    let file = directory.join("x.prom");
    let unfinished = directory.join("x.prom.new");
    let refused = |why: &str| {
        let said = refused(&operator, &["daemon", "--metrics-file", text(&file)])?;
        assert!(said.contains(why) && said.contains(text(&directory)), "{said}");
        Ok::<_, Failed>(())
    };
    for at in [&unfinished, &file] {
        as_nobody("ln", &["-s", text(&precious), text(at)])?;
    }
    refused("it belongs to another user (uid 65534)")?;
    is_untouched(&precious)?;
    for at in [&unfinished, &file] {
        fs::remove_file(at)?;
    }
    // If the daemon opened the pipe, its owner could make the daemon wait forever for a reader.
    as_nobody("mkfifo", &[text(&unfinished)])?;
    refused("it belongs to another user (uid 65534)")?;
    chown(&directory, Some(0), Some(0))?;
    fs::set_permissions(&directory, Permissions::from_mode(0o1777))?;
    refused("every user can write to it (mode 1777)")?;
    assert_eq!(fs::read_dir(&directory)?.count(), 1, "no file was written there");
    Ok(())
}

fn below_theirs() -> Result<(), Failed> {
    let operator = Operator::new("their-way", 1)?;
    let directory = their_directory(&operator, "theirs")?;
    let (inside, link) = (directory.join("state"), directory.with_file_name("link"));
    fs::create_dir(&inside)?;
    fs::set_permissions(&inside, Permissions::from_mode(0o700))?;
    std::os::unix::fs::symlink(&inside, &link)?;
    for state in [&inside, &link, &directory.join("new")] {
        for command in
            [&["set", "device", "veth-server", "defer50"][..], &["rollback"], &["history"], &["status"]]
        {
            let said = operator.runs_with_state(state, command, 7)?.words;
            let why = format!("{}: it belongs to another user (uid 65534)", directory.display());
            assert!(said.contains(&why), "{said}");
        }
    }
    assert_eq!(fs::read_dir(&inside)?.count(), 0, "no file was written there");
    Ok(())
}

/// Tests a directory to which only its access control list lets the unprivileged user write.
fn opened_by_acl() -> Result<(), Failed> {
    // The entries of the access control list, each with tag, permissions and id: owner, this user, group,
    // mask, others. The attribute begins with a version. Kernel: `include/uapi/linux/posix_acl_xattr.h`.
    const NONE: u32 = u32::MAX;
    const ENTRIES: [(u16, u16, u32); 5] =
        [(1, 7, NONE), (2, 7, NOBODY), (4, 0, NONE), (0x10, 7, NONE), (0x20, 0, NONE)];
    let operator = Operator::new("their-acl", 1)?;
    let directory = PathBuf::from(operator.file("nothing", b"")?).with_file_name("opened");
    fs::create_dir(&directory)?;
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in ENTRIES {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    let name = "system.posix_acl_access";
    match rustix::fs::setxattr(&directory, name, &list, rustix::fs::XattrFlags::empty()) {
        // On a file system without ACLs there is nothing to test.
        Err(rustix::io::Errno::OPNOTSUPP) => return Ok(()),
        set => set?,
    }
    as_nobody("touch", &[text(&directory.join("theirs"))])?;
    for command in [&["set", "device", "veth-server", "defer50"][..], &["rollback"], &["status"]] {
        let said = operator.runs_with_state(&directory, command, 7)?.words;
        assert!(said.contains("its access control list lets other users write to it (getfacl)"), "{said}");
    }
    assert_eq!(fs::read_dir(&directory)?.count(), 1, "no file was written there");
    Ok(())
}

fn socket_below_theirs() -> Result<(), Failed> {
    let operator = Operator::new("their-socket", 1)?;
    let directory = their_directory(&operator, "theirs")?;
    let inside = directory.join("roots");
    fs::create_dir(&inside)?;
    let socket = inside.join("socket");
    for option in ["--socket", "--metrics-socket"] {
        let said = refused(&operator, &["daemon", option, text(&socket)])?;
        assert!(said.contains("it belongs to another user (uid 65534)"), "{said}");
    }
    let said = refused(&operator, &["attach-service", "--socket", text(&socket)])?;
    assert!(said.contains("it belongs to another user (uid 65534)"), "{said}");
    assert!(!socket.exists());
    Ok(())
}

/// A process of the unprivileged user that holds one of its own kernel locks indefinitely, with the help of a
/// FUSE server. Dropping this releases the lock.
struct Holder {
    server: Child,
    pid: u32,
    /// The process's own copy of its executable.
    program: PathBuf,
}

impl Holder {
    /// Starts the process in the operator's network namespace.
    fn new(operator: &Operator, kind: &str) -> Result<Self, Failed> {
        let directory = their_directory(operator, &format!("fuse-{kind}"))?;
        let program = directory.with_file_name("hang");
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/../linux/tests/root/programs/hang.c");
        let compiled = Command::new("cc").args(["-O1", "-o"]).arg(&program).arg(source).status()?;
        assert!(compiled.success(), "{source}");
        // Create a device node, because not every distribution lets everyone open /dev/fuse.
        let device = directory.with_file_name(format!("device-{kind}"));
        let (mode, number) = (rustix::fs::Mode::from_raw_mode(0o666), rustix::fs::makedev(10, 229));
        rustix::fs::mknodat(rustix::fs::CWD, &device, rustix::fs::FileType::CharacterDevice, mode, number)?;
        fs::set_permissions(&device, Permissions::from_mode(0o666))?;
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/proc/{}/ns/net", operator.lab.server_pid()));
        command.args(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]);
        command.arg(&program).arg(&directory).arg(kind).arg(device);
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(server.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        let pid = line.strip_prefix("ready ").and_then(|line| line.split(' ').next()?.parse().ok());
        let Some(pid) = pid else {
            server.kill()?;
            server.wait()?;
            return Err(format!("it said {line:?}").into());
        };
        Ok(Self { server, pid, program })
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // The FUSE server exits at the end of its input. The kernel then aborts the requests that it did not
        // answer.
        drop(self.server.stdin.take());
        let _ = self.server.wait();
    }
}

/// Runs a command that must exit by itself, whatever locks other processes hold.
fn ends(whole: &Command) -> Result<String, Failed> {
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "60"]).arg(whole.get_program()).args(whole.get_args()).stdin(Stdio::null());
    let output = command.output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.code().is_some(), "{:?} did not end: {said}", whole.get_args());
    Ok(said)
}

fn holds_a_lock(kind: &str) -> Result<(), Failed> {
    let operator = Operator::new(&format!("holds-{kind}"), 1)?;
    operator.inside("ip link set lo up")?;
    let holder = Holder::new(&operator, kind)?;
    let missed = format!("process {}", holder.pid);
    for command in [&["show"][..], &["doctor"], &["-o", "json", "show"]] {
        let said = ends(&operator.netpolicy(command))?;
        // If there are many processes, netpolicy lists sockets in a way for which the kernel takes no locks
        // of the processes.
        let is_missed = said.contains(&missed)
            && ["not readable", "could not be read"].iter().any(|words| said.contains(words));
        assert_eq!(is_missed, kind == "epoll", "{command:?}: {said}");
    }
    ends(&operator.netpolicy(&["set", "device", "veth-server", "defer50"]))?;
    are(&operator, &[50_000])?;
    ends(&operator.netpolicy(&["rollback"]))?;
    // With this section, the daemon observes the process. Match by executable, because concurrent tests have
    // similar processes.
    let policy = format!(
        "[service.theirs]\nmatch = {{ uid = 65534, exe = {:?} }}\npolicy = \"latency\"\ndelivery = \"suspend20\"\n",
        holder.program
    );
    let daemon = at_work(&operator, &policy)?;
    waited_for("the daemon's messages about the process", || {
        let said = ends(&operator.netpolicy(&["status"]))?;
        Ok((said.contains("not readable") || said.contains("theirs")).then_some(()))
    })?;
    ends(&operator.netpolicy(&["set", "device", "veth-server", "defer50"]))?;
    are(&operator, &[50_000])?;
    assert_eq!(daemon.terminated()?, Some(0), "the daemon ends when it is terminated");
    drop(holder);
    Ok(())
}

/// Tests a process that locks one of its io_urings after the first ring was set and before the last one is:
/// the commit, the undo and later commands must end, and the journal must be free.
fn amid_a_commit() -> Result<(), Failed> {
    let operator = Operator::new("amid", 1)?;
    operator.inside("ip link set lo up")?;
    let before = operator.devices()?;
    let holder = Holder::new(&operator, "ring")?;
    let pid = holder.pid.to_string();
    let began = Instant::now();
    let said = ends(&operator.netpolicy(&["set", "task", &pid, "suspend50"]))?;
    // netpolicy reads a ring before it sets it. For the read, the kernel only tries to take the lock (EBUSY).
    assert!(said.contains("no answer") || said.contains("(EBUSY)"), "{said}");
    assert!(began.elapsed() < Duration::from_secs(20), "the command gives up only once");
    // All of these commands take the journal's lock.
    for (command, code) in
        [(&["set", "device", "veth-server", "defer20"][..], 0), (&["rollback"], 0), (&["history"], 0)]
    {
        let mut whole = Command::new("timeout");
        let command = operator.netpolicy(command);
        whole.args(["-s", "KILL", "30"]).arg(command.get_program()).args(command.get_args());
        let output = whole.stdin(Stdio::null()).output()?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert_eq!(output.status.code(), Some(code), "{:?}: {said}", command.get_args());
    }
    // The kernel discards the settings that could not be restored when the process exits.
    drop(holder);
    ends(&operator.netpolicy(&["rollback"]))?;
    operator.is_again(&before)?;
    Ok(())
}

/// Runs the undo script of changes to such a process with only these interpreters. The script must exit, and
/// undo what it can.
fn holds_a_lock_of_undo(languages: &[&str]) -> Result<(), Failed> {
    let operator = Operator::new("holds-undo", 1)?;
    operator.inside("ip link set lo up")?;
    let holder = Holder::new(&operator, "send")?;
    let process = linux::process::identify(Pid(holder.pid))?;
    let inode = fs::metadata(format!("/proc/{}/fd/50", holder.pid))?.ino();
    let socket = |fd| SocketId { process, fd: Fd(fd), inode };
    let polling =
        |busy_poll_usecs| SocketPolling { busy_poll_usecs, prefer_busy_poll: false, busy_poll_budget: None };
    let thread = ThreadId { process, tid: process.pid, started: process.started, comm: process.comm };
    let cpus = linux::process::read_thread_affinity(&thread)?;
    let changes = [
        (ProcessKnob::ThreadAffinity(thread, cpus), ProcessKnob::ThreadAffinity(thread, "0".parse()?)),
        (ProcessKnob::Socket(socket(51), polling(0)), ProcessKnob::Socket(socket(51), polling(64))),
        (ProcessKnob::Socket(socket(50), polling(0)), ProcessKnob::Socket(socket(50), polling(64))),
        (ProcessKnob::Socket(socket(50), polling(0)), ProcessKnob::Socket(socket(50), polling(63))),
    ];
    let steps = changes.map(|(was, is)| {
        let (was, is) = (Setting::Process(was), Setting::Process(is));
        Step::new(vec![Change::new(was, is, Reason::new("it polls", "a test"))])
    });
    let script = undo_script_of(&operator, Plan { steps: steps.to_vec() })?;
    let path = directory_of_programs(&operator, languages)?;
    let began = Instant::now();
    let mut command = Command::new("/usr/bin/timeout");
    command.args(["-s", "KILL", "60", "/bin/sh", &script, "--by-hand"]);
    command.env("PATH", path).stdin(Stdio::null());
    let output = command.output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.code().is_some(), "the script did not end: {said}");
    assert!(said.contains("cpus_allowed: is "), "what does not block is undone: {said}");
    if languages == ["python3"] {
        // The Python script blocks on the socket's lock when it reads the socket's address.
        assert_eq!(output.status.code(), Some(5), "{said}");
        assert_eq!(said.matches("its process does not answer").count(), 3, "{said}");
        assert!(began.elapsed() < Duration::from_secs(30), "the script waits once for each process");
    } else {
        assert!(said.contains("socket 51: so_busy_poll usecs/budget/prefer: gone"), "{said}");
    }
    Ok(())
}

/// Writes the undo script of a plan to a file.
fn undo_script_of(operator: &Operator, plan: Plan) -> Result<String, Failed> {
    let asked = TransactionOrigin {
        at: Moment { unix_micros: 0, since_boot: Nanoseconds::ZERO },
        command: "test".to_owned(),
        kernel_release: String::new(),
        netpolicy: String::new(),
        deadline: None,
    };
    let begin = Begin {
        format: FORMAT,
        boot_id: fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_owned(),
        asked,
        owned_by: None,
        left_in_force: false,
        kept_by_daemon: false,
        replaces: Vec::new(),
        object_cookies: ObjectCookies::default(),
        plan,
    };
    let script = undo_script("19700101T000000.000000Z-0001".parse()?, &begin);
    operator.file("undo.sh", script.as_bytes())
}

/// Creates a directory for `PATH` with basic programs and `more`.
fn directory_of_programs(operator: &Operator, more: &[&str]) -> Result<PathBuf, Failed> {
    const PLAIN: [&str; 11] =
        ["sh", "cat", "stat", "dirname", "readlink", "tr", "sed", "cut", "true", "taskset", "mount"];
    let directory = PathBuf::from(operator.file("nothing", b"")?).with_file_name("programs");
    fs::create_dir(&directory)?;
    for program in PLAIN.iter().chain(more) {
        let places = ["/usr/bin", "/bin", "/usr/sbin", "/sbin"];
        let found = places.iter().map(|place| Path::new(place).join(program)).find(|path| path.exists());
        let found = found.ok_or_else(|| format!("{program} is not installed"))?;
        std::os::unix::fs::symlink(found, directory.join(program))?;
    }
    Ok(directory)
}

/// Runs a Python script in the lab without privileges, and waits until it is ready.
fn theirs(operator: &Operator, script: &str) -> Result<Started, Failed> {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/proc/{}/ns/net", operator.lab.server_pid()));
    command.args(["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--"]);
    command
        .env("PATH", "/usr/bin:/bin")
        .args(["python3", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut process = Started { child: command.spawn()? };
    let mut line = String::new();
    BufReader::new(process.child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    assert_eq!(line, "ready\n");
    Ok(process)
}

fn silent_connections() -> Result<(), Failed> {
    const SCRIPT: &str = "import socket, sys\n\
        silent = [socket.create_connection(('127.0.0.1', 9989)) for _ in range(60)]\n\
        print('ready', flush=True)\nsys.stdin.read()\n";
    let operator = Operator::new("silent", 1)?;
    operator.inside("ip link set lo up")?;
    let policy = "[device.veth-server]\npolicy = \"latency\"\ndelivery = \"defer50\"\n";
    let daemon = at_work_with(&operator, policy, &["--metrics-listen", "127.0.0.1:9989"])?;
    let process = theirs(&operator, SCRIPT)?;
    for _ in 0..3 {
        let page = fetched(&operator, "127.0.0.1:9989", "/metrics")?;
        assert!(page.contains("netpolicy_"), "{page}");
    }
    drop(process);
    assert_eq!(daemon.terminated()?, Some(0));
    Ok(())
}

/// Tests a user namespace with the 65536 uids that `/etc/subuid` gives a user. Seven of the uids connect
/// eight times each.
fn subordinate_uids() -> Result<(), Failed> {
    const SCRIPT: &str = "import ctypes, os, socket, sys\n\
        begun, mapped = os.pipe(), os.pipe()\n\
        child = os.fork()\n\
        if child:\n\
        \x20   os.read(begun[0], 1)\n\
        \x20   for file in 'uid_map', 'gid_map':\n\
        \x20       open(f'/proc/{child}/{file}', 'w').write('0 100000 65536')\n\
        \x20   os.write(mapped[1], b'x')\n\
        \x20   sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n\
        assert ctypes.CDLL(None).unshare(0x10000000) == 0\n\
        os.write(begun[1], b'x')\n\
        os.read(mapped[0], 1)\n\
        os.setresuid(0, 0, 0)\n\
        held = []\n\
        for uid in range(1, 8):\n\
        \x20   os.seteuid(uid)\n\
        \x20   for _ in range(8):\n\
        \x20       client = socket.socket(socket.AF_UNIX)\n\
        \x20       client.connect(sys.argv[1])\n\
        \x20       held.append(client)\n\
        \x20   os.seteuid(0)\n\
        print('ready', flush=True)\nsys.stdin.read()\n";
    let operator = Operator::new("subordinate", 1)?;
    let policy = "[device.veth-server]\npolicy = \"latency\"\ndelivery = \"defer50\"\n";
    let daemon = at_work(&operator, policy)?;
    let socket = operator.state().join("io.netpolicy");
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", SCRIPT]).arg(&socket).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut theirs = Started { child: command.spawn()? };
    let mut line = String::new();
    BufReader::new(theirs.child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
    assert_eq!(line, "ready\n");
    waited_for("the connections beyond the limit", || {
        Ok(operator.said()?.contains("other user namespaces was rejected").then_some(()))
    })?;
    // The daemon still answers another unprivileged user, whose uid is not mapped in that namespace.
    const ASK: &str = "import socket, sys\n\
        client = socket.socket(socket.AF_UNIX)\n\
        client.settimeout(20)\n\
        client.connect(sys.argv[1])\n\
        client.sendall(b'{\"method\": \"io.netpolicy.Status\"}\\0')\n\
        answer = client.recv(1 << 16)\n\
        assert b'\"status\"' in answer, answer\n";
    as_nobody("/usr/bin/python3", &["-c", ASK, text(&socket)])?;
    operator.runs(&["status"], 0)?;
    drop(theirs);
    assert_eq!(daemon.terminated()?, Some(0));
    Ok(())
}

/// Tests the output of the commands and the daemon about a process whose name contains U+202E, which reverses
/// the text after it.
fn misleading_name() -> Result<(), Failed> {
    const SCRIPT: &str = "import select, socket, sys\n\
        open('/proc/self/comm', 'wb').write('a\\u202ed\\u2066e\\x1b[7m'.encode())\n\
        server = socket.create_server(('', 7070))\n\
        epolls = [select.epoll() for _ in range(2)]\n\
        [epoll.register(server) for epoll in epolls]\n\
        print('ready', flush=True)\nsys.stdin.read()\n";
    let operator = Operator::new("misleading", 1)?;
    operator.inside("ip link set lo up")?;
    let process = theirs(&operator, SCRIPT)?;
    let pid = process.child.id().to_string();
    let policy =
        "[service.theirs]\nmatch = { uid = 65534 }\npolicy = \"latency\"\ndelivery = \"suspend20\"\n";
    let is_clean = |what: &str, said: &str| {
        let wrong = said.find(|c: char| model::is_misleading(c) && c != '\n');
        assert!(wrong.is_none(), "{what}: {:?}", &said[wrong.unwrap_or_default()..]);
    };
    let commands = [
        &["show"][..],
        &["-o", "json", "show"],
        &["doctor"],
        &["-o", "json", "doctor"],
        &["init"],
        &["-v", "set", "task", &pid, "suspend20"],
        &["-o", "json", "set", "task", &pid, "suspend50"],
        &["history"],
        &["-o", "json", "history"],
        &["verify"],
        &["rollback", "--script"],
        &["rollback"],
        &["-o", "json", "rollback"],
    ];
    let mut named = 0;
    for command in commands {
        let output = operator.netpolicy(command).output()?;
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        is_clean(&format!("{command:?}"), &said);
        named += usize::from(said.contains("a\u{fffd}d"));
    }
    assert!(named >= 3, "{named} outputs name the process");
    let metrics = operator.file("metrics.prom", b"")?;
    let daemon = at_work_with(&operator, policy, &["--metrics-file", &metrics])?;
    waited_for("the daemon's log", || Ok(operator.said()?.contains("a\u{fffd}d").then_some(())))?;
    for command in [&["status"][..], &["-o", "json", "status"], &["verify"]] {
        let said = operator.netpolicy(command).output()?;
        is_clean(&format!("{command:?}"), &String::from_utf8_lossy(&said.stdout));
    }
    is_clean("the log", &operator.said()?);
    is_clean("the metrics", &fs::read_to_string(&metrics)?);
    for entry in fs::read_dir(operator.state().join("journal"))? {
        let script = entry?.path().join("undo.sh");
        if script.exists() {
            is_clean("undo.sh", &fs::read_to_string(&script)?.replace('\t', ""));
        }
    }
    drop(process);
    assert_eq!(daemon.terminated()?, Some(0));
    Ok(())
}

/// Tests that the daemon's memory and time for one process are bounded, with a process that has many epolls.
fn many_epolls() -> Result<(), Failed> {
    const SCRIPT: &str = "import resource, select, socket, sys\n\
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)\n\
        server = socket.create_server(('127.0.0.1', 0))\n\
        epolls = [select.epoll() for _ in range(700)]\n\
        [epoll.register(server) for epoll in epolls]\n\
        print('ready', flush=True)\nsys.stdin.read()\n";
    let operator = Operator::new("many-epolls", 1)?;
    operator.inside("ip link set lo up")?;
    let _process = theirs(&operator, SCRIPT)?;
    let host = operator.runs(&["-o", "json", "show"], 0)?;
    let host: serde_json::Value = serde_json::from_str(&host.data)?;
    let found = host["data"]["processes"].as_array().into_iter().flatten();
    let epolls: usize = found.map(|process| process["epolls"].as_array().map_or(0, Vec::len)).sum();
    assert_eq!(epolls, 512);
    let unread = host["data"]["unread"].to_string();
    assert!(unread.contains("188 more than the 512 of one process that are managed"), "{unread}");
    Ok(())
}

/// Returns the total size of all transactions in bytes.
fn journal_bytes(operator: &Operator) -> Result<u64, Failed> {
    let mut bytes = 0;
    for transaction in fs::read_dir(operator.state().join("journal"))? {
        // netpolicy may compact a transaction meanwhile, which removes files.
        for file in fs::read_dir(transaction?.path()).into_iter().flatten() {
            bytes += file?.metadata().map_or(0, |file| file.len());
        }
    }
    Ok(bytes)
}

/// Tests a process that recreates its epolls each time that they are set: the log and the journal stay short,
/// and the daemon keeps answering.
fn recreated_epolls() -> Result<(), Failed> {
    // EPIOCGPARAMS: `include/uapi/linux/eventpoll.h`.
    const SCRIPT: &str = "import fcntl, resource, select, socket, time\n\
        resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)\n\
        server = socket.create_server(('127.0.0.1', 0))\n\
        print('ready', flush=True)\n\
        for _ in range(2):\n\
        \x20   epolls = [select.epoll() for _ in range(2000)]\n\
        \x20   [epoll.register(server) for epoll in epolls]\n\
        \x20   while not any(fcntl.ioctl(epolls[500], 0x80088a02, bytes(8))): time.sleep(0.01)\n\
        \x20   time.sleep(0.2)\n\
        \x20   [epoll.close() for epoll in epolls]\n";
    const POLICY: &str =
        "[service.theirs]\nmatch = { uid = 65534 }\npolicy = \"latency\"\ndelivery = \"suspend20\"\n";
    let operator = Operator::new("recreated-epolls", 1)?;
    operator.inside("ip link set lo up")?;
    let mut process = theirs(&operator, SCRIPT)?;
    let daemon = at_work(&operator, POLICY)?;
    let status = waited_long_for("the last epolls", || {
        // `status` exits with 3 until everything is set.
        let status = operator.netpolicy(&["status"]).output()?.status.code();
        assert!([Some(0), Some(3)].contains(&status), "{status:?}");
        Ok(process.child.try_wait()?)
    })?;
    assert!(status.success(), "{status}");
    // Each round adds one log line, and about half a megabyte to the journal for the 512 managed epolls.
    let (said, bytes) = (operator.said()?, journal_bytes(&operator)?);
    let lines = said.matches("busy_poll usecs/budget/prefer").count();
    assert!((1..=12).contains(&lines), "{said}");
    assert!(said.contains("and 511 more like this one for this process"), "{said}");
    assert!(bytes < 2 << 20, "{bytes} bytes");
    waited_for("a journal without the process", || Ok((journal_bytes(&operator)? < 100_000).then_some(())))?;
    assert_eq!(daemon.terminated()?, Some(0));
    Ok(())
}

fn who_may() -> Result<(), Failed> {
    let operator = Operator::new("who-may", 1)?;
    let program = operator.file("netpolicy", &fs::read(env!("CARGO_BIN_EXE_netpolicy"))?)?;
    for tool in &cli::programs::TOOLS {
        let built = Path::new(env!("CARGO_BIN_EXE_netpolicy")).with_file_name(tool.program);
        operator.file(tool.program, &fs::read(built)?)?;
    }
    let rules = operator.file("rules", b"qdisc add dev lo clsact\n")?;
    let policy =
        operator.file("policy.toml", b"[device.lo]\npolicy = \"none\"\nsettings = { rps_cpus = \"0\" }\n")?;
    for arguments in [
        &["set", "device", "lo", "none", "--setting", "rps_cpus=0"] as &[&str],
        &["apply", "--policy-file", &policy],
        &["try", "--policy-file", &policy],
        &["attach", "1", "--policy", "latency"],
        &["watch", "1"],
        &["daemon"],
        &["lab", "--", "true"],
        &["bench", "policies"],
        &["tc", "load", &rules],
    ] {
        // Merge standard output and standard error, as on a terminal.
        let mut command = Command::new("timeout");
        command.args(["20", "sh", "-c", "exec \"$@\" 2>&1", "sh", &program]).args(arguments);
        let output = command.stdin(Stdio::null()).uid(NOBODY).gid(NOBODY).output()?;
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        let words = "Run netpolicy as root, or with CAP_NET_ADMIN";
        assert!(said.starts_with(words), "{arguments:?}: {said}");
        assert_eq!(said.matches("Run netpolicy as root").count(), 1, "{arguments:?}: {said}");
    }
    // Commands that any user may run do not demand root.
    let schema = Command::new(&program).arg("schema").uid(NOBODY).gid(NOBODY).output()?;
    assert!(
        schema.status.success() && schema.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&schema.stderr)
    );
    Ok(())
}
