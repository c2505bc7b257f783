//! An untouched server under load, in a lab: what `doctor` finds, which policy saves CPU on its own traffic, the winner kept,
//! and everything undone. Whatever wins on this machine wins.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::shell::{self, Result};

/// What the server as it is is compared with.
const CANDIDATES: [&str; 2] = ["cpu", "power"];

/// The figure that decides.
const METRIC: &str = "cpu";

/// Requests per second and connections of the clients: an open loop, so a slower answer does not make the load smaller.
const RATE: &str = "20K";
const CONNECTIONS: &str = "128";

/// The longest response time that the winner may have: the rest of the goal.
const LIMIT: &str = "p99=2ms";

/// The longest that the comparison takes, in seconds.
const SECONDS_MAX: &str = "120";

/// The longest description of a lab, in bytes.
const DESCRIPTION_MAX: u64 = 1 << 16;

/// Ended when it is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The program in the lab.
struct Netpolicy<'a> {
    program: &'a Path,
    netns: String,
    state: PathBuf,
}

impl Netpolicy<'_> {
    /// Shows a command, runs it, and takes these exit codes for success.
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

/// Plays it with this program; what it keeps goes into `folder`.
pub(super) fn play(program: &Path, folder: &Path) -> Result {
    let (_lab, described) = lab(program)?;
    let text = |of: &str, name: &str| {
        text_of(&described, of, name).ok_or_else(|| format!("the lab's {of} has no {name}"))
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
        "\nAn untouched memcached answers {RATE} requests/s on {CONNECTIONS} connections. The goal is to save CPU time; of 100 \
         answers 99 may take up to 2 ms.\n\n1. What is set, what is engaged, what could be tried?"
    );
    // It exits with 3 where it finds a problem.
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
    eprintln!("\n4. Undo it. Where no policy has won, nothing is in force.");
    netpolicy.run(&["rollback"], &[0, 1])?;
    netpolicy.run(&["verify"], &[0])
}

/// A lab, and how it describes itself.
fn lab(program: &Path) -> Result<(Running, String)> {
    let mut command = Command::new(program);
    command.args(["-o", "json", "lab", "--queues", "1", "--threads", "1"]);
    shell::show(&command);
    let failed = |error: &dyn std::fmt::Display| format!("netpolicy lab: {error}");
    let child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(|e| failed(&e))?;
    let mut lab = Running(child);
    let output = lab.0.stdout.take().ok_or_else(|| failed(&"it has no output"))?;
    let mut description = String::new();
    for line in BufReader::new(output.take(DESCRIPTION_MAX)).lines() {
        let line = line.map_err(|error| failed(&error))?;
        if line == "}" {
            return Ok((lab, description));
        }
        description.push_str(&line);
        description.push('\n');
    }
    Err(failed(&"it ended before it said where it is"))
}

/// A text of the server's or the client's part of a lab's description, as it is printed: a line each.
fn text_of<'a>(description: &'a str, of: &str, name: &str) -> Option<&'a str> {
    let part = description.split_once(&format!("\"{of}\": {{"))?.1.split_once('}')?.0;
    let line = part.lines().find_map(|line| line.trim().strip_prefix(&format!("\"{name}\": \"")))?;
    Some(line.trim_end_matches(',').trim_end_matches('"'))
}

/// Clients of the server, until dropped.
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
    use super::*;

    #[test]
    fn a_lab_is_found_in_what_it_prints() {
        let printed = r#"{
  "data": {
    "server": {
      "address": "192.0.2.1",
      "netns": "pid:2696",
      "pid": 2698
    },
    "client": {
      "netns": "/proc/2689/fd/6"
    }
  }
"#;
        assert_eq!(text_of(printed, "server", "netns"), Some("pid:2696"));
        assert_eq!(text_of(printed, "client", "netns"), Some("/proc/2689/fd/6"));
        assert_eq!(text_of(printed, "client", "address"), None);
    }
}
