//! The parameters of sessions, and their conversion to command lines.

use std::ffi::OsString;

use latency::judge::{Candidate, CandidateSettings};
use serde::Deserialize;

use super::child::SESSION_SECONDS_MAX;
use super::desk::SessionKind;
use crate::api::method::VarlinkError;

/// The default durations of sessions, in seconds.
const WATCH_SECONDS: u64 = 60;
const COMPARE_SECONDS: u64 = 300;
const TUNE_SECONDS: u64 = 600;
const TRY_SECONDS: u64 = 60;

/// The maximum length of a parameter that is text, in bytes.
const TEXT_BYTES_MAX: usize = 256;

/// The maximum number of texts in a list.
const LIST_MAX: usize = 32;

/// A valid call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionCall {
    /// What the session does.
    pub kind: SessionKind,
    /// The command and its options, without the global options.
    pub words: Vec<OsString>,
    /// A policy to try instead of the policy files.
    pub policy: Option<String>,
    /// The duration of the session, in seconds.
    pub seconds: u64,
    /// Whether the session changes settings.
    pub changes_settings: bool,
}

/// Selects a service. Exactly one of the fields must be set.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServiceParams {
    /// The name of a service in the policy files, a unit, an executable, or a port.
    pub name: Option<String>,
    /// The process with this pid, and its children.
    pub pid: Option<u32>,
    /// The process that listens on this port.
    pub port: Option<u16>,
    /// The processes of this systemd unit.
    pub unit: Option<String>,
}

/// The parameters of `Watch`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WatchParams {
    service: ServiceParams,
    seconds: Option<u64>,
    sample: Option<String>,
}

/// The parameters of `Compare`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompareParams {
    service: ServiceParams,
    candidates: Vec<String>,
    instead_of: Option<String>,
    seconds: Option<u64>,
    window: Option<String>,
    guard_time: Option<String>,
    margin: Option<f64>,
    metrics: Option<Vec<String>>,
    at_most: Option<Vec<String>>,
    keep_winner: Option<bool>,
}

/// The parameters of `Tune`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuneParams {
    service: ServiceParams,
    goal: String,
    guard: Option<String>,
    candidates: Option<Vec<String>>,
    only: Option<bool>,
    seconds: Option<u64>,
    window: Option<String>,
    guard_time: Option<String>,
    margin: Option<f64>,
    resume: Option<bool>,
    dry_run: Option<bool>,
    keep_winner: Option<bool>,
}

/// The parameters of `Try`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct TryParams {
    policy: Option<String>,
    guard: Option<String>,
    on: Option<Vec<String>>,
    seconds: Option<u64>,
}

/// The words of a command line. An option and its value are one word, so a value cannot be mistaken for
/// another option.
struct CommandLine(Vec<OsString>);

impl CommandLine {
    fn new(command: &str) -> Self {
        Self(vec![command.into()])
    }

    fn value(mut self, option: &str, value: Option<impl ToString>) -> Result<Self, VarlinkError> {
        if let Some(value) = value {
            let value = value.to_string();
            check(option, &value)?;
            self.0.push(format!("--{option}={value}").into());
        }
        Ok(self)
    }

    fn values(mut self, option: &str, values: Option<Vec<String>>) -> Result<Self, VarlinkError> {
        let values = values.unwrap_or_default();
        if values.len() > LIST_MAX {
            return Err(usage(format!("{option}: more than {LIST_MAX}")));
        }
        for value in values {
            self = self.value(option, Some(value))?;
        }
        Ok(self)
    }

    fn flag(mut self, option: &str, given: Option<bool>) -> Self {
        if given == Some(true) {
            self.0.push(format!("--{option}").into());
        }
        self
    }

    /// Adds candidates. Refuses policy files as candidates: error messages quote the text of a file, which
    /// the client may not be permitted to read.
    fn candidates(self, option: &str, values: Option<Vec<String>>) -> Result<Self, VarlinkError> {
        for value in values.iter().flatten() {
            check(option, value)?;
            let parsed: Candidate =
                value.parse().map_err(|why| usage(format!("candidate {value}: {why}")))?;
            if matches!(parsed.wanted(), CandidateSettings::File(_)) {
                let why = format!("candidate {value}: the API compares no policy files");
                let hint = "write its policy or delivery mode, or give its text to Try".to_owned();
                return Err(VarlinkError::refused(7, why, Some(hint)));
            }
        }
        self.values(option, values)
    }

