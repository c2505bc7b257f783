//! Writes manual pages: a page for each command, and parts of other pages.

use std::path::Path;

use clap::Command;
use clap_mangen::Man as CommandPage;
use clap_mangen::roff::{Inline, Roff, bold, roman};
use policy_file::RECIPE_DIRS;
use session::drop_in::DROP_IN_DIRS;
use session::{API_SOCKET, Exit, Fault, METRICS_SOCKET, STATE_DIR};

/// The manual section for administration commands.
pub const COMMANDS: &str = "8";
/// The manual section for file formats.
pub const FORMATS: &str = "5";

/// The name of the manual page about policy files.
pub const POLICY_FILE: &str = "netpolicy.toml";

/// The directory in which the package installs its documents.
pub const DOCUMENTS: &str = "/usr/share/doc/netpolicy";

/// The environment variables that commands read, each with a description.
const VARIABLES: [(&str, &str); 3] = [
    ("NO_COLOR", "Set to any value: no colour, unless `--color` is given."),
    (
        "LC_ALL, LC_CTYPE, LANG",
        "The first variable that is set. Without UTF-8, arrows and symbols are ASCII.",
    ),
    ("PATH", "Where `run` finds the command and `tc load --with-tc` finds tc."),
];

/// Writes the pages of a built command and its subcommands to the subdirectory `man8` of a directory.
///
/// # Errors
/// If a page cannot be written.
pub fn write_command(command: &Command, directory: &Path) -> Result<(), Fault> {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_command(below, directory)?;
    }
    write_page(command, directory)
}

/// Writes the page of a built command, without pages for its subcommands.
///
/// # Errors
/// If the page cannot be written.
pub fn write_page(command: &Command, directory: &Path) -> Result<(), Fault> {
    let page = command_page(command).map_err(|error| Fault::file(name_of(command), error))?;
    write(name_of(command), COMMANDS, &page, directory)
}

/// Writes a page to the directory of its section.
///
/// # Errors
/// If the page cannot be written.
pub fn write(name: &str, section: &str, page: &[u8], directory: &Path) -> Result<(), Fault> {
    let pages = directory.join(format!("man{section}"));
    std::fs::create_dir_all(&pages).map_err(|error| Fault::file(&pages, error))?;
    let file = pages.join(format!("{name}.{section}"));
    std::fs::write(&file, page).map_err(|error| Fault::file(file, error))
}

