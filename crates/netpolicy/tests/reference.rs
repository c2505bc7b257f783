//! The reference pages that are made of the code's own tables: settings, keys of policy files, commands, exit codes.

#[expect(dead_code, reason = "the tests of links and of console blocks read documents")]
mod markdown;

use std::collections::BTreeSet;
use std::fmt::Write as _;

use clap::{Arg, CommandFactory};
use model::Setting;
use model::setting::{
    DeviceNapiKnob, Disruption, Facts, HostKnob, IrqKnob, KthreadKnob, NapiKnob, NicKnob, ProcessKnob,
    RxQueueKnob, TxQueueKnob,
};
use netpolicy::args::Arguments;
use policy_file::{Kind, key_table};
use session::Exit;
use sim::scenario::{Costs, KEYS, Parameter, Takes};

/// A part of a page, and what makes it.
type Part = (&'static str, &'static str, fn() -> String);

const PARTS: [Part; 10] = [
    ("settings.md", "settings", settings),
    ("policy-file.md", "keys", || keys(|path| !path.starts_with("settings."))),
    ("policy-file.md", "device-settings", || keys(|path| path.starts_with("settings."))),
    ("commands.md", "commands", commands),
    ("exit-codes.md", "exit-codes", exit_codes),
    ("findings.md", "findings", findings),
    ("recipes.md", "ladders", ladders),
    ("requirements.md", "mechanisms", mechanisms),
    ("scenario-files.md", "scenario-keys", scenario_keys),
    ("scenario-files.md", "parameters", parameters),
];

#[test]
fn the_reference_pages_say_what_the_code_says() {
    let write = std::env::var_os("UPDATE").is_some();
    let mut stale = Vec::new();
    for (page, name, make) in PARTS {
        let path = markdown::repository().join("docs/reference").join(page);
        let text =
            std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let (begin, end) = (format!("<!-- begin {name}"), format!("<!-- end {name} -->"));
        let parts = text.split_once(&begin).and_then(|(before, rest)| {
            let (mark, rest) = rest.split_once("-->\n")?;
            let (_, after) = rest.split_once(&end)?;
            Some(format!("{before}{begin}{mark}-->\n{}\n{end}{after}", make().trim_end()))
        });
        let made = parts.unwrap_or_else(|| panic!("{page} has no part between `{begin} … -->` and `{end}`"));
        if made != text && write {
            std::fs::write(&path, made).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        } else if made != text {
            stale.push(format!("docs/reference/{page}, {name}"));
        }
    }
    assert!(
        stale.is_empty(),
        "stale: {}. Write these parts with `UPDATE=1 cargo test -p netpolicy --test reference`, and read the diff.",
        stale.join("; ")
    );
}

#[test]
fn a_key_that_the_table_of_settings_names_is_a_key_of_policy_files() {
    let keys: BTreeSet<&str> = key_table().iter().map(|row| row.path).collect();
    for facts in Setting::table() {
        assert!(facts.key.is_none_or(|key| keys.contains(key)), "{}: {:?}", facts.name, facts.key);
    }
}

