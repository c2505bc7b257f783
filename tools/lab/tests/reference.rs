//! Generates the reference pages from the tools' tables: the commands, including the product's, and the keys
//! of scenario files.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use clap::builder::StyledStr;
use clap::{Arg, CommandFactory};
use cli::programs::TOOLS;
use netpolicy::args::Arguments;
use sim::scenario::{Costs, KEYS, Parameter, Takes};
use testkit::markdown::{PagePart, cell};

const PARTS: [PagePart; 3] = [
    ("commands.md", "commands", commands),
    ("scenario-files.md", "scenario-keys", scenario_keys),
    ("scenario-files.md", "parameters", parameters),
];

#[test]
fn the_reference_pages_say_what_the_code_says() {
    testkit::markdown::check_parts(&PARTS, "netpolicy-lab");
}

fn scenario_keys() -> String {
    let mut page = String::new();
    for key in KEYS {
        let takes = match key.takes {
            Takes::Whole { .. } | Takes::Number { .. } | Takes::Switch(_) => String::new(),
            Takes::Span(_) => " (a span: `\"20us\"`)".to_owned(),
            Takes::Word(_) => format!(" ({})", words_of(key.path)),
        };
        let _ = writeln!(page, "- `{}`{takes}: {}", key.path, cell(key.meaning));
    }
    page
}

/// Returns the possible values of a scenario key.
fn words_of(path: &str) -> &'static str {
    match path {
        "hardware.kernel" => "`\"6.11\"`",
        "application.waits" => "`sleep`, `event-spin:USECS`, `user-spin`",
        "clients.load" => "1–10⁸, as `200K` or `1.5M`; `max`",
        "clients.arrivals" => "`fixed`, `exponential`, `fb_ia`",
        "delivery.mode" => "a [delivery mode](delivery-modes.md)",
        "delivery.processing" => "`softirq`, `kthread`, `workqueue`, `busy-kthread`",
        "layout.irq-cpus" | "layout.thread-cpus" => "`\"0-7\"`",
        other => panic!("describe the values of `{other}` here"),
    }
}

fn parameters() -> String {
    let mut page = String::new();
    let default = Costs::default();
    for Parameter { name, unit, meaning, .. } in Costs::PARAMETERS {
        let value = default.get(name).unwrap_or_else(|| panic!("{name} has no default"));
        let unit = if *unit == "us" { String::new() } else { format!(" {unit}") };
        let _ = writeln!(page, "- `{name}` {value}{unit}: {}", cell(meaning));
    }
    page
}

fn commands() -> String {
    let mut root = with_tools(Arguments::command()).term_width(100);
    root.build();
    let mut page = String::from("| for | commands |\n|---|---|\n");
    for (group, names) in netpolicy::help::GROUPS {
        let links = names.iter().map(|name| format!("[`{name}`](#netpolicy-{name})"));
        let _ = writeln!(page, "| {group} | {} |", links.collect::<Vec<_>>().join(", "));
    }
    page.push_str("\n## Global options\n\nEvery command accepts these, before or after its name.\n\n");
    list(&mut page, &options(root.get_arguments().filter(|arg| arg.is_global_set())));
    let global: BTreeSet<String> = root.get_arguments().map(|arg| arg.get_id().to_string()).collect();
    let shared = shared_options(root.get_subcommands(), &global);
    page.push_str("## Options of several commands\n\n");
    list(&mut page, &shared);
    let shared = shared.into_iter().collect();
    for command in root.get_subcommands_mut() {
        describe(&mut page, command, &global, &shared);
    }
    page
}

/// Tools with so many commands and options that the page refers to `--help` instead of listing them.
const TOOLS_WITH_COMMANDS: [&str; 3] = ["bench", "sim", "tc"];

/// Returns the options that several commands have with the same meaning, in order of appearance.
fn shared_options<'a>(
    commands: impl Iterator<Item = &'a clap::Command>,
    known: &BTreeSet<String>,
) -> Vec<String> {
    let mut takers: BTreeMap<String, usize> = BTreeMap::new();
    let mut in_order = Vec::new();
    for command in commands {
        for row in options(command.get_arguments().filter(|arg| is_new(arg, known))) {
            let count = takers.entry(row.clone()).or_default();
            *count += 1;
            if *count == SHARED_MIN {
                in_order.push(row);
            }
        }
    }
    in_order
}

/// Whether an argument is not described in the shared lists.
fn is_new(arg: &Arg, known: &BTreeSet<String>) -> bool {
    !known.contains(arg.get_id().as_str())
}

/// Returns the command line with the tools' commands as their programs define them.
fn with_tools(command: clap::Command) -> clap::Command {
    let mut of_tools = of_tools();
    // `mut_subcommand` would move a command to the end.
    command.mut_subcommands(|own| {
        let at = of_tools.iter().position(|of_tool| of_tool.get_name() == own.get_name());
        at.map_or(own, |at| of_tools.swap_remove(at))
    })
}

fn of_tools() -> Vec<clap::Command> {
    tc::commands().into_iter().chain(lab::commands()).collect()
}

