//! `man`: writes the manual pages, for packagers.

use clap::CommandFactory;
use clap_mangen::roff::{Roff, bold, roman};
use cli::man::{COMMANDS, DOCUMENTS, FORMATS, POLICY_FILE, entry, files, inlines, pages, source};
use cli::programs::{TOOLS, Tool};
use policy_file::{KeyRow, SectionKind, key_table};
use session::drop_in::DROP_IN_DIRS;
use session::{Exit, Fault};

use crate::args::{Arguments, Man};
use cli::Context;

/// Writes one page for each command, and one about policy files. Commands that other programs implement have
/// pages of those programs.
pub(crate) fn run(arguments: &Man, context: &Context) -> Result<Exit, Fault> {
    // The pages are generated from the definitions that also parse the command line, so the pages always
    // match it.
    let mut command = Arguments::command().disable_help_subcommand(true);
    command.build();
    cli::man::write_page(&command, &arguments.dir)?;
    let own = |below: &&clap::Command| !below.is_hide_set() && Tool::with_command(below.get_name()).is_none();
    command
        .get_subcommands()
        .filter(own)
        .try_for_each(|below| cli::man::write_command(below, &arguments.dir))?;
    cli::man::write(POLICY_FILE, FORMATS, &policy_file_page(), &arguments.dir)?;
    TOOLS.iter().try_for_each(Tool::run)?;
    context.console.say(&format!("Wrote the manual pages to {}.", arguments.dir.display()));
    Ok(Exit::Done)
}

fn policy_file_page() -> Vec<u8> {
    let mut roff = Roff::new();
    roff.control("TH", [POLICY_FILE, FORMATS, "", source().as_str(), "netpolicy"]);
    roff.control("SH", ["NAME"]);
    roff.text([roman(format!("{POLICY_FILE} - how packets should reach devices and services"))]);
    roff.control("SH", ["SYNOPSIS"]);
    for directory in DROP_IN_DIRS.iter().rev() {
        roff.text([bold(format!("{directory}/*.toml"))]);
        roff.control("br", []);
    }
    roff.control("SH", ["DESCRIPTION"]);
    for text in [
        "A policy file is TOML. The section `[device.NAME]` is for a network device, `[device.\"eth*\"]` for all devices with matching names, `[service.NAME]` for the processes that its `match` selects, and `[daemon]` for the daemon. A device or service section has a `policy` or a `delivery`.",
        "Files are read in the order of their names, regardless of their directory. A file masks files of the same name in directories that are listed after its own. A key in a later file overrides the same key in an earlier one.",
        "A span is text with a unit: `\"20us\"`, `\"1.5ms\"`, `\"1s\"`, or `\"0\"`.",
    ] {
        roff.control("PP", []);
        roff.text(inlines(text));
    }
    roff.control("SH", ["EXAMPLE"]);
    roff.control("nf", []);
    for line in [
        "[device.eth0]",
        "policy = \"bulk\"",
        "",
        "[service.memcached]",
        "match  = { unit = \"memcached.service\" }",
        "policy = \"latency\"",
        "goal   = { p99 = \"300us\" }",
    ] {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    let (of_nics, keys): (Vec<KeyRow>, Vec<KeyRow>) =
        key_table().into_iter().partition(|row| row.path.starts_with("settings."));
    roff.control("SH", ["KEYS"]);
    keys.iter().for_each(|row| key(&mut roff, row));
    roff.control("SH", ["SETTINGS OF A DEVICE"]);
    of_nics.iter().for_each(|row| key(&mut roff, row));
    files(&mut roff);
    roff.control("SH", ["SEE ALSO"]);
    roff.text(pages(&[("netpolicy", COMMANDS), ("netpolicy-plan", COMMANDS), ("netpolicy-cat", COMMANDS)]));
    roff.control("PP", []);
    roff.text([roman(format!("{DOCUMENTS}/reference/policy-file.md, recipes.md, delivery-modes.md"))]);
    roff.render().into_bytes()
}

/// Formats the row of a policy-file key as in docs/reference/policy-file.md.
fn key(roff: &mut Roff, row: &KeyRow) {
    let sections = if row.of == SectionKind::OF_TRAFFIC.as_slice() {
        "device, service".to_owned()
    } else {
        row.of.iter().map(|kind| kind.word()).collect::<Vec<_>>().join(", ")
    };
    entry(roff, row.path, &format!("{} Takes {}. Sections: {sections}.", row.meaning, row.takes));
}
