//! Tests a netpolicy that replaces an older version: it keeps and rolls back the settings of the earlier
//! daemon.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use libtest_mimic::{Failed, Trial};
use linux::lab::SERVER_DEVICE;
use serde_json::Value;
use testkit::operator::{Operator, flushes};
use testkit::{Need, test};

/// The journal of a daemon of version 0.1.0 that was killed after it had set `policy = "bulk"` and `delivery
/// = "defer50"` on a device with two queues. Placeholders stand for host-specific values, and the lines have
/// no checksums.
const RECORDED: &str = include_str!("recorded/daemon-0.1.0.jsonl");

/// The name of the recorded transaction.
const TRANSACTION: &str = "20261122T223911.467432Z-2465";

/// The number of settings in the recorded transaction.
const SETTINGS: usize = 6;

/// `gro-flush-timeout` of defer50, in nanoseconds.
const DEFER50: u64 = 50_000;

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension];
    vec![test(
        "upgrade/what_a_daemon_of_an_earlier_version_has_set_stays_and_can_be_put_back",
        NEEDS,
        taken_over,
    )]
}

fn taken_over() -> Result<(), Failed> {
    let operator = Operator::new("upgrade", 2)?;
    let before = operator.host()?;
    operator.asks(&format!("[device.{SERVER_DEVICE}]\npolicy = \"bulk\"\ndelivery = \"defer50\"\n"))?;
    operator.runs(&["apply"], 0)?;
    let set = operator.host()?;
    assert_eq!(flushes(&set), [DEFER50; 2]);

    // Replace the transaction with the same changes as an earlier daemon recorded them.
    let journal = operator.state().join("journal");
    let ours = only_transaction(&journal)?;
    let text = std::fs::read_to_string(ours.join("journal.jsonl"))?;
    let begin: Value = serde_json::from_str(text.lines().next().unwrap_or_default())?;
    std::fs::remove_dir_all(&ours)?;
    let theirs = journal.join(TRANSACTION);
    std::fs::create_dir(&theirs)?;
    std::fs::set_permissions(&theirs, std::fs::Permissions::from_mode(0o700))?;
    std::fs::write(theirs.join("journal.jsonl"), recorded_for(&begin["record"]["begin"])?)?;

    let history = operator.runs(&["-o", "json", "history"], 0)?.data;
    assert!(history.contains(TRANSACTION), "{history}");
    let daemon = operator.starts(&["daemon"])?;
    operator.waits_to_hear(&format!("Resuming: {SETTINGS} settings of 1 transactions in force."))?;
    operator.waits_to_hear("at work")?;
    assert_eq!(daemon.terminated()?, Some(0));
    assert_eq!(operator.host()?, set, "all settings stay in force");
    assert_eq!(
        operator.runs(&["-o", "json", "history"], 0)?.data,
        history,
        "and no setting had to be set again"
    );

    operator.runs(&["rollback"], 0)?;
    assert_eq!(operator.host()?, before, "the state before the earlier daemon");
    Ok(())
}

/// Returns the directory of the only transaction in the journal.
fn only_transaction(journal: &Path) -> Result<PathBuf, Failed> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(journal)? {
        let path = entry?.path();
        found.extend(path.join("journal.jsonl").exists().then_some(path));
    }
    match <[PathBuf; 1]>::try_from(found) {
        Ok([path]) => Ok(path),
        Err(found) => Err(format!("transactions: {found:?}").into()),
    }
}

/// Returns the recorded journal with checksums, and with this host's boot id, namespace, device and
/// landmarks.
fn recorded_for(begin: &Value) -> Result<String, Failed> {
    let changed = begin["plan"].to_string();
    let number = |field: &str| -> Result<String, Failed> {
        let (_, rest) =
            changed.split_once(&format!("\"{field}\":")).ok_or(format!("no {field}: {changed}"))?;
        Ok(rest.chars().take_while(char::is_ascii_digit).collect())
    };
    let text = RECORDED
        .replace("@BOOT@", begin["boot_id"].as_str().unwrap_or_default())
        .replace("@NETNS@", &number("netns")?)
        .replace("@IFINDEX@", &number("ifindex")?)
        .replace("@LANDMARKS@", &begin["landmarks"].to_string());
    let with_checksum = |line: &str| {
        let mut sum = flate2::Crc::new();
        sum.update(line.as_bytes());
        format!("{line},\"crc\":\"{:08x}\"}}\n", sum.sum())
    };
    Ok(text.lines().map(with_checksum).collect())
}