/// Text as a cell of a table takes it.
fn cell(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn settings() -> String {
    let families: [(&str, Vec<&Facts>); 9] = [
        ("Of the NAPI of a receive queue", NapiKnob::table()),
        ("Of all NAPIs of a device", DeviceNapiKnob::table()),
        ("Of the kernel thread of a NAPI", KthreadKnob::table()),
        ("Of a NIC and its driver", NicKnob::table()),
        ("Of a receive queue", RxQueueKnob::table()),
        ("Of a transmit queue", TxQueueKnob::table()),
        ("Of an interrupt", IrqKnob::table()),
        ("Of a process", ProcessKnob::table()),
        ("Of the whole host", HostKnob::table()),
    ];
    let listed: usize = families.iter().map(|(_, table)| table.len()).sum();
    assert_eq!(listed, Setting::table().len(), "a family has no table here");
    let mut page = String::new();
    for (family, table) in families {
        let _ = writeln!(
            page,
            "## {family}\n\n| setting | values | key | since Linux | written by | meaning |\n|---|---|---|---|---|---|"
        );
        for facts in table {
            let mut meaning = facts.meaning();
            match facts.disruption {
                Disruption::None => {}
                disruption => meaning += &format!(" Writing it {disruption}."),
            }
            if let Some(values) = facts.irreversible {
                meaning += &format!(" Not written back: {values}.");
            }
            if let Some(cited) = facts.cited() {
                meaning += &format!(" {cited}");
            }
            let key = facts.key.map(|key| format!("`{key}`")).unwrap_or_default();
            let cells =
                [&facts.values(), &key, &facts.since.to_string(), &facts.interface.to_string(), &meaning]
                    .map(|text| cell(text));
            let _ = writeln!(page, "| `{}` | {} |", cell(facts.name), cells.join(" | "));
        }
        page.push('\n');
    }
    page
}

fn keys(listed: impl Fn(&str) -> bool) -> String {
    let mut page = "| key | sections | takes | meaning |\n|---|---|---|---|\n".to_owned();
    for row in key_table().iter().filter(|row| listed(row.path)) {
        let sections = if row.of == Kind::OF_TRAFFIC.as_slice() {
            "both".to_owned()
        } else {
            row.of.iter().map(|kind| kind.word()).collect::<Vec<_>>().join(", ")
        };
        let path = row.path.strip_prefix("settings.").unwrap_or(row.path);
        let _ = writeln!(page, "| `{path}` | {sections} | {} | {} |", cell(&row.takes), cell(row.meaning));
    }
    page
}

fn exit_codes() -> String {
    let mut page = "| code | meaning | state of the host |\n|---|---|---|\n".to_owned();
    for exit in Exit::ALL {
        let _ = writeln!(page, "| {} | {} | {} |", exit.code(), cell(exit.meaning()), cell(exit.host()));
    }
    page
}

fn scenario_keys() -> String {
    let mut page = "| key | takes | meaning |\n|---|---|---|\n".to_owned();
    for key in KEYS {
        let takes = match key.takes {
            Takes::Whole { min, max, .. } => format!("{min}–{max}"),
            Takes::Number { min, max, .. } => format!("{min}–{max}"),
            Takes::Switch(_) => "`true`, `false`".to_owned(),
            Takes::Span(_) => "a span: `\"20us\"`".to_owned(),
            Takes::Word(_) => words_of(key.path).to_owned(),
        };
        let _ = writeln!(page, "| `{}` | {takes} | {} |", key.path, cell(key.meaning));
    }
    page
}

/// What a key of a scenario takes that has words of its own.
fn words_of(path: &str) -> &'static str {
    match path {
        "hardware.kernel" => "`\"6.11\"`",
        "application.waits" => "`sleep`, `event-spin:USECS`, `user-spin`",
        "clients.load" => "1–10⁸, as `200K` or `1.5M`; `max`",
        "clients.arrivals" => "`fixed`, `exponential`, `fb_ia`",
        "delivery.mode" => "a [delivery mode](delivery-modes.md)",
        "delivery.processing" => "`softirq`, `kthread`, `workqueue`, `busy-kthread`",
        "layout.irq-cpus" | "layout.thread-cpus" => "`\"0-7\"`",
        other => panic!("say here what `{other}` takes"),
    }
}

fn parameters() -> String {
    let mut page = "| parameter | unit | default | bounds | meaning |\n|---|---|---|---|---|\n".to_owned();
    let default = Costs::default();
    for Parameter { name, unit, meaning, min, max } in Costs::PARAMETERS {
        let value = default.get(name).unwrap_or_else(|| panic!("{name} has no default"));
        let _ = writeln!(page, "| `{name}` | {unit} | {value} | {min}–{max} | {} |", cell(meaning));
    }
    page
}

fn mechanisms() -> String {
    let mut page = String::from("| mechanism | what it is for | since Linux | needs |\n|---|---|---|---|\n");
    for mechanism in primer::MECHANISMS {
        let since = mechanism.since.map_or("-".to_owned(), |since| since.to_string());
        let needs = mechanism.needed().join(", ");
        let _ = writeln!(
            page,
            "| `{}` | {} | {since} | {} |",
            mechanism.name,
            cell(mechanism.meaning),
            cell(&needs)
        );
    }
    page
}

