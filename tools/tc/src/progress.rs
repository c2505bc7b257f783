//! The progress of a load.

use std::time::{Duration, Instant};

use cli::Console;

/// How long a load runs before it shows its progress.
const QUIET_FOR: Duration = Duration::from_secs(2);

/// The refresh interval.
const EVERY: Duration = Duration::from_millis(200);

/// Shows the rate and the remaining time of a load on standard error, if standard error is a terminal.
#[derive(Debug)]
pub(super) struct Progress<'a> {
    console: &'a Console,
    began: Instant,
    next: Instant,
    length: Option<u64>,
    shown: bool,
}

impl<'a> Progress<'a> {
    /// Starts to measure the progress of a load whose file has `length` bytes.
    pub(super) fn new(console: &'a Console, length: Option<u64>) -> Self {
        let began = Instant::now();
        Self { console, began, next: began + QUIET_FOR, length, shown: false }
    }

    /// Updates the progress: `settled` rules have a result, and `bytes` bytes were read.
    pub(super) fn at(&mut self, settled: u64, bytes: u64) {
        let now = Instant::now();
        if now < self.next {
            return;
        }
        self.next = now + EVERY;
        self.shown = true;
        let elapsed = now.duration_since(self.began).as_secs_f64();
        let rate = settled as f64 / elapsed;
        let mut words = format!("{settled} rules, {rate:.0}/s");
        if let Some(length) = self.length.filter(|length| *length > 0 && bytes > 0) {
            let share = bytes as f64 / length as f64;
            let left = elapsed * (1.0 - share) / share;
            words.push_str(&format!(", {:.0} %, {left:.0} s left", 100.0 * share));
        }
        self.console.progress(&words);
    }

    /// Clears the line.
    pub(super) fn end(&self) {
        if self.shown {
            self.console.progress("");
        }
    }
}
