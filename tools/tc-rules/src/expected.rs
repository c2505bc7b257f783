//! What a file wants, matched with what the kernel has.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::classifier::Classifier;

use crate::command::{Filter, Group, Hook, Verb};
use crate::cookie::{self, Terse};
use crate::fingerprint::{Fingerprint, Fingerprinter};
use crate::verify;

/// The kernel chooses priorities from this one on, downwards from 0xc000 or from the lowest that is there.
///
/// Kernel: 6.18, `net/sched/cls_api.c` `tcf_auto_prio()`, and `tc_new_tfilter()`, which looks for its place from here.
const CHOSEN_FROM: u16 = 0x8000;

/// Which rule of the kernel's it is: priority and handle.
type Identity = (u16, u32);

/// A rule of the file with a handle.
#[derive(Debug)]
struct Named {
    line: u32,
    group: Group,
    content: Fingerprint,
    found: bool,
}

/// A rule of the file whose handle, or whose priority too, the kernel chooses.
#[derive(Debug)]
struct Nameless {
    line: u32,
    group: Group,
    found: Option<Identity>,
}

/// What was matched.
#[derive(Debug)]
enum Matched {
    Named(Group, u32),
    Nameless((Group, Fingerprint), usize),
}

/// What a file wants, to be matched with what the kernel has.
#[derive(Debug, Default)]
pub struct Expected {
    /// By [place](place_of) and handle.
    named: BTreeMap<(Group, u32), Named>,
    /// By place and content; the place of priority 0 has the rules whose priority the kernel chooses.
    nameless: BTreeMap<(Group, Fingerprint), Vec<Nameless>>,
    /// Lines without a handle, by place and by their content without what a kernel may ignore ([`crate::verify`]).
    diminished: BTreeMap<(Group, Fingerprint), Vec<u32>>,
    groups: BTreeSet<Group>,
    places: BTreeSet<Group>,
    /// Hooks with rules of kinds that have no terse dump.
    without_terse: BTreeSet<Hook>,
    /// Lines that add what a line before them has added: the kernel refuses one of them.
    twice: Vec<u32>,
    /// What was matched since the mark.
    matched: Vec<Matched>,
    /// What was seen since the mark and is not of the file.
    unmanaged: BTreeSet<(Group, u32)>,
    /// Lines that were found diminished since the mark.
    found_diminished: BTreeSet<u32>,
    /// Where the rules are whose priority the kernel chose: group, priority, line.
    placed: Vec<(Group, u16, u32)>,
    placed_at_mark: usize,
    maker: Fingerprinter,
}

/// What became of a dumped rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The file has it; its line.
    Expected(u32),
    /// The file has another rule with this handle; its line.
    Different(u32),
    /// The file has no such rule, though it has others of the same priority.
    Extra,
    /// The file is not about this priority at all.
    Unasked,
    /// This dump has given it before.
    Again,
}

impl Expected {
    /// Takes a line of the file: what it adds or replaces is expected from then on, what it deletes no more.
    pub fn apply(&mut self, rule: &Filter, line: u32) {
        match rule.verb {
            Verb::Add => self.add(rule, line),
            Verb::Replace | Verb::Change => {
                self.forget(rule);
                self.add(rule, line);
            }
            Verb::Delete => self.delete(rule),
        }
    }

    /// Adds a rule of the file.
    pub fn add(&mut self, rule: &Filter, line: u32) {
        let (group, (place, of_table)) = (rule.group(), place_of(rule));
        let (whole, content) = self.maker.of(rule, place, of_table);
        let handle = rule.classifier.canonical_handle(rule.handle);
        self.groups.insert(group);
        self.places.insert(place);
        if !cookie::has_terse_dump(rule) {
            self.without_terse.insert(group.hook);
        }
        if handle != 0 && group.priority != 0 {
            match self.named.entry((place, handle)) {
                Entry::Occupied(_) => self.twice.push(line),
                Entry::Vacant(free) => _ = free.insert(Named { line, group, content: whole, found: false }),
            }
            return;
        }
        let content = if handle == 0 { content } else { whole };
        if let Some(diminished) = verify::diminished(rule) {
            let (whole, content) = self.maker.of(&diminished, place, of_table);
            let content = if handle == 0 { content } else { whole };
            self.diminished.entry((place, content)).or_default().push(line);
        }
        self.nameless.entry((place, content)).or_default().push(Nameless { line, group, found: None });
    }

