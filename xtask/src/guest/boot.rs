//! Runs one command in one guest. The guest does not outlive the call that runs the command, or this process.

use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::cache::Cache;
use crate::files::{self, About as _};
use crate::shell::{self, Result};

/// How long a guest may take until its command starts. Emulated CPUs on a busy machine need most of this
/// time.
pub(super) const BOOT_LIMIT: Duration = Duration::from_secs(240);

/// How often the guest's output is read.
const LOOK: Duration = Duration::from_millis(50);

/// The name of the file with the token, in the guest's directory.
const TOKEN: &str = "token";

/// How many console lines to print when a guest hangs or dies.
const CONSOLE_TAIL: usize = 30;

/// A kernel that can boot with this machine's files as its root.
pub(super) trait Guest {
    /// Describes the kernel to people.
    fn described(&self) -> String;
    /// Returns the command that boots the kernel; the command's standard output is the console.
    fn command(&self, run: &Run) -> Result<Command>;
    /// Returns the path of the kernel's modules, for `/lib/modules/RELEASE`, if it has any.
    fn modules(&self) -> Option<PathBuf>;
    /// Prepares the process of [`Guest::command`] so that the guest's command runs undisturbed.
    fn settle(&self, _process: u32) -> Result {
        Ok(())
    }
}

/// A command to run in a guest.
pub(super) struct Order {
    /// The command and its arguments.
    pub(super) command: Vec<String>,
    /// The environment, beyond `PATH` and `HOME`.
    pub(super) environment: Vec<(String, String)>,
    /// The working directory.
    pub(super) directory: PathBuf,
    /// The time limit from starting the guest until the command starts.
    pub(super) boot_limit: Duration,
    /// The time limit of the command.
    pub(super) limit: Duration,
}

/// A command on this machine that is a client of the guest's command, through the network.
pub(super) struct Client {
    /// The command and its arguments. The path of the token is added.
    pub(super) command: Vec<String>,
    /// The text that the guest's command prints to its standard error when the client may start.
    pub(super) waits_for: &'static str,
    /// The number of random bytes in the token. Client and guest find the token in the guest's directory.
    pub(super) token_bytes: usize,
}

/// One of a command's two outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    Out,
    Error,
}

/// The directory of one guest, which the guest sees as `/run/guest`. It is removed after the guest has ended.
pub(super) struct Run {
    directory: PathBuf,
}

/// The outcome of a command in a guest.
#[derive(Debug)]
pub(super) struct Ended {
    /// The command's exit code.
    pub(super) code: i32,
    /// The time from starting the guest until the command started.
    pub(super) booted_in: Duration,
}

/// Boots a guest, runs the command in it and passes on its output.
pub(super) fn execute(
    cache: &Cache,
    guest: &dyn Guest,
    order: &Order,
    received: &mut dyn FnMut(Stream, &[u8]),
) -> Result<Ended> {
    execute_with(cache, guest, order, None, received)
}

/// Boots a guest and runs the command in it. With a client, the run ends when the client exits, and has the
/// client's exit code.
pub(super) fn execute_with(
    cache: &Cache,
    guest: &dyn Guest,
    order: &Order,
    client: Option<&Client>,
    received: &mut dyn FnMut(Stream, &[u8]),
) -> Result<Ended> {
    need_root()?;
    watch(cache, guest, order, client, received)
}

/// Refuses to continue without root, before something is built that the user could not boot.
pub(super) fn need_root() -> Result {
    if shell::is_root() {
        return Ok(());
    }
    Err("a guest runs on the host's files and has namespaces of its own: run this as root".to_owned())
}

