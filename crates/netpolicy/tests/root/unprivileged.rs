//! What a user without privileges tries against the daemon, the commands and their files: each test does it as uid 65534.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use libtest_mimic::{Failed, Trial};

use crate::operator::Operator;
use crate::{Need, test};

const NOBODY: u32 = 65_534;

pub(crate) fn tests() -> Vec<Trial> {
    const ROOT: &[Need] = &[Need::Root];
    vec![
        test("unprivileged/links_and_pipes_in_place_of_the_metrics_file_lead_nowhere", ROOT, metrics_file),
        test("unprivileged/a_state_directory_below_another_users_directory_is_refused", ROOT, below_theirs),
        test("unprivileged/a_socket_below_another_users_directory_is_refused", ROOT, socket_below_theirs),
    ]
}

/// A command that runs without privileges.
fn as_nobody(program: &str, arguments: &[&str]) -> Result<(), Failed> {
    let mut command = Command::new(program);
    command.args(arguments).uid(NOBODY).gid(NOBODY);
    let output = command.output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr)).into())
}

/// What a command says that has to refuse by itself; a daemon that begins its work is ended, and that fails the test.
fn refused(operator: &Operator, arguments: &[&str]) -> Result<String, Failed> {
    let whole = operator.netpolicy(arguments);
    let mut command = Command::new("timeout");
    command.arg("20").arg(whole.get_program()).args(whole.get_args()).stdin(Stdio::null());
    let output = command.output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    match output.status.code() {
        Some(1) => Ok(said),
        code => Err(format!("{arguments:?} ended with {code:?}, not 1: {said}").into()),
    }
}

/// A directory of the user without privileges, which everyone may enter.
fn their_directory(operator: &Operator, name: &str) -> Result<PathBuf, Failed> {
    let directory = PathBuf::from(operator.file("nothing", b"")?).with_file_name(name);
    fs::create_dir(&directory)?;
    fs::set_permissions(&directory, Permissions::from_mode(0o755))?;
    chown(&directory, Some(NOBODY), Some(NOBODY))?;
    Ok(directory)
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}

/// A file that only root may read or write.
fn precious(operator: &Operator) -> Result<PathBuf, Failed> {
    let path = PathBuf::from(operator.file("precious", b"precious")?);
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    Ok(path)
}

fn is_untouched(precious: &Path) -> Result<(), Failed> {
    assert_eq!(fs::read(precious)?, b"precious");
    assert_eq!(fs::metadata(precious)?.permissions().mode() & 0o777, 0o600);
    Ok(())
}

fn metrics_file() -> Result<(), Failed> {
    let operator = Operator::new("their-metrics", 1)?;
    let (directory, precious) = (their_directory(&operator, "textfile")?, precious(&operator)?);
    let file = directory.join("x.prom");
    let unfinished = directory.join("x.prom.new");
    let refused = |why: &str| {
        let said = refused(&operator, &["daemon", "--metrics-file", text(&file)])?;
        assert!(said.contains(why) && said.contains(text(&directory)), "{said}");
        Ok::<_, Failed>(())
    };
    for at in [&unfinished, &file] {
        as_nobody("ln", &["-s", text(&precious), text(at)])?;
    }
    refused("it belongs to another user (uid 65534)")?;
    is_untouched(&precious)?;
    for at in [&unfinished, &file] {
        fs::remove_file(at)?;
    }
    // The daemon would wait for a reader, for as long as its owner likes.
    as_nobody("mkfifo", &[text(&unfinished)])?;
    refused("it belongs to another user (uid 65534)")?;
    chown(&directory, Some(0), Some(0))?;
    fs::set_permissions(&directory, Permissions::from_mode(0o1777))?;
    refused("every user can write to it (mode 1777)")?;
    assert_eq!(fs::read_dir(&directory)?.count(), 1, "nothing was written there");
    Ok(())
}

fn below_theirs() -> Result<(), Failed> {
    let operator = Operator::new("their-way", 1)?;
    let directory = their_directory(&operator, "theirs")?;
    let (inside, link) = (directory.join("state"), directory.with_file_name("link"));
    fs::create_dir(&inside)?;
    fs::set_permissions(&inside, Permissions::from_mode(0o700))?;
    std::os::unix::fs::symlink(&inside, &link)?;
    for state in [&inside, &link, &directory.join("new")] {
        for command in
            [&["set", "device", "veth-server", "defer50"][..], &["rollback"], &["history"], &["status"]]
        {
            let said = operator.runs_with_state(state, command, 7)?.words;
            let why = format!("{}: it belongs to another user (uid 65534)", directory.display());
            assert!(said.contains(&why), "{said}");
        }
    }
    assert_eq!(fs::read_dir(&inside)?.count(), 0, "nothing was written there");
    Ok(())
}

fn socket_below_theirs() -> Result<(), Failed> {
    let operator = Operator::new("their-socket", 1)?;
    let directory = their_directory(&operator, "theirs")?;
    let inside = directory.join("roots");
    fs::create_dir(&inside)?;
    let socket = inside.join("socket");
    for option in ["--socket", "--metrics-socket"] {
        let said = refused(&operator, &["daemon", option, text(&socket)])?;
        assert!(said.contains("it belongs to another user (uid 65534)"), "{said}");
    }
    let said = refused(&operator, &["attach-service", "--socket", text(&socket)])?;
    assert!(said.contains("it belongs to another user (uid 65534)"), "{said}");
    assert!(!socket.exists());
    Ok(())
}