    /// Forgets the rule with this one's handle, if it has one.
    fn forget(&mut self, rule: &Filter) {
        let handle = rule.classifier.canonical_handle(rule.handle);
        if handle != 0 {
            self.named.remove(&(place_of(rule).0, handle));
        }
    }

    /// Takes a line that deletes: one rule where it has a handle, else a priority, or without that a whole chain.
    fn delete(&mut self, rule: &Filter) {
        let group = rule.group();
        self.groups.insert(group);
        self.places.insert(place_of(rule).0);
        if rule.handle != 0 {
            return self.forget(rule);
        }
        let gone = |other: &Group| {
            *other == group || (group.priority == 0 && (other.hook, other.chain) == (group.hook, group.chain))
        };
        self.named.retain(|_, named| !gone(&named.group));
        self.nameless.retain(|_, all| {
            all.retain(|nameless| !gone(&nameless.group));
            !all.is_empty()
        });
        self.diminished.retain(|(place, _), _| !gone(place));
    }

    /// From here on, [`Expected::back_to_mark`] can take back what is matched: at the beginning of a dump.
    pub fn mark(&mut self) {
        self.matched.clear();
        self.unmanaged.clear();
        self.found_diminished.clear();
        self.placed_at_mark = self.placed.len();
    }

    /// Takes back what was matched since the mark: the dump is given again.
    pub fn back_to_mark(&mut self) {
        for matched in std::mem::take(&mut self.matched) {
            match matched {
                Matched::Named(group, handle) => {
                    if let Some(named) = self.named.get_mut(&(group, handle)) {
                        named.found = false;
                    }
                }
                Matched::Nameless(key, place) => {
                    if let Some(nameless) = self.nameless.get_mut(&key).and_then(|all| all.get_mut(place)) {
                        nameless.found = None;
                    }
                }
            }
        }
        self.placed.truncate(self.placed_at_mark);
        self.unmanaged.clear();
        self.found_diminished.clear();
    }

    /// Matches a dumped rule.
    pub fn match_rule(&mut self, rule: &Filter) -> Found {
        let (place, _) = place_of(rule);
        if !self.is_asked(rule.group(), place) {
            return Found::Unasked;
        }
        if let Some(found) = self.find(rule) {
            return found;
        }
        if rule.is_in_root() {
            // The file may name the table by the number that the kernel gave it.
            let mut by_number = rule.clone();
            by_number.set_root(0);
            if let Some(found) = self.find(&by_number) {
                return found;
            }
        }
        if let Some(found) = cookie::without_own(rule, &mut self.maker).and_then(|plain| self.find(&plain)) {
            return found;
        }
        if !self.unmanaged.insert((place, rule.handle)) {
            return Found::Again;
        }
        match self.named.get(&(place, rule.classifier.canonical_handle(rule.handle))) {
            Some(named) => Found::Different(named.line),
            None => self.find_diminished(rule).map_or(Found::Extra, Found::Different),
        }
    }

    /// The line of which the kernel has made this rule by ignoring a part of it; each line once.
    fn find_diminished(&mut self, rule: &Filter) -> Option<u32> {
        let (place, of_table) = place_of(rule);
        let places = [place, chosen(place)];
        for place in places.into_iter().take(1 + usize::from(may_be_chosen(place))) {
            let (whole, content) = self.maker.of(rule, place, of_table);
            for content in [content, whole] {
                let lines = self.diminished.get(&(place, content)).into_iter().flatten();
                if let Some(line) = lines.copied().find(|line| !self.found_diminished.contains(line)) {
                    self.found_diminished.insert(line);
                    return Some(line);
                }
            }
        }
        None
    }

    /// Matches a rule by its cookie; `None` if the cookie does not identify one.
    ///
    /// A cookie says what was loaded ([`crate::Marker`]). It goes with the action when a rule is replaced; a change of
    /// the action alone, by its index, may leave it.
    pub fn match_by_cookie(&mut self, rule: &Terse) -> Option<Found> {
        if !self.is_asked(rule.group, rule.group) {
            return Some(Found::Unasked);
        }
        let content = Fingerprint::of_bytes(rule.cookie?.whole()?);
        let whole = content.with_handle(rule.handle);
        let identity = (rule.group.priority, rule.handle);
        self.find_there((rule.group, rule.handle), (whole, content), identity)
            .or_else(|| self.find_chosen(rule.group, (whole, content), identity))
    }

