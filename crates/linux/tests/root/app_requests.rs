//! Tests policy requests of sockets and processes, in a cgroup that the test creates.
#![expect(clippy::print_stdout, reason = "a role reports to its test on standard output")]

use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bpf::app_requests::{Cgroup, Choice, RequestReader, RequestSource, RequestStore};
use libtest_mimic::{Failed, Trial};
use linux::{Cause, Errno, socket_policy};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use testkit::scratch::Scratch;
use testkit::subject::{ROLE, Subject, eventually, role_command};
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Bpf, Need::Cgroups];
    const PRCTL: &[Need] = &[Need::Root, Need::Bpf, Need::Cgroups, Need::Fentry];
    const CC: &[Need] = &[Need::Root, Need::Bpf, Need::Cgroups, Need::Cc];
    vec![
        test("app_requests/a_socket_has_the_policy_that_it_was_given", NEEDS, a_socket_has_its_policy),
        test("app_requests/what_is_no_policy_of_a_socket_is_refused", NEEDS, what_is_no_policy_is_refused),
        test("app_requests/a_user_chooses_within_what_is_allowed", NEEDS, within_what_is_allowed),
        test("app_requests/a_user_who_requests_the_same_again_and_again_is_reported_once", NEEDS, flooded),
        test("app_requests/other_options_are_the_kernels", CC, other_options_are_the_kernels),
        test("app_requests/a_child_and_its_sockets_inherit_from_their_process", NEEDS, children_inherit),
        test("app_requests/a_cgroup_within_an_enabled_one_is_refused", NEEDS, nested_cgroups_are_refused),
        test("app_requests/a_cgroup_that_was_removed_is_reported_and_cleaned_up", NEEDS, a_removed_cgroup),
        test("app_requests/a_directory_on_another_file_system_is_refused", NEEDS, another_file_system),
        test("app_requests/the_example_in_c", CC, example_in_c),
        test("app_requests/the_example_in_rust", NEEDS, example_in_rust),
        test("app_requests/the_numbers_are_those_of_the_header", CC, numbers_of_the_header),
        test("app_requests/a_process_asks_for_itself_by_prctl", PRCTL, prctl_answers),
        test("app_requests/a_full_table_of_processes_is_enomem", PRCTL, full_of_processes),
        test("app_requests/a_socket_without_room_for_its_policy_is_enomem", NEEDS, socket_without_room),
        test(
            "app_requests/where_prctl_is_unavailable_the_reason_is_reported",
            NEEDS,
            prctl_is_absent_or_there,
        ),
    ]
}

const LATENCY: u32 = 3;
const ALL: u32 = 0b100_1111;
const ANYTHING: &[Choice] = &[Choice { uid: None, numbers: ALL }];
const NOBODY: u32 = 65534;

/// The number of requests of a process that tries to keep a daemon busy.
const FLOOD: u32 = 20_000;

/// A BPF file system and a cgroup for one test; dropping this value removes both.
struct Ground {
    scratch: Scratch,
    pins: PathBuf,
    cgroup: PathBuf,
    mounted: Vec<PathBuf>,
}

impl Ground {
    fn new(test: &str) -> Result<Self, Failed> {
        let scratch = Scratch::new(&format!("app-requests-{test}"))?;
        let none = None::<&std::ffi::CStr>;
        let pins = scratch.path("bpf");
        std::fs::create_dir(&pins)?;
        mount("bpf", &pins, "bpf", MountFlags::empty(), none)?;
        let mut mounted = vec![pins.clone()];
        let mounts = std::fs::read_to_string("/proc/self/mounts")?;
        let known = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2"));
        let root = match known.and_then(|line| line.split(' ').nth(1)) {
            Some(root) => PathBuf::from(root),
            None => {
                let root = scratch.path("cgroup");
                std::fs::create_dir(&root)?;
                mount("cgroup2", &root, "cgroup2", MountFlags::empty(), none)?;
                mounted.push(root.clone());
                root
            }
        };
        let cgroup = root.join(format!("netpolicy-test-{test}-{}", std::process::id()));
        std::fs::create_dir(&cgroup)?;
        Ok(Self { scratch, pins, cgroup, mounted })
    }

