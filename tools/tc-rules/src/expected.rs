//! Compares the rules that a file wants with those in the kernel.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use crate::classifier::Classifier;

use crate::command::{Filter, Group, Hook, Verb};
use crate::cookie::{self, Terse};
use crate::fingerprint::{Fingerprint, Fingerprinter};
use crate::verify;

/// The lowest priority that the kernel chooses. It counts downwards from 0xc000, or from the lowest existing
/// priority above this one.
///
/// Kernel: 6.18, `net/sched/cls_api.c` `tcf_auto_prio()`, and `tc_new_tfilter()`, which starts its search at
/// this priority.
const CHOSEN_FROM: u16 = 0x8000;

/// The identity of a rule in the kernel: priority and handle.
type Identity = (u16, u32);

/// A rule of the file with a handle.
#[derive(Debug)]
struct Named {
    line: u32,
    group: Group,
    content: Fingerprint,
    found: bool,
}

/// A rule of the file whose handle, and possibly priority, the kernel chooses.
#[derive(Debug)]
struct Nameless {
    line: u32,
    group: Group,
    found: Option<Identity>,
}

/// A matched rule.
#[derive(Debug)]
enum Matched {
    Named(Group, u32),
    Nameless((Group, Fingerprint), usize),
}

/// The rules that a file wants, to be compared with those in the kernel.
#[derive(Debug, Default)]
pub struct Expected {
    /// The rules with a handle, by [place](place_of) and handle.
    named: BTreeMap<(Group, u32), Named>,
    /// The rules without a handle, by place and content. Those whose priority the kernel chooses have a place
    /// with priority 0.
    nameless: BTreeMap<(Group, Fingerprint), Vec<Nameless>>,
    /// Lines without a handle, by place and by their content without the parts that a kernel may ignore
    /// ([`crate::verify`]).
    diminished: BTreeMap<(Group, Fingerprint), Vec<u32>>,
    groups: BTreeSet<Group>,
    places: BTreeSet<Group>,
    /// Hooks with rules whose kinds have no terse dump.
    without_terse: BTreeSet<Hook>,
    /// Lines that add a rule that an earlier line has already added: the kernel refuses one of the two.
    twice: Vec<u32>,
    /// The rules matched since the mark.
    matched: Vec<Matched>,
    /// The rules that were dumped since the mark but are not in the file.
    unmanaged: BTreeSet<(Group, u32)>,
    /// Lines whose rules were found since the mark, but without parts that the kernel ignored.
    found_diminished: BTreeSet<u32>,
    /// The found rules whose priority the kernel chose: group, priority, line.
    placed: Vec<(Group, u16, u32)>,
    placed_at_mark: usize,
    maker: Fingerprinter,
}

/// The result of comparing a dumped rule with the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleMatch {
    /// The rule is the one on this line of the file.
    Expected(u32),
    /// The file has a different rule with this handle, on this line.
    Different(u32),
    /// The file has rules of this priority, but not this one.
    Extra,
    /// The file has no rules of this priority.
    Unasked,
    /// The dump has already returned the rule.
    Again,
}

impl Expected {
    /// Applies a line of the file: rules that it adds or replaces become expected, rules that it deletes no
    /// longer are.
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

    /// Removes the rule with the same handle, if it has one.
    fn forget(&mut self, rule: &Filter) {
        let handle = rule.classifier.canonical_handle(rule.handle);
        if handle != 0 {
            self.named.remove(&(place_of(rule).0, handle));
        }
    }

    /// Applies a line that deletes: one rule if it has a handle, otherwise a priority, or without that a
    /// whole chain.
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

    /// Sets the mark to which [`Expected::back_to_mark`] returns. To be called at the beginning of a dump.
    pub fn mark(&mut self) {
        self.matched.clear();
        self.unmanaged.clear();
        self.found_diminished.clear();
        self.placed_at_mark = self.placed.len();
    }

    /// Undoes all matches since the mark, because the dump is repeated.
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

