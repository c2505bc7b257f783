//! Caches the parts that a line has in common with the previous one.
//!
//! The lines of a long file differ in a few words: the words before the handle and the actions at the end are
//! mostly the same. Both are cached with their text, and a line that starts or ends with the same bytes is
//! parsed without splitting or parsing these again. It must be a plain line ([`split_plain`]), so that equal
//! bytes are equal words.

use crate::action::Action;
use crate::words::{Spans, Words, split_plain};

use crate::command::Head;

/// The beginning and end of recent lines.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    /// The text before the first word that differs, including the blank before that word.
    head_text: Vec<u8>,
    head: Option<Head>,
    /// The text of the actions: a blank, `action` and everything after it.
    tail_text: Vec<u8>,
    /// The parsed actions of that text; empty until it has occurred twice.
    tail: Vec<Action>,
}

/// The part of a line that is not cached.
#[derive(Debug)]
pub(crate) struct Rest<'a> {
    /// The parsed beginning, if it is cached, and the offset of the words after it.
    pub(crate) head: Option<(Head, usize)>,
    /// The words, without the actions if those are cached.
    pub(crate) words: Words<'a>,
    /// The actions at the line's end, if they are cached.
    pub(crate) actions: Option<&'a [Action]>,
}

impl Memory {
    /// Returns the line without its cached parts, or `None` if nothing is cached or the line is not plain.
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

    /// Caches the beginning of a plain line; `text` ends where the rest of the line begins.
    pub(crate) fn learn_head(&mut self, text: &[u8], head: Head) {
        self.head_text.clear();
        self.head_text.extend_from_slice(text);
        self.head = Some(head);
    }

    /// Caches the end of a plain line; `text` starts with the blank before `action`. If the end differs on
    /// each line, the only cost is a copy of its text.
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
