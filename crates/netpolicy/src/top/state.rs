//! Holds the state of the display, and applies the effect of keys.

use super::reading::{ProcessLine, QueueLine, Reading};

/// The sort order of queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Sort {
    /// By packets, the busiest queue first.
    #[default]
    Packets,
    /// By polls, the queue with the most polls first.
    Polls,
    /// By the share of packets that the application polls itself, the highest share first.
    Application,
    /// By device and index.
    Name,
}

impl Sort {
    const ALL: [Self; 4] = [Self::Packets, Self::Polls, Self::Application, Self::Name];

    /// Returns the name of the sort order that the screen shows.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Polls => "polls",
            Self::Application => "application",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        let at = Self::ALL.iter().position(|sort| *sort == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }
}

/// A key that has a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyPress {
    /// A character.
    Char(char),
    /// One line up.
    Up,
    /// One line down.
    Down,
    /// One page up.
    PageUp,
    /// One page down.
    PageDown,
    /// The Enter key, which ends typing of the filter.
    Enter,
    /// Cancels.
    Escape,
    /// Deletes a character.
    Backspace,
    /// Ctrl-C.
    Interrupt,
}

/// The maximum length of the filter, in characters.
const FILTER_CHARS_MAX: usize = 60;

/// The number of lines in a page.
const PAGE: usize = 10;

/// The state of the display.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TopState {
    /// The sort order of queues.
    pub(crate) sort: Sort,
    /// Only lines that contain this text are shown.
    pub(crate) filter: String,
    /// Whether the filter is being typed.
    pub(crate) typing: bool,
    /// The number of lines that were scrolled past.
    pub(crate) skipped: usize,
    /// Whether the display is paused.
    pub(crate) paused: bool,
    /// Whether help is shown.
    pub(crate) help: bool,
}

impl TopState {
    /// Handles a key. Returns whether the program continues.
    pub(crate) fn press(&mut self, key: KeyPress) -> bool {
        if key == KeyPress::Interrupt {
            return false;
        }
        if self.typing {
            match key {
                KeyPress::Enter => self.typing = false,
                KeyPress::Escape => {
                    self.typing = false;
                    self.filter.clear();
                }
                KeyPress::Backspace => {
                    self.filter.pop();
                }
                KeyPress::Char(c) if self.filter.chars().count() < FILTER_CHARS_MAX => self.filter.push(c),
                KeyPress::Char(_)
                | KeyPress::Up
                | KeyPress::Down
                | KeyPress::PageUp
                | KeyPress::PageDown
                | KeyPress::Interrupt => {}
            }
            self.skipped = 0;
            return true;
        }
        match key {
            KeyPress::Char('q') => return false,
            KeyPress::Escape if self.help => self.help = false,
            KeyPress::Escape if !self.filter.is_empty() => self.filter.clear(),
            KeyPress::Escape => return false,
            KeyPress::Char('s') => self.sort = self.sort.next(),
            KeyPress::Char('/') => self.typing = true,
            KeyPress::Char('p' | ' ') => self.paused = !self.paused,
            KeyPress::Char('h' | '?') => self.help = !self.help,
            KeyPress::Up | KeyPress::Char('k') => self.skipped = self.skipped.saturating_sub(1),
            KeyPress::Down | KeyPress::Char('j') => self.skipped += 1,
            KeyPress::PageUp => self.skipped = self.skipped.saturating_sub(PAGE),
            KeyPress::PageDown => self.skipped += PAGE,
            KeyPress::Char(_) | KeyPress::Enter | KeyPress::Backspace | KeyPress::Interrupt => {}
        }
        true
    }

    /// Returns the queues to show, in order.
    pub(crate) fn queues<'r>(&self, reading: &'r Reading) -> Vec<&'r QueueLine> {
        let mut lines: Vec<&QueueLine> = reading
            .queues
            .iter()
            .filter(|line| self.shows(&format!("{} {} {}", line.device, line.napi, line.set)))
            .collect();
        let by_name = |line: &&QueueLine| (line.device.clone(), line.queue, line.napi);
        lines.sort_by_key(by_name);
        let amount = |line: &QueueLine| match self.sort {
            Sort::Packets => line.packets,
            Sort::Polls => line.polls,
            Sort::Application => line.shares.map_or(0.0, |shares| shares.application),
            Sort::Name => 0.0,
        };
        lines.sort_by(|a, b| amount(b).total_cmp(&amount(a)));
        lines
    }

    /// Returns the processes to show, the busiest first.
    pub(crate) fn processes<'r>(&self, reading: &'r Reading) -> Vec<&'r ProcessLine> {
        let mut lines: Vec<&ProcessLine> = reading
            .processes
            .iter()
            .filter(|line| self.shows(&format!("{}[{}]", line.name, line.pid)))
            .collect();
        lines.sort_by(|a, b| b.packets.total_cmp(&a.packets).then(a.pid.cmp(&b.pid)));
        lines
    }

    fn shows(&self, text: &str) -> bool {
        text.to_lowercase().contains(&self.filter.to_lowercase())
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::top::reading::Shares;

    fn line(device: &str, queue: u32, packets: f64, application: f64) -> QueueLine {
        let rest = 1.0 - application;
        QueueLine {
            device: device.to_owned(),
            queue: Some(queue),
            napi: 300 + queue,
            packets,
            polls: packets / 2.0,
            batch: Some(2.0),
            shares: Some(Shares { interrupt: rest, timer: 0.0, application, kthread: 0.0 }),
            timers: 0.0,
            set: "interrupt".to_owned(),
            suspended: false,
            irq: None,
            kthread: None,
        }
    }

    fn shown(state: &TopState) -> Vec<String> {
        let reading = Reading {
            queues: vec![line("eth0", 1, 10.0, 0.9), line("eth1", 0, 30.0, 0.1), line("eth0", 0, 20.0, 0.5)],
            ..Reading::default()
        };
        state.queues(&reading).iter().map(|l| format!("{} {}", l.device, l.queue.expect("one"))).collect()
    }

    #[test]
    fn the_busiest_queue_is_first_until_another_order_is_chosen() {
        let mut state = TopState::default();
        assert_eq!(shown(&state), ["eth1 0", "eth0 0", "eth0 1"]);
        state.press(KeyPress::Char('s'));
        state.press(KeyPress::Char('s'));
        assert_eq!((state.sort.word(), shown(&state)[0].as_str()), ("application", "eth0 1"));
        state.press(KeyPress::Char('s'));
        assert_eq!(shown(&state), ["eth0 0", "eth0 1", "eth1 0"]);
    }

    #[test]
    fn what_is_typed_after_a_slash_filters_and_is_no_command() {
        let mut state = TopState::default();
        for key in "/ETH0q".chars() {
            assert!(state.press(KeyPress::Char(key)), "q is typed");
        }
        assert_eq!((state.filter.as_str(), shown(&state).len()), ("ETH0q", 0));
        state.press(KeyPress::Backspace);
        state.press(KeyPress::Enter);
        assert_eq!(shown(&state), ["eth0 0", "eth0 1"]);
        assert!(state.press(KeyPress::Escape), "the first Escape clears the filter");
        assert_eq!(shown(&state).len(), 3);
        assert!(!state.press(KeyPress::Escape), "the next one quits");
    }

    #[test]
    fn q_and_ctrl_c_end() {
        assert!(!TopState::default().press(KeyPress::Char('q')));
        let mut typing = TopState { typing: true, ..TopState::default() };
        assert!(!typing.press(KeyPress::Interrupt));
    }
}
