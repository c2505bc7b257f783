//! Selects the lines of a list that fit on a screen, the most important entries first.

/// The rows of a standard terminal, minus one for the prompt.
pub const SCREEN_ROWS: usize = 23;

/// The columns of a standard terminal.
pub const SCREEN_COLUMNS: usize = 80;

/// An entry of a list, as unstyled lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// The line that is shown first.
    pub head: String,
    /// Further lines. They are dropped before the head of any entry.
    pub details: Vec<String>,
    /// A line that is shown completely, with the head, or not at all, such as a command, which must not be
    /// truncated.
    pub action: Option<String>,
}

/// Which parts of an entry to show. The head is always shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The number of details that are shown.
    pub details: usize,
    /// Whether the action is shown, if there is one.
    pub action: bool,
}

/// Returns the number of screen rows that a line takes.
pub fn rows_of(line: &str) -> usize {
    line.chars().count().div_ceil(SCREEN_COLUMNS).max(1)
}

/// Returns the entries of a list that fit on this many rows, in order, with the parts of each entry to show.
/// Heads and actions take precedence over details. If an entry does not fit, all entries after it are dropped
/// as well.
pub fn fit(entries: &[Entry], rows: usize) -> Vec<Shown> {
    let mut left = rows;
    let mut shown = Vec::new();
    for entry in entries {
        let action = entry.action.as_deref().map_or(0, rows_of);
        let head = rows_of(&entry.head);
        let takes_action = head + action <= left;
        if !takes_action && (head > left || !shown.is_empty()) {
            break;
        }
        left -= head + if takes_action { action } else { 0 };
        shown.push(Shown { details: 0, action: takes_action });
    }
    for (shown, entry) in shown.iter_mut().zip(entries) {
        for detail in &entry.details {
            let Some(rest) = left.checked_sub(rows_of(detail)) else { break };
            left = rest;
            shown.details += 1;
        }
    }
    shown
}

#[cfg(test)]
mod test {
    use super::*;

    fn entry(head: usize, details: &[usize], action: Option<usize>) -> Entry {
        let text = |rows: &usize| "x".repeat(rows * SCREEN_COLUMNS);
        Entry {
            head: text(&head),
            details: details.iter().map(text).collect(),
            action: action.as_ref().map(text),
        }
    }

    fn shown(entries: &[Entry], rows: usize) -> Vec<(usize, bool)> {
        fit(entries, rows).iter().map(|shown| (shown.details, shown.action)).collect()
    }

    #[test]
    fn heads_and_actions_come_before_details() {
        let list = [entry(1, &[1, 1], Some(1)), entry(1, &[1], None), entry(2, &[1], Some(1))];
        assert_eq!(shown(&list, 23), [(2, true), (1, true), (1, true)]);
        assert_eq!(shown(&list, 7), [(1, true), (0, true), (0, true)]);
        assert_eq!(shown(&list, 6), [(0, true), (0, true), (0, true)]);
        assert_eq!(shown(&list, 5), [(2, true), (0, true)], "entries that do not fit are dropped as a whole");
    }

    #[test]
    fn of_an_entry_that_is_too_long_the_head_is_shown() {
        assert_eq!(shown(&[entry(2, &[1], Some(30))], 5), [(1, false)]);
        assert_eq!(shown(&[entry(9, &[], None)], 5), []);
    }

    #[test]
    fn what_is_shown_never_takes_more_rows_than_there_are() {
        for seed in 0..2_000_usize {
            let number = |place: usize, below: usize| (seed * 7 + place * 13 + seed / (place + 1)) % below;
            let details: Vec<usize> = (0..number(1, 4)).map(|place| 1 + number(place, 3)).collect();
            let list: Vec<Entry> = (0..number(2, 20))
                .map(|place| entry(1 + number(place, 3), &details, (place.is_multiple_of(2)).then_some(1)))
                .collect();
            let rows = number(3, 30);
            let taken = |(entry, shown): (&Entry, &Shown)| {
                let details = entry.details[..shown.details].iter().map(|line| rows_of(line)).sum::<usize>();
                let action = entry.action.as_deref().filter(|_| shown.action).map_or(0, rows_of);
                rows_of(&entry.head) + details + action
            };
            let total: usize = list.iter().zip(&fit(&list, rows)).map(taken).sum();
            assert!(total <= rows, "{total} of {rows} rows, seed {seed}");
        }
    }
}