    /// Adds the words that select the service. A name comes last, after `--`.
    fn service(self, service: ServiceParams) -> Result<Self, VarlinkError> {
        match service {
            ServiceParams { name: Some(name), pid: None, port: None, unit: None } => {
                check("service.name", &name)?;
                let mut words = self.0;
                words.extend(["--".into(), name.into()]);
                Ok(Self(words))
            }
            ServiceParams { name: None, pid: pid @ Some(_), port: None, unit: None } => {
                self.value("pid", pid)
            }
            ServiceParams { name: None, pid: None, port: port @ Some(_), unit: None } => {
                self.value("port", port)
            }
            ServiceParams { name: None, pid: None, port: None, unit: unit @ Some(_) } => {
                self.value("unit", unit)
            }
            _ => Err(usage("service: exactly one of name, pid, port and unit is required".to_owned())),
        }
    }

    fn call(self, kind: SessionKind, seconds: u64) -> SessionCall {
        let changes_settings = kind.changes_settings();
        SessionCall { kind, words: self.0, policy: None, seconds, changes_settings }
    }
}

impl WatchParams {
    /// Validates the parameters, and returns the session's call.
    ///
    /// # Errors
    /// `Refused` with the command's exit code, naming the invalid parameter.
    pub fn call(self) -> Result<SessionCall, VarlinkError> {
        let seconds = seconds(self.seconds, WATCH_SECONDS)?;
        let words =
            CommandLine::new("watch").value("seconds", Some(seconds))?.value("sample", self.sample)?;
        Ok(words.service(self.service)?.call(SessionKind::Watch, seconds))
    }
}

impl CompareParams {
    /// Validates the parameters, and returns the session's call.
    ///
    /// # Errors
    /// See [`WatchParams::call`].
    pub fn call(self) -> Result<SessionCall, VarlinkError> {
        let seconds = seconds(self.seconds, COMPARE_SECONDS)?;
        let metrics = self.metrics.map(|metrics| metrics.join(","));
        let words = CommandLine::new("compare")
            .candidates("a", self.instead_of.map(|one| vec![one]))?
            .candidates("b", Some(self.candidates))?
            .value("seconds", Some(seconds))?
            .value("window", self.window)?
            .value("guard-time", self.guard_time)?
            .value("margin", self.margin)?
            .value("metric", metrics)?
            .values("at-most", self.at_most)?
            .flag("keep-winner", self.keep_winner);
        Ok(words.service(self.service)?.call(SessionKind::Compare, seconds))
    }
}

impl TuneParams {
    /// Validates the parameters, and returns the session's call.
    ///
    /// # Errors
    /// See [`WatchParams::call`].
    pub fn call(self) -> Result<SessionCall, VarlinkError> {
        let seconds = seconds(self.seconds, TUNE_SECONDS)?;
        let changes_settings = self.dry_run != Some(true);
        let words = CommandLine::new("tune")
            .value("goal", Some(self.goal))?
            .value("guard", self.guard)?
            .candidates("candidate", self.candidates)?
            .flag("only", self.only)
            .value("seconds", Some(seconds))?
            .value("window", self.window)?
            .value("guard-time", self.guard_time)?
            .value("margin", self.margin)?
            .flag("resume", self.resume)
            .flag("dry-run", self.dry_run)
            .flag("keep-winner", self.keep_winner);
        let call = words.service(self.service)?.call(SessionKind::Tune, seconds);
        Ok(SessionCall { changes_settings, ..call })
    }
}

impl TryParams {
    /// Validates the parameters, and returns the session's call.
    ///
    /// # Errors
    /// See [`WatchParams::call`].
    pub fn call(self) -> Result<SessionCall, VarlinkError> {
        let seconds = seconds(self.seconds, TRY_SECONDS)?;
        let words = CommandLine::new("try")
            .value("seconds", Some(seconds))?
            .value("guard", self.guard)?
            .values("on", self.on)?;
        Ok(SessionCall { policy: self.policy, ..words.call(SessionKind::Try, seconds) })
    }
}

