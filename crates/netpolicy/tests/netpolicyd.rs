//! The daemon as a program of its own takes what `netpolicy daemon` takes: one cannot be changed without the other.

use std::collections::{BTreeMap, BTreeSet};

use clap::{Arg, Command, CommandFactory};
use netpolicy::args::Arguments;
use netpolicyd::arguments::{FLAGS, Flag};

/// What clap adds by itself.
const ADDED: [&str; 2] = ["help", "version"];

fn options(of: &str) -> BTreeMap<String, Arg> {
    let whole = Arguments::command();
    let command = whole.find_subcommand(of).expect("a command");
    let named = |arg: &&Arg| arg.get_long().is_some_and(|name| !ADDED.contains(&name));
    let global = |arg: &&Arg| arg.is_global_set();
    let all = command.get_arguments().chain(Command::get_arguments(&whole).filter(global));
    all.filter(named).map(|arg| (arg.get_long().unwrap_or_default().to_owned(), arg.clone())).collect()
}

fn flags() -> impl Iterator<Item = &'static Flag> {
    FLAGS.iter().filter(|flag| !ADDED.contains(&flag.name))
}

#[test]
fn it_takes_every_option_of_the_command_and_no_other() {
    let of_command: BTreeSet<String> = options("daemon").into_keys().collect();
    let of_program: BTreeSet<String> = flags().map(|flag| flag.name.to_owned()).collect();
    assert_eq!(of_program, of_command);
    let of_service = options("attach-service");
    assert!(of_service.contains_key("socket"), "{of_service:?}");
}

#[test]
fn each_has_the_letter_and_the_value_of_the_commands() {
    let options = options("daemon");
    for flag in flags() {
        let option = &options[flag.name];
        assert_eq!(flag.letter, option.get_short(), "--{}", flag.name);
        let takes = option.get_action().takes_values();
        let value = option.get_value_names().filter(|_| takes).and_then(|names| names.first());
        assert_eq!(flag.value, value.map(|name| name.as_str()), "--{}", flag.name);
    }
}

#[test]
fn each_says_what_the_commands_says_of_it() {
    let options = options("daemon");
    // What the command lists behind its help, as clap does with words that can be given, stands within it here.
    let rewritten = ["on-stop", "output", "color"];
    for flag in flags().filter(|flag| !flag.help.is_empty() && !rewritten.contains(&flag.name)) {
        let option = &options[flag.name];
        let said = option.get_long_help().or(option.get_help()).map(ToString::to_string).unwrap_or_default();
        assert_eq!(flag.help, said.trim_end_matches('.'), "--{}", flag.name);
    }
}
