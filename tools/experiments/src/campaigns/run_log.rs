//! Writes the runs of an experiment to a file as they are made, so that an experiment that was killed can be
//! resumed.
//!
//! The file is next to the evidence file, until the evidence file is written. It has a line with the plan,
//! followed by a line for each run.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use linux::machine::Machine;
use model::{Evidence, MachineDescription, Origin, Workload};
use runs::Results;
use session::{Exit, Fault};

use crate::bench::args::Memcached;
use crate::evidence::{self, EVIDENCE_BYTES_MAX, Written};

/// The runs of an experiment that is not complete.
pub(super) struct RunLog {
    path: PathBuf,
    file: File,
}

/// The runs that an earlier command made, and their file.
pub(super) struct Earlier {
    path: PathBuf,
    pub(super) results: Results,
}

fn path_of(json: &Path) -> PathBuf {
    let mut name: OsString = json.as_os_str().to_owned();
    name.push(".runs");
    PathBuf::from(name)
}

impl Earlier {
    /// Reads the log next to the evidence file `json`. Without `resume`, a log of an unfinished experiment is
    /// an error, because the log would be overwritten.
    pub(super) fn read(json: Option<&Path>, resume: bool) -> Result<Option<Self>, Fault> {
        let Some(json) = json else { return Ok(None) };
        let path = path_of(json);
        let mut text = Vec::new();
        let is_open = match File::open(&path) {
            Ok(file) => {
                let read = file.take(EVIDENCE_BYTES_MAX).read_to_end(&mut text);
                read.map_err(|error| Fault::file(&path, error))?;
                true
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(Fault::file(&path, error)),
        };
        let refused =
            |path: &Path, words: &str| Err(Fault::new(Exit::Usage, format!("{}: {words}", path.display())));
        match (is_open, resume) {
            (true, true) => match parse(&text) {
                Some(results) => Ok(Some(Self { path, results })),
                None => refused(&path, "the first line is not the plan of an experiment; remove the file"),
            },
            (true, false) => {
                let made = whole_lines(&text).count().saturating_sub(1);
                refused(
                    &path,
                    &format!("{made} runs of an unfinished experiment: add --resume, or remove the file"),
                )
            }
            (false, false) => Ok(None),
            (false, true) => match std::fs::metadata(json).map(|about| about.len()) {
                Err(_) | Ok(0) => Ok(None),
                Ok(_) => match evidence::read(json)? {
                    Written::Results(results) => Ok(Some(Self { path: json.to_owned(), results: *results })),
                    _ => refused(json, "not the evidence of `bench memcached`"),
                },
            },
        }
    }

    /// Checks that the same command made the runs, on the same machines.
    pub(super) fn check(
        &self,
        arguments: &Memcached,
        labels: &[String],
        workload: &Workload,
        machines: &[MachineDescription],
    ) -> Result<(), Fault> {
        let Results { experiment, evidence, machines: then, capacity, options, .. } = &self.results;
        let (rounds, seed) = (arguments.rounds(), arguments.seed);
        let loads = arguments.loads_on(capacity.unwrap_or(0.0));
        let options_now = arguments.options_of_stage();
        let names = options.keys().chain(options_now.keys());
        let other_option = names.into_iter().find(|name| options.get(*name) != options_now.get(*name));
        let Machine { host, kernel, cpu_model } = Machine::this();
        let of = |machines: &[MachineDescription]| {
            let what = |machine: &MachineDescription| {
                (machine.host.clone(), machine.kernel.clone(), machine.cpu_model.clone())
            };
            machines.iter().map(what).collect::<Vec<_>>()
        };
        let other_host = |run: &Evidence| match &run.origin {
            // The description of the machine begins with its CPU model.
            Origin::Measured(on) => {
                let is_this = on.host == host && on.kernel == kernel && on.machine.starts_with(&cpu_model);
                machines.is_empty() && !is_this
            }
            Origin::Simulated(_) => true,
        };
        let now = workload.with_seed(seed);
        let other_workload = evidence.iter().find_map(|run| differing(&run.workload.with_seed(seed), &now));
        let differs = if experiment.labels != labels {
            "configurations"
        } else if experiment.loads != loads {
            "loads"
        } else if (experiment.rounds, experiment.seed) != (rounds, seed) {
            "--repeats or --seed"
        } else if let Some(option) = &other_workload {
            option
        } else if let Some(name) = other_option {
            name
        } else if of(then) != of(machines) || evidence.iter().any(other_host) {
            "host, kernel or CPU model"
        } else {
            return Ok(());
        };
        let path = self.path.display();
        Err(Fault::new(Exit::Usage, format!("{path}: these runs differ in {differs}"))
            .hint("resume with the command that made them, or choose another file"))
    }
}

/// Returns the first option in which two workloads differ, such as `the workload's window`.
fn differing(one: &Workload, other: &Workload) -> Option<String> {
    let fields = |workload: &Workload| match serde_json::to_value(workload) {
        Ok(serde_json::Value::Object(kinds)) => kinds.into_iter().next().map(|(_, fields)| fields),
        _ => None,
    };
    let (ours, theirs) = (fields(one).unwrap_or_default(), fields(other).unwrap_or_default());
    let names = ours.as_object().into_iter().flat_map(|fields| fields.keys());
    let name = names.into_iter().find(|name| ours[name.as_str()] != theirs[name.as_str()]);
    name.map_or_else(
        || (one != other).then(|| "the workload".to_owned()),
        |name| Some(format!("the workload's {name}")),
    )
}

/// Parses the plan and the runs. A truncated last line is omitted.
fn parse(text: &[u8]) -> Option<Results> {
    let mut lines = whole_lines(text);
    let mut results: Results = serde_json::from_slice(lines.next()?).ok()?;
    results.evidence.extend(lines.map_while(|line| serde_json::from_slice::<Evidence>(line).ok()));
    Some(results)
}

/// Returns the lines up to the last line break. The text after it may end anywhere, even inside a character.
fn whole_lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"))
}

