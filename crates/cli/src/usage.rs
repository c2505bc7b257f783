//! Parses command lines, and improves clap's error messages.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue};
use clap::{CommandFactory, Parser};

/// Parses the command line of this process. If it is wrong or requests help, prints the message and exits.
#[must_use]
pub fn parse<Arguments: Parser>(command: clap::Command) -> Arguments {
    let words: Vec<OsString> = std::env::args_os().collect();
    let parsed =
        command.try_get_matches_from(&words).and_then(|matches| Arguments::from_arg_matches(&matches));
    parsed.unwrap_or_else(|error| {
        let error = explain::<Arguments>(error, &words);
        // If the message contains a very long word, print it in a shortened form.
        crate::console::said_if_long(&error.render().to_string())
            .map_or_else(|| error.exit(), |()| std::process::exit(error.exit_code()))
    })
}

/// Adds details that clap omits to a command line error.
#[must_use]
pub fn explain<Arguments: Parser>(error: clap::Error, words: &[OsString]) -> clap::Error {
    with_range::<Arguments>(without_hidden::<Arguments>(error), words)
}

/// Removes hidden commands and options from the suggestions in a command line error.
fn without_hidden<Arguments: CommandFactory>(mut error: clap::Error) -> clap::Error {
    let hidden: Vec<String> = Arguments::command()
        .get_subcommands()
        .filter(|command| command.is_hide_set())
        .map(|command| command.get_name().to_owned())
        .collect();
    let named = |name: &String| !hidden.contains(name);
    match error.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::String(name)) if named(&name) => {
            error.insert(ContextKind::SuggestedSubcommand, ContextValue::String(name));
        }
        Some(ContextValue::Strings(names)) => {
            let names: Vec<String> = names.into_iter().filter(named).collect();
            if !names.is_empty() {
                error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(names));
            }
        }
        _ => {}
    }
    error
}

/// Adds the valid range to the error about a value that is not a number, for which clap only reports `invalid
/// digit found in string`. The range is taken from clap's error about a number that is far too large.
fn with_range<Arguments: Parser>(error: clap::Error, words: &[OsString]) -> clap::Error {
    /// Numbers that clap can still parse and that are outside every finite range.
    const GREAT: [&str; 2] = ["18446744073709551615", "9223372036854775807"];
    let of = |error: &clap::Error, kind| error.get(kind).map(ToString::to_string);
    let source = error.source();
    let (is_no_whole, is_no_number) = (
        source.is_some_and(|source| source.is::<std::num::ParseIntError>()),
        source.is_some_and(|source| source.is::<std::num::ParseFloatError>()),
    );
    let (Some(argument), Some(value)) =
        (of(&error, ContextKind::InvalidArg), of(&error, ContextKind::InvalidValue))
    else {
        return error;
    };
    if !is_no_whole && !is_no_number {
        return error;
    }
    let range = GREAT.iter().filter(|_| is_no_whole).find_map(|great| {
        let words = words.iter().map(|word| replaced(&word.to_string_lossy(), &value, great));
        let wrong = Arguments::try_parse_from(words).err()?;
        let same = of(&wrong, ContextKind::InvalidArg).as_ref() == Some(&argument);
        let said = wrong.source().filter(|_| same)?.to_string();
        let (least, most) = said.split_once(" is not in ")?.1.split_once("..=")?;
        Some(format!("a whole number from {least} to {most}"))
    });
    let number = if is_no_whole { "a whole number" } else { "a number" };
    let expected = range.unwrap_or_else(|| number.to_owned());
    Arguments::command().error(
        clap::error::ErrorKind::ValueValidation,
        format!("invalid value '{value}' for '{argument}': expected {expected}"),
    )
}

/// Replaces a value in a word of the command line, such as `7`, `--seconds=7` or `1,7`.
fn replaced(word: &str, value: &str, other: &str) -> String {
    let (option, list) = word.rsplit_once('=').map_or(("", word), |(option, list)| (option, list));
    let list: Vec<&str> = list.split(',').map(|part| if part == value { other } else { part }).collect();
    let list = list.join(",");
    if word.contains('=') { format!("{option}={list}") } else { list }
}
