//! What a line has in common with the one before.
//!
//! The lines of a long file differ in a few words: what stands before the handle is mostly the same, and so are the
//! actions at the end. Both are remembered with their text, and a line that begins or ends with the same bytes is read
//! without splitting or reading these again. It must be a plain line ([`split_plain`]): then equal bytes are equal words.

use crate::action::Action;
use crate::words::{Spans, Words, split_plain};

use crate::command::Head;

/// What the last lines began and ended with.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The text before the first word that differs, with the blank before that word.
    head_text: Vec<u8>,
    head: Option<Head>,
    /// A blank, `action` and all that follows.
    tail_text: Vec<u8>,
    /// What that text means; empty until it was there twice.
    tail: Vec<Action>,
}

/// What is left of a line.
#[derive(Debug)]
pub(crate) struct Rest<'a> {
    /// What its first words say, if they were known, and where the words behind them begin.
    pub(crate) head: Option<(Head, usize)>,
    /// Its words, without the actions if they are known.
    pub(crate) words: Words<'a>,
    /// The actions at its end, if they are known.
    pub(crate) actions: Option<&'a [Action]>,
}

impl Memory {
    /// The line without what is known of it; `None` if nothing is, or it is not a plain one.
    pub(crate) fn rest<'a>(&'a self, line: &'a [u8], spans: &'a mut Spans) -> Option<Rest<'a>> {
        let head = self.head.filter(|_| line.starts_with(&self.head_text));
        let start = if head.is_some() { self.head_text.len() } else { 0 };
        let rest = &line[start..];
        let tail = (!self.tail.is_empty()).then(|| rest.strip_suffix(&self.tail_text[..])).flatten();
        if head.is_none() && tail.is_none() {
            return None;
        }
        let text = split_plain(tail.unwrap_or(rest), spans)?;
        let head = head.map(|head| (head, start));
        let actions = tail.map(|_| &self.tail[..]);
        let words = match actions {
            Some(_) => Words::before_actions(text, spans),
            None => Words::new(text, spans),
        };
        Some(Rest { head, words, actions })
    }

    /// Remembers how a plain line began; its text ends where the rest of it begins.
    pub(crate) fn learn_head(&mut self, text: &[u8], head: Head) {
        self.head_text.clear();
        self.head_text.extend_from_slice(text);
        self.head = Some(head);
    }

    /// Remembers how a plain line ended, which text begins with the blank before `action`. What differs from line to line
    /// costs no more than a copy of its text.
    pub(crate) fn learn_tail(&mut self, text: &[u8], actions: &[Action]) {
        if self.tail_text == text {
            self.tail.clear();
            self.tail.extend_from_slice(actions);
        } else {
            self.tail.clear();
            self.tail_text.clear();
            self.tail_text.extend_from_slice(text);
        }
    }
}
