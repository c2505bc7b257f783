//! The rounds of a comparison, recorded in a file with one JSON document per line.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::live::MeasuredService;
use crate::measure::switchback::{Figures, Limit, Rule, Switchback, Unfair};
use linux::machine::{Machine, seconds_since_1970};
use model::live::LiveWindow;
use model::{FormatName, JudgedBy};
use serde::{Deserialize, Serialize};
use session::Fault;

use crate::judge::comparison::Round;
use crate::judge::options::ComparisonOptions;

/// The first line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComparisonHeader {
    /// The format.
    pub schema: FormatName,
    /// `compare-record`.
    pub kind: String,
    /// The measured service.
    pub service: String,
    /// The ports.
    pub ports: Vec<u16>,
    /// The names of the candidates, all of which are compared with the first one.
    pub candidates: Vec<String>,
    /// The deciding metrics and the margin.
    pub rule: Rule,
    /// Limits that the winner must not exceed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// The method by which the windows were measured.
    #[serde(default)]
    pub by: JudgedBy,
    /// The length of a window, in seconds.
    pub window: f64,
    /// The pause before each window, in seconds.
    pub guard: f64,
    /// The seed for the random order of candidates.
    pub seed: u64,
    /// The host's name.
    pub host: String,
    /// The kernel.
    pub kernel: String,
    /// When the comparison started, in seconds since 1970.
    pub started: u64,
}

/// Each line after the first: one round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RecordedRound {
    /// When the round ended, in seconds since the start of the comparison.
    pub at: f64,
    /// The indices of the candidates, in the order in which they were measured.
    pub order: Vec<usize>,
    /// The figures of each window, in the order of the candidates; fewer if the round ended early.
    pub figures: Vec<Figures>,
    /// The complete measurements of these windows.
    pub windows: Vec<LiveWindow>,
    /// Why the round is not valid; `None` if it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub void: Option<Unfair>,
}

/// A file to which rounds are written.
#[derive(Debug)]
pub struct PairRecord {
    path: PathBuf,
    file: BufWriter<File>,
}

impl PairRecord {
    /// Creates the file.
    ///
    /// # Errors
    /// As for [`crate::live::new_file`].
    pub fn create(
        path: &Path,
        target: &MeasuredService,
        options: &ComparisonOptions,
        by: JudgedBy,
    ) -> Result<Self, Fault> {
        let file = crate::live::new_file(path)?;
        let mut record = Self { path: path.to_owned(), file: BufWriter::new(file) };
        let Machine { host, kernel, .. } = Machine::this();
        record.line(&ComparisonHeader {
            schema: FormatName,
            kind: KIND.to_owned(),
            service: target.name.clone(),
            ports: target.ports.all(),
            candidates: options.candidates.iter().map(|candidate| candidate.name.clone()).collect(),
            rule: options.rule(),
            limits: options.limits.clone(),
            by,
            window: options.window.as_secs_f64(),
            guard: options.guard.as_secs_f64(),
            seed: options.seed,
            host,
            kernel,
            started: seconds_since_1970(),
        })?;
        Ok(record)
    }

    /// Appends a round. On return, the file contains the round.
    ///
    /// # Errors
    /// If the round cannot be written.
    pub fn add(&mut self, round: &Round, at: f64) -> Result<(), Fault> {
        self.line(&RecordedRound {
            at,
            order: round.order.clone(),
            figures: round.windows.iter().map(|(_, figures, _)| *figures).collect(),
            windows: round.windows.iter().map(|(.., window)| window.clone()).collect(),
            void: round.void,
        })
    }

    fn line(&mut self, document: &impl Serialize) -> Result<(), Fault> {
        let text = serde_json::to_string(document).map_err(Fault::failed)?;
        let written = writeln!(self.file, "{text}").and_then(|()| self.file.flush());
        written.map_err(|error| Fault::file(&self.path, error))
    }
}

const KIND: &str = "compare-record";

/// A recording of a comparison.
#[derive(Clone, Debug)]
pub struct RecordedComparison {
    /// The first line.
    pub header: ComparisonHeader,
    /// All other lines.
    pub rounds: Vec<RecordedRound>,
}

impl RecordedComparison {
    /// Whether a text begins like the recording of a comparison.
    pub fn begins(text: &str) -> bool {
        text.lines().next().is_some_and(|line| {
            serde_json::from_str::<ComparisonHeader>(line).is_ok_and(|header| header.kind == KIND)
        })
    }