fn line(value: &impl serde::Serialize) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    Ok(line)
}

impl RunLog {
    /// Writes the runs so far, replacing an earlier log.
    pub(super) fn start(json: &Path, made: &Results) -> Result<Self, Fault> {
        let path = path_of(json);
        let mut written = path.clone().into_os_string();
        written.push(".new");
        let written = PathBuf::from(written);
        let start = || {
            let mut file = File::create(&written)?;
            file.write_all(&line(&Results { evidence: Vec::new(), ..made.clone() })?)?;
            for run in &made.evidence {
                file.write_all(&line(run)?)?;
            }
            file.sync_data()?;
            std::fs::rename(&written, &path)?;
            Ok(file)
        };
        let file = start().map_err(|error| Fault::file(&path, error))?;
        Ok(Self { path, file })
    }

    pub(super) fn add(&mut self, run: &Evidence) -> Result<(), Fault> {
        let added = line(run).and_then(|line| self.file.write_all(&line));
        added.map_err(|error| Fault::file(&self.path, error))
    }

    /// Removes the log, because the evidence file contains every run.
    pub(super) fn remove(self) -> Result<(), Fault> {
        std::fs::remove_file(&self.path).map_err(|error| Fault::file(&self.path, error))
    }
}

#[cfg(test)]
mod test {
    use clap::Parser;
    use model::OfferedLoad;
    use runs::Experiment;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        memcached: Memcached,
    }

    fn command(words: &str) -> Memcached {
        Line::try_parse_from(format!("bench {words}").split(' ')).expect("parses").memcached
    }

    /// Returns the plan of a command on a machine with a capacity of 100 000 requests per second.
    fn plan(arguments: &Memcached) -> Results {
        let (labels, loads) = (vec!["base".to_owned()], arguments.loads_on(100_000.0));
        let experiment = Experiment { labels, loads, rounds: arguments.rounds(), seed: arguments.seed };
        let options = arguments.options_of_stage();
        Results { capacity: Some(100_000.0), options, ..Results::new(experiment, Vec::new()) }
    }

    #[test]
    fn runs_of_another_command_are_refused_by_what_differs() {
        let made = "--rate 20%,50% --queues 2";
        let results = plan(&command(made));
        let earlier = Earlier { path: "all.json.runs".into(), results };
        let differs = |words: &str| {
            let arguments = command(words);
            let workload = Workload::Memcached(arguments.workload(1));
            let refused = earlier.check(&arguments, &["base".to_owned()], &workload, &[]).err();
            refused.map(|fault| fault.cause.to_string())
        };
        assert_eq!(differs(made), None);
        assert_eq!(differs("--rate 20K,50K --queues 2"), None, "the same loads in other words");
        for (words, what) in [
            ("--rate 20%,60% --queues 2", "loads"),
            ("--rate 20%,50%,60% --queues 2", "loads"),
            ("--rate 20%,50% --queues 4", "--queues"),
            ("--rate 20%,50%", "--queues"),
            ("--rate 20%,50% --queues 2 --server-threads 3", "--server-threads"),
            ("--rate 20%,50% --queues 2 --uncounted", "--uncounted"),
            ("--rate 20%,50% --queues 2 --repeats 9", "--repeats or --seed"),
        ] {
            let expected = format!("all.json.runs: these runs differ in {what}");
            assert_eq!(differs(words), Some(expected), "{words}");
        }
    }

    #[test]
    fn two_workloads_differ_in_an_option_that_is_named() {
        let workload = |words: &str| Workload::Memcached(command(words).workload(1));
        let differs = |words: &str| differing(&workload("--rate 20K"), &workload(words));
        assert_eq!(differs("--rate 50K"), None, "the loads are compared apart");
        assert_eq!(differs("--rate 20K --seconds 9s").as_deref(), Some("the workload's window"));
        assert_eq!(differs("--rate 20K --keys 7").as_deref(), Some("the workload's keys"));
    }

    #[test]
    fn a_log_that_ends_inside_a_character_is_read_up_to_its_last_line() {
        let results = plan(&command("--rate 20K"));
        let mut text = line(&results).expect("plain data");
        text.extend("{\"label\":\"µ".as_bytes());
        text.pop();
        assert!(String::from_utf8(text.clone()).is_err());
        assert_eq!(parse(&text).expect("a plan").experiment.loads, [OfferedLoad::PerSecond(20_000.0)]);
        assert_eq!(whole_lines(&text).count(), 1);
    }
}