fn usage(why: String) -> VarlinkError {
    VarlinkError::refused(2, why, None)
}

fn check(name: &str, text: &str) -> Result<(), VarlinkError> {
    if text.len() > TEXT_BYTES_MAX || text.contains(char::is_control) {
        return Err(usage(format!("{name}: at most {TEXT_BYTES_MAX} bytes, and no control characters")));
    }
    Ok(())
}

fn seconds(given: Option<u64>, usual: u64) -> Result<u64, VarlinkError> {
    let seconds = given.unwrap_or(usual);
    match (1..=SESSION_SECONDS_MAX).contains(&seconds) {
        true => Ok(seconds),
        false => Err(usage(format!("seconds: 1 to {SESSION_SECONDS_MAX}"))),
    }
}

#[cfg(test)]
mod test {
    use serde_json::{Value, json};

    use super::*;

    fn words(call: &SessionCall) -> Vec<&str> {
        call.words.iter().map(|word| word.to_str().expect("text")).collect()
    }

    fn compare(parameters: Value) -> Result<SessionCall, VarlinkError> {
        serde_json::from_value::<CompareParams>(parameters).expect("parameters").call()
    }

    #[test]
    fn a_call_is_the_command_that_an_operator_would_type() {
        let call = compare(json!({
            "service": { "name": "-o" }, "candidates": ["latency", "--disruptive"], "metrics": ["p50", "cpu"],
        }));
        assert_eq!(call.expect_err("no candidate").parameters["exit"], 2);
        let call = compare(json!({
            "service": { "name": "--seconds=9" }, "candidates": ["latency", "defer50,gro_flush_timeout=80us"],
            "metrics": ["p50", "cpu"], "margin": 7.5, "keep_winner": true, "seconds": 30,
        }));
        let expected = [
            "compare",
            "--b=latency",
            "--b=defer50,gro_flush_timeout=80us",
            "--seconds=30",
            "--margin=7.5",
            "--metric=p50,cpu",
            "--keep-winner",
            "--",
            "--seconds=9",
        ];
        assert_eq!(words(&call.expect("a call")), expected);
        let call = TryParams { guard: Some("p99=+15%".to_owned()), ..TryParams::default() }.call();
        let call = call.expect("a call");
        assert_eq!(words(&call), ["try", "--seconds=60", "--guard=p99=+15%"]);
    }

    #[test]
    fn a_search_changes_settings_unless_only_its_candidates_are_requested() {
        for (dry_run, changes_settings) in [(json!(null), true), (json!(false), true), (json!(true), false)] {
            let parameters = json!({ "service": { "port": 80 }, "goal": "p50", "dry_run": dry_run });
            let call = serde_json::from_value::<TuneParams>(parameters).expect("parameters").call();
            assert_eq!(call.expect("a call").changes_settings, changes_settings, "{dry_run}");
        }
    }

    #[test]
    fn files_long_texts_and_long_sessions_are_refused() {
        let service = json!({ "port": 80 });
        for (candidate, exit) in [("/etc/shadow", 7), ("x.toml", 7), ("no\nword", 2), ("latncy", 2)] {
            let refused = compare(json!({ "service": service, "candidates": [candidate] }));
            assert_eq!(refused.expect_err(candidate).parameters["exit"], exit, "{candidate}");
        }
        let many = vec!["latency"; LIST_MAX + 1];
        let long = "x".repeat(TEXT_BYTES_MAX + 1);
        for wrong in [
            json!({ "service": service, "candidates": many }),
            json!({ "service": { "name": long }, "candidates": ["latency"] }),
            json!({ "service": { "name": "a", "pid": 1 }, "candidates": ["latency"] }),
            json!({ "service": {}, "candidates": ["latency"] }),
            json!({ "service": service, "candidates": ["latency"], "seconds": SESSION_SECONDS_MAX + 1 }),
            json!({ "service": service, "candidates": ["latency"], "seconds": 0 }),
        ] {
            assert_eq!(compare(wrong).expect_err("refused").parameters["exit"], 2);
        }
    }
}