    /// Whether the file is about this group, or about this place.
    fn is_asked(&self, group: Group, place: Group) -> bool {
        let is_of = |groups: &BTreeSet<Group>, group: Group| {
            groups.contains(&group) || (may_be_chosen(group) && groups.contains(&chosen(group)))
        };
        is_of(&self.groups, group) || is_of(&self.places, place)
    }

    /// Matches a dumped rule if the file has it.
    fn find(&mut self, rule: &Filter) -> Option<Found> {
        let (place, of_table) = place_of(rule);
        let handle = rule.classifier.canonical_handle(rule.handle);
        let identity = (place.priority, rule.handle);
        let contents = self.maker.of(rule, place, of_table);
        if let Some(found) = self.find_there((place, handle), contents, identity) {
            return Some(found);
        }
        if !may_be_chosen(place) || !self.places.contains(&chosen(place)) {
            return None;
        }
        let contents = self.maker.of(rule, chosen(place), of_table);
        self.find_chosen(place, contents, identity)
    }

    /// Matches what has this handle and content, or this content alone.
    fn find_there(
        &mut self,
        (place, handle): (Group, u32),
        (whole, content): (Fingerprint, Fingerprint),
        identity: Identity,
    ) -> Option<Found> {
        if let Some(named) = self.named.get_mut(&(place, handle))
            && named.content == whole
        {
            if std::mem::replace(&mut named.found, true) {
                return Some(Found::Again);
            }
            self.matched.push(Matched::Named(place, handle));
            return Some(Found::Expected(named.line));
        }
        if place.priority == 0 { None } else { self.match_nameless((place, content), identity) }
    }

    /// Matches what has this content and leaves the priority to the kernel.
    fn find_chosen(
        &mut self,
        place: Group,
        (whole, content): (Fingerprint, Fingerprint),
        identity: Identity,
    ) -> Option<Found> {
        if !may_be_chosen(place) {
            return None;
        }
        for content in [whole, content] {
            if let Some(found) = self.match_nameless((chosen(place), content), identity) {
                if let Found::Expected(line) = found {
                    self.placed.push((chosen(place), place.priority, line));
                }
                return Some(found);
            }
        }
        None
    }

    fn match_nameless(&mut self, key: (Group, Fingerprint), identity: Identity) -> Option<Found> {
        let all = self.nameless.get_mut(&key)?;
        if all.iter().any(|nameless| nameless.found == Some(identity)) {
            return Some(Found::Again);
        }
        let place = all.iter().position(|nameless| nameless.found.is_none())?;
        all[place].found = Some(identity);
        self.matched.push(Matched::Nameless(key, place));
        Some(Found::Expected(all[place].line))
    }

    /// Whether all rules of a hook are of a kind that [`Expected::match_by_cookie`] may know.
    pub fn may_have_cookies(&self, hook: Hook) -> bool {
        !self.without_terse.contains(&hook)
    }

    /// The lines of the rules that were not matched, in order.
    pub fn missing(&self) -> Vec<u32> {
        let named = self.named.values().filter(|named| !named.found).map(|named| named.line);
        let nameless = self.nameless.values().flatten().filter(|nameless| nameless.found.is_none());
        let nameless = nameless.map(|nameless| nameless.line);
        let mut lines: Vec<u32> = named.chain(nameless).chain(self.twice.iter().copied()).collect();
        lines.sort_unstable();
        lines
    }

    /// The lines whose rule is there and has its turn in another order than the file's.
    ///
    /// Where the kernel chooses the priority, a rule comes before those that were there: the last line has the first
    /// turn. These are the fewest lines without which the others are in order.
    pub fn misplaced(&self) -> Vec<u32> {
        let mut placed = self.placed.clone();
        placed.sort_unstable();
        let mut lines: Vec<u32> = placed
            .chunk_by(|a, b| a.0 == b.0)
            .flat_map(|group| not_falling(&group.iter().map(|(_, _, line)| *line).collect::<Vec<_>>()))
            .collect();
        lines.sort_unstable();
        lines
    }

    /// The priorities that the file is about.
    pub fn groups(&self) -> impl Iterator<Item = Group> {
        self.groups.iter().copied()
    }
}