/// Boots the guest, and waits until the client has exited or, without a client, the guest's command.
fn watch(
    cache: &Cache,
    guest: &dyn Guest,
    order: &Order,
    client: Option<&Client>,
    received: &mut dyn FnMut(Stream, &[u8]),
) -> Result<Ended> {
    let run = Run::begin(cache)?;
    if let Some(client) = client {
        run.write_token(client.token_bytes)?;
    }
    run.write_script("stage", include_str!("stage.sh"))?;
    run.write_script("command", &order.script())?;
    if let Some(modules) = guest.modules() {
        files::write(&run.directory.join("modules"), &format!("{}\n", modules.display()))?;
    }
    let console = run.create("console")?;
    let complaints = console.try_clone().map_err(|error| format!("the guest's console: {error}"))?;
    let mut outputs = [(Stream::Out, run.follow("stdout")?), (Stream::Error, run.follow("stderr")?)];
    let mut command = guest.command(&run)?;
    let begun = Instant::now();
    let child = command.stdin(Stdio::null()).stdout(console).stderr(complaints).spawn();
    let mut guest_process = Killed(child.map_err(|error| format!("{}: {error}", shell::name(&command)))?);

    let mut booted: Option<Instant> = None;
    let mut client_process = None;
    loop {
        let ended = match &mut client_process {
            Some(Killed(process)) => code_of(process)?,
            None => run.read("exit").and_then(|code| code.trim().parse().ok()),
        };
        let died = guest_process.0.try_wait().map_err(|error| format!("waiting for the guest: {error}"))?;
        for (stream, file) in &mut outputs {
            pass_on(*stream, file, received)?;
        }
        if booted.is_none() && run.read("begun").is_some() {
            booted = Some(Instant::now());
            guest.settle(guest_process.0.id())?;
        }
        if let (Some(client), None) = (client, &client_process)
            && run.read("stderr").is_some_and(|said| said.contains(client.waits_for))
        {
            client_process = Some(client.start(guest_process.0.id(), &run)?);
        }
        if let Some(code) = ended {
            let booted_in = booted.unwrap_or_else(Instant::now).duration_since(begun);
            return Ok(Ended { code, booted_in });
        }
        if let Some(status) = died {
            return Err(
                run.blame(&format!("{} ended ({status}) before its command ended", guest.described()))
            );
        }
        let (since, limit, doing) = match booted {
            None => (begun, order.boot_limit, "did not come up"),
            Some(at) => (at, order.limit, "was still running its command"),
        };
        if since.elapsed() > limit {
            let seconds = limit.as_secs();
            return Err(
                run.blame(&format!("{} {doing} after {seconds} s and was stopped", guest.described()))
            );
        }
        std::thread::sleep(LOOK);
    }
}

/// Returns the exit code of a process; `None` while it runs.
fn code_of(process: &mut Child) -> Result<Option<i32>> {
    let ended = process.try_wait().map_err(|error| format!("waiting for the client: {error}"))?;
    // 128 stands for a process that a signal ended.
    Ok(ended.map(|status| status.code().unwrap_or(128)))
}

impl Client {
    /// Starts the client in the network namespace of the guest's process.
    fn start(&self, guest: u32, run: &Run) -> Result<Killed> {
        let mut command = shell::tied("nsenter");
        command.arg(format!("--net=/proc/{guest}/ns/net")).arg("--").args(&self.command);
        command.arg(run.directory().join(TOKEN)).stdin(Stdio::null());
        command.spawn().map(Killed).map_err(|error| format!("{}: {error}", shell::name(&command)))
    }
}

impl Order {
    /// Returns a shell script that execs the command.
    fn script(&self) -> String {
        let mut script = String::from("#!/bin/sh\n");
        for (name, value) in &self.environment {
            script += &format!("export {name}={}\n", quoted(value));
        }
        script += &format!("cd {} || exit 126\n", quoted(&self.directory.to_string_lossy()));
        let words: Vec<_> = self.command.iter().map(|word| quoted(word)).collect();
        script + &format!("exec {}\n", words.join(" "))
    }
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', r"'\''"))
}

