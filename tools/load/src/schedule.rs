//! Decides when requests are due: an arrival process per connection, drawn from the seed, and a calendar over
//! all of them.
//!
//! As in mutilate, every connection has its own renewal process, and the server sees their sum. The schedule
//! depends only on the seed: a slow server delays when requests are *sent*, never when they are *due*. A
//! connection that has no room for its due request leaves the calendar but keeps its due times. The backlog
//! therefore needs no memory: a request is drawn when the connection has room for it.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;

use model::{Arrivals, Nanoseconds};

use model::Chance;

/// A request in the schedule. Times are relative to the schedule's beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The connection's number.
    pub connection: usize,
    /// When the request is due.
    pub due: Nanoseconds,
}

/// The sequence of due times of one connection.
#[derive(Clone, Debug)]
pub struct Stream {
    chance: Chance,
    arrivals: Arrivals,
    mean_ns: f64,
    due_ns: f64,
}

impl Stream {
    /// Creates the stream of a connection; `mean_ns` is its average gap, in nanoseconds.
    pub fn new(arrivals: Arrivals, mean_ns: f64, mut chance: Chance) -> Self {
        // Connections with fixed gaps start at a random point of the first gap, so that they are
        // not in lockstep.
        let due_ns = match arrivals {
            Arrivals::Fixed => mean_ns * chance.unit(),
            Arrivals::Exponential | Arrivals::FbIa => arrivals.gap(mean_ns, chance.unit()),
        };
        Self { chance, arrivals, mean_ns, due_ns }
    }

    /// Returns when the connection's next request is due.
    #[inline]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "gaps are not negative, and sums below 2^53 ns (104 days) are whole nanoseconds"
    )]
    pub fn due(&self) -> Nanoseconds {
        Nanoseconds(self.due_ns as u64)
    }

    /// Advances to the next request.
    #[inline]
    pub fn advance(&mut self) {
        self.due_ns += self.arrivals.gap(self.mean_ns, self.chance.unit());
    }
}

/// The streams of all connections of a thread, in order of time.
#[derive(Clone, Debug)]
pub struct Schedule {
    streams: Vec<Stream>,
    calendar: BinaryHeap<Reverse<(Nanoseconds, usize)>>,
}

impl Schedule {
    /// Creates a schedule over the streams of these connections.
    pub fn new(streams: Vec<Stream>) -> Self {
        let calendar = streams.iter().enumerate().map(|(i, stream)| Reverse((stream.due(), i))).collect();
        Self { streams, calendar }
    }

    /// The earliest request among the connections that are not suspended.
    #[inline]
    pub fn next(&self) -> Option<Arrival> {
        self.calendar.peek().map(|&Reverse((due, connection))| Arrival { connection, due })
    }

    /// Takes the earliest request; its connection's next request enters the calendar.
    #[inline]
    pub fn take(&mut self) {
        if let Some(mut earliest) = self.calendar.peek_mut() {
            let Reverse((due, connection)) = &mut *earliest;
            let stream = &mut self.streams[*connection];
            stream.advance();
            *due = stream.due();
        }
    }

    /// Suspends the connection of the earliest request for lack of room, until it is
    /// [resumed](Self::resume).
    pub fn suspend(&mut self) {
        if let Some(earliest) = self.calendar.peek_mut() {
            PeekMut::pop(earliest);
        }
    }

    /// Resumes a connection that has room again.
    pub fn resume(&mut self, connection: usize) {
        self.calendar.push(Reverse((self.streams[connection].due(), connection)));
    }

    /// The streams by connection, each at its next due request.
    pub fn streams(&self) -> &[Stream] {
        &self.streams
    }
}

#[cfg(test)]
mod test {
    use super::*;

    fn schedule(seed: u64, arrivals: Arrivals, connections: u64, mean_ns: f64) -> Schedule {
        Schedule::new(
            (0..connections).map(|c| Stream::new(arrivals, mean_ns, Chance::stream(seed, &[c]))).collect(),
        )
    }

    fn arrivals(schedule: &mut Schedule, count: usize) -> Vec<Arrival> {
        (0..count)
            .map(|_| {
                let arrival = schedule.next().expect("no connection is suspended");
                schedule.take();
                arrival
            })
            .collect()
    }

    #[test]
    fn a_schedule_depends_on_the_seed_alone() {
        let drawn = |seed| arrivals(&mut schedule(seed, Arrivals::FbIa, 16, 1000.0), 5000);
        assert_eq!(drawn(1), drawn(1));
        assert_ne!(drawn(1), drawn(2));
        assert!(drawn(1).is_sorted_by_key(|a| a.due), "in order of time");
    }

    #[test]
    fn a_connection_without_room_keeps_its_due_times() {
        let mut free = schedule(9, Arrivals::Exponential, 4, 1000.0);
        let mut held = free.clone();
        let expected = arrivals(&mut free, 400);
        let first = held.next().expect("has one").connection;
        held.suspend();
        let others = arrivals(&mut held, 100);
        assert!(others.iter().all(|a| a.connection != first));
        held.resume(first);
        let mut all = [others, arrivals(&mut held, 300)].concat();
        all.sort_by_key(|a| (a.due, a.connection));
        assert_eq!(all, expected, "the backlog has the due times of an unsuspended schedule");
    }

    #[test]
    fn the_sum_of_all_connections_has_the_rate_that_was_asked() {
        for kind in [Arrivals::Fixed, Arrivals::Exponential, Arrivals::FbIa] {
            // 50 connections with one request in 50 µs each: together one per µs.
            let last = *arrivals(&mut schedule(4, kind, 50, 50_000.0), 200_000).last().expect("many");
            #[expect(clippy::cast_precision_loss, reason = "a fifth of a second")]
            let rate = 200_000.0 / last.due.0 as f64;
            assert!((rate - 0.001).abs() < 0.00002, "{kind}: {rate} per ns");
        }
    }

    #[test]
    fn fixed_gaps_do_not_march_in_step() {
        let mut fixed = schedule(4, Arrivals::Fixed, 100, 100_000.0);
        let dues: std::collections::BTreeSet<_> = arrivals(&mut fixed, 100).iter().map(|a| a.due).collect();
        assert!(dues.len() > 95, "{} distinct due times of 100 connections", dues.len());
    }
}
