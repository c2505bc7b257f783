//! The records that `tune` keeps next to the journal. They contain the rounds of a search in progress, so
//! that the search can resume after a kill, and the results of finished searches, which determine the order
//! of candidates in the next search.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use crate::measure::switchback::{Figures, Metric, Unfair};
use crate::measure::tuning::{Out, Tuner, TunerStage};
use linux::machine::{Machine, seconds_since_1970};
use model::{FormatName, Limits, NetnsId};
use serde::{Deserialize, Serialize};
use session::replaced_file::{Durability, replace_file};
use session::{Fault, Session};

use crate::judge::tuning::Offer;
use crate::live::MeasuredService;

/// The age from which an unfinished search is not resumed, because the traffic and the host may have changed.
pub const RESUMES_WITHIN_SECONDS: u64 = 24 * 3_600;

/// The age from which the results of a finished search are ignored.
const RESULTS_WITHIN_SECONDS: u64 = 90 * 24 * 3_600;

/// The factor by which request rates may differ and still count as the same load.
const SAME_LOAD: f64 = 2.0;

/// The maximum size of a record in bytes: more than the rounds of a search that lasts a day.
const RECORD_BYTES_MAX: u64 = 64 << 20;

/// The maximum number of finished searches that are kept, and the maximum size of their file in bytes.
const TRIALS_MAX: usize = 64;
const TRIALS_BYTES_MAX: u64 = 4 << 20;

/// The file of finished searches.
const TRIALS: &str = "tuned.json";

const KIND: &str = "tune-record";

/// The setup of a search. The rounds of another search count only if both setups are equal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Setup {
    /// The service.
    pub service: String,
    /// The ports.
    pub ports: Vec<u16>,
    /// The host's kernel.
    pub kernel: String,
    /// The devices of the host, each with its name, its kind and its number of receive queues.
    pub devices: Vec<String>,
    /// The metric to improve.
    pub goal: Metric,
    /// The limits on the growth of other metrics.
    pub limits: Limits,
    /// The share below which a change counts as no difference.
    pub margin: f64,
    /// The length of a window and of the pause before it, in seconds.
    pub window: [f64; 2],
    /// The time limit, in seconds.
    pub seconds: u64,
    /// The candidates in order, each with its settings.
    pub candidates: Vec<(String, Vec<String>)>,
}

impl Setup {
    /// Creates the setup of a search for a service. The caller adds the options.
    pub fn of(target: &MeasuredService, goal: Metric, limits: Limits, offers: &[Offer]) -> Self {
        let devices = target.host.devices.iter().filter(|device| device.id.name.as_str() != "lo");
        let settings = |offer: &Offer| {
            let plan = offer.plan.as_ref().ok()?;
            // Omit the objects' names, because processes have other pids after each restart.
            let mut settings: Vec<String> = plan
                .changes()
                .map(|change| format!("{} {}", change.to().knob(), change.to().value()))
                .collect();
            settings.sort_unstable();
            settings.dedup();
            Some((offer.candidate.name.clone(), settings))
        };
        Self {
            service: target.name.clone(),
            ports: target.ports.all(),
            kernel: Machine::this().kernel,
            devices: devices
                .map(|device| format!("{} {} {}", device.id.name, device.kind, device.rx_queues.len()))
                .collect(),
            goal,
            limits,
            margin: 0.0,
            window: [0.0; 2],
            seconds: 0,
            candidates: offers.iter().filter_map(settings).collect(),
        }
    }

