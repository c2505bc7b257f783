//! The ways back that are there when netpolicy or the queue is not: `undo.sh` on a plain Debian, and queues brought back.

use std::path::PathBuf;
use std::process::Command;

use libtest_mimic::{Failed, Trial};
use linux::lab::MemcachedOptions;

use crate::operator::{Operator, flushes};
use crate::remedy::{connected, typed};
use crate::{Need, test};

pub(crate) fn tests() -> Vec<Trial> {
    const NEEDS: &[Need] = &[Need::Root, Need::Suspension, Need::Program("perl")];
    const ATTACHED: &[Need] = &[Need::Root, Need::Suspension, Need::Memcached, Need::Program("ethtool")];
    vec![
        test("undo_sh/puts_napis_back_with_the_programs_of_a_plain_debian", NEEDS, || {
            on_a_plain_debian(false)
        }),
        test("undo_sh/puts_napis_back_also_after_a_garbled_journal", NEEDS, || on_a_plain_debian(true)),
        test("undo_sh/says_that_a_queue_must_come_back", NEEDS, a_queue_that_is_away),
        test("rollback/prints_a_script_that_undoes_all_transactions_without_netpolicy", NEEDS, all_by_script),
        test(
            "rollback/the_doctor_says_that_files_still_ask_for_what_was_rolled_back",
            NEEDS,
            still_asked_for,
        ),
        test("rollback/says_what_brings_a_queue_back_and_that_mends_it", ATTACHED, brought_back),
    ]
}

fn still_asked_for() -> Result<(), Failed> {
    let operator = Operator::new("still-asked-for", 1)?;
    operator.asks("[device.veth-server]\ndelivery = \"suspend20\"\n")?;
    operator.runs(&["apply"], 0)?;
    let doctor = ["doctor", "--seconds", "0", "--all"];
    assert!(!operator.runs(&doctor, 0)?.data.contains("not in force"));
    operator.runs(&["rollback"], 0)?;
    let said = operator.runs(&doctor, 3)?.data;
    assert!(said.contains("settings that are not in force") && said.contains("was rolled back"), "{said}");
    assert!(said.contains(" plan; ") && said.contains(" apply"), "{said}");
    Ok(())
}

/// What `undo.sh` uses of Debian's essential and required packages.
const PLAIN: [&str; 16] = [
    "sh", "cat", "stat", "dirname", "readlink", "tr", "sed", "cut", "true", "mount", "nsenter", "unshare",
    "sort", "wc", "perl", "rm",
];

/// The one script of an operator's journal.
fn script(operator: &Operator) -> Result<PathBuf, Failed> {
    let found = std::fs::read_dir(operator.state().join("journal"))?
        .find_map(|entry| Some(entry.ok()?.path().join("undo.sh")).filter(|script| script.exists()));
    Ok(found.ok_or("a script")?)
}

/// Runs a script by a shell that finds these programs alone; its exit status and all that it said.
fn by_hand(operator: &Operator) -> Result<(Option<i32>, String), Failed> {
    let programs = operator.state().join("programs");
    std::fs::create_dir_all(&programs)?;
    for program in PLAIN {
        let found =
            ["/usr/bin", "/bin", "/usr/sbin", "/sbin"].map(|place| PathBuf::from(place).join(program));
        let found =
            found.iter().find(|path| path.exists()).ok_or_else(|| format!("{program} is not installed"))?;
        let _linked_already = std::os::unix::fs::symlink(found, programs.join(program));
    }
    let output = Command::new("/bin/sh").arg(script(operator)?).env("PATH", &programs).output()?;
    let said = [output.stdout, output.stderr].concat();
    Ok((output.status.code(), String::from_utf8_lossy(&said).into_owned()))
}

