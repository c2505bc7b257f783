//! Starts processes for tests to observe: this test binary in a role, a program of `programs/`, or an
//! installed program. Each is killed, by its pid, when its [`Subject`] is dropped, even if the test fails.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::Failed;
use model::Pid;

/// The environment variable that makes this binary play a role instead of running tests.
pub const ROLE: &str = "NETPOLICY_TEST_ROLE";

/// The maximum time to wait for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running process that a test started.
pub struct Subject {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Subject {
    /// Starts a program.
    pub fn start(command: &mut Command) -> Result<Self, Failed> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (input, output) = (child.stdin.take(), child.stdout.take());
        let output = output.ok_or("a subject without standard output")?;
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    /// Starts this binary in a role, waits until it is ready, and returns the numbers that it prints with
    /// `ready`.
    pub fn in_role(role: &str) -> Result<(Self, Vec<u32>), Failed> {
        Self::ready(&mut role_command(role))
    }

    /// Starts a program, waits until it prints `ready`, and returns the numbers that follow.
    pub fn ready(command: &mut Command) -> Result<(Self, Vec<u32>), Failed> {
        let mut subject = Self::start(command)?;
        let line = subject.line()?;
        let numbers = line.strip_prefix("ready").ok_or_else(|| format!("it said {line:?}"))?;
        let numbers = numbers.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
        Ok((subject, numbers))
    }

    /// The pid.
    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Reads the subject's next line, or the rest of its output if the process exits first.
    pub fn line(&mut self) -> Result<String, Failed> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim_end().to_owned())
    }

    /// Reads all output until the process exits.
    pub fn lines(&mut self) -> Result<Vec<String>, Failed> {
        Ok(self.output.by_ref().lines().collect::<Result<_, _>>()?)
    }

    /// Makes the subject take its next step, and waits until the step is complete.
    pub fn go_on(&mut self) -> Result<(), Failed> {
        self.tell("")
    }

    /// Writes a line to the subject, and waits until it has done what the line says.
    pub fn tell(&mut self, line: &str) -> Result<(), Failed> {
        self.say(line)?;
        self.done()
    }

    /// Writes a line to the subject.
    pub fn say(&mut self, line: &str) -> Result<(), Failed> {
        let input = self.input.as_mut().ok_or("a subject without standard input")?;
        Ok(input.write_all(format!("{line}\n").as_bytes())?)
    }

    /// Waits until the subject has done what it was told.
    pub fn done(&mut self) -> Result<(), Failed> {
        let line = self.line()?;
        if line == "done" { Ok(()) } else { Err(format!("it said {line:?}").into()) }
    }

    /// Kills the subject and waits until it has exited.
    pub fn kill(&mut self) {
        let _ = self.child.kill(); // The process may have exited already.
        let _ = self.child.wait();
    }
}

impl Drop for Subject {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns the command that starts this binary in a role. It uses the link in `/proc`, so that other users
/// can start the binary, too.
pub fn role_command(role: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env(ROLE, role);
    command
}

/// Starts memcached with four workers on 127.0.0.1, as a user other than root, in a separate network
/// namespace. Returns once memcached answers.
pub fn memcached(environment: &[(&'static str, std::ffi::OsString)]) -> Result<Subject, Failed> {
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
    command.args(environment.iter().fold(vec![OsStr::new("env").to_owned()], |mut words, (name, value)| {
        let mut word = OsStr::new(name).to_owned();
        word.push("=");
        word.push(value);
        words.push(word);
        words
    }));
    command.args(["memcached", "-u", "nobody", "-t", "4", "-l", "127.0.0.1", "-p", "11211", "-U", "0"]);
    let subject = Subject::start(&mut command)?;
    eventually("memcached listens", || {
        let netns = linux::Netns::of_process(subject.pid()).ok()?;
        netns.run(|| std::net::TcpStream::connect("127.0.0.1:11211").ok()).ok()?.map(|_| ())
    })?;
    Ok(subject)
}

/// Repeats a function until it returns a result.
pub fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> Result<T, Failed> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if let Some(answer) = attempt() {
            return Ok(answer);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Err(format!("{what}: not within {PATIENCE:?}").into())
}
