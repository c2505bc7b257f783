//! A cache of answers about the machine: hundreds of tests have the same needs, and most answers require
//! starting a program.

use std::sync::{Mutex, PoisonError};

/// Questions and their answers so far.
pub(crate) struct AskedOnce<Question, Answer>(Mutex<Vec<(Question, Answer)>>);

impl<Question: Copy + PartialEq, Answer: Clone> AskedOnce<Question, Answer> {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    /// Returns the answer to a question, which `find` determines the first time.
    pub(crate) fn ask(&self, question: Question, find: impl FnOnce() -> Answer) -> Answer {
        let mut answers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, answer)) = answers.iter().find(|(asked, _)| *asked == question) {
            return answer.clone();
        }
        let answer = find();
        answers.push((question, answer.clone()));
        answer
    }
}
