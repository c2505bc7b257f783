//! Encodes commands into portions, in the order in which they must be executed.

use crate::Command;

use super::lane::{Lanes, Route};
use super::portion::Portion;

/// A step of the execution, in order.
#[derive(Debug)]
pub(super) enum Part {
    /// The worker with this number sends this portion.
    Send(usize, Portion),
    /// Wait for all earlier steps.
    Settle,
}

/// Encodes commands. It sends nothing, so several threads can encode parts of one file.
#[derive(Debug)]
pub struct Encoder {
    lanes: Lanes,
    /// The portion of each worker that is not full yet.
    open: Vec<Portion>,
    parts: Vec<Part>,
    /// Empty portions to reuse.
    spare: Vec<Portion>,
    bytes: usize,
    /// The expected number of bytes per worker if the encoder holds a whole part of a file; else `None`.
    held: Option<u64>,
}

impl Encoder {
    /// Creates an encoder for this many workers, at least one.
    pub fn among(workers: usize) -> Self {
        let workers = workers.max(1);
        let open = (0..workers).map(|_| Portion::default()).collect();
        let (parts, spare) = (Vec::new(), Vec::new());
        Self { lanes: Lanes::among(workers), open, parts, spare, bytes: 0, held: None }
    }

    /// Creates an encoder for this many workers that holds a whole part of a file of this length.
    pub fn holding(workers: usize, bytes: u64) -> Self {
        let each = bytes / u64::try_from(workers.max(1)).unwrap_or(u64::MAX);
        Self { held: Some(each), ..Self::among(workers) }
    }

    /// Encodes a command.
    pub fn push(&mut self, line: u32, command: &Command) {
        match self.lanes.route(command) {
            Route::Worker(worker) => {
                if let Some(bytes) = self.held.filter(|_| self.open[worker].is_empty()) {
                    self.open[worker] = Portion::held(bytes);
                }
                self.open[worker].push(line, command);
                if self.open[worker].is_full() {
                    self.close(worker);
                }
            }
            Route::Alone => {
                self.settle();
                self.open[0].push(line, command);
                self.settle();
            }
        }
    }

    /// Encodes the removal of a rule, for the first worker.
    pub(super) fn push_removal(&mut self, line: u32, rule: &crate::Filter) {
        self.open[0].push_removal(line, rule);
        if self.open[0].is_full() {
            self.close(0);
        }
    }

    /// Makes all later commands wait for all earlier ones.
    fn settle(&mut self) {
        self.close_all();
        if !matches!(self.parts.last(), None | Some(Part::Settle)) {
            self.parts.push(Part::Settle);
        }
    }

    /// Appends a later part of the same file.
    pub fn append(&mut self, mut later: Self) {
        self.close_all();
        later.close_all();
        let Self { lanes, parts, bytes, .. } = later;
        match self.lanes.join(lanes) {
            Some(places) => self.parts.extend(parts.into_iter().map(|part| match part {
                Part::Send(lane, portion) => Part::Send(places[lane], portion),
                Part::Settle => Part::Settle,
            })),
            None => {
                self.parts.push(Part::Settle);
                self.parts.extend(parts);
            }
        }
        self.bytes += bytes;
    }

    /// Adds this many lines, which precede the encoded part of the file, to all line numbers.
    pub fn shift(&mut self, lines: u32) {
        self.close_all();
        for part in &mut self.parts {
            if let Part::Send(_, portion) = part {
                portion.shift(lines);
            }
        }
    }

    /// The size of the full portions, in bytes.
    pub fn bytes(&self) -> u64 {
        u64::try_from(self.bytes).unwrap_or(u64::MAX)
    }

    /// Whether there are steps to execute.
    pub(super) const fn has_parts(&self) -> bool {
        !self.parts.is_empty()
    }

    /// Takes the steps with full portions.
    pub(super) fn take(&mut self) -> Vec<Part> {
        self.bytes = 0;
        std::mem::take(&mut self.parts)
    }

    /// Closes every non-empty portion.
    pub(super) fn close_all(&mut self) {
        for worker in 0..self.open.len() {
            if !self.open[worker].is_empty() {
                self.close(worker);
            }
        }
    }

    /// Returns an empty portion, to reuse its memory.
    pub(super) fn give_back(&mut self, portion: Portion) {
        self.spare.push(portion);
    }

    fn close(&mut self, worker: usize) {
        // The next portion will have about the same size.
        let bytes = self.open[worker].bytes();
        let fresh = match self.held {
            Some(_) => Portion::default(),
            None => self.spare.pop().unwrap_or_else(|| Portion::with_room(bytes)),
        };
        let portion = std::mem::replace(&mut self.open[worker], fresh);
        self.bytes += portion.bytes();
        self.parts.push(Part::Send(worker, portion));
    }
}