    fn store(&self) -> RequestStore {
        RequestStore::at(self.pins.join("netpolicy"))
    }

    fn enabled(&self, choices: &[Choice]) -> Result<RequestStore, Failed> {
        let store = self.store();
        store.enable(&Cgroup::open(&self.cgroup)?, choices)?;
        Ok(store)
    }

    /// Returns a command that runs a program in the cgroup, as a user.
    fn inside(&self, uid: u32, program: &Path) -> Command {
        let mut command = Command::new("sh");
        let join = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", self.cgroup.display());
        command.args(["-c", &join, "sh"]);
        if uid != 0 {
            command.args(["setpriv", &format!("--reuid={uid}"), "--clear-groups", "--bounding-set=-all"]);
        }
        command.arg(program);
        command
    }

    /// Returns a command that plays a role of this binary in the cgroup.
    fn role(&self, uid: u32, role: &str) -> Result<Command, Failed> {
        let mut command = self.inside(uid, &std::env::current_exe()?);
        command.env(ROLE, format!("app-requests {role}"));
        Ok(command)
    }

    /// Runs a role and returns its output.
    fn says(&self, uid: u32, role: &str) -> Result<String, Failed> {
        said(&mut self.role(uid, role)?)
    }
}

fn said(command: &mut Command) -> Result<String, Failed> {
    let output = command.stdin(Stdio::null()).output()?;
    let words = String::from_utf8_lossy(&output.stdout).trim().replace('\n', " ");
    if output.status.success() {
        Ok(words)
    } else {
        Err(format!("{words} {}", String::from_utf8_lossy(&output.stderr)).into())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        let below = std::fs::read_dir(&self.cgroup).into_iter().flatten().flatten();
        for left in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
            let _ = std::fs::remove_dir(left.path());
        }
        let _ = eventually("the cgroup is empty", || std::fs::remove_dir(&self.cgroup).ok());
        for path in self.mounted.iter().rev() {
            let _ = unmount(path, UnmountFlags::DETACH);
        }
    }
}

type Played = Result<(), Box<dyn std::error::Error>>;

/// Executes the commands `words` in order, with one listener, and prints the result of each.
pub(crate) fn play(words: &[&str]) -> Played {
    let mut listener = TcpListener::bind("127.0.0.1:0")?;
    let said = |what: Result<String, Errno>| {
        println!("{}", what.unwrap_or_else(|errno| format!("errno:{}", errno.raw_os_error())));
    };
    let number = |answer: Result<i32, Errno>| answer.map(|number| number.to_string());
    let done = |answer: Result<(), Errno>| answer.map(|()| "ok".to_owned());
    for word in words {
        match word.split_once(':').unwrap_or((word, "")) {
            ("set", policy) => said(done(socket_policy::set_socket(&listener, policy.parse()?))),
            ("again", policy) => {
                let policy = policy.parse()?;
                (0..FLOOD).try_for_each(|_| socket_policy::set_socket(&listener, policy))?;
                println!("ok");
            }
            ("turns", policy) => {
                let policy = policy.parse()?;
                for turn in 0..FLOOD {
                    socket_policy::set_socket(&listener, if turn % 2 == 0 { policy } else { 0 })?;
                }
                println!("ok");
            }
            ("bytes", count) => {
                said(done(socket_policy::set_socket_bytes(&listener, &vec![0; count.parse()?])));
            }
            ("get", _) => said(number(socket_policy::socket(&listener))),
            ("accepted", _) => {
                let client = TcpStream::connect(listener.local_addr()?)?;
                let (accepted, _) = listener.accept()?;
                rustix::net::sockopt::set_socket_linger(&client, Some(std::time::Duration::ZERO))?;
                said(number(socket_policy::socket(&accepted)));
            }
            ("new", _) => {
                listener = TcpListener::bind("127.0.0.1:0")?;
                said(number(socket_policy::socket(&listener)));
            }
            ("unix", _) => {
                let socket = std::os::unix::net::UnixDatagram::unbound()?;
                said(done(socket_policy::set_socket(&socket, 3)));
            }
            ("task", policy) => said(done(socket_policy::set_task(policy.parse()?))),
            ("own", _) => said(number(socket_policy::task())),
            ("child", _) => {
                let mut child = role_command(&format!("app-requests {}", words.last().unwrap_or(&"")));
                print!("{}", String::from_utf8_lossy(&child.output()?.stdout));
                return Ok(());
            }
            ("example", _) => super::example::main()?,
            ("hold", _) => {
                println!("ready {}", std::process::id());
                super::role::until_stdin_closes();
            }
            _ => return Err(format!("there is no {word}").into()),
        }
    }
    Ok(())
}