/// Returns the name of a command's page, such as `netpolicy-tc-load`.
fn name_of(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn command_page(command: &Command) -> std::io::Result<Vec<u8>> {
    let is_program = name_of(command) == "netpolicy";
    let globals = command.get_arguments().any(|arg| arg.is_global_set());
    let own = command.clone();
    // Only the page of the program describes the options that all commands have.
    let own = if is_program {
        own
    } else {
        own.mut_args(|arg| if arg.is_global_set() { arg.hide(true) } else { arg })
    };
    let has_options = own.get_arguments().any(|arg| !arg.is_hide_set());
    let has_commands = own.get_subcommands().any(|below| !below.is_hide_set());
    let has_more = own.get_after_long_help().is_some() || own.get_after_help().is_some();
    let page = CommandPage::new(own).section(COMMANDS).source(source()).manual("netpolicy");
    let mut text = Vec::new();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    if has_options {
        page.render_options_section(&mut text)?;
    }
    let mut roff = Roff::new();
    if globals && !is_program {
        roff.control("PP", []);
        roff.text([
            roman("The options that all commands take are described in "),
            bold("netpolicy"),
            roman("(8)."),
        ]);
    }
    text.extend(roff.render().into_bytes());
    if has_commands {
        page.render_subcommands_section(&mut text)?;
    }
    if has_more {
        let mut extra = Vec::new();
        page.render_extra_section(&mut extra)?;
        // The section EXTRA contains the text after a command's help, which has its examples.
        text.extend(String::from_utf8_lossy(&extra).replace(".SH EXTRA\n", ".SH EXAMPLES\n").into_bytes());
    }
    let mut roff = Roff::new();
    roff.control("SH", ["EXIT STATUS"]);
    for exit in Exit::ALL {
        entry(&mut roff, &exit.code().to_string(), &format!("{} Host: {}.", exit.meaning(), exit.host()));
    }
    roff.control("SH", ["ENVIRONMENT"]);
    for (name, meaning) in VARIABLES {
        entry(&mut roff, name, meaning);
    }
    files(&mut roff);
    see_also(&mut roff, command);
    text.extend(roff.render().into_bytes());
    Ok(with_one_preamble(&text))
}

/// Removes all roff preambles but the first, because each rendered part of the page begins with one.
fn with_one_preamble(page: &[u8]) -> Vec<u8> {
    let is_preamble = |line: &[u8]| line.starts_with(b".ie \\n(.g .ds Aq") || line.starts_with(b".el .ds Aq");
    let lines = page.split_inclusive(|&byte| byte == b'\n').enumerate();
    lines.filter(|(at, line)| *at < 2 || !is_preamble(line)).flat_map(|(_, line)| line.to_vec()).collect()
}

/// Returns the name and version for the footer of a page: `netpolicy 0.1.0`.
#[must_use]
pub fn source() -> String {
    format!("netpolicy {}", env!("CARGO_PKG_VERSION"))
}

/// Adds an entry to a page: a term and its description.
pub fn entry(roff: &mut Roff, word: &str, meaning: &str) {
    roff.control("TP", []);
    roff.text([bold(word)]);
    roff.text(inlines(&meaning.split_whitespace().collect::<Vec<_>>().join(" ")));
}

/// Adds the section FILES to a page.
pub fn files(roff: &mut Roff) {
    roff.control("SH", ["FILES"]);
    for directory in DROP_IN_DIRS.iter().rev() {
        entry(roff, &format!("{directory}/*.toml"), "Policy files. Earlier directories take precedence.");
    }
    for directory in RECIPE_DIRS.iter().rev() {
        entry(roff, &format!("{directory}/*.toml"), "Recipes that override the built-in ones.");
    }
    entry(roff, STATE_DIR, "The journal: the changes, with an `undo.sh` for each transaction.");
    entry(roff, API_SOCKET, "The daemon's Varlink interface.");
    entry(roff, METRICS_SOCKET, "The daemon's metrics.");
    entry(roff, DOCUMENTS, "The reference and the guides.");
}

/// Lists the related pages: those of the parent command and of commands in the same group, and those about
/// files.
fn see_also(roff: &mut Roff, command: &Command) {
    let own = name_of(command);
    let mut near: Vec<(String, &str)> = Vec::new();
    let parent = own.rsplit_once('-').map(|(parent, _)| parent.to_owned());
    near.extend(parent.filter(|parent| parent != "netpolicy").map(|parent| (parent, COMMANDS)));
    let word = own.strip_prefix("netpolicy-").unwrap_or_default();
    for (_, commands) in crate::GROUPS {
        if own == "netpolicy" || commands.contains(&word) {
            let others = commands.iter().filter(|name| **name != word);
            near.extend(others.map(|name| (format!("netpolicy-{name}"), COMMANDS)));
        }
    }
    if own != "netpolicy" {
        near.insert(0, ("netpolicy".to_owned(), COMMANDS));
    }
    near.push((POLICY_FILE.to_owned(), FORMATS));
    near.extend([("ethtool".to_owned(), "8"), ("tc".to_owned(), "8")]);
    roff.control("SH", ["SEE ALSO"]);
    let near: Vec<(&str, &str)> = near.iter().map(|(name, section)| (name.as_str(), *section)).collect();
    roff.text(pages(&near));
}

/// Formats a list of references to pages: `netpolicy(8), tc(8)`.
#[must_use]
pub fn pages(pages: &[(&str, &str)]) -> Vec<Inline> {
    let mut line = Vec::new();
    for (at, (name, section)) in pages.iter().enumerate() {
        line.push(bold(*name));
        line.push(roman(format!("({section}){}", if at + 1 == pages.len() { "" } else { ", " })));
    }
    line
}

/// Converts inline Markdown: code becomes bold, and a link is replaced by its text.
#[must_use]
pub fn inlines(markdown: &str) -> Vec<Inline> {
    let mut text = markdown.to_owned();
    while let Some((before, rest)) = text.split_once("](")
        && let Some((_, after)) = rest.split_once(')')
        && let Some((before, words)) = before.rsplit_once('[')
    {
        text = format!("{before}{words}{after}");
    }
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_link_becomes_its_text_and_code_is_bold() {
        let takes = "a [layout](recipes.md#layouts): `\"rx-per-core\"`, [pattern](#patterns)";
        assert_eq!(inlines(takes), [roman("a layout: "), bold("\"rx-per-core\""), roman(", pattern")]);
    }
}
