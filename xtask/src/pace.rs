//! How long the steps of a run take: said before each of them, kept for the next run, and the slowest at the end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How many of the slowest are shown.
const SLOWEST: usize = 10;

/// How many parts of steps are remembered; there are about two thousand tests.
const PARTS_MAX: usize = 20_000;

/// What a part takes at least of which the next run shall know: the others are less than what runs differ by.
const PART_NOTED: Duration = Duration::from_millis(500);

/// What no part of a run takes: a record that says more is not ours.
const PART_MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// A step, or a part of one.
struct Took {
    name: String,
    time: Duration,
    /// Whether it is a step whose parts are here, too.
    has_parts: bool,
}

/// A run of steps whose names are known beforehand.
pub(crate) struct Pace {
    begun: Instant,
    /// Names and expected durations of the steps that are still to come, in order.
    ahead: Vec<(&'static str, Duration)>,
    steps: usize,
    /// What took how long: steps, and what they are made of.
    took: Mutex<Vec<Took>>,
    /// What the last run noted, by name.
    recorded: BTreeMap<String, Duration>,
    record: PathBuf,
}

impl Pace {
    /// A run of these steps. `usual` is how long each takes where no earlier run was recorded, in seconds.
    pub(crate) fn begin(record: &Path, steps: &[(&'static str, u64)]) -> Self {
        let text = std::fs::read_to_string(record).unwrap_or_default();
        let recorded = read(&text);
        let expected = |(name, usual): &(&'static str, u64)| {
            (*name, recorded.get(*name).copied().unwrap_or(Duration::from_secs(*usual)))
        };
        let ahead: Vec<_> = steps.iter().map(expected).collect();
        let all = ahead.iter().map(|(_, expected)| *expected).sum();
        eprintln!("{} steps, about {} by the last run", ahead.len(), spoken(all));
        Self {
            begun: Instant::now(),
            steps: ahead.len(),
            ahead,
            took: Mutex::default(),
            recorded,
            record: record.to_path_buf(),
        }
    }

    /// Runs the next step, which must be that one.
    pub(crate) fn step<T>(&mut self, name: &'static str, work: impl FnOnce(&Self) -> T) -> T {
        let left: Duration = self.ahead.iter().map(|(_, expected)| *expected).sum();
        let at = self.steps - self.ahead.len() + 1;
        assert_eq!(self.ahead.first().map(|(next, _)| *next), Some(name), "steps come in their order");
        let (_, expected) = self.ahead.remove(0);
        eprintln!(
            "\n[{at}/{} at {}] {name}: {} expected, {} to go",
            self.steps,
            clock(self.begun.elapsed()),
            spoken(expected),
            spoken(left)
        );
        let (begun, before) = (Instant::now(), self.remembered());
        let result = work(self);
        let has_parts = self.remembered() > before;
        self.remember(Took { name: name.to_owned(), time: begun.elapsed(), has_parts });
        result
    }

    /// Leaves out the next step, which must be that one.
    pub(crate) fn leave_out(&mut self, name: &'static str) {
        assert_eq!(self.ahead.first().map(|(next, _)| *next), Some(name), "steps come in their order");
        self.ahead.remove(0);
    }

    /// How long a part of a step took in the last run, if that was noted.
    pub(crate) fn expected_of(&self, part: &str) -> Option<Duration> {
        self.recorded.get(part).copied()
    }

    /// Remembers how long a part of a step took.
    pub(crate) fn part(&self, name: impl Into<String>, took: Duration) {
        self.remember(Took { name: name.into(), time: took, has_parts: false });
    }

    fn remember(&self, took: Took) {
        let mut all = self.took.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if all.len() < PARTS_MAX || took.has_parts {
            all.push(took);
        }
    }

    fn remembered(&self) -> usize {
        self.took.lock().unwrap_or_else(std::sync::PoisonError::into_inner).len()
    }

    /// Writes down what the steps and the longer parts took, and shows the slowest of all.
    pub(crate) fn end(self, names: &[(&'static str, u64)]) {
        let all = self.took.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let noted = all
            .iter()
            .filter(|took| took.time >= PART_NOTED || names.iter().any(|(step, _)| *step == took.name));
        let text: String = noted.map(|took| format!("{} {}\n", took.time.as_secs_f64(), took.name)).collect();
        if let Err(error) = std::fs::write(&self.record, text) {
            eprintln!("{}: {error}", self.record.display());
        }
        eprintln!("\n{} in all; the slowest:", clock(self.begun.elapsed()));
        for took in slowest(all) {
            eprintln!("{:7.1} s  {}", took.time.as_secs_f64(), took.name);
        }
    }
}

/// Which took longest, longest first. A step is not named beside its parts.
fn slowest(mut all: Vec<Took>) -> Vec<Took> {
    all.retain(|took| !took.has_parts);
    all.sort_by_key(|took| std::cmp::Reverse(took.time));
    all.truncate(SLOWEST);
    all
}

/// Reads the record of an earlier run.
fn read(text: &str) -> BTreeMap<String, Duration> {
    let line = |line| {
        let (seconds, name) = str::split_once(line, ' ')?;
        let took = Duration::try_from_secs_f64(seconds.parse().ok()?).ok()?;
        (took <= PART_MAX).then(|| (name.to_owned(), took))
    };
    text.lines().filter_map(line).collect()
}

/// Minutes and seconds, as on a clock.
fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

/// A duration as people say it.
fn spoken(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..90 => format!("{seconds} s"),
        seconds => format!("{} min", (seconds + 30) / 60),
    }
}

#[cfg(test)]
mod runs {
    use super::*;

    #[test]
    fn what_a_run_took_is_what_the_next_one_expects() {
        let record = std::env::temp_dir().join(format!("netpolicy-pace-{}", std::process::id()));
        let steps = [("format", 2), ("lints", 60)];
        let mut pace = Pace::begin(&record, &steps);
        assert_eq!(pace.ahead, [("format", Duration::from_secs(2)), ("lints", Duration::from_secs(60))]);
        pace.leave_out("format");
        assert_eq!(pace.step("lints", |pace| pace.part("lints of one crate", Duration::from_secs(1))), ());
        pace.part("a longer test", PART_NOTED);
        pace.part("a short test", PART_NOTED / 2);
        pace.end(&steps);
        let next = Pace::begin(&record, &steps);
        assert_eq!(next.ahead[0].1, Duration::from_secs(2), "nothing was recorded of it");
        assert!(next.ahead[1].1 < Duration::from_secs(60), "{:?}", next.ahead);
        assert_eq!(
            (next.expected_of("a longer test"), next.expected_of("a short test")),
            (Some(PART_NOTED), None)
        );
        std::fs::remove_file(&record).expect("it was written");
    }

    #[test]
    fn the_slowest_come_first_and_are_ten() {
        let took = |n| Took { name: format!("{n}"), time: Duration::from_secs(n), has_parts: n == 29 };
        let slowest = slowest((0..30).map(took).collect());
        assert_eq!(
            (slowest.len(), slowest[0].name.as_str(), slowest[9].name.as_str()),
            (SLOWEST, "28", "19")
        );
    }

    #[test]
    fn times_are_said_as_people_say_them() {
        assert_eq!(clock(Duration::from_secs(605)), "10:05");
        let said = [89, 90, 150].map(|seconds| spoken(Duration::from_secs(seconds)));
        assert_eq!(said, ["89 s", "2 min", "3 min"]);
        assert!(read("no number\nx y\n-1 a\nNaN b\ninf c\n1e18 d\n").is_empty());
    }
}