impl Run {
    /// Creates the directory of a new run, after removing the directories of killed runs.
    fn begin(cache: &Cache) -> Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let runs = cache.at("run");
        files::make_directory(&runs)?;
        for left in std::fs::read_dir(&runs).into_iter().flatten().flatten() {
            let name = left.file_name().to_string_lossy().into_owned();
            let of = name.split('-').next().unwrap_or_default();
            if !Path::new("/proc").join(of).exists() {
                files::remove(&left.path())?;
            }
        }
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let directory = runs.join(format!("{}-{count}", std::process::id()));
        files::make_directory(&directory)?;
        Ok(Self { directory })
    }

    /// The directory on the host.
    pub(super) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes a script that the guest runs.
    pub(super) fn write_script(&self, name: &str, text: &str) -> Result {
        files::write_script(&self.directory.join(name), text)
    }

    /// Returns an `unshare` command with separate namespaces, to which the guest's program is added. When
    /// this process ends, all processes in the namespaces end, and the mounts and namespaces disappear. An
    /// emulated machine would use all available CPU time, so the command has a low CPU priority.
    pub(super) fn contained() -> Command {
        let [nice, others @ ..] = shell::BESIDE_OTHERS;
        let mut command = Command::new(nice);
        command.args(others).args(["setpriv", "--pdeathsig", "KILL", "--"]);
        command.args(["unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=KILL", "--"]);
        command
    }

    /// Writes a random token in hexadecimal digits to a file that only root can read.
    fn write_token(&self, bytes: usize) -> Result {
        let mut random = vec![0; bytes];
        File::open("/dev/urandom")
            .and_then(|mut file| file.read_exact(&mut random))
            .about(Path::new("/dev/urandom"))?;
        let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = self.directory.join(TOKEN);
        let created = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        created.and_then(|mut file| file.write_all(token.as_bytes())).about(&path)
    }

    fn create(&self, name: &str) -> Result<File> {
        File::create(self.directory.join(name)).map_err(|error| format!("{name}: {error}"))
    }

    fn follow(&self, name: &str) -> Result<File> {
        self.create(name)?;
        File::open(self.directory.join(name)).map_err(|error| format!("{name}: {error}"))
    }

    fn read(&self, name: &str) -> Option<String> {
        std::fs::read_to_string(self.directory.join(name)).ok()
    }

    /// Returns an error with the last lines of the console.
    fn blame(&self, what: &str) -> String {
        let console = std::fs::read(self.directory.join("console")).unwrap_or_default();
        let console = String::from_utf8_lossy(&console);
        let lines: Vec<_> = console.lines().filter(|line| !line.trim().is_empty()).collect();
        let tail = lines[lines.len().saturating_sub(CONSOLE_TAIL)..].join("\n  ");
        format!("{what}\nThe console's last lines:\n  {tail}")
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        if let Err(left) = files::remove(&self.directory) {
            eprintln!("guest: {left}");
        }
    }
}

/// A process that is killed when this is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Passes on the output since the last call.
fn pass_on(stream: Stream, file: &mut File, received: &mut dyn FnMut(Stream, &[u8])) -> Result {
    let mut new = Vec::new();
    file.read_to_end(&mut new).map_err(|error| format!("reading the guest's output: {error}"))?;
    if !new.is_empty() {
        received(stream, &new);
    }
    Ok(())
}

/// Prints the output of both streams as it arrives.
pub(super) fn print(stream: Stream, bytes: &[u8]) {
    let written = match stream {
        Stream::Out => std::io::stdout().write_all(bytes).and_then(|()| std::io::stdout().flush()),
        Stream::Error => std::io::stderr().write_all(bytes),
    };
    // Ignore errors: the output may be closed.
    let _ = written;
}

#[cfg(test)]
mod words {
    use super::*;

