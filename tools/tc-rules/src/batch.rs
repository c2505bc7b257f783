//! Reads a batch file command by command.

use std::io::{self, Read};

use crate::lines::Lines;
use crate::lookup::Lookup;
use crate::words::{self, Mistake, Spans, Words, split_plain};
use netlink::attr::AttrBuf;

use crate::command::{Command, Foreign, Listings, only_lists};
use crate::memory::{Memory, Rest};

/// The error for a command that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// Reading the file failed.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The line is invalid; later lines may be valid.
    #[error("{0}")]
    Mistake(Box<Mistake>),
}

/// Reads the commands of a file. Memory does not grow with the file, because the memory of a command is
/// reused for the next one.
#[derive(Debug)]
pub struct Batch<R> {
    lines: Lines<R>,
    spans: Spans,
    command: Command,
    memory: Memory,
    with_foreign: bool,
    listings: Listings,
}

impl<R: Read> Batch<R> {
    /// Creates a reader of this input.
    pub fn new(input: R) -> Self {
        let (spans, command, memory) = (Spans::default(), Command::default(), Memory::default());
        Self {
            lines: Lines::new(input),
            spans,
            command,
            memory,
            with_foreign: false,
            listings: Listings::default(),
        }
    }

    /// Sets whether lines about qdiscs and classes that only tc understands count as commands
    /// ([`Command::Foreign`]) rather than mistakes.
    #[must_use]
    pub fn with_foreign(mut self, with_foreign: bool) -> Self {
        self.with_foreign = with_foreign;
        self
    }

    /// Returns how many bytes of the file have been read.
    pub const fn consumed(&self) -> u64 {
        self.lines.consumed()
    }

    /// Returns how many lines of the file have been read.
    pub const fn lines_read(&self) -> u32 {
        self.lines.count()
    }

    /// Returns the lines read so far that only list objects. These lines are not commands.
    pub const fn listings(&self) -> Listings {
        self.listings
    }

    /// Returns the next command and its line; `None` at the end of the file. The caller may modify the
    /// borrowed command before encoding it. A name must resolve identically on all lines: a name that occurs
    /// repeatedly may be looked up once.
    ///
    /// # Errors
    /// [`ReadError::Mistake`] for an invalid line; reading can continue after it.
    pub fn next_command(
        &mut self,
        lookup: &mut dyn Lookup,
    ) -> Result<Option<(u32, &mut Command)>, ReadError> {
        let Self { lines, spans, command, memory, with_foreign, listings } = self;
        loop {
            let Some(mut line) = lines.next_line()? else { return Ok(None) };
            let number = line.number;
            if number == 1 {
                line.bytes = line.bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(line.bytes);
            }
            let is_long = line.bytes.len() > SURELY_FITS_BYTES;
            if !is_long && read_rest(line.bytes, memory, spans, command, lookup) {
                return Ok(Some((number, command)));
            }
            let plain = if is_long { None } else { split_plain(line.bytes, spans) };
            let text = match plain {
                Some(text) => text,
                None => words::split(&line, spans).map_err(ReadError::Mistake)?,
            };
            if spans.is_empty() {
                continue;
            }
            let mut words = Words::new(text, spans);
            let head = match command.parse_with_head(&mut words, lookup) {
                Ok(head) => head,
                Err(_) if only_lists(text, spans) => {
                    listings.note(number);
                    continue;
                }
                Err(wrong) => {
                    let foreign = Foreign::of(text, spans);
                    if let (true, Some(foreign)) = (*with_foreign, &foreign) {
                        *command = Command::Foreign(foreign.clone());
                        return Ok(Some((number, command)));
                    }
                    let mistake = Mistake { is_foreign: foreign.is_some(), ..words.mistake(*wrong, &line) };
                    return Err(ReadError::Mistake(Box::new(mistake)));
                }
            };
            if is_long && !fits(command) {
                let wrong = words.wrong_here(TOO_LONG);
                return Err(ReadError::Mistake(Box::new(words.mistake(*wrong, &line))));
            }
            if plain.is_some() {
                let end = head.and_then(|(_, word)| words.begin_of(word));
                if let (Some((head, _)), Some(end)) = (head, end) {
                    memory.learn_head(&line.bytes[..end], head);
                }
                let action = words.actions_begin();
                learn_tail(line.bytes, action, memory, command);
            }
            return Ok(Some((number, command)));
        }
    }
}

/// A line of at most this many bytes cannot have an attribute that is too long: no word encodes to more than
/// twice its own bytes plus 256, a line has at most [`words::WORDS_MAX`] words, and few of them encode to
/// that many bytes.
const SURELY_FITS_BYTES: usize = 16 * 1024;

/// The error message for a line that cannot be encoded.
const TOO_LONG: &str = "this needs an attribute of more than 65531 bytes, which netlink cannot carry";

/// Whether every attribute of a command's message fits netlink's length limit.
fn fits(command: &Command) -> bool {
    let mut out = AttrBuf::new();
    command.encode(0, 0, &mut out);
    !out.overflowed()
}