fn on_a_plain_debian(garbled: bool) -> Result<(), Failed> {
    let operator = Operator::new(if garbled { "plain-garbled" } else { "plain" }, 2)?;
    let before = operator.host()?;
    operator.runs(&["set", "device", "veth-server", "suspend200"], 0)?;
    assert_eq!(flushes(&operator.devices()?), [200_000, 200_000]);
    if garbled {
        let journal = script(&operator)?.with_file_name("journal.jsonl");
        let mut bytes = std::fs::read(&journal)?;
        bytes.iter_mut().step_by(7).for_each(|byte| *byte = b'#');
        std::fs::write(&journal, bytes)?;
    }
    let (code, said) = by_hand(&operator)?;
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("irq-suspend-timeout: put back to 0"), "{said}");
    assert_eq!(operator.host()?, before, "{said}");
    let (code, said) = by_hand(&operator)?;
    assert!(code == Some(0) && !said.contains("put back to"), "twice does no harm: {said}");
    // Nothing is in the way of the next transaction.
    operator.runs(&["set", "device", "veth-server", "defer200"], 0)?;
    Ok(())
}

fn all_by_script() -> Result<(), Failed> {
    let operator = Operator::new("script", 2)?;
    let before = operator.host()?;
    operator.runs(&["set", "device", "veth-server", "suspend200"], 0)?;
    operator.runs(&["set", "device", "veth-server", "defer20"], 0)?;
    assert_eq!(flushes(&operator.devices()?), [20_000, 20_000]);
    let text = operator.runs(&["rollback", "--script"], 0)?.data;
    assert_eq!(flushes(&operator.devices()?), [20_000, 20_000], "it is printed only");
    let file = operator.state().join("undo-all.sh");
    std::fs::write(&file, &text)?;
    let output = Command::new("/bin/sh").arg(&file).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").output()?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert_eq!((output.status.code(), operator.host()?), (Some(0), before), "{text}\n{said}");
    // What is already back does not count, and no transaction makes a script that does nothing.
    operator.runs(&["rollback"], 0)?;
    operator.runs(&["rollback"], 0)?;
    let empty = operator.runs(&["rollback", "--script"], 0)?.data;
    assert!(!empty.contains("undo.sh --by-hand"), "{empty}");
    Ok(())
}

fn a_queue_that_is_away() -> Result<(), Failed> {
    let operator = Operator::new("plain-away", 2)?;
    operator.runs(&["set", "device", "veth-server", "suspend200"], 0)?;
    operator.inside("ethtool -L veth-server rx 1")?;
    let (code, said) = by_hand(&operator)?;
    assert_eq!(code, Some(5), "{said}");
    assert!(said.contains("there is no such queue now: bring it back (ethtool -L)"), "{said}");
    operator.inside("ethtool -L veth-server rx 2")?;
    let (code, said) = by_hand(&operator)?;
    assert_eq!((code, flushes(&operator.devices()?)), (Some(0), vec![0, 0]), "{said}");
    Ok(())
}

/// Connections of which both queues get some, but for one time in thousands.
const CONNECTIONS: usize = 16;

/// The queue goes away while an attachment holds values of it.
fn brought_back() -> Result<(), Failed> {
    let operator = Operator::new("brought-back", 2)?;
    let server = operator.lab.start_memcached(&MemcachedOptions::default())?;
    // The hash of a connection chooses its queue: of so many, one comes by the queue that goes away.
    let _streams =
        (0..CONNECTIONS).map(|_| connected(&operator, &server)).collect::<Result<Vec<_>, Failed>>()?;
    let pid = server.process().pid.to_string();
    let attached = operator.starts(&["attach", &pid, "--delivery", "suspend200"])?;
    operator.waits_to_hear("Attached.")?;
    operator.inside("ethtool -L veth-server rx 1")?;
    assert_eq!(attached.terminated()?, Some(5));
    let said = operator.said()?;
    let hint = said.lines().find_map(|line| line.strip_prefix("hint: "));
    let hint = hint.ok_or_else(|| format!("no hint in:\n{said}"))?;
    let commands = hint.split_once(": ").ok_or_else(|| format!("no commands in `{hint}`"))?.1;
    assert!(commands.contains("ethtool -L veth-server rx 2"), "{hint}");
    assert!(commands.contains("netpolicy "), "{hint}");
    typed(commands)?;
    assert_eq!(flushes(&operator.devices()?), [0, 0], "{hint}");
    operator.runs(&["verify"], 0)?;
    Ok(())
}
