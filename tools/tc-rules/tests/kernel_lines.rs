//! The lines of the kernel's own tests of tc: those that the parser supports become the bytes that tc sends,
//! and the number of supported lines must not decrease.

mod recorded;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use recorded::{bytes, device, encoded};
use tc_rules::{Batch, Filter, Table};

const RECORDED: &str = include_str!("golden/tc-testing.hex");

/// For each of the kernel's files, the number of supported lines, and of lines that tc accepts; files that
/// are absent have no supported lines.
const UNDERSTOOD: &str = include_str!("golden/tc-testing.understood");

/// A line of one of the kernel's files, and the bytes that tc sends for it; `None` if tc refuses it.
struct Recorded {
    file: &'static str,
    line: &'static str,
    sent: Option<Vec<u8>>,
}

/// The device indices at recording time, and the lines with their bytes.
fn all_lines() -> (Table, Vec<Recorded>) {
    let mut rows = RECORDED.lines().filter(|row| !row.starts_with("# "));
    let table = Table::of([(); 3].map(|()| device(rows.next().expect("a device"))));
    let (mut file, mut all) = ("", Vec::new());
    while let Some(line) = rows.next() {
        if let Some(name) = line.strip_prefix("## ") {
            file = name;
            continue;
        }
        let hex = rows.next().expect("bytes");
        let sent = (hex != "-").then(|| bytes(hex));
        let sent = sent.map(|sent| without_foreign_memory(line, sent));
        all.push(Recorded { file, line, sent });
    }
    (table, all)
}

/// The bytes that tc sends, with those after the text of `simple` zeroed: tc always sends 32 bytes of its
/// memory (`m_simple.c` `parse_simple()`), and the kernel ignores those after the text.
fn without_foreign_memory(line: &str, mut sent: Vec<u8>) -> Vec<u8> {
    /// The header of `TCA_DEF_DATA`, and the number of bytes after it.
    const TEXT: ([u8; 4], usize) = ([36, 0, 3, 0], 32);
    if line.contains(" sdata ") {
        for at in (0..sent.len().saturating_sub(TEXT.1)).step_by(4) {
            if sent[at..at + 4] == TEXT.0 {
                let text = &mut sent[at + 4..at + 4 + TEXT.1];
                let end = text.iter().position(|byte| *byte == 0).expect("a zero");
                text[end..].fill(0);
            }
        }
    }
    sent
}

#[test]
fn what_is_understood_becomes_the_bytes_that_tc_sends() {
    let (mut table, lines) = all_lines();
    let mut wrong = String::new();
    for Recorded { file, line, sent } in &lines {
        let Some(sent) = sent else { continue };
        if let Ok(bytes) = encoded(line, &mut table)
            && bytes != *sent
        {
            let at = bytes.iter().zip(sent).take_while(|(a, b)| a == b).count();
            writeln!(wrong, "{file}: {line}\n  differs at byte {at}\n  {bytes:02x?}\n  {sent:02x?}")
                .expect("text");
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn as_many_lines_are_understood_as_were() {
    let (mut table, lines) = all_lines();
    let (mut count, mut foreign) = (BTreeMap::<&str, (usize, usize)>::new(), String::new());
    for Recorded { file, line, sent } in &lines {
        if sent.is_none() {
            continue;
        }
        let (understood, taken) = count.entry(file).or_default();
        *taken += 1;
        match encoded(line, &mut table) {
            Ok(_) => *understood += 1,
            Err(error) => writeln!(foreign, "{file}: {line}\n  {error}").expect("text"),
        }
    }
    let row =
        |(file, (understood, taken)): (&&str, &(usize, usize))| format!("{file} {understood} of {taken}\n");
    let now: String = count.iter().map(row).collect();
    let rows = UNDERSTOOD.lines().filter(|row| !row.starts_with('#'));
    let before: String = rows.map(|row| format!("{row}\n")).collect();
    let all = count.values().fold((0, 0), |all, file| (all.0 + file.0, all.1 + file.1));
    assert!(now == before, "{foreign} {} of {} lines are supported: {now}", all.0, all.1);
    assert!(all.0 * 100 >= all.1 * 95, "{} of {} lines are supported", all.0, all.1);
}

#[test]
fn what_tc_refuses_is_refused() {
    let (mut table, lines) = all_lines();
    let mut taken = String::new();
    for Recorded { file, line, .. } in lines.iter().filter(|line| line.sent.is_none()) {
        if encoded(line, &mut table).is_ok() {
            writeln!(taken, "{file}: {line}").expect("text");
        }
    }
    assert!(taken.is_empty(), "tc refuses\n{taken}");
}

/// The rules that the lines add, and a rule for each action that a line adds separately.
fn rules_of_lines(table: &mut Table, lines: &[Recorded]) -> Vec<(String, Filter)> {
    let mut rules = Vec::new();
    for Recorded { line, sent, .. } in lines {
        let line = match line.split_once(" add action ") {
            Some(("actions" | "action", action)) => {
                format!("filter add dev d0 ingress protocol ip prio 1 u32 match u32 0 0 action {action}")
            }
            _ if line.starts_with("filter add ") => (*line).to_owned(),
            _ => continue,
        };
        let mut batch = Batch::new(line.as_bytes());
        if sent.is_some()
            && let Ok(Some((_, command))) = batch.next_command(table)
            && let Some(rule) = command.rule()
        {
            rules.push((line.clone(), rule.clone()));
        }
    }
    rules
}

#[test]
fn what_is_understood_has_words_that_mean_the_same() {
    let (mut table, lines) = all_lines();
    let mut rules = rules_of_lines(&mut table, &lines);
    rules.retain(|(_, rule)| rule.classifier.kind().is_some());
    let mut without = String::new();
    for (line, rule) in &rules {
        if rule.line(&mut table).is_none() {
            writeln!(without, "{line}\n  {:?}", rule.words(&mut table)).expect("text");
        }
    }
    assert!(without.is_empty(), "{without}");
    assert!(rules.len() >= 590, "only {} rules", rules.len());
}