/// Where a rule is looked for: in its group, or, if it is a hash table of u32 or in one that has a number in its own right, in
/// all groups of that queueing discipline and priority; and whether it is such a one.
///
/// Kernel: 6.18, `net/sched/cls_u32.c` keeps the tables of all chains and of both hooks of clsact together.
fn place_of(rule: &Filter) -> (Group, bool) {
    let group = rule.group();
    match &rule.classifier {
        Classifier::U32(u32) if u32.is_of_table(u32.canonical_handle(rule.handle)) => {
            let hook = Hook { parent: group.hook.parent & MAJOR, ..group.hook };
            (Group { hook, chain: 0, ..group }, true)
        }
        _ => (group, false),
    }
}

/// The half of a parent that names the queueing discipline.
const MAJOR: u32 = 0xffff_0000;

/// Whether the kernel may have chosen the priority of these rules.
const fn may_be_chosen(group: Group) -> bool {
    group.priority == 0 || group.priority >= CHOSEN_FROM
}

/// Where the file has rules whose priority the kernel chooses.
const fn chosen(group: Group) -> Group {
    Group { priority: 0, ..group }
}

/// The numbers that are not of a longest falling sequence of these.
fn not_falling(numbers: &[u32]) -> Vec<u32> {
    // The last number of the best sequence of each length, and for each number the one before it.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = vec![None; numbers.len()];
    for (at, number) in numbers.iter().enumerate() {
        let length = ends.partition_point(|end| numbers[*end] > *number);
        before[at] = length.checked_sub(1).map(|shorter| ends[shorter]);
        match ends.get_mut(length) {
            Some(end) => *end = at,
            None => ends.push(at),
        }
    }
    let mut falls = BTreeSet::new();
    let mut next = ends.last().copied();
    while let Some(at) = next {
        falls.insert(at);
        next = before[at];
    }
    numbers.iter().enumerate().filter(|(at, _)| !falls.contains(at)).map(|(_, number)| *number).collect()
}

#[cfg(test)]
mod test {
    use super::*;
    use crate::Batch;
    use crate::Table;

    fn rules(text: &str) -> Vec<(u32, Filter)> {
        let mut table = Table::of([("d0".to_owned(), model::IfIndex(1))]);
        let (mut batch, mut rules) = (Batch::new(text.as_bytes()), Vec::new());
        while let Some((line, command)) = batch.next_command(&mut table).expect("read") {
            rules.push((line, command.rule().expect("a rule").clone()));
        }
        rules
    }

    fn expected(text: &str) -> Expected {
        let mut expected = Expected::default();
        for (line, rule) in rules(text) {
            expected.apply(&rule, line);
        }
        expected
    }

    /// A rule as the kernel would dump it: it has chosen what the line leaves open.
    fn dumped(line: &str, priority: u16, handle: u32) -> Filter {
        let (_, rule) = rules(line).remove(0);
        Filter { verb: Verb::Add, priority, handle, ..rule }
    }

    #[test]
    fn the_actions_of_a_rule_are_where_the_rule_is() {
        let line = |flag, of_action| {
            rules(&format!("filter add dev d0 ingress flower {flag} action drop {of_action}\n")).remove(0).1
        };
        // The kernel dumps the second of each pair for the first.
        assert_eq!(line("skip_hw", "").canonical(), line("skip_hw", "skip_hw").canonical());
        assert_eq!(line("skip_sw", "").canonical(), line("skip_sw", "skip_sw").canonical());
        assert_ne!(line("", "").canonical(), line("skip_hw", "").canonical());
        assert_ne!(line("", "").canonical(), line("", "skip_hw").canonical());
    }

    #[test]
    fn the_police_of_a_u32_rule_is_compared_without_the_cells_that_a_dump_omits() {
        let line = |cell, peak_cell| {
            let police = format!("police rate 1mbit burst 10k{cell} peakrate 2mbit mtu 2k{peak_cell}");
            rules(&format!("filter add dev d0 ingress u32 match u32 0 0 {police} conform-exceed drop\n"))
                .remove(0)
                .1
        };
        assert_eq!(line("/8", "/256").canonical(), line("", "").canonical());
        assert_ne!(line("/8", "/256"), line("", ""));
    }

    const A: &str = "filter add dev d0 ingress protocol ip flower dst_ip 10.0.0.1\n";
    const B: &str = "filter add dev d0 ingress protocol ip flower dst_ip 10.0.0.2\n";