    #[test]
    fn a_command_reaches_the_guest_word_for_word() {
        let order = Order {
            command: vec!["printf".into(), "it's $HOME `x`\n".into()],
            environment: vec![("A".into(), "1 2".into())],
            directory: "/tmp".into(),
            boot_limit: BOOT_LIMIT,
            limit: Duration::from_secs(1),
        };
        let said = Command::new("sh").arg("-c").arg(order.script()).output().expect("a shell runs");
        assert_eq!(String::from_utf8_lossy(&said.stdout), "it's $HOME `x`\n");
        assert!(order.script().contains("export A='1 2'\n"));
    }
}

#[cfg(test)]
mod watching {
    use super::*;

    /// A fake guest.
    struct Pretender(&'static str);

    impl Guest for Pretender {
        fn described(&self) -> String {
            "the pretender".to_owned()
        }

        fn command(&self, run: &Run) -> Result<Command> {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("cd '{}'; {}", run.directory().display(), self.0)]);
            Ok(command)
        }

        fn modules(&self) -> Option<PathBuf> {
            None
        }
    }

    fn watched(name: &str, script: &'static str) -> Result<Ended> {
        watched_with(name, script, None)
    }

    fn watched_with(name: &str, script: &'static str, client: Option<&Client>) -> Result<Ended> {
        let root = std::env::temp_dir().join(format!("netpolicy-boot-{name}-{}", std::process::id()));
        let cache = Cache::in_directory(root.clone())?;
        let order = Order {
            command: vec!["true".into()],
            environment: Vec::new(),
            directory: "/".into(),
            boot_limit: Duration::from_millis(700),
            limit: Duration::from_millis(700),
        };
        let ended = watch(&cache, &Pretender(script), &order, client, &mut |_, _| ());
        let left = std::fs::read_dir(root.join("run")).expect("runs were here").count();
        assert_eq!(left, 0, "a run leaves nothing");
        files::remove(&root)?;
        ended
    }

    #[test]
    fn a_guest_that_does_not_come_up_is_stopped_and_its_console_is_shown() {
        let said = watched("boot", "echo early; echo 'Kernel panic'; exec sleep 60").expect_err("it hangs");
        assert!(said.contains("the pretender did not come up after 0 s and was stopped"), "{said}");
        assert!(said.ends_with("The console's last lines:\n  early\n  Kernel panic"), "{said}");
    }

    #[test]
    fn a_guest_that_dies_is_no_answer_of_its_command() {
        let said = watched("death", "echo 1 > begun; echo out of memory; exit 0").expect_err("it died");
        assert!(said.contains("ended (exit status: 0) before its command ended"), "{said}");
        assert!(said.ends_with("  out of memory"), "{said}");
        let ended = watched("answer", "echo 1 > begun; echo 7 > exit; exec sleep 60").expect("it answers");
        assert_eq!(ended.code, 7);
    }

    #[test]
    fn a_client_starts_when_the_server_listens_and_its_exit_code_is_that_of_the_run() {
        if !shell::is_root() {
            return;
        }
        let client = Client {
            command: ["sh", "-c", "test $(wc -c < $0) = 4 && exit 5"].map(str::to_owned).to_vec(),
            waits_for: "listening",
            token_bytes: 2,
        };
        let script = "echo 1 > begun; echo listening > stderr; exec sleep 60";
        assert_eq!(watched_with("client", script, Some(&client)).expect("it answers").code, 5);
        let said =
            watched_with("mute", "echo 1 > begun; exec sleep 60", Some(&client)).expect_err("it hangs");
        assert!(said.contains("was still running its command"), "{said}");
    }

    #[test]
    fn what_a_killed_run_left_is_swept_by_the_next_one() {
        let root = std::env::temp_dir().join(format!("netpolicy-sweep-{}", std::process::id()));
        let cache = Cache::in_directory(root.clone()).expect("a directory");
        // No process has this pid: the kernel's maximum is 4194304.
        files::make_directory(&root.join("run/99999999-0")).expect("a directory");
        let own = Run::begin(&cache).expect("a run");
        assert!(!root.join("run/99999999-0").exists() && own.directory().exists());
        drop(own);
        files::remove(&root).expect("it was there");
    }
}
