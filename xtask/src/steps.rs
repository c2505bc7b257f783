//! Tracks the steps of a long task: prints the current step, and the time left according to the last run.
//! Each run writes the durations of its steps to a file below `target`, and the next run reads this file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A task in steps whose names are known in advance.
pub(crate) struct Steps {
    begun: Instant,
    count: usize,
    /// Names and expected durations of the steps to come, in order.
    ahead: Vec<(&'static str, Duration)>,
    /// Names and durations of the steps that ended, in order.
    took: Vec<(&'static str, Duration)>,
    record: PathBuf,
}

/// How long the current step and the steps after it are expected to take.
#[derive(Clone, Copy)]
pub(crate) struct Left {
    step: Duration,
    after: Duration,
}

impl Left {
    /// Returns the time left in the steps after the current one and in the current one, which has run for
    /// `elapsed` and has done `share` of its work.
    ///
    /// Both the record and the share predict how long the step takes. The more of the step is done, the more
    /// the share counts.
    pub(crate) fn after(self, elapsed: Duration, share: f64) -> Duration {
        let share = share.clamp(0.0, 1.0);
        let by_share = if share > 0.0 { elapsed.div_f64(share) } else { self.step };
        let step = self.step.mul_f64(1.0 - share) + by_share.mul_f64(share);
        step.saturating_sub(elapsed) + self.after
    }
}

impl Steps {
    /// Begins a task with these steps. Each step has a default duration in seconds, for the case that no run
    /// is recorded.
    pub(crate) fn begin(record: &Path, steps: &[(&'static str, u64)]) -> Self {
        let recorded = read(&std::fs::read_to_string(record).unwrap_or_default());
        let expected = |&(name, usual): &(&'static str, u64)| {
            (name, Duration::from_secs(recorded.get(name).map_or(usual, |seconds| (*seconds).into())))
        };
        let ahead: Vec<_> = steps.iter().map(expected).collect();
        let all = ahead.iter().map(|(_, expected)| *expected).sum();
        eprintln!("{} steps, about {}", ahead.len(), in_words(all));
        Self {
            begun: Instant::now(),
            count: ahead.len(),
            ahead,
            took: Vec::new(),
            record: record.to_path_buf(),
        }
    }

    /// Runs the next step, which must have this name.
    pub(crate) fn run<T>(&mut self, name: &'static str, work: impl FnOnce(Left) -> T) -> T {
        assert_eq!(self.ahead.first().map(|(next, _)| *next), Some(name), "steps run in order");
        let (_, expected) = self.ahead.remove(0);
        let after = self.ahead.iter().map(|(_, expected)| *expected).sum();
        let left = Left { step: expected, after };
        eprintln!(
            "\n[{}/{} at {}] {name}: about {}, {} left in all",
            self.count - self.ahead.len(),
            self.count,
            clock(self.begun.elapsed()),
            in_words(expected),
            in_words(expected + after)
        );
        let begun = Instant::now();
        let result = work(left);
        self.took.push((name, begun.elapsed()));
        result
    }

    /// Records and prints the duration of the steps.
    pub(crate) fn end(self) {
        let took: BTreeMap<_, _> = self.took.iter().map(|(name, took)| (name, took.as_secs())).collect();
        if let Err(error) = std::fs::write(&self.record, serde_json::json!(took).to_string()) {
            eprintln!("{}: {error}", self.record.display());
        }
        eprintln!("\n{} in all:", clock(self.begun.elapsed()));
        for (name, took) in self.took {
            eprintln!("{:>6}  {name}", clock(took));
        }
    }
}

/// Reads the record of an earlier run: the duration of each step in seconds.
fn read(record: &str) -> BTreeMap<String, u32> {
    serde_json::from_str(record).unwrap_or_default()
}

/// Formats a time as minutes and seconds, such as `10:05`.
pub(crate) fn clock(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

/// Formats a time in words, such as `89 s` or `2 min`.
fn in_words(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..90 => format!("{seconds} s"),
        seconds => format!("{} min", (seconds + 30) / 60),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_next_run_expects_what_the_last_one_took() {
        let record = std::env::temp_dir().join(format!("netpolicy-steps-{}", std::process::id()));
        let mut steps = Steps::begin(&record, &[("format", 2), ("lints", 60)]);
        assert_eq!(steps.ahead, [("format", Duration::from_secs(2)), ("lints", Duration::from_secs(60))]);
        steps.run("format", |left| assert_eq!(left.after, Duration::from_secs(60)));
        steps.end();
        let next = Steps::begin(&record, &[("format", 2), ("lints", 60)]);
        assert!(next.ahead[0].1 < Duration::from_secs(2), "{:?}", next.ahead);
        assert_eq!(next.ahead[1].1, Duration::from_secs(60), "the lints did not run");
        std::fs::remove_file(&record).expect("the record was written");
    }

    #[test]
    fn the_time_left_moves_from_the_record_to_the_share_that_is_done() {
        let seconds = Duration::from_secs;
        let left = Left { step: seconds(100), after: seconds(10) };
        assert_eq!(left.after(Duration::ZERO, 0.0), seconds(110));
        // Half is done after 100 s: the whole step takes 100 s according to the record, and 200 s according
        // to the share.
        assert_eq!(left.after(seconds(100), 0.5), seconds(60));
        assert_eq!(left.after(seconds(300), 1.0), seconds(10));
    }

    #[test]
    fn a_record_that_is_not_ours_is_ignored() {
        assert_eq!(read(r#"{"lints": 2}"#), [("lints".to_owned(), 2)].into());
        for other in ["", "5.2 lints\n", r#"{"lints": -1}"#, r#"{"lints": 1e18}"#] {
            assert!(read(other).is_empty(), "{other}");
        }
        assert_eq!(clock(Duration::from_secs(605)), "10:05");
        assert_eq!([89, 90, 150].map(|s| in_words(Duration::from_secs(s))), ["89 s", "2 min", "3 min"]);
    }
}