    #[test]
    fn a_rule_without_a_priority_is_known_by_its_content_and_its_turn() {
        let mut file = expected(&format!("{A}{B}{A}"));
        assert_eq!(file.match_rule(&dumped(A, 0xbffe, 1)), Found::Expected(1));
        assert_eq!(file.match_rule(&dumped(A, 0xc000, 1)), Found::Expected(3));
        assert_eq!(file.missing(), [2]);
        assert_eq!(file.match_rule(&dumped(B, 0xbfff, 1)), Found::Expected(2));
        assert_eq!(file.match_rule(&dumped(B, 0xbff0, 1)), Found::Extra);
        assert_eq!(file.match_rule(&dumped(B, 7, 1)), Found::Unasked, "no priority that the kernel chooses");
    }

    #[test]
    fn the_last_line_without_a_priority_has_the_first_turn() {
        let c = B.replace("10.0.0.2", "10.0.0.3");
        let text = format!("{A}{B}{c}");
        let mut file = expected(&text);
        for (rule, priority) in [(c.as_str(), 0xbffe), (B, 0xbfff), (A, 0xc000)] {
            assert!(matches!(file.match_rule(&dumped(rule, priority, 1)), Found::Expected(_)));
        }
        assert_eq!(file.misplaced(), [0_u32; 0]);
        let mut file = expected(&text);
        for (rule, priority) in [(B, 0xbffe), (A, 0xbfff), (c.as_str(), 0xc000)] {
            assert!(matches!(file.match_rule(&dumped(rule, priority, 1)), Found::Expected(_)));
        }
        assert_eq!(file.misplaced(), [3]);
    }

