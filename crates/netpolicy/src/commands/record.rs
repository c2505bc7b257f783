//! `record`: saves this host in a file.

use std::fs;
use std::io::Read;
use std::os::unix::fs::DirBuilderExt;

use session::recording::{KEY_BYTES, LOG_LINES_MAX, Observed, Pseudonyms, Recording, redacted};
use session::replaced_file::{Durability, replace_file, write_user_file};
use session::{Exit, Fault};

use super::doctor::{gather, judge};
use super::show::last_measured;
use crate::args::{Record, Which};
use crate::render::RecordReport;
use cli::Context;

/// Records the host and writes the file.
pub(crate) fn run(arguments: &Record, context: &Context) -> Result<Exit, Fault> {
    context.console.keep_log(LOG_LINES_MAX);
    let recording = record(arguments.seconds, context)?;
    let recording = match arguments.with_names {
        true => recording,
        false => redacted(&recording, &mut Pseudonyms::new(key(context)?))
            .map_err(|why| Fault::failed(format!("the recording cannot be redacted: {why}")))?,
    };
    let text = recording.to_text();
    // Find an unreadable recording here, not at its recipient.
    let read = Recording::parse(text.as_bytes());
    if let Err(why) = read {
        return Err(Fault::failed(format!("nothing was written: {why}")));
    }
    write_user_file(&arguments.file, 0o600, text.as_bytes()).map_err(|error| {
        let is_shared = error.kind() == std::io::ErrorKind::PermissionDenied;
        let fault = Fault::file(&arguments.file, error);
        if is_shared { fault.hint("name a file in a directory that only you can write to") } else { fault }
    })?;
    let file = arguments.file.display().to_string();
    context.console.report(&RecordReport::of(&recording, file, text.len()))?;
    Ok(Exit::Done)
}

fn record(seconds: u64, context: &Context) -> Result<Recording, Fault> {
    let session = &context.session;
    let netns = session.netns()?;
    let (host, mut facts) = gather(&(&Which::All).into(), seconds, context)?;
    facts.said = context
        .console
        .log()
        .into_iter()
        .filter_map(|(is_detail, line)| (!is_detail).then_some(line))
        .collect();
    let networking = host.processes.iter().map(|process| process.id.pid).collect();
    // `judge` looks for the peers of veths only if a finding needs them.
    let examined = judge(host.clone(), facts, context)?;
    let observed =
        Observed { host, networking, doctor: examined.facts, last_measured: last_measured(context) };
    let recording = Recording::new(session, &netns, observed, &context.console)?;
    let log = context.console.log().into_iter().map(|(_, line)| line).collect();
    Ok(Recording { log, ..recording })
}

/// Reads the key for this host's pseudonyms from the state directory, or creates it.
fn key(context: &Context) -> Result<[u8; KEY_BYTES], Fault> {
    let path = context.session.state_dir.join("record.key");
    if let Some(key) = fs::read(&path).ok().and_then(|key| key.try_into().ok()) {
        return Ok(key);
    }
    const RANDOM: &str = "/dev/urandom";
    let mut key = [0; KEY_BYTES];
    fs::File::open(RANDOM)
        .and_then(|mut random| random.read_exact(&mut key))
        .map_err(|error| Fault::file(RANDOM, error))?;
    // Packages create this directory. If it is missing, only this user needs to read it.
    let _ = fs::DirBuilder::new().recursive(true).mode(0o755).create(&context.session.state_dir);
    if let Err(error) = replace_file(&path, 0o600, &key, Durability::Synced) {
        context.console.say(&format!(
            "The pseudonyms of the next recording will differ: {} cannot be written: {error}",
            path.display()
        ));
    }
    Ok(key)
}