    /// Describes how this setup differs from another one, or returns `None` if they are equal.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let candidates =
            |setup: &Self| setup.candidates.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let both = |what: &str, one: String, other: String| Some(format!("{what}: {one} then, {other} now"));
        let words = |list: &[String]| list.join(", ");
        match () {
            () if self == other => None,
            () if self.service != other.service => {
                both("service", self.service.clone(), other.service.clone())
            }
            () if self.ports != other.ports => {
                both("ports", format!("{:?}", self.ports), format!("{:?}", other.ports))
            }
            () if self.kernel != other.kernel => both("kernel", self.kernel.clone(), other.kernel.clone()),
            () if self.devices != other.devices => {
                both("devices", words(&self.devices), words(&other.devices))
            }
            () if self.goal != other.goal => both("goal", self.goal.to_string(), other.goal.to_string()),
            () if self.limits != other.limits => {
                both("--guard", self.limits.to_string(), other.limits.to_string())
            }
            () if candidates(self) != candidates(other) => {
                both("candidates", words(&candidates(self)), words(&candidates(other)))
            }
            () if self.candidates != other.candidates => {
                Some("a candidate now has other settings".to_owned())
            }
            () => Some("--window, --guard-time, --margin or --seconds differs".to_owned()),
        }
    }
}

/// The first line of a record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    schema: FormatName,
    kind: String,
    /// When the search started, in seconds since 1970.
    started: u64,
    setup: Setup,
}

/// A round of a search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunedRound {
    /// When the round ended, in seconds since 1970.
    pub at: u64,
    /// The stage.
    pub stage: TunerStage,
    /// The names of the candidates.
    pub candidates: Vec<String>,
    /// The figures of each candidate's window.
    pub figures: Vec<Figures>,
    /// Why the round is not valid; `None` if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void: Option<Unfair>,
}

/// The record of a search in progress. If the process is killed, at most the last line is incomplete.
#[derive(Debug)]
pub struct TuneRecord {
    path: PathBuf,
    file: BufWriter<File>,
    bytes: u64,
}

impl TuneRecord {
    /// Returns the path of the record for a namespace. Only one search at a time runs in a namespace.
    fn path(session: &Session, netns: NetnsId) -> Result<PathBuf, Fault> {
        // Open the journal first: this checks who may write to the state directory.
        session.journal()?;
        Ok(session.state_dir.join(format!("tuning-{}.jsonl", netns.0)))
    }

    /// Begins a record, which replaces an earlier one. The record starts with the rounds of a resumed search.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn begin(
        session: &Session,
        netns: NetnsId,
        setup: &Setup,
        rounds: &[TunedRound],
    ) -> Result<Self, Fault> {
        let path = Self::path(session, netns)?;
        let failed = |error| Fault::file(&path, error);
        fs::create_dir_all(&session.state_dir).map_err(|error| Fault::file(&session.state_dir, error))?;
        remove_old(&session.state_dir);
        let started = seconds_since_1970();
        let header = Header { schema: FormatName, kind: KIND.to_owned(), started, setup: setup.clone() };
        let mut text = line(&header)?;
        for round in rounds {
            text.push_str(&line(round)?);
        }
        replace_file(&path, 0o600, text.as_bytes(), Durability::Unsynced).map_err(failed)?;
        let file = File::options().append(true).open(&path).map_err(failed)?;
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        Ok(Self { path, file: BufWriter::new(file), bytes })
    }

    /// Appends a round, unless the record would become too long.
    ///
    /// # Errors
    /// If the round cannot be written.
    pub fn add(&mut self, round: &TunedRound) -> Result<(), Fault> {
        let text = line(round)?;
        self.bytes = self.bytes.saturating_add(u64::try_from(text.len()).unwrap_or(u64::MAX));
        if self.bytes > RECORD_BYTES_MAX {
            return Ok(());
        }
        let written = self.file.write_all(text.as_bytes()).and_then(|()| self.file.flush());
        written.map_err(|error| Fault::file(&self.path, error))
    }

    /// Removes the record, because the search has ended.
    ///
    /// # Errors
    /// If the record cannot be removed.
    pub fn remove(self) -> Result<(), Fault> {
        fs::remove_file(&self.path).map_err(|error| Fault::file(&self.path, error))
    }
}

fn line(document: &impl Serialize) -> Result<String, Fault> {
    Ok(serde_json::to_string(document).map_err(Fault::failed)? + "\n")
}