fn a_socket_has_its_policy() -> Result<(), Failed> {
    let ground = Ground::new("own")?;
    let before = ground.says(0, "get set:3")?;
    let unknown = format!("errno:{}", Errno::NOPROTOOPT.raw_os_error());
    assert_eq!(before, format!("{unknown} {unknown}"), "before a program answers");
    let store = ground.enabled(ANYTHING)?;
    assert_eq!(ground.says(0, "get set:3 get accepted set:1 get accepted new")?, "0 ok 3 3 ok 1 1 0");
    assert_eq!(said(&mut role_command("app-requests get"))?, unknown, "outside the cgroup");
    // From outside the process, a socket with a policy is identified by its inode.
    let mut subject = Subject::start(&mut ground.role(0, "set:3 hold")?)?;
    assert_eq!(subject.line()?, "ok");
    subject.line()?;
    let found = store.sockets()?;
    let links: Vec<String> = std::fs::read_dir(format!("/proc/{}/fd", subject.pid()))?
        .flatten()
        .filter_map(|entry| Some(std::fs::read_link(entry.path()).ok()?.to_string_lossy().into_owned()))
        .collect();
    let of_subject = |inode: u64| links.contains(&format!("socket:[{inode}]"));
    let one =
        found.iter().find(|socket| of_subject(socket.inode)).ok_or("the process's socket was not found")?;
    assert_eq!((one.number, one.source), (LATENCY, RequestSource::Own));
    subject.kill();
    assert!(store.disable(Cgroup::open(&ground.cgroup)?.id())?);
    assert_eq!(ground.says(0, "get")?, unknown, "after it");
    assert!(!ground.pins.join("netpolicy").exists(), "nothing stays behind");
    Ok(())
}

fn what_is_no_policy_is_refused() -> Result<(), Failed> {
    let ground = Ground::new("refused")?;
    let store = ground.enabled(ANYTHING)?;
    let invalid = format!("errno:{}", Errno::INVAL.raw_os_error());
    // Policy 4 is not defined, and policy 5 is only for devices.
    for word in ["set:4", "set:5", "set:7", "set:99", "set:-1", "bytes:2"] {
        assert_eq!(ground.says(0, &format!("set:2 {word} get"))?, format!("ok {invalid} 2"), "{word}");
    }
    assert_eq!(
        ground.says(0, "bytes:0 unix")?,
        format!("{invalid} errno:{}", Errno::OPNOTSUPP.raw_os_error())
    );
    assert_eq!(
        ground.says(0, "bytes:8 get set:6 get")?,
        "ok 0 ok 6",
        "only the relevant part of a longer buffer is read"
    );
    store.disable(Cgroup::open(&ground.cgroup)?.id())?;
    Ok(())
}

fn within_what_is_allowed() -> Result<(), Failed> {
    let ground = Ground::new("allowed")?;
    let bulk = Choice { uid: None, numbers: 1 << 2 };
    let store = ground.enabled(&[bulk])?;
    let refused = format!("errno:{}", Errno::PERM.raw_os_error());
    assert_eq!(ground.says(NOBODY, "set:3 set:2 get set:0")?, format!("{refused} ok 2 ok"));
    assert_eq!(ground.says(0, "set:3 get")?, "ok 3", "a network administrator may choose any policy");
    // An entry for the user's uid replaces the entry for all users; the two are not combined.
    let named = Choice { uid: Some(NOBODY), numbers: 1 << 3 };
    ground.enabled(&[bulk, named])?;
    assert_eq!(ground.says(NOBODY, "set:3 set:2")?, format!("ok {refused}"));
    let enabled = store.enabled()?;
    assert_eq!(enabled.len(), 1);
    assert_eq!(enabled[0].path.as_deref(), Some(ground.cgroup.as_path()));
    assert_eq!(enabled[0].choices, [bulk, named]);
    ground.enabled(&[bulk])?;
    assert_eq!(ground.says(NOBODY, "set:3")?, refused, "the policy is no longer allowed");
    store.disable(enabled[0].id)?;
    Ok(())
}