    /// Compares a dumped rule with the rules of the file.
    pub fn match_rule(&mut self, rule: &Filter) -> RuleMatch {
        let (place, _) = place_of(rule);
        if !self.is_asked(rule.group(), place) {
            return RuleMatch::Unasked;
        }
        if let Some(found) = self.find(rule) {
            return found;
        }
        if rule.is_in_root() {
            // The file may name the root table by the number that the kernel assigned.
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
            return RuleMatch::Again;
        }
        match self.named.get(&(place, rule.classifier.canonical_handle(rule.handle))) {
            Some(named) => RuleMatch::Different(named.line),
            None => self.find_diminished(rule).map_or(RuleMatch::Extra, RuleMatch::Different),
        }
    }

    /// Finds the line whose rule the kernel installed without some part of the rule. Returns each line only
    /// once.
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

    /// Matches a rule by its cookie; returns `None` if the cookie does not identify a rule of the file.
    ///
    /// A cookie identifies the rule that was loaded ([`crate::Marker`]). The kernel replaces the cookie
    /// together with the actions of a rule, but the cookie may remain if only the action is changed, by its
    /// index.
    pub fn match_by_cookie(&mut self, rule: &Terse) -> Option<RuleMatch> {
        if !self.is_asked(rule.group, rule.group) {
            return Some(RuleMatch::Unasked);
        }
        let content = Fingerprint::of_bytes(rule.cookie?.whole()?);
        let whole = content.with_handle(rule.handle);
        let identity = (rule.group.priority, rule.handle);
        self.find_there((rule.group, rule.handle), (whole, content), identity)
            .or_else(|| self.find_chosen(rule.group, (whole, content), identity))
    }

    /// Whether the file has rules of this group or place.
    fn is_asked(&self, group: Group, place: Group) -> bool {
        let is_of = |groups: &BTreeSet<Group>, group: Group| {
            groups.contains(&group) || (may_be_chosen(group) && groups.contains(&chosen(group)))
        };
        is_of(&self.groups, group) || is_of(&self.places, place)
    }

