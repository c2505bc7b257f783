//! `record`: saves this host in a file.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use cli::{Context, Globals};
use linux::Processes;
use rustix::fs::OFlags;
use session::explain::explained;
use session::page::Report;
use session::recording::{KEY_BYTES, LOG_LINES_MAX, Observed, Pseudonyms, Recording, redacted};
use session::replaced_file::{Durability, replace_file, write_user_file};
use session::verify::compared;
use session::{Exit, Fault, app_requests, cycle};

use super::doctor::{examine, gather, judge};
use super::show::last_measured;
use crate::args::{Record, Which};
use crate::render::{
    DifferenceReport, FindingsReport, HistoryReport, HostReport, PlanReport, RecordReport, svg,
};

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
    // Find out here, rather than at the recipient, that a recording cannot be read.
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
    if let Some(key) = read_key(&path)? {
        return Ok(key);
    }
    const RANDOM: &str = "/dev/urandom";
    let mut key = [0; KEY_BYTES];
    fs::File::open(RANDOM)
        .and_then(|mut random| random.read_exact(&mut key))
        .map_err(|error| Fault::file(RANDOM, error))?;
    // Packages create this directory. If it is missing, only this user needs to be able to read it, so ignore
    // errors.
    let _ = fs::DirBuilder::new().recursive(true).mode(0o755).create(&context.session.state_dir);
    if let Err(error) = replace_file(&path, 0o600, &key, Durability::Synced) {
        context.console.say(&format!(
            "The pseudonyms of the next recording will differ: {} cannot be written: {error}",
            path.display()
        ));
    }
    Ok(key)
}

/// Reads a key; `None` if the file does not exist, belongs to another user, or does not contain a key.
///
/// # Errors
/// If the file cannot be read, or other users can read or replace it: with the key, they can find out which
/// name a pseudonym stands for.
fn read_key(path: &Path) -> Result<Option<[u8; KEY_BYTES]>, Fault> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let opened = fs::OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path);
    let mut file = match opened {
        Ok(file) => file,
        // Only the owner of a key can read it; other users record with a new key.
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => {
            return Ok(None);
        }
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) => {
            let why = "the key of the pseudonyms is a symbolic link";
            let fault = Fault::failed(format!("{}: {why}", path.display()));
            return Err(fault.hint(format!("for a new key and new pseudonyms: rm {}", path.display())));
        }
        Err(error) => return Err(Fault::file(path, error)),
    };
    let about = file.metadata().map_err(|error| Fault::file(path, error))?;
    if let Some(why) = not_private(&about, rustix::process::geteuid().as_raw()) {
        let fault = Fault::failed(format!("{}: {why}", path.display()));
        return Err(fault.hint(format!("for a new key and new pseudonyms: rm {}", path.display())));
    }
    let mut key = Vec::new();
    file.by_ref()
        .take(KEY_BYTES as u64 + 1)
        .read_to_end(&mut key)
        .map_err(|error| Fault::file(path, error))?;
    Ok(key.try_into().ok())
}

/// Returns why a key file is not private to this user; `None` if it is private.
fn not_private(about: &fs::Metadata, user: u32) -> Option<String> {
    let (mode, owner) = (about.mode() & 0o7777, about.uid());
    if !about.is_file() {
        Some("the key of the pseudonyms is not a regular file".to_owned())
    } else if owner != user {
        Some(format!("the key of the pseudonyms belongs to user {owner}, and not to user {user}"))
    } else if mode & 0o077 != 0 {
        Some(format!("the key of the pseudonyms is open to other users (mode {mode:04o}, must be 0600)"))
    } else {
        None
    }
}

/// Returns the texts that commands print for a recording, to test damaged and large recordings. A command
/// that fails prints nothing.
///
/// # Errors
/// If the recorded host cannot be observed.
pub fn recording_texts(recording: &Recording) -> Result<Vec<String>, Fault> {
    let quiet = Globals { quiet: true, ..Globals::default() };
    let context = Context::of_recording(quiet, recording.clone())?;
    let session = &context.session;
    let source = session.source()?;
    let mut host = source.observe(&Processes::Networking)?;
    app_requests::add_to(&mut host, &*source, &session.app_requests());
    let mut texts = vec![HostReport(&host).as_text(false), svg(&host)];
    let examined = examine(&Processes::Networking, 0, &context)?;
    let (delivered, not_known) = (examined.facts.delivered.as_ref(), &examined.not_known);
    texts.push(FindingsReport::of(&examined.findings, delivered, not_known, true).as_text(false));
    let recorded = (recording, examined.findings.as_slice());
    texts.push(DifferenceReport::of(recorded, recorded).as_text(false));
    if let Ok(planned) = context.whole_policy(&*source).and_then(|policy| cycle::plan(&policy, &*source)) {
        texts.push(PlanReport::of(&planned.plan).as_text(false));
    }
    texts.extend(explained("", session, &context.console).map(|report| report.as_text(false)));
    let Ok(journal) = session.journal() else { return Ok(texts) };
    texts.extend(compared(&journal, Some(recording)).map(|report| report.as_text(false)));
    let proofs = session.proofs().unwrap_or_default().services;
    let history = journal.history();
    texts.extend(history.map(|history| HistoryReport::of(&history, &journal, &proofs).as_text(false)));
    Ok(texts)
}

#[cfg(test)]
mod test {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_key_that_others_can_read_is_refused_with_the_next_command() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("record.key");
        assert_eq!(read_key(&path).expect("no key yet"), None);
        fs::write(&path, [7; KEY_BYTES]).expect("written");
        let user = rustix::process::geteuid().as_raw();
        for (mode, is_private) in
            [(0o600, true), (0o400, true), (0o640, false), (0o602, false), (0o666, false)]
        {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("set");
            let about = fs::metadata(&path).expect("a file");
            assert_eq!(not_private(&about, user).is_none(), is_private, "{mode:o}");
            assert!(not_private(&about, user + 1).is_some_and(|why| why.contains("belongs to user")));
            if !is_private {
                let fault = read_key(&path).expect_err("refused");
                assert!(fault.hint.is_some_and(|hint| hint.contains("rm /")), "{mode:o}");
            }
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("set");
        assert_eq!(read_key(&path).expect("a key"), Some([7; KEY_BYTES]));
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).expect("a link");
        assert!(read_key(&link).is_err());
    }
}