fn findings() -> String {
    let mut page = String::new();
    for (family, rules) in plan::doctor::RULES {
        let _ = writeln!(page, "## {family}\n\n| finding | meaning |\n|---|---|");
        for rule in rules {
            let _ = writeln!(page, "| `{}` | {} |", rule.id, cell(rule.doc));
        }
        page.push('\n');
    }
    page.push_str("## response times\n\nOf services of the policy files, also in the daemon's findings and in [`netpolicy watch`](watch.md).\n\n");
    page.push_str("| finding | meaning |\n|---|---|\n");
    for (rule, meaning) in live::RULES {
        let _ = writeln!(page, "| `{rule}` | {} |", cell(meaning));
    }
    page.push_str("\n## goals that are kept\n\nOf the daemon, for services with [`on_missed = \"search\"`](daemon.md#goals-that-are-kept).\n\n");
    page.push_str("| finding | meaning |\n|---|---|\n");
    for (rule, meaning) in daemon::SEARCH_RULES {
        let _ = writeln!(page, "| `{rule}` | {} |", cell(meaning));
    }
    page
}

fn ladders() -> String {
    let recipes = policy_file::recipes(&[]).expect("the shipped recipes are right");
    let mut page = String::from("| policy | mode | where | why | source |\n|---|---|---|---|---|\n");
    for (policy, ladder) in &recipes.ladders {
        for rung in ladder {
            let (mode, why, source) = (rung.mode, cell(&rung.because.why), cell(&rung.because.source));
            let _ = writeln!(page, "| `{policy}` | `{mode}` | {} | {why} | {source} |", rung.when);
        }
    }
    page
}

fn commands() -> String {
    let mut root = Arguments::command().term_width(100);
    root.build();
    let mut page =
        String::from("## Global options\n\nEvery command takes these, before its name or behind it.\n\n");
    options(&mut page, root.get_arguments().filter(|arg| arg.is_global_set()));
    let known: BTreeSet<String> = root.get_arguments().map(|arg| arg.get_id().to_string()).collect();
    for command in root.get_subcommands_mut() {
        described(&mut page, command, &known);
    }
    page
}

/// A command, and those below it.
fn described(page: &mut String, command: &mut clap::Command, known: &BTreeSet<String>) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string).unwrap_or_default();
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").lines().map(str::trim).collect::<Vec<_>>().join("\n");
    let _ = writeln!(page, "## `{name}`\n\n{}\n\n```text\n{usage}\n```\n", about.trim_end());
    options(page, command.get_arguments().filter(|arg| !known.contains(arg.get_id().as_str())));
    let after = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    if let Some(after) = after.filter(|after| !after.is_empty()) {
        let _ = writeln!(page, "```text\n{}\n```\n", after.trim_end());
    }
    let known =
        known.iter().cloned().chain(command.get_arguments().map(|arg| arg.get_id().to_string())).collect();
    for below in command.get_subcommands_mut() {
        described(page, below, &known);
    }
}

/// A table of options and arguments.
fn options<'a>(page: &mut String, arguments: impl Iterator<Item = &'a Arg>) {
    let mut rows = String::new();
    for arg in
        arguments.filter(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()))
    {
        let values = arg.get_value_names().unwrap_or_default().join(" ");
        let takes = arg.get_action().takes_values();
        let long = arg.get_long().map(|long| format!("--{long}"));
        let short = arg.get_short().map(|short| format!("-{short}"));
        let mut name = [short, long].into_iter().flatten().collect::<Vec<_>>().join(", ");
        if takes && !values.is_empty() {
            name += &if name.is_empty() { values } else { format!(" {values}") };
        }
        let mut meaning = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let possible: Vec<_> = arg
            .get_possible_values()
            .iter()
            .filter(|value| !value.is_hide_set())
            .map(|v| format!("`{}`", v.get_name()))
            .collect();
        if !meaning.is_empty() && !meaning.ends_with('.') {
            meaning.push('.');
        }
        if takes && !possible.is_empty() {
            meaning += &format!(" One of {}.", possible.join(", "));
        }
        let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
        if takes && !default.is_empty() {
            meaning += &format!(" Default: `{}`.", default.join(","));
        }
        let _ = writeln!(rows, "| `{}` | {} |", cell(&name), cell(&meaning));
    }
    if !rows.is_empty() {
        let _ = writeln!(page, "| option or argument | meaning |\n|---|---|\n{rows}");
    }
}