    /// Parses a recording. The last line may be incomplete, because the process that wrote it may have been
    /// killed.
    ///
    /// # Errors
    /// The first malformed line, except for an incomplete last line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut lines = text.lines().enumerate().peekable();
        let wrong = |line: usize, error: serde_json::Error| format!("line {}: {error}", line + 1);
        let Some((at, first)) = lines.next() else { return Err("it is empty".to_owned()) };
        let header: ComparisonHeader = serde_json::from_str(first).map_err(|error| wrong(at, error))?;
        if header.candidates.len() < 2 {
            return Err("line 1: a comparison has at least two candidates".to_owned());
        }
        let mut rounds = Vec::new();
        while let Some((at, line)) = lines.next() {
            match serde_json::from_str(line) {
                Ok(round) => rounds.push(round),
                Err(error) if error.is_eof() && lines.peek().is_none() => {}
                Err(error) => return Err(wrong(at, error)),
            }
        }
        Ok(Self { header, rounds })
    }

    /// Returns the combined result of the recorded rounds.
    pub fn switchback(&self) -> Switchback {
        let ComparisonHeader { candidates, rule, by, .. } = &self.header;
        let mut all = Switchback::judged_by(candidates.clone(), rule.clone(), *by);
        for round in &self.rounds {
            match round.void {
                Some(why) if round.figures.len() != self.header.candidates.len() => all.void(why),
                void if round.figures.len() == self.header.candidates.len() => {
                    all.add(&round.figures, void);
                }
                Some(_) | None => {}
            }
        }
        all
    }
}

#[cfg(test)]
mod test {
    use crate::measure::switchback::{Metric, Verdict};
    use model::Chance;

    use super::*;

    /// Recordings of memcached with eight connections, whose clients do not wait for answers. While the
    /// second candidate, an offload for UDP, was in force, 1 % of the packets with requests were dropped.
    const RECORDED: [(&str, &str); 2] = [
        (
            "2000 requests per second",
            include_str!("../../../netpolicy/tests/root/recorded/compare-loss.jsonl"),
        ),
        ("200", include_str!("../../../netpolicy/tests/root/recorded/compare-loss-slow.jsonl")),
    ];

    /// Returns the verdicts of 100 comparisons, except `cannot-tell`. Each comparison draws random rounds
    /// from the recording, and ends as soon as it has a verdict.
    fn verdicts(recording: &RecordedComparison, deciding: Metric, knows_loss: bool) -> Vec<Verdict> {
        const TRIALS: u64 = 100;
        const ROUNDS: usize = 40;
        let rule = Rule { deciding: vec![deciding], ..recording.header.rule.clone() };
        let known = u32::try_from(recording.rounds.len()).expect("few rounds");
        let trial = |trial: u64| {
            let mut chance = Chance::stream(39, &[trial]);
            let mut all = Switchback::new(recording.header.candidates.clone(), rule.clone());
            for _ in 0..ROUNDS {
                let at = usize::try_from(chance.below(known)).expect("few rounds");
                let mut figures = recording.rounds[at].figures.clone();
                if !knows_loss {
                    figures.iter_mut().for_each(|figures| figures.network = None);
                }
                // The windows themselves show why a round was not valid. Omit the recorded reason if it is
                // loss, which must not be considered unless the windows show it.
                all.add(&figures, recording.rounds[at].void.filter(|why| *why != Unfair::Loss));
                if all.is_decided() {
                    break;
                }
            }
            all.verdict(1)
        };
        let all = (0..TRIALS).map(trial);
        all.filter(|verdict| !matches!(verdict, Verdict::CannotTell { .. })).collect()
    }

    #[test]
    fn one_percent_of_loss_with_one_candidate_is_never_blamed_on_it() {
        let mut blamed = 0;
        for (rate, text) in RECORDED {
            let recording = RecordedComparison::parse(text).expect("a record");
            assert!(recording.rounds.len() >= 50, "{rate}");
            for deciding in [Metric::P50, Metric::P90, Metric::P99, Metric::Cpu] {
                let found = verdicts(&recording, deciding, true);
                assert_eq!(found, [], "by {deciding} at {rate}");
                let without = verdicts(&recording, deciding, false);
                blamed += without.iter().filter(|verdict| **verdict == Verdict::Worse).count();
            }
        }
        assert!(
            blamed >= 50,
            "the premise: without TCP's counts, {blamed} of 800 comparisons blame the candidate"
        );
    }
}