fn flooded() -> Result<(), Failed> {
    /// The value of `REPORTS_MAX` in `app_requests.bpf.c`, per second.
    const REPORTS_MAX: u64 = 100;
    let ground = Ground::new("flooded")?;
    let bulk = Choice { uid: None, numbers: 1 << 2 };
    let store = ground.enabled(&[bulk])?;
    let mut reader = RequestReader::of(ground.store());
    assert!(reader.refresh()?);
    assert_eq!(
        ground.says(NOBODY, "again:0")?,
        "ok",
        "everyone may request the policy, and it changes no setting"
    );
    assert_eq!(reader.asked()?, []);
    assert_eq!(ground.says(NOBODY, "set:2 again:2 set:0")?, "ok ok ok");
    assert_eq!(reader.asked()?.len(), 2);
    let begun = std::time::Instant::now();
    assert_eq!(ground.says(NOBODY, "turns:2")?, "ok");
    let windows = begun.elapsed().as_secs() + 2;
    let reported = reader.asked()?.len();
    assert!(reported > 0 && reported as u64 <= REPORTS_MAX * windows, "{reported} in {windows} windows");
    // A request of another user is still reported.
    assert_eq!(ground.says(0, "set:2")?, "ok");
    assert_eq!(reader.asked()?.len(), 1);
    store.disable(Cgroup::open(&ground.cgroup)?.id())?;
    Ok(())
}

fn other_options_are_the_kernels() -> Result<(), Failed> {
    let ground = Ground::new("others")?;
    let program = ground.scratch.path("options");
    compile("crates/linux/tests/root/programs/options.c", &program)?;
    let before = said(&mut ground.inside(0, &program))?;
    let store = ground.enabled(ANYTHING)?;
    assert_eq!(said(&mut ground.inside(0, &program))?, before);
    store.disable(Cgroup::open(&ground.cgroup)?.id())?;
    Ok(())
}

fn children_inherit() -> Result<(), Failed> {
    let ground = Ground::new("tasks")?;
    let store = ground.enabled(ANYTHING)?;
    // A shell that creates no socket gets a policy from outside; the shell's children and grandchildren
    // create sockets.
    let mut shell = Subject::start(
        Command::new("sh")
            .args(["-c", "echo $$ > \"$1/cgroup.procs\"; echo ready; read _; said=$(\"$2\"); echo done; echo $said; read _", "sh"])
            .arg(&ground.cgroup)
            .arg(std::env::current_exe()?)
            .env(ROLE, "app-requests child get"),
    )?;
    assert_eq!(shell.line()?, "ready");
    store.set_task(shell.pid(), Some(LATENCY))?;
    assert_eq!(store.tasks()?.get(&shell.pid()), Some(&LATENCY));
    // The grandchild created a listener without a request for a policy.
    shell.go_on()?;
    assert_eq!(shell.line()?, "3");
    eventually("processes that exited have no policy", || {
        let tasks = store.tasks().ok()?;
        (tasks.len() == 1).then_some(())
    })?;
    store.set_task(shell.pid(), None)?;
    assert!(store.tasks()?.is_empty());
    store.set_task(shell.pid(), Some(1))?;
    shell.kill();
    eventually("a process that exited has no policy", || store.tasks().ok()?.is_empty().then_some(()))?;
    // A process that has already exited gets no policy.
    store.set_task(shell.pid(), Some(1))?;
    assert!(store.tasks()?.is_empty());
    assert_eq!(store.lost()?, 0);
    store.disable(Cgroup::open(&ground.cgroup)?.id())?;
    assert!(!ground.pins.join("netpolicy").exists(), "nothing stays behind");
    Ok(())
}

