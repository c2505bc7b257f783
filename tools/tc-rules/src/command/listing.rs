//! Lines that only list objects. A batch file may end with such lines, and loading ignores them.

use crate::words::{Spans, Words, abbreviates};

/// The lines of a file that only list objects, as in `filter show dev eth0 ingress`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Listings {
    /// The number of such lines.
    pub count: u64,
    /// The line number of the first such line; 0 if there is none.
    pub first: u32,
}

impl Listings {
    /// Counts a line.
    pub(crate) fn note(&mut self, line: u32) {
        self.count += 1;
        if self.first == 0 {
            self.first = line;
        }
    }

    /// Adds the listing lines of a later part of the file, which starts after this many lines.
    pub fn append(&mut self, later: Self, lines: u32) {
        self.count += later.count;
        if self.first == 0 && later.first > 0 {
            self.first = later.first.saturating_add(lines);
        }
    }
}

/// Whether a line only lists objects.
///
/// iproute2 6.1, `tc/tc_filter.c` `do_filter()` and similar functions: a line with an object but no verb
/// lists the object, too.
pub(crate) fn only_lists(text: &str, spans: &Spans) -> bool {
    let mut words = Words::new(text, spans);
    let about = words.peek();
    words.skip();
    let verb = words.peek();
    let is_about =
        |objects: &[&str]| about.is_some_and(|word| objects.iter().any(|object| abbreviates(word, object)));
    let Some(verb) = verb else { return is_about(&["qdisc", "class", "filter", "chain"]) };
    // For a qdisc, `l` and `li` abbreviate `link`.
    let links = is_about(&["qdisc"]) && abbreviates(verb, "link");
    is_about(&["qdisc", "class", "filter", "chain", "actions"])
        && !links
        && ["show", "list", "lst", "get"].iter().any(|name| abbreviates(verb, name))
}

#[cfg(test)]
mod test {
    use crate::lookup::Table;
    use model::IfIndex;

    use crate::Batch;

    #[test]
    fn lines_that_only_list_are_skipped_and_counted_and_no_other() {
        let text = "filter add dev d0 ingress prio 1 protocol ip matchall action drop\n\
                    filter show dev d0 ingress\n\
                    tc\n\
                    qdisc show\nqdisc ls dev d0\n-s actions ls action gact\nclass\nactions ls action gact\nqdisc link dev d0\n";
        let mut table = Table::of([("d0".to_owned(), IfIndex(3))]);
        let mut batch = Batch::new(text.as_bytes());
        let (mut commands, mut wrong) = (Vec::new(), Vec::new());
        loop {
            match batch.next_command(&mut table) {
                Ok(Some((line, _))) => commands.push(line),
                Ok(None) => break,
                Err(crate::batch::ReadError::Mistake(mistake)) => wrong.push(mistake.line),
                Err(crate::batch::ReadError::Io(error)) => panic!("{error}"),
            }
        }
        assert_eq!(commands, [1]);
        assert_eq!(wrong, [3, 6, 9], "other lines stay errors");
        let listings = batch.listings();
        assert_eq!((listings.count, listings.first), (5, 2));
    }
}