    #[test]
    fn a_rule_that_one_dump_gives_twice_counts_once() {
        let named = "filter add dev d0 ingress protocol ip prio 1 handle 7 flower dst_ip 10.0.0.1\n";
        let mut file = expected(&format!("{named}{}", B.replace("flower", "prio 1 flower")));
        file.mark();
        for _ in 0..2 {
            let found = [(named, 7), (B, 8), (A, 9), (B, 7)]
                .map(|(rule, handle)| file.match_rule(&dumped(rule, 1, handle)));
            match found {
                [Found::Expected(1), Found::Expected(2), Found::Extra, Found::Different(1)] => {}
                [Found::Again, Found::Again, Found::Again, Found::Again] => {}
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_dump_that_begins_again_leaves_nothing_of_the_first_attempt() {
        let mut file = expected(&format!("{A}{}", B.replace("flower", "prio 1 flower")));
        file.mark();
        for _ in 0..3 {
            file.back_to_mark();
            assert_eq!(file.match_rule(&dumped(A, 0xc000, 1)), Found::Expected(1));
            assert_eq!(file.match_rule(&dumped(B, 1, 1)), Found::Expected(2));
        }
        file.back_to_mark();
        assert_eq!(file.missing(), [1, 2]);
        // What an earlier dump has matched stays so.
        assert_eq!(file.match_rule(&dumped(A, 0xc000, 1)), Found::Expected(1));
        file.mark();
        file.back_to_mark();
        assert_eq!(file.missing(), [2]);
    }

    #[test]
    fn what_a_later_line_deletes_or_replaces_is_not_wanted() {
        let one = "filter add dev d0 ingress protocol ip prio 1 handle 7 flower dst_ip 10.0.0.1\n";
        let two = one.replace("add", "replace").replace("0.1", "0.2");
        let deleted = "filter del dev d0 ingress protocol ip prio 1 handle 7 flower\n";
        assert_eq!(expected(&format!("{one}{two}")).missing(), [2]);
        assert_eq!(expected(&format!("{one}{one}")).missing(), [1, 2], "the kernel refuses one of them");
        assert_eq!(expected(&format!("{one}{deleted}")).missing(), [0_u32; 0]);
        assert_eq!(expected(&format!("{one}{A}filter del dev d0 ingress prio 1\n")).missing(), [2]);
        assert_eq!(expected(&format!("{one}{A}filter del dev d0 ingress\n{B}")).missing(), [4]);
    }

    #[test]
    fn a_rule_of_which_the_kernel_ignores_a_part_is_different_and_neither_missing_nor_extra() {
        let marked = "filter add dev d0 ingress protocol ip prio 1 u32 match mark 6 0xffff match u32 1 1\n";
        let plain = marked.replace("match mark 6 0xffff ", "");
        let mut file = expected(&format!("{marked}{marked}"));
        for line in [1, 2] {
            let stands = dumped_u32(&plain, 0x8000_0800 + line, 0x8000_0000);
            assert_eq!(file.match_rule(&stands), Found::Different(line));
        }
        assert_eq!(file.match_rule(&dumped_u32(&plain, 0x8000_0805, 0x8000_0000)), Found::Extra);
        assert_eq!(file.match_rule(&dumped_u32(marked, 0x8000_0806, 0x8000_0000)), Found::Expected(1));
    }

    /// A rule of u32 as a dump has it, with its whole handle and the first table of its priority.
    fn dumped_u32(line: &str, handle: u32, root: u32) -> Filter {
        let mut rule = dumped(line, 1, handle);
        if let (Classifier::U32(u32), false) = (&mut rule.classifier, handle & 0xfff == 0) {
            u32.table = handle & 0xffff_f000;
        }
        rule.set_root(root);
        rule
    }

    #[test]
    fn a_rule_of_u32_is_known_by_its_table_whatever_number_the_first_one_has() {
        const FIRST: &str = "filter add dev d0 ingress protocol ip prio 1 u32 match u32 1 1\n";
        const TABLE: &str = "filter add dev d0 ingress protocol ip prio 1 u32 divisor 4\n";
        const IN_TABLE: &str = "filter add dev d0 ingress protocol ip prio 1 u32 ht 802:1: match u32 1 1\n";
        let root = 0x8010_0000;
        let mut file = expected(&format!("{FIRST}{TABLE}{IN_TABLE}"));
        // A rule of the first table is none of the other one, though they look at the same.
        assert_eq!(file.match_rule(&dumped_u32(FIRST, 0x8020_1800, root)), Found::Expected(3));
        assert_eq!(file.match_rule(&dumped_u32(FIRST, 0x8020_1801, root)), Found::Extra);
        assert_eq!(file.match_rule(&dumped_u32(TABLE, 0x8020_0000, root)), Found::Expected(2));
        assert_eq!(file.match_rule(&dumped_u32(FIRST, 0x8010_0800, root)), Found::Expected(1));
        assert_eq!(file.match_rule(&dumped_u32(FIRST, 0x8010_0801, root)), Found::Extra);
        // The first table may be named by the number that the kernel gave it, or not at all.
        for handle in ["handle 801::5 u32", "handle ::5 u32", "handle ::5 u32 ht 801:"] {
            let mut file = expected(&FIRST.replace("u32 match", &format!("{handle} match")));
            assert_eq!(
                file.match_rule(&dumped_u32(FIRST, 0x8010_0005, root)),
                Found::Expected(1),
                "{handle}"
            );
            assert_eq!(file.match_rule(&dumped_u32(FIRST, 0x8020_0005, root)), Found::Extra, "{handle}");
        }
    }

    #[test]
    fn a_table_of_u32_belongs_to_all_chains_and_both_hooks_of_its_priority() {
        let of = |place: &str, rest: &str| format!("filter add dev d0 {place} prio 1 {rest}\n");
        let here = "ingress protocol ip chain 5";
        let (table, rule) = ("handle 5: u32 divisor 4", "handle 5:1:7 u32 ht 5:1: match u32 1 1");
        let file = format!("{}{}", of(here, table), of(here, rule));
        for there in [here, "ingress protocol ip", "egress protocol ipv6"] {
            let mut file = expected(&file);
            for again in [false, true] {
                let found = |expected| if again { Found::Again } else { Found::Expected(expected) };
                let dumped = dumped_u32(&of(there, table), 0x50_0000, 0x8000_0000);
                assert_eq!(file.match_rule(&dumped), found(1), "{there}");
                let dumped = dumped_u32(&of(there, rule), 0x50_1007, 0x8000_0000);
                assert_eq!(file.match_rule(&dumped), found(2), "{there}");
            }
            assert_eq!(file.missing(), [0_u32; 0]);
        }
        // What is in the first table is of one chain alone.
        let mut file = expected(&of(here, "u32 match u32 1 1"));
        let elsewhere = dumped_u32(&of("ingress protocol ip", "u32 match u32 1 1"), 0x8000_0800, 0x8000_0000);
        assert_eq!(file.match_rule(&elsewhere), Found::Unasked);
        assert_eq!(file.missing(), [1]);
    }

    #[test]
    fn numbers_that_do_not_fall_are_few() {
        for (numbers, rest) in [
            (&[5, 4, 3][..], &[][..]),
            (&[3, 5, 4], &[3]),
            (&[1, 2, 3], &[1, 2]),
            (&[9, 1, 8, 7, 2], &[1]),
            (&[], &[]),
        ] {
            assert_eq!(not_falling(numbers), rest, "{numbers:?}");
        }
    }
}