fn nested_cgroups_are_refused() -> Result<(), Failed> {
    let ground = Ground::new("nested")?;
    let store = ground.enabled(ANYTHING)?;
    let below = ground.cgroup.join("below");
    std::fs::create_dir(&below)?;
    let refused = store.enable(&Cgroup::open(&below)?, ANYTHING);
    std::fs::remove_dir(&below)?;
    let error = refused.err().ok_or("both would answer")?;
    assert_eq!(error.number(), Some(Errno::EXIST));
    assert!(error.to_string().contains("disable it first"), "{error}");
    store.disable(Cgroup::open(&ground.cgroup)?.id())?;
    Ok(())
}

fn a_removed_cgroup() -> Result<(), Failed> {
    let ground = Ground::new("removed")?;
    let store = ground.store();
    let short = ground.cgroup.join("short");
    std::fs::create_dir(&short)?;
    let id = {
        let cgroup = Cgroup::open(&short)?;
        store.enable(&cgroup, ANYTHING)?;
        cgroup.id()
    };
    std::fs::remove_dir(&short)?;
    let enabled = store.enabled()?;
    assert_eq!((enabled[0].id, enabled[0].path.as_ref()), (id, None));
    assert!(store.disable(id)?);
    assert!(!store.disable(id)?, "no file of the fixture is left");
    Ok(())
}

fn another_file_system() -> Result<(), Failed> {
    let ground = Ground::new("elsewhere")?;
    let store = RequestStore::at(ground.scratch.path("netpolicy"));
    let error = store.enable(&Cgroup::open(&ground.cgroup)?, ANYTHING).err().ok_or("no BPF file system")?;
    assert!(matches!(error.cause, Cause::Absent { .. }), "{error}");
    assert!(!ground.scratch.path("netpolicy").exists());
    Ok(())
}

fn example_in_c() -> Result<(), Failed> {
    let ground = Ground::new("example")?;
    let program = ground.scratch.path("socket_policy");
    compile("examples/socket_policy.c", &program)?;
    let store = ground.enabled(ANYTHING)?;
    assert_eq!(said(&mut ground.inside(0, &program))?, "listener 3 accepted 3 client 0");
    store.disable(Cgroup::open(&ground.cgroup)?.id())?;
    assert_eq!(said(&mut ground.inside(0, &program))?, "listener -1 accepted -1 client -1");
    Ok(())
}

fn example_in_rust() -> Result<(), Failed> {
    let ground = Ground::new("example-rust")?;
    let store = ground.enabled(ANYTHING)?;
    assert_eq!(ground.says(0, "example")?, "listener 3 accepted 3 client 0");
    store.disable(Cgroup::open(&ground.cgroup)?.id())?;
    assert_eq!(ground.says(0, "example")?, "listener -1 accepted -1 client -1");
    Ok(())
}

/// Compares the numbers in the header, as compiled by the C compiler, with those in this crate and the model.
fn numbers_of_the_header() -> Result<(), Failed> {
    let scratch = Scratch::new("app-requests-numbers")?;
    let program = scratch.path("numbers");
    compile("crates/linux/tests/root/programs/numbers.c", &program)?;
    let numbers = said(&mut Command::new(&program))?;
    let policies: Vec<String> = model::PolicyName::ALL.iter().map(|p| p.number().to_string()).collect();
    assert_eq!(numbers, format!("{} 20048 1313886028 1313886029 256", policies.join(" ")));
    Ok(())
}

fn prctl_answers() -> Result<(), Failed> {
    let ground = Ground::new("prctl")?;
    let store = ground.store();
    let invalid = format!("errno:{}", Errno::INVAL.raw_os_error());
    assert_eq!(ground.says(0, "own task:3")?, format!("{invalid} {invalid}"), "before a program answers");
    let bulk = Choice { uid: None, numbers: 1 << 2 };
    let without = store.enable(&Cgroup::open(&ground.cgroup)?, &[bulk])?;
    assert!(without.is_none(), "{without:?}");
    assert!(store.enabled()?[0].prctl);
    assert_eq!(ground.says(0, "own task:3 own new task:0 own new")?, "0 ok 3 3 ok 0 0");
    let refused = format!("errno:{}", Errno::PERM.raw_os_error());
    assert_eq!(
        ground.says(NOBODY, "task:3 task:2 task:5 task:99 own")?,
        format!("{refused} ok {invalid} {invalid} 2")
    );
    assert_eq!(ground.says(0, "task:2 child get")?, "ok 2", "a child's socket");
    assert_eq!(said(&mut role_command("app-requests own"))?, invalid, "outside the cgroup");
    eventually("processes that exited have no policy", || store.tasks().ok()?.is_empty().then_some(()))?;
    store.disable(Cgroup::open(&ground.cgroup)?.id())?;
    // The kernel detaches a program from a function asynchronously.
    eventually("prctl is no longer handled", || (ground.says(0, "own").ok()? == invalid).then_some(()))?;
    Ok(())
}