/// Removes the records of searches, in any namespace, that are too old to be resumed.
fn remove_old(state_dir: &Path) {
    for entry in fs::read_dir(state_dir).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_record =
            name.to_str().is_some_and(|name| name.starts_with("tuning-") && name.ends_with(".jsonl"));
        let age =
            entry.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|at| at.elapsed().ok());
        if is_record && age.is_some_and(|age| age.as_secs() > RESUMES_WITHIN_SECONDS) {
            // The removal fails if another search has already removed the record.
            let _removed = fs::remove_file(entry.path());
        }
    }
}

/// An unfinished search.
#[derive(Clone, Debug, PartialEq)]
pub struct Unfinished {
    /// The setup.
    pub setup: Setup,
    /// The rounds.
    pub rounds: Vec<TunedRound>,
    /// When the last round ended, in seconds since 1970.
    pub at: u64,
}

impl Unfinished {
    /// Reads the unfinished search of a namespace. Returns `None` if there is none, or if it has no round.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a record.
    pub fn of(session: &Session, netns: NetnsId) -> Result<Option<Self>, Fault> {
        let path = TuneRecord::path(session, netns)?;
        let mut text = String::new();
        match File::open(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            file => file
                .and_then(|file| file.take(RECORD_BYTES_MAX).read_to_string(&mut text))
                .map_err(|error| Fault::file(&path, error))?,
        };
        let wrong = |why: String| Fault::failed(format!("{}: {why}", path.display()));
        Self::parse(&text).map_err(wrong)
    }

    fn parse(text: &str) -> Result<Option<Self>, String> {
        let mut lines = text.lines().enumerate().peekable();
        let wrong = |line: usize, error: serde_json::Error| format!("line {}: {error}", line + 1);
        let Some((at, first)) = lines.next() else { return Ok(None) };
        let header: Header = serde_json::from_str(first).map_err(|error| wrong(at, error))?;
        if header.kind != KIND {
            return Err(format!("line 1: it is a {}, not a {KIND}", header.kind));
        }
        let mut rounds: Vec<TunedRound> = Vec::new();
        while let Some((at, line)) = lines.next() {
            match serde_json::from_str(line) {
                Ok(round) => rounds.push(round),
                // The process was killed while it wrote this line, so ignore the line.
                Err(error) if error.is_eof() && lines.peek().is_none() => {}
                Err(error) => return Err(wrong(at, error)),
            }
        }
        let Some(last) = rounds.last().map(|round| round.at) else { return Ok(None) };
        Ok(Some(Self { setup: header.setup, rounds, at: last }))
    }

    /// The number of windows.
    pub fn windows(&self) -> usize {
        self.rounds.iter().map(|round| round.figures.len()).sum()
    }

    /// Returns the request rate with the current settings, or `None` if no round is valid.
    pub fn rate(&self) -> Option<f64> {
        let valid = self.rounds.iter().filter(|round| round.void.is_none());
        let rates: Vec<f64> = valid.filter_map(|round| Some(round.figures.first()?.rate())).collect();
        crate::measure::statistics::median(&rates)
    }
}

/// Whether two request rates count as the same load.
pub fn is_same_load(one: f64, other: f64) -> bool {
    one > 0.0 && other > 0.0 && (one / other).ln().abs() <= SAME_LOAD.ln()
}

/// The result of a candidate in a finished search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrialOf {
    /// The candidate.
    pub candidate: String,
    /// The change of the goal's metric, as a share; `None` if it was not measured.
    pub change: Option<f64>,
    /// Why the candidate was dropped; `None` if it was not.
    pub out: Option<Out>,
}

/// A finished search.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishedSearch {
    /// The service.
    pub service: String,
    /// The kernel.
    pub kernel: String,
    /// The devices, as in [`Setup`].
    pub devices: Vec<String>,
    /// The goal.
    pub goal: Metric,
    /// The limits on the growth of each guarded quantity.
    pub limits: Limits,
    /// The number of requests per second with the current settings.
    pub rate: f64,
    /// When the search ended, in seconds since 1970.
    pub at: u64,
    /// The winner; `None` if there was none.
    pub winner: Option<String>,
    /// The candidates.
    pub candidates: Vec<TrialOf>,
}

