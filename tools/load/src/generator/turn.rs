//! Makes client threads connect one after the other, in the order of their numbers.
//!
//! A server distributes connections in the order of arrival. Only with the same order in every run
//! do the same client threads meet the same server threads. With more threads than CPUs, this
//! decides the result.

use std::collections::BTreeSet;
use std::sync::{Condvar, Mutex, PoisonError};

/// The threads that have connected or given up.
#[derive(Debug, Default)]
pub(super) struct Turns {
    done: Mutex<BTreeSet<u32>>,
    passed: Condvar,
}

/// A thread's turn. Dropping it passes the turn on, even if the thread failed.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    turns: &'a Turns,
    thread: u32,
}

impl Turns {
    /// Creates the pending turn of a thread. Every thread with a smaller number must have one, too.
    pub(super) fn of(&self, thread: u32) -> Turn<'_> {
        Turn { turns: self, thread }
    }
}

impl Turn<'_> {
    /// Waits until every thread with a smaller number has had its turn.
    pub(super) fn wait(&self) {
        let mut done = self.turns.done.lock().unwrap_or_else(PoisonError::into_inner);
        while (0..self.thread).any(|earlier| !done.contains(&earlier)) {
            done = self.turns.passed.wait(done).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.done.lock().unwrap_or_else(PoisonError::into_inner).insert(self.thread);
        self.turns.passed.notify_all();
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn threads_come_in_the_order_of_their_numbers_and_one_that_fails_blocks_no_other() {
        let turns = Turns::default();
        let came = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for thread in (0..4).rev() {
                let (turns, came) = (&turns, &came);
                scope.spawn(move || {
                    let turn = turns.of(thread);
                    if thread == 1 {
                        return;
                    }
                    turn.wait();
                    came.lock().expect("no thread panics").push(thread);
                });
            }
        });
        assert_eq!(came.into_inner().expect("no thread panicked"), [0, 2, 3]);
    }
}