/// The maximum number of processes with a policy: `TASKS_MAX` in `app_requests.bpf.c`.
const TASKS_MAX: u32 = 65_536;

fn full_of_processes() -> Result<(), Failed> {
    use libbpf_rs::{MapCore, MapFlags, MapHandle};
    /// This value is above `PID_MAX_LIMIT`, so no process has such a pid.
    const FIRST: u32 = 1 << 23;
    let ground = Ground::new("full")?;
    let store = ground.enabled(ANYTHING)?;
    let tasks = MapHandle::from_pinned_path(ground.pins.join("netpolicy/registry/tasks"))?;
    let add = |pid: u32| tasks.update(&pid.to_ne_bytes(), &LATENCY.to_ne_bytes(), MapFlags::NO_EXIST);
    (FIRST..FIRST + TASKS_MAX).try_for_each(add)?;
    assert!(add(FIRST + TASKS_MAX).is_err(), "the table is full");
    let full = format!("errno:{}", Errno::NOMEM.raw_os_error());
    assert_eq!(
        ground.says(0, "task:3 own set:3 get")?,
        format!("{full} 0 ok 3"),
        "a socket needs no entry in the table"
    );
    tasks.delete(&FIRST.to_ne_bytes())?;
    assert_eq!(ground.says(0, "task:3 own")?, "ok 3");
    store.disable(Cgroup::open(&ground.cgroup)?.id())?;
    Ok(())
}

/// Tests a socket that has no room for more BPF storage. Kernel: 6.18, `net/core/bpf_sk_storage.c`
/// `bpf_sk_storage_charge()`.
fn socket_without_room() -> Result<(), Failed> {
    let ground = Ground::new("room")?;
    let store = ground.enabled(ANYTHING)?;
    let role = ground.role(0, "set:3 get")?;
    let mut inside = Command::new("unshare");
    inside.args(["--net", "sh", "-c"]);
    inside.arg("ip link set lo up && echo 0 > /proc/sys/net/core/optmem_max && exec \"$@\"");
    inside.arg("sh").arg(role.get_program()).args(role.get_args());
    inside.envs(role.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let full = format!("errno:{}", Errno::NOMEM.raw_os_error());
    assert_eq!(said(&mut inside)?, format!("{full} 0"));
    store.disable(Cgroup::open(&ground.cgroup)?.id())?;
    Ok(())
}

fn prctl_is_absent_or_there() -> Result<(), Failed> {
    let ground = Ground::new("absent")?;
    let store = ground.store();
    let without = store.enable(&Cgroup::open(&ground.cgroup)?, ANYTHING)?;
    let enabled = store.enabled()?;
    assert_eq!(enabled[0].prctl, without.is_none(), "{without:?}");
    if let Some(error) = without {
        assert!(
            error.number() == Some(Errno::PERM) || matches!(error.cause, Cause::Absent { .. }),
            "{error}"
        );
        assert!(error.to_string().starts_with("answer prctl: "), "{error}");
        let invalid = format!("errno:{}", Errno::INVAL.raw_os_error());
        assert_eq!(
            ground.says(0, "set:3 get own")?,
            format!("ok 3 {invalid}"),
            "requests of sockets are handled nevertheless"
        );
    } else {
        assert_eq!(ground.says(0, "set:3 get own")?, "ok 3 0");
    }
    store.disable(enabled[0].id)?;
    Ok(())
}

fn compile(source: &str, program: &Path) -> Result<(), Failed> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let status = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-I", &format!("{root}/include"), "-o"])
        .arg(program)
        .arg(format!("{root}/{source}"))
        .status()?;
    if status.success() { Ok(()) } else { Err(format!("cc {source}: {status}").into()) }
}