    /// Matches a dumped rule if it is in the file.
    fn find(&mut self, rule: &Filter) -> Option<RuleMatch> {
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

    /// Matches a dumped rule by handle and content, or by content only.
    fn find_there(
        &mut self,
        (place, handle): (Group, u32),
        (whole, content): (Fingerprint, Fingerprint),
        identity: Identity,
    ) -> Option<RuleMatch> {
        if let Some(named) = self.named.get_mut(&(place, handle))
            && named.content == whole
        {
            if std::mem::replace(&mut named.found, true) {
                return Some(RuleMatch::Again);
            }
            self.matched.push(Matched::Named(place, handle));
            return Some(RuleMatch::Expected(named.line));
        }
        if place.priority == 0 { None } else { self.match_nameless((place, content), identity) }
    }

    /// Matches a dumped rule by content, among the rules whose priority the kernel chooses.
    fn find_chosen(
        &mut self,
        place: Group,
        (whole, content): (Fingerprint, Fingerprint),
        identity: Identity,
    ) -> Option<RuleMatch> {
        if !may_be_chosen(place) {
            return None;
        }
        for content in [whole, content] {
            if let Some(found) = self.match_nameless((chosen(place), content), identity) {
                if let RuleMatch::Expected(line) = found {
                    self.placed.push((chosen(place), place.priority, line));
                }
                return Some(found);
            }
        }
        None
    }

    fn match_nameless(&mut self, key: (Group, Fingerprint), identity: Identity) -> Option<RuleMatch> {
        let all = self.nameless.get_mut(&key)?;
        if all.iter().any(|nameless| nameless.found == Some(identity)) {
            return Some(RuleMatch::Again);
        }
        let place = all.iter().position(|nameless| nameless.found.is_none())?;
        all[place].found = Some(identity);
        self.matched.push(Matched::Nameless(key, place));
        Some(RuleMatch::Expected(all[place].line))
    }

    /// Whether all rules of a hook are of kinds that [`Expected::match_by_cookie`] supports.
    pub fn may_have_cookies(&self, hook: Hook) -> bool {
        !self.without_terse.contains(&hook)
    }

    /// Returns the lines of the rules that were not matched, in order.
    pub fn missing(&self) -> Vec<u32> {
        let named = self.named.values().filter(|named| !named.found).map(|named| named.line);
        let nameless = self.nameless.values().flatten().filter(|nameless| nameless.found.is_none());
        let nameless = nameless.map(|nameless| nameless.line);
        let mut lines: Vec<u32> = named.chain(nameless).chain(self.twice.iter().copied()).collect();
        lines.sort_unstable();
        lines
    }

    /// Returns the lines whose rules exist but are not evaluated in the order in which loading the file would
    /// put them.
    ///
    /// If the kernel chooses the priority, a rule precedes the existing ones, so the rule of the last line is
    /// evaluated first. The result is the smallest set of lines without which the others are in order.
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

    /// Returns the groups in which the file has rules.
    pub fn groups(&self) -> impl Iterator<Item = Group> {
        self.groups.iter().copied()
    }
}

/// Returns the place where a rule is looked up, and whether the rule is a u32 hash table with an explicit
/// number or is in one. The place of such rules is all groups of the same qdisc and priority; the place of
/// other rules is their group.
///
/// Kernel: 6.18, `net/sched/cls_u32.c` shares the tables between all chains and both hooks of clsact.
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

/// The half of a parent that identifies the qdisc.
const MAJOR: u32 = 0xffff_0000;

/// Whether the kernel may have chosen the priority of these rules.
const fn may_be_chosen(group: Group) -> bool {
    group.priority == 0 || group.priority >= CHOSEN_FROM
}

/// Returns the group with priority 0, which stands for the priorities that the kernel chooses.
const fn chosen(group: Group) -> Group {
    Group { priority: 0, ..group }
}

/// Returns the numbers outside a longest decreasing subsequence.
fn not_falling(numbers: &[u32]) -> Vec<u32> {
    // The index of the last number of the best sequence of each length, and of the predecessor of each
    // number.
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

    /// Returns the line's rule as the kernel would dump it, with the priority and handle that the kernel
    /// chose.
    fn dumped(line: &str, priority: u16, handle: u32) -> Filter {
        let (_, rule) = rules(line).remove(0);
        Filter { verb: Verb::Add, priority, handle, ..rule }
    }

    #[test]
    fn the_actions_of_a_rule_are_where_the_rule_is() {
        let line = |flag, of_action| {
            rules(&format!("filter add dev d0 ingress flower {flag} action drop {of_action}\n")).remove(0).1
        };
        // In each of the first two pairs, the kernel dumps the second rule if the first is loaded.
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
        assert_eq!(file.match_rule(&dumped(A, 0xbffe, 1)), RuleMatch::Expected(1));
        assert_eq!(file.match_rule(&dumped(A, 0xc000, 1)), RuleMatch::Expected(3));
        assert_eq!(file.missing(), [2]);
        assert_eq!(file.match_rule(&dumped(B, 0xbfff, 1)), RuleMatch::Expected(2));
        assert_eq!(file.match_rule(&dumped(B, 0xbff0, 1)), RuleMatch::Extra);
        assert_eq!(
            file.match_rule(&dumped(B, 7, 1)),
            RuleMatch::Unasked,
            "not a priority that the kernel chooses"
        );
    }

    #[test]
    fn the_last_line_without_a_priority_has_the_first_turn() {
        let c = B.replace("10.0.0.2", "10.0.0.3");
        let text = format!("{A}{B}{c}");
        let mut file = expected(&text);
        for (rule, priority) in [(c.as_str(), 0xbffe), (B, 0xbfff), (A, 0xc000)] {
            assert!(matches!(file.match_rule(&dumped(rule, priority, 1)), RuleMatch::Expected(_)));
        }
        assert_eq!(file.misplaced(), [0_u32; 0]);
        let mut file = expected(&text);
        for (rule, priority) in [(B, 0xbffe), (A, 0xbfff), (c.as_str(), 0xc000)] {
            assert!(matches!(file.match_rule(&dumped(rule, priority, 1)), RuleMatch::Expected(_)));
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
                [
                    RuleMatch::Expected(1),
                    RuleMatch::Expected(2),
                    RuleMatch::Extra,
                    RuleMatch::Different(1),
                ] => {}
                [RuleMatch::Again, RuleMatch::Again, RuleMatch::Again, RuleMatch::Again] => {}
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
            assert_eq!(file.match_rule(&dumped(A, 0xc000, 1)), RuleMatch::Expected(1));
            assert_eq!(file.match_rule(&dumped(B, 1, 1)), RuleMatch::Expected(2));
        }
        file.back_to_mark();
        assert_eq!(file.missing(), [1, 2]);
        // Matches from before the mark remain.
        assert_eq!(file.match_rule(&dumped(A, 0xc000, 1)), RuleMatch::Expected(1));
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
        assert_eq!(expected(&format!("{one}{one}")).missing(), [1, 2], "the kernel refuses one of the two");
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
            assert_eq!(file.match_rule(&stands), RuleMatch::Different(line));
        }
        assert_eq!(file.match_rule(&dumped_u32(&plain, 0x8000_0805, 0x8000_0000)), RuleMatch::Extra);
        assert_eq!(file.match_rule(&dumped_u32(marked, 0x8000_0806, 0x8000_0000)), RuleMatch::Expected(1));
    }

