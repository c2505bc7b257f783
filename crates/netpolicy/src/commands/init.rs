//! `init`: writes a first policy file from the running services.

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::path::Path;

use model::{Pid, PolicyName};
use session::{Exit, Fault, quoted};

use crate::args::Init;
use crate::commands::prospects::Prospects;
use crate::init::{FirstFile, HostServices};
use crate::render::count;
use cli::Context;

/// Prints the policy file, or writes it to a path where no file exists.
pub(crate) fn run(arguments: &Init, context: &Context) -> Result<Exit, Fault> {
    let netns = context.session.netns()?;
    let mut found = HostServices::here(&netns, Pid(std::process::id()))?;
    if let Some(prospects) = Prospects::begin(&found, &netns, context) {
        prospects.wait();
        for one in prospects.found(&found.host, context) {
            found.notes.extend(one.first().map(|pid| (pid, one.lines())));
            one.keep("init", &netns, context);
        }
    }
    let first = FirstFile::of(&found, arguments.policy);
    let Some(path) = &arguments.file else {
        context.console.report(&first)?;
        return Ok(Exit::Done);
    };
    write(path, &first.text)?;
    if context.console.is_for_programs() {
        context.console.report(&first)?;
    }
    let there = quoted(&path.to_string_lossy());
    let sections =
        format!("{} and {}", count(first.devices.len(), "device"), count(first.services.len(), "service"));
    context.console.say(&format!("Wrote {there}: {sections}. No setting was changed."));
    context.console.say(&match arguments.policy {
        PolicyName::None => format!("Add policies to it, then: netpolicy plan --policy-file {there}"),
        _ => format!("To see the changes that it requires: netpolicy plan --policy-file {there}"),
    });
    Ok(Exit::Done)
}

/// Creates a file atomically, and its directory if necessary.
pub(super) fn write(path: &Path, text: &str) -> Result<(), Fault> {
    let failed = |error: std::io::Error| match error.kind() {
        ErrorKind::AlreadyExists => Fault::file(path, error)
            .hint("existing files are not overwritten: remove the file first, or name another one"),
        _ => Fault::file(path, error),
    };
    if let Some(directory) = path.parent().filter(|directory| !directory.as_os_str().is_empty()) {
        std::fs::create_dir_all(directory).map_err(|error| Fault::file(directory, error))?;
    }
    let mut file: File = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| file.sync_all());
    written.map_err(|error| {
        // Remove a partly written policy file, which could be mistaken for a complete one.
        let _ = std::fs::remove_file(path);
        failed(error)
    })
}
