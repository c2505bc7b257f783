//! A demonstration on this machine's kernel: an unmodified memcached under load in a lab; the findings of
//! `doctor`; a comparison of policies that keeps the one that saves CPU time; and a rollback of everything.
//! The winner depends on the machine.

use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Deserializer, Value};

use crate::files;
use crate::release::contents;
use crate::shell::{self, Result};

/// The candidate policies, which are compared with the unchanged server.
const CANDIDATES: [&str; 2] = ["cpu", "power"];

/// The deciding metric.
const METRIC: &str = "cpu";

/// The clients' number of requests per second and of connections. The loop is open: slower answers do not
/// reduce the load.
const RATE: &str = "20K";
const CONNECTIONS: &str = "128";

/// The second half of the goal: the maximum response time under the winning policy.
const LIMIT: &str = "p99=2ms";

/// The maximum duration of the comparison, in seconds.
const SECONDS_MAX: &str = "120";

/// Builds netpolicy, and runs the whole cycle on a server under load.
pub(crate) fn run(arguments: &[String]) -> Result {
    if !arguments.is_empty() {
        return Err("usage: cargo xtask demo".to_owned());
    }
    if !shell::is_root() {
        return Err("the demo creates network namespaces and writes NAPI settings: run it as root".to_owned());
    }
    contents::build_programs(&["--release"])?;
    if let Some(words) = other_work() {
        eprintln!("demo: {words}");
    }
    let folder = shell::root().join("target/demo");
    files::make_directory(&folder)?;
    play(&shell::root().join("target/release/netpolicy"), &folder)?;
    eprintln!("\nThe report: {}", folder.join("report.html").display());
    Ok(())
}

/// Returns the CPU load of other work on this machine, in words, if it is enough to affect every figure.
pub(crate) fn other_work() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    let cpus = std::thread::available_parallelism().ok()?.get();
    too_busy(&text, cpus)
}

/// Computes the load from the text of `/proc/loadavg`. Uses the average of five minutes, because the last
/// minute includes the build.
fn too_busy(loadavg: &str, cpus: usize) -> Option<String> {
    /// The highest load average per CPU at which the figures are still reliable.
    const MOST: f64 = 1.5;
    let load: f64 = loadavg.split(' ').nth(1)?.parse().ok()?;
    let cpus = f64::from(u32::try_from(cpus).ok()?);
    (load > MOST * cpus).then(|| {
        format!(
            "in the last five minutes, {load} threads competed for the {cpus} CPUs of this machine: other \
             work affects all figures, and many runs will not count"
        )
    })
}

/// A process that is stopped when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The netpolicy program, to be run in the lab.
struct Netpolicy<'a> {
    program: &'a Path,
    netns: String,
    state: PathBuf,
}

impl Netpolicy<'_> {
    /// Prints a command, runs it, and accepts these exit codes as success.
    fn run(&self, arguments: &[&str], codes: &[i32]) -> Result {
        let mut command = Command::new(self.program);
        command.args(["--netns", &self.netns, "--state-dir"]).arg(&self.state).args(arguments);
        eprintln!("\n+ netpolicy {}", arguments.join(" "));
        let status = command.status().map_err(|error| format!("netpolicy {arguments:?}: {error}"))?;
        match status.code() {
            Some(code) if codes.contains(&code) => Ok(()),
            _ => Err(format!("netpolicy {arguments:?} ended with {status}")),
        }
    }
}

/// Runs the whole demonstration with this program; records go into `folder`.
fn play(program: &Path, folder: &Path) -> Result {
    let (_lab, described) = lab(program)?;
    let text = |of: &str, name: &str| {
        described["data"][of][name].as_str().ok_or_else(|| format!("the lab's {of} has no {name}"))
    };
    let (address, client) = (text("server", "address")?, text("client", "netns")?);
    let mut load = load(program, client, address)?;
    let state = folder.join("state");
    let _ = std::fs::remove_dir_all(&state);
    let netpolicy = Netpolicy { program, netns: text("server", "netns")?.to_owned(), state };
    let record = folder.join("compare.jsonl").display().to_string();
    let page = folder.join("report.html").display().to_string();
    let _ = std::fs::remove_file(&record);

    eprintln!(
        "\nAn unmodified memcached answers {RATE} requests/s on {CONNECTIONS} connections. The goal is to save CPU time; 99 of 100 answers may take \
         up to 2 ms.\n\n1. What is set, what is in force, what could be tried?"
    );
    // doctor exits with 3 if it finds a problem.
    netpolicy.run(&["doctor"], &[0, 3])?;
    if let Ok(Some(status)) = load.0.try_wait() {
        return Err(format!("the clients ended with {status}: there is no traffic to measure"));
    }
    eprintln!("\n2. Which policy saves CPU time on this traffic? The winner stays in force.");
    let mut compare = vec!["compare", "--port", "11211", "--keep-winner"];
    compare.extend(["--metric", METRIC, "--at-most", LIMIT, "--seconds", SECONDS_MAX]);
    for candidate in CANDIDATES {
        compare.extend(["--b", candidate]);
    }
    compare.extend(["--record", &record]);
    netpolicy.run(&compare, &[0])?;
    netpolicy.run(&["bench", "report", &record, "--report", &page], &[0])?;
    eprintln!("\n3. Is it in force, and what was measured?");
    netpolicy.run(&["verify"], &[0])?;
    netpolicy.run(&["history"], &[0])?;
    eprintln!("\n4. Undo the policy. If no policy has won, nothing is in force.");
    netpolicy.run(&["rollback"], &[0, 1])?;
    netpolicy.run(&["verify"], &[0])
}

/// Starts a lab, and returns it with its description.
fn lab(program: &Path) -> Result<(Running, Value)> {
    let mut command = Command::new(program);
    command.args(["-o", "json", "lab", "--queues", "1", "--threads", "1"]);
    shell::show(&command);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
    let mut lab = Running(child.map_err(|error| format!("netpolicy lab: {error}"))?);
    let output = lab.0.stdout.take().ok_or("netpolicy lab: it has no output")?;
    // Read one value only, because the lab keeps running and keeps the pipe open.
    let mut printed = Deserializer::from_reader(BufReader::new(output)).into_iter();
    match printed.next() {
        Some(described) => Ok((lab, described.map_err(|error| format!("netpolicy lab: {error}"))?)),
        None => Err("netpolicy lab exited before it printed its addresses".to_owned()),
    }
}

/// Starts clients of the server, which run until dropped.
fn load(program: &Path, netns: &str, address: &str) -> Result<Running> {
    let mut command = Command::new("nsenter");
    command.arg(format!("--net={netns}")).arg(program).args(["bench", "memcached", "--address"]);
    command.arg(format!("{address}:11211")).args(["--rate", RATE, "--connections", CONNECTIONS]);
    command.args(["--threads", "1", "--sleep", "--repeats", "1", "--seconds", "300s"]);
    shell::show(&command);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
    child.map(Running).map_err(|error| format!("nsenter: {error}"))
}

#[cfg(test)]
mod test {
    use super::too_busy;

    #[test]
    fn a_machine_that_builds_alone_is_not_busy_and_one_with_other_work_is() {
        assert_eq!(too_busy("2.40 2.10 0.90 2/310 77\n", 2), None);
        let words = too_busy("9.10 8.20 5.00 9/310 77\n", 2).expect("busy");
        assert!(words.contains("8.2 threads competed for the 2 CPUs"), "{words}");
        assert_eq!(too_busy("", 2), None);
    }
}