/// A byte order mark, which some editors write; it is skipped.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Parses a line with the help of what earlier lines established; returns whether that was possible. An
/// invalid line is parsed again as a whole, so that the error can name its words.
fn read_rest(
    line: &[u8],
    memory: &mut Memory,
    spans: &mut Spans,
    command: &mut Command,
    lookup: &mut dyn Lookup,
) -> bool {
    let Some(Rest { head, mut words, actions }) = memory.rest(line, spans) else { return false };
    let read = match head {
        Some((head, _)) => command.parse_behind(head, &mut words, lookup),
        None => command.parse(&mut words, lookup),
    };
    if read.is_err() || !words.all_read() {
        return false;
    }
    if let Some(known) = actions {
        let Some(rule) = command.rule_mut() else { return false };
        rule.actions.extend_from_slice(known);
    }
    let action = words.actions_begin().map(|at| head.map_or(0, |(_, start)| start) + at);
    learn_tail(line, action, memory, command);
    true
}

/// Remembers the actions of a plain line, if they extend from the byte `action` to the end of the line.
fn learn_tail(line: &[u8], action: Option<usize>, memory: &mut Memory, command: &Command) {
    if let Some(blank) = action.and_then(|action| action.checked_sub(1))
        && let Some(rule) = command.rule()
    {
        memory.learn_tail(&line[blank..], &rule.actions);
    }
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::lookup::Table;
    use model::IfIndex;
    use proptest::prelude::*;

    /// Returns the result for each command of a file: its line number and encoded bytes, or the error
    /// message.
    fn all(text: &str, table: &mut Table) -> Vec<Result<(u32, Vec<u8>), String>> {
        let (mut batch, mut found) = (Batch::new(text.as_bytes()), Vec::new());
        loop {
            match batch.next_command(table) {
                Ok(Some((line, command))) => {
                    let mut out = netlink::attr::AttrBuf::new();
                    command.encode(line, 0, &mut out);
                    found.push(Ok((line, out.into_bytes())));
                    // The caller may modify the borrowed command.
                    if let Command::Filter(rule) = command {
                        rule.actions.iter_mut().for_each(|action| action.no_percpu ^= true);
                        rule.priority = 9;
                    }
                }
                Ok(None) => return found,
                Err(error) => found.push(Err(error.to_string())),
            }
        }
    }

    #[test]
    fn a_byte_order_mark_is_no_part_of_the_first_word() {
        let mut table = Table::of([("a".to_owned(), IfIndex(1))]);
        let line = "qdisc add dev a clsact\n";
        assert_eq!(all(&format!("\u{feff}{line}"), &mut table), all(line, &mut table));
        let twice = all(&format!("{line}\u{feff}{line}"), &mut table);
        assert!(matches!(twice[..], [Ok(_), Err(_)]), "{twice:?}");
    }

    /// Returns an action with the longest program that the kernel accepts.
    fn longest_program() -> String {
        const INSTRUCTIONS: usize = 4096;
        let ret = vec!["6 0 0 4294967295"; INSTRUCTIONS].join(",");
        format!(" action bpf bytecode '{INSTRUCTIONS},{ret},'")
    }

    #[test]
    fn a_rule_that_netlink_cannot_carry_is_a_mistake_of_its_line() {
        let mut table = Table::of([("a".to_owned(), IfIndex(1))]);
        let line = |actions: usize| {
            format!("filter add dev a ingress matchall{}\n", longest_program().repeat(actions))
        };
        assert!(matches!(all(&line(1), &mut table)[..], [Ok(_)]));
        let read = all(&format!("{}{}", line(2), line(1)), &mut table);
        let [Err(words), Ok(_)] = &read[..] else { panic!("{} commands", read.len()) };
        assert!(words.contains("netlink cannot carry"), "{words}");
    }

    proptest! {
        #[test]
        fn a_line_means_the_same_whatever_lines_are_before_it(
            lines in proptest::collection::vec((0_usize..7, 0_usize..6, 0_usize..9, 0_usize..12), 1..12)
        ) {
            const HEADS: [&str; 7] = [
                "filter add dev a ingress protocol ip prio 1", "filter replace dev b egress prio 2",
                "filter add dev a ingress", "  filter  add dev a ingress protocol ip prio 1 ", "filter add dev 'a' ingress",
                "chain add dev a ingress", "qdisc add dev a",
            ];
            const HANDLES: [&str; 6] = ["handle 1", "handle 2::3", "prio 3", "", "handle action", "dev b"];
            const MATCHES: [&str; 9] = [
                "u32 match u32 0 0", "u32 match ip src 10.0.0.1", "flower", "flower dst_mac 1:2", "matchall", "clsact",
                "flower indev", "u32 match u32 0 0 action pass", "",
            ];
            const ACTIONS: [&str; 12] = [
                "action drop", "action mirred egress redirect dev b", "action mirred egress redirect dev b no_percpu",
                "action drop classid 1:2", "act drop", "action drop skip_hw", "action drop action pass", "action",
                "action wrong", "", "action  drop", "action drop cookie 'aa'",
            ];
            let lines: Vec<String> = lines
                .into_iter()
                .map(|(a, b, c, d)| format!("{} {} {} {}\n", HEADS[a], HANDLES[b], MATCHES[c], ACTIONS[d]))
                .collect();
            let mut table = Table::of([("a".to_owned(), IfIndex(1)), ("b".to_owned(), IfIndex(2))]);
            let together = all(&lines.concat(), &mut table);
            let mut alone = Vec::new();
            for (before, line) in lines.iter().enumerate() {
                alone.extend(all(&format!("{}{line}", "\n".repeat(before)), &mut table));
            }
            prop_assert_eq!(together, alone);
        }
    }
}