    /// Returns a u32 rule as in a dump, with its full handle and the root table of its priority.
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
        // A rule of the root table differs from a rule of another table, even if both match the same packets.
        assert_eq!(file.match_rule(&dumped_u32(FIRST, 0x8020_1800, root)), RuleMatch::Expected(3));
        assert_eq!(file.match_rule(&dumped_u32(FIRST, 0x8020_1801, root)), RuleMatch::Extra);
        assert_eq!(file.match_rule(&dumped_u32(TABLE, 0x8020_0000, root)), RuleMatch::Expected(2));
        assert_eq!(file.match_rule(&dumped_u32(FIRST, 0x8010_0800, root)), RuleMatch::Expected(1));
        assert_eq!(file.match_rule(&dumped_u32(FIRST, 0x8010_0801, root)), RuleMatch::Extra);
        // The file may name the root table by the number that the kernel assigned, or not at all.
        for handle in ["handle 801::5 u32", "handle ::5 u32", "handle ::5 u32 ht 801:"] {
            let mut file = expected(&FIRST.replace("u32 match", &format!("{handle} match")));
            assert_eq!(
                file.match_rule(&dumped_u32(FIRST, 0x8010_0005, root)),
                RuleMatch::Expected(1),
                "{handle}"
            );
            assert_eq!(file.match_rule(&dumped_u32(FIRST, 0x8020_0005, root)), RuleMatch::Extra, "{handle}");
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
                let found = |expected| if again { RuleMatch::Again } else { RuleMatch::Expected(expected) };
                let dumped = dumped_u32(&of(there, table), 0x50_0000, 0x8000_0000);
                assert_eq!(file.match_rule(&dumped), found(1), "{there}");
                let dumped = dumped_u32(&of(there, rule), 0x50_1007, 0x8000_0000);
                assert_eq!(file.match_rule(&dumped), found(2), "{there}");
            }
            assert_eq!(file.missing(), [0_u32; 0]);
        }
        // The rules in a root table belong to a single chain.
        let mut file = expected(&of(here, "u32 match u32 1 1"));
        let elsewhere = dumped_u32(&of("ingress protocol ip", "u32 match u32 1 1"), 0x8000_0800, 0x8000_0000);
        assert_eq!(file.match_rule(&elsewhere), RuleMatch::Unasked);
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