#[test]
fn the_help_says_of_a_command_of_a_tool_what_the_tool_says() {
    let netpolicy = Arguments::command();
    let named: Vec<&str> = TOOLS.iter().flat_map(|tool| tool.commands).copied().collect();
    assert_eq!(of_tools().iter().map(clap::Command::get_name).collect::<Vec<_>>(), named);
    for command in of_tools() {
        let said = netpolicy.find_subcommand(command.get_name()).and_then(clap::Command::get_about);
        assert_eq!(said.map(ToString::to_string), command.get_about().map(ToString::to_string));
    }
}

/// The pages that describe a command in place of the reference page.
const PAGES: [(&str, &str); 7] = [
    ("watch", "watch.md"),
    ("compare", "compare.md"),
    ("tune", "compare.md#finding-the-best-setting"),
    ("daemon", "daemon.md"),
    ("bench", "bench.md"),
    ("sim", "scenario-files.md"),
    ("tc", "tc.md"),
];

/// Returns a description that ends with a full stop.
fn sentence(text: Option<&StyledStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default().trim_end().trim_end_matches('.').to_owned() + "."
}

/// The minimum number of commands that must share an option for it to be listed once, above them.
const SHARED_MIN: usize = 2;

/// Describes a command and its subcommands. Options in `shared` are described above and only named in this
/// description.
fn describe(
    page: &mut String,
    command: &mut clap::Command,
    known: &BTreeSet<String>,
    shared: &BTreeSet<String>,
) {
    if command.is_hide_set() || command.get_name() == "help" {
        return;
    }
    let name = command.get_bin_name().unwrap_or(command.get_name()).to_owned();
    let (short, long) = (command.get_about(), command.get_long_about());
    let is_tool = TOOLS_WITH_COMMANDS.contains(&command.get_name());
    let about = match PAGES.iter().find(|(of, _)| name == format!("netpolicy {of}")) {
        Some((_, link)) => {
            let page = link.split('#').next().unwrap_or(link);
            format!("{} See [{page}]({link}).", sentence(short))
        }
        None => sentence(long.or(short)),
    };
    let usage = command.render_usage().to_string();
    let usage = usage.trim_start_matches("Usage: ").split_whitespace().collect::<Vec<_>>().join(" ");
    let _ = writeln!(page, "## `{name}`\n\n{about}\n");
    if is_tool {
        let below =
            command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
        let names: Vec<String> = below.map(|below| format!("`{}`", below.get_name())).collect();
        let _ = writeln!(page, "`{name} NAME --help` describes each of these: {}.\n", names.join(", "));
        return;
    }
    // The list below describes the arguments. Print the usage as well if it shows which options are required.
    if usage.contains("<--") || usage.contains("] --") {
        let _ = writeln!(page, "`{usage}`\n");
    }
    let (above, rows): (Vec<String>, Vec<String>) =
        options(command.get_arguments().filter(|arg| is_new(arg, known)))
            .into_iter()
            .partition(|row| shared.contains(row));
    list(page, &rows);
    let above: Vec<String> = above
        .iter()
        .filter_map(|row| row.strip_prefix("- `")?.split_once("`: "))
        .map(|(name, _)| {
            format!("`{}`", if name.starts_with('-') { name.split(' ').next().unwrap_or(name) } else { name })
        })
        .collect();
    if !above.is_empty() {
        let _ = writeln!(page, "Also {}.\n", above.join(", "));
    }
    let known: BTreeSet<String> =
        known.iter().cloned().chain(command.get_arguments().map(|arg| arg.get_id().to_string())).collect();
    let of_several = shared_options(command.get_subcommands(), &known);
    if !of_several.is_empty() {
        let _ = writeln!(page, "Options of several of the commands below:\n");
        list(page, &of_several);
    }
    let shared: BTreeSet<String> = shared.iter().cloned().chain(of_several).collect();
    for below in command.get_subcommands_mut() {
        describe(page, below, &known, &shared);
    }
}

fn list(page: &mut String, rows: &[String]) {
    if !rows.is_empty() {
        let _ = writeln!(page, "{}\n", rows.join("\n"));
    }
}

/// Lists options and arguments, one row each.
fn options<'a>(arguments: impl Iterator<Item = &'a Arg>) -> Vec<String> {
    let mut rows = Vec::new();
    for arg in
        arguments.filter(|arg| !arg.is_hide_set() && !["help", "version"].contains(&arg.get_id().as_str()))
    {
        let values = arg.get_value_names().unwrap_or_default().join(" ");
        let takes = arg.get_action().takes_values();
        let long = arg.get_long().map(|long| format!("--{long}"));
        let short = arg.get_short().map(|short| format!("-{short}"));
        let mut name = [short, long].into_iter().flatten().collect::<Vec<_>>().join(", ");
        if name.is_empty() {
            name = if arg.is_required_set() { format!("<{values}>") } else { format!("[{values}]") };
        } else if takes && !values.is_empty() {
            name += &format!(" {values}");
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
        rows.push(format!("- `{name}`: {}", meaning.split_whitespace().collect::<Vec<_>>().join(" ")));
    }
    rows
}
