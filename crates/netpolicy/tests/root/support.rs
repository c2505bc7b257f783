//! Compares the matrix of mechanisms with what the commands can actually set.

use libtest_mimic::{Failed, Trial};
use linux::lab::SERVER_DEVICE;
use testkit::operator::Operator;
use testkit::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    vec![
        test(
            "support/a_mode_is_refused_where_the_matrix_says_no_and_set_where_it_says_yes",
            &[Need::Root],
            as_said,
        ),
        test("support/without_privileges_the_missing_rights_are_named", &[Need::Root], as_nobody),
    ]
}

/// The mechanisms, each with a delivery mode of a device that needs it.
const MODES: [(&str, &[&str]); 4] = [
    ("defer-device", &["defer50"]),
    ("defer-queue", &["defer50"]),
    ("threads-queue", &["threaded"]),
    ("threads-busy", &["threaded-busy", "--polling-cpus", "2"]),
];

fn as_said() -> Result<(), Failed> {
    let operator = Operator::new("support", 2)?;
    let before = operator.host()?;
    let matrix: serde_json::Value =
        serde_json::from_str(&operator.runs(&["-o", "json", "support-matrix"], 0)?.data)?;
    let rows = matrix["data"]["mechanisms"].as_array().ok_or("mechanisms")?;
    for (mechanism, mode) in MODES {
        let row = rows.iter().find(|row| row["name"] == mechanism).ok_or(mechanism)?;
        let usable = row["usable"] == true;
        if usable {
            assert!(row["devices"].to_string().contains(SERVER_DEVICE), "{row}");
        }
        // Before kernel 6.17, threads can only be turned on for all queues of a device, so this mode may
        // still work.
        if !usable && mechanism == "threads-queue" {
            continue;
        }
        let set = [&["set", "device", SERVER_DEVICE], mode].concat();
        let said = operator.runs(&set, if usable { 0 } else { 6 })?;
        if usable {
            operator.runs(&["rollback"], 0)?;
        } else {
            assert!(said.words.contains("needs"), "{}", said.words);
        }
    }
    let after = operator.host()?;
    assert_eq!(testkit::operator::flushes(&after), testkit::operator::flushes(&before));
    let lines = operator.runs(&["-o", "jsonl", "support-matrix"], 0)?.data;
    assert_eq!(lines.lines().count(), rows.len());
    Ok(())
}

fn as_nobody() -> Result<(), Failed> {
    let operator = Operator::new("support-nobody", 1)?;
    let said = operator.runs_as_nobody(&["support-matrix"], 0)?.data;
    let row = said.lines().find(|line| line.starts_with("counting ")).ok_or("counting")?;
    assert!(row.contains(" no ") && row.contains("CAP_BPF"), "{said}");
    Ok(())
}
