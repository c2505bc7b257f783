//! Lists the commands by purpose, for `netpolicy --help` and the reference.

use std::fmt::Write as _;

use clap::Command;
pub use cli::GROUPS;

/// The template of `--help`, in which `before-help` contains the commands by group.
const TEMPLATE: &str =
    "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}Options:\n{options}\n{after-help}";

/// Groups the commands in the program's help: `-h` lists only their names, `--help` has a line for each
/// command.
#[must_use]
pub fn grouped(command: Command) -> Command {
    let (names, lines) = (group_names(&command), group_lines(&command));
    command
        .help_template(TEMPLATE)
        .before_help(names)
        .before_long_help(lines)
        .after_help("netpolicy --help describes each command; netpolicy COMMAND -h lists its options.")
}

/// Lists the names of each group's commands, one line per group.
fn group_names(command: &Command) -> String {
    let width = width(GROUPS.iter().map(|(group, _)| *group));
    let mut text = String::from("Commands:\n");
    for (group, names) in GROUPS {
        let _ = writeln!(text, "  {group:<width$}  {}", names.join(", "));
    }
    let globals: Vec<String> = command
        .get_arguments()
        .filter(|arg| arg.is_global_set() && !arg.is_hide_set())
        .filter_map(|arg| arg.get_long().map(|long| format!("--{long}")))
        .collect();
    let _ = write!(text, "\nOptions of every command: {}", globals.join(", "));
    text
}

/// Lists the commands of each group, with descriptions.
fn group_lines(command: &Command) -> String {
    let width = width(GROUPS.iter().flat_map(|(_, names)| names.iter().copied()));
    let mut text = String::new();
    for (group, names) in GROUPS {
        let _ = writeln!(text, "{group}:");
        for name in names {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let about = about.split(". ").next().unwrap_or_default().trim_end_matches('.');
            let lines = wrap(about, COLUMNS - width - 4).join(&format!("\n{:1$}", "", width + 4));
            let _ = writeln!(text, "  {name:<width$}  {lines}");
        }
        text.push('\n');
    }
    text.trim_end().to_owned()
}

/// The maximum width of a line of help, in characters.
const COLUMNS: usize = 80;

/// Wraps words into lines of at most this many characters.
fn wrap(words: &str, columns: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= columns => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn width<'a>(words: impl Iterator<Item = &'a str>) -> usize {
    words.map(str::len).max().unwrap_or(0)
}

#[cfg(test)]
mod test {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::args::Arguments;

    #[test]
    fn every_command_is_in_one_group() {
        let command = Arguments::command();
        let named: Vec<&str> = GROUPS.iter().flat_map(|(_, names)| names.iter().copied()).collect();
        let shown: BTreeSet<&str> =
            command.get_subcommands().filter(|one| !one.is_hide_set()).map(Command::get_name).collect();
        assert_eq!(named.iter().copied().collect::<BTreeSet<_>>(), shown);
        assert_eq!(named.len(), shown.len(), "a command is in two groups");
    }

    #[test]
    fn the_short_help_of_the_program_fits_on_a_screen_and_that_of_a_command_has_only_its_options() {
        let short = grouped(Arguments::command()).term_width(80).render_help().to_string();
        assert!(short.lines().count() <= 24 && short.contains("doctor"), "{short}");
        let mut all = grouped(Arguments::command());
        all.build();
        for command in all.get_subcommands_mut().filter(|one| one.get_name() != "help") {
            let short = command.render_help().to_string();
            assert!(!short.contains("Global options"), "{}: {short}", command.get_name());
            assert!(
                command.render_long_help().to_string().contains("Global options"),
                "{}",
                command.get_name()
            );
        }
    }

    #[test]
    fn the_long_help_says_what_each_command_does_by_group() {
        let long = grouped(Arguments::command()).render_long_help().to_string();
        for (group, names) in GROUPS {
            assert!(long.contains(&format!("{group}:\n")), "{long}");
            for name in names {
                assert!(long.lines().any(|line| line.trim_start().starts_with(name)), "{name}: {long}");
            }
        }
        assert!(long.contains("--state-dir") && long.contains("Exit codes:"), "{long}");
    }
}