impl FinishedSearch {
    /// Creates the result of a search, or returns `None` if no round is valid.
    pub fn of(setup: &Setup, tuner: &Tuner) -> Option<Self> {
        let mut candidates: Vec<TrialOf> = Vec::new();
        let mut rates = Vec::new();
        for heat in tuner.stages() {
            let names = heat.switchback.names();
            rates.extend(heat.switchback.change(1, Metric::Requests).before);
            for standing in heat.standings(setup.goal) {
                let change = heat.switchback.change(standing.candidate, setup.goal).change;
                let of = TrialOf {
                    candidate: names[standing.candidate].clone(),
                    change: change.map(|change| change.estimate),
                    out: standing.out,
                };
                // A candidate's result in a later stage replaces that of an earlier one.
                candidates.retain(|known| known.candidate != of.candidate);
                candidates.push(of);
            }
        }
        Some(Self {
            service: setup.service.clone(),
            kernel: setup.kernel.clone(),
            devices: setup.devices.clone(),
            goal: setup.goal,
            limits: setup.limits,
            rate: crate::measure::statistics::median(&rates)?,
            at: seconds_since_1970(),
            winner: tuner.winner().map(|winner| tuner.names()[winner].clone()),
            candidates,
        })
    }

    /// Returns the finished searches, newest first. Empty if their file cannot be read, because they only
    /// affect the order of candidates.
    pub fn all(session: &Session) -> Vec<Self> {
        let mut text = Vec::new();
        let Ok(path) = file_of_trials(session) else { return Vec::new() };
        let read = File::open(path).and_then(|file| file.take(TRIALS_BYTES_MAX).read_to_end(&mut text));
        read.ok().and_then(|_| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Adds the search to the finished ones.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn keep(self, session: &Session) -> Result<(), Fault> {
        let path = file_of_trials(session)?;
        fs::create_dir_all(&session.state_dir).map_err(|error| Fault::file(&session.state_dir, error))?;
        let mut all = Self::all(session);
        all.insert(0, self);
        all.truncate(TRIALS_MAX);
        let text = serde_json::to_vec(&all).map_err(Fault::failed)?;
        replace_file(&path, 0o644, &text, Durability::Unsynced).map_err(|error| Fault::file(&path, error))
    }

    /// Whether this search was for the same service, goal and limits, on the same kernel and devices, and is
    /// recent enough.
    pub fn is_of(&self, setup: &Setup, now: u64) -> bool {
        (&self.service, &self.kernel, &self.devices) == (&setup.service, &setup.kernel, &setup.devices)
            && (self.goal, self.limits) == (setup.goal, setup.limits)
            && now.saturating_sub(self.at) < RESULTS_WITHIN_SECONDS
    }
}

fn file_of_trials(session: &Session) -> Result<PathBuf, Fault> {
    session.journal()?;
    Ok(session.state_dir.join(TRIALS))
}

/// Orders candidates by these earlier searches, given newest first: first the winners, then the candidates
/// that these searches did not measure, or dropped only because others were better. Omits candidates that
/// were clearly worse or beyond a limit, unless the operator named them.
pub fn ordered(offers: Vec<Offer>, trials: &[&FinishedSearch], named: &[String], now: u64) -> Vec<Offer> {
    let result = |name: &str| {
        trials
            .iter()
            .find_map(|trial| Some((*trial, trial.candidates.iter().find(|one| one.candidate == name)?)))
    };
    let (mut first, mut middle, mut last) = (Vec::new(), Vec::new(), Vec::new());
    for mut offer in offers {
        let name = offer.candidate.name.clone();
        let Some((trial, of)) = result(&name).filter(|_| offer.plan.is_ok()) else {
            middle.push((0, offer));
            continue;
        };
        let ago = crate::live::text::ago(now.saturating_sub(trial.at));
        let change = of.change.map(|change| format!("{} {:+.0} %", trial.goal, change * 100.0));
        let words = |why: &str| {
            format!(
                "{}{why} in a search {ago}",
                change.iter().fold(String::new(), |_, change| format!("{change}, "))
            )
        };
        let wins = trials.iter().position(|trial| trial.winner.as_ref() == Some(&name));
        match (wins, &of.out) {
            (Some(newest), _) => {
                offer.earlier = Some(words("the winner"));
                first.push((newest, offer));
            }
            (None, Some(out @ (Out::Worse | Out::Limit { growth: Some(_), .. }))) => {
                let why = words(&out.to_string());
                match named.contains(&name) {
                    true => offer.earlier = Some(why),
                    false => offer.plan = Err(Out::Earlier { words: why }),
                }
                last.push((0, offer));
            }
            (None, out) => {
                offer.earlier = Some(words(&out.as_ref().map_or_else(String::new, ToString::to_string)));
                middle.push((usize::from(matches!(out, Some(Out::TooLittle))), offer));
            }
        }
    }
    [&mut first, &mut middle, &mut last].into_iter().for_each(|part| part.sort_by_key(|(rank, _)| *rank));
    first.into_iter().chain(middle).chain(last).map(|(_, offer)| offer).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    fn setup() -> Setup {
        Setup {
            service: "port 11211".to_owned(),
            ports: vec![11_211],
            kernel: "6.18.0".to_owned(),
            devices: vec!["eth0 ice 8".to_owned()],
            goal: Metric::P50,
            limits: Limits::default(),
            margin: 5.0,
            window: [1.0, 0.1],
            seconds: 600,
            candidates: ["defer20", "defer50", "power", "latency"]
                .map(|name| (name.to_owned(), vec![format!("gro-flush-timeout {name}")]))
                .to_vec(),
        }
    }

    fn offer(name: &str) -> Offer {
        let candidate = name.parse().expect("a candidate");
        Offer { candidate, plan: Ok(model::Plan::default()), earlier: None }
    }

    fn trial(at: u64, winner: Option<&str>, candidates: &[(&str, Option<Out>)]) -> FinishedSearch {
        let of = |(name, out): &(&str, Option<Out>)| TrialOf {
            candidate: (*name).to_owned(),
            change: Some(-0.2),
            out: out.clone(),
        };
        FinishedSearch {
            service: setup().service,
            kernel: setup().kernel,
            devices: setup().devices,
            goal: Metric::P50,
            limits: Limits::default(),
            rate: 1_000.0,
            at,
            winner: winner.map(str::to_owned),
            candidates: candidates.iter().map(of).collect(),
        }
    }

    fn order(trials: &[&FinishedSearch], named: &[&str]) -> Vec<(String, bool)> {
        let offers = ["defer20", "defer50", "power", "latency"].map(offer).to_vec();
        let named: Vec<String> = named.iter().map(|name| (*name).to_owned()).collect();
        let ordered = ordered(offers, trials, &named, 1_000).into_iter();
        ordered.map(|offer| (offer.candidate.name, offer.plan.is_ok())).collect()
    }

    fn names(list: &[(&str, bool)]) -> Vec<(String, bool)> {
        list.iter().map(|(name, is_tried)| ((*name).to_owned(), *is_tried)).collect()
    }

    #[test]
    fn earlier_winners_come_first_and_what_was_clearly_worse_is_left_out_unless_it_is_named() {
        let worse = Out::Limit { metric: Metric::P99, growth: Some(0.8) };
        let of_today = trial(
            900,
            Some("latency"),
            &[
                ("defer20", Some(Out::Worse)),
                ("defer50", Some(Out::TooLittle)),
                ("power", Some(worse.clone())),
                ("latency", None),
            ],
        );
        let expected = [("latency", true), ("defer50", true), ("defer20", false), ("power", false)];
        assert_eq!(order(&[&of_today], &[]), names(&expected));
        let asked = [("latency", true), ("defer50", true), ("defer20", true), ("power", false)];
        assert_eq!(order(&[&of_today], &["defer20"]), names(&asked));
        // The newest search takes precedence, and its winner comes first.
        let older = trial(100, Some("power"), &[("power", None), ("defer20", None)]);
        let both = [("latency", true), ("power", true), ("defer50", true), ("defer20", false)];
        assert_eq!(order(&[&of_today, &older], &[]), names(&both));
        assert_eq!(
            order(&[], &[]),
            names(&["defer20", "defer50", "power", "latency"].map(|name| (name, true)))
        );
    }

    #[test]
    fn only_the_same_service_kernel_devices_goal_and_load_count_and_not_for_ever() {
        let known = trial(1_000, None, &[]);
        assert!(known.is_of(&setup(), 2_000));
        assert!(!known.is_of(&setup(), 1_000 + RESULTS_WITHIN_SECONDS));
        for other in [
            Setup { service: "nginx".to_owned(), ..setup() },
            Setup { kernel: "6.18.1".to_owned(), ..setup() },
            Setup { devices: vec!["eth0 ice 16".to_owned()], ..setup() },
            Setup { goal: Metric::Cpu, ..setup() },
        ] {
            assert!(!known.is_of(&other, 2_000), "{other:?}");
            assert!(setup().difference(&other).is_some());
        }
        assert!(is_same_load(1_000.0, 1_900.0) && !is_same_load(1_000.0, 2_100.0) && !is_same_load(0.0, 0.0));
    }

    #[test]
    fn what_differs_from_an_unfinished_search_is_named() {
        let difference = |other: Setup| setup().difference(&other);
        assert_eq!(difference(setup()), None);
        let kernel = difference(Setup { kernel: "6.19.0".to_owned(), ..setup() });
        assert_eq!(kernel.as_deref(), Some("kernel: 6.18.0 then, 6.19.0 now"));
        let mut other = setup();
        other.candidates[1].1 = vec!["gro-flush-timeout 9us".to_owned()];
        assert_eq!(difference(other).as_deref(), Some("a candidate now has other settings"));
        let other = difference(Setup { seconds: 60, ..setup() });
        assert_eq!(other.as_deref(), Some("--window, --guard-time, --margin or --seconds differs"));
    }

    #[test]
    fn a_record_is_read_back_also_if_its_last_line_was_cut_off() {
        let directory = tempfile::TempDir::with_prefix("netpolicy-tuning-").expect("a directory");
        let session = Session { state_dir: directory.path().join("state"), ..Session::default() };
        assert_eq!(Unfinished::of(&session, NetnsId(7)).expect("none"), None);
        let round = |at: u64| TunedRound {
            at,
            stage: TunerStage::Elimination,
            candidates: vec!["current".to_owned(), "defer20".to_owned()],
            figures: Vec::new(),
            void: Some(Unfair::Restart),
        };
        let mut record = TuneRecord::begin(&session, NetnsId(7), &setup(), &[round(1)]).expect("begun");
        record.add(&round(2)).expect("added");
        let path = TuneRecord::path(&session, NetnsId(7)).expect("a path");
        let mut text = fs::read_to_string(&path).expect("read");
        text.push_str("{\"at\":3,\"stage\":\"elim");
        fs::write(&path, text).expect("written");
        let unfinished = Unfinished::of(&session, NetnsId(7)).expect("read").expect("rounds");
        assert_eq!((unfinished.rounds.len(), unfinished.at, unfinished.setup), (2, 2, setup()));
        assert_eq!(Unfinished::of(&session, NetnsId(8)).expect("another namespace"), None);
        record.remove().expect("removed");
        assert_eq!(Unfinished::of(&session, NetnsId(7)).expect("none"), None);
        fs::write(&path, "damaged").expect("written");
        assert!(Unfinished::of(&session, NetnsId(7)).is_err());
    }

    #[test]
    fn finished_searches_are_kept_newest_first_and_the_file_stays_small() {
        let directory = tempfile::TempDir::with_prefix("netpolicy-tuned-").expect("a directory");
        let session = Session { state_dir: directory.path().join("state"), ..Session::default() };
        for at in 0..80 {
            trial(at, None, &[]).keep(&session).expect("kept");
        }
        let all = FinishedSearch::all(&session);
        assert_eq!((all.len(), all[0].at), (TRIALS_MAX, 79));
        fs::write(session.state_dir.join(TRIALS), "damaged").expect("written");
        assert_eq!(FinishedSearch::all(&session), []);
    }
}
