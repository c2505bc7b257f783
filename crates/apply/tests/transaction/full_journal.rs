//! Tests that the host is restored if the journal becomes full at any of its lines.

use apply::{Allow, CommitFault, JOURNAL_BYTES_MAX, JournalError, KeepError, TransactionOrigin, UndoState};
use model::{Plan, Setting, Step};

use crate::faulty_host::{FaultyHost, HostError, journal_file};
use crate::scene::{Scene, asked, gro, host_for};

fn plan() -> Plan {
    Plan { steps: vec![Step::new(vec![gro(0, 0, 10)]), Step::new(vec![gro(1, 0, 10)])] }
}

#[derive(Debug)]
enum Failed {
    Commit(CommitFault<HostError>, UndoState),
    Keep(KeepError),
}

/// Commits and keeps a plan whose command is so long that the journal has room for only this many lines.
fn with_room_for(lines: usize) -> (Result<(), Failed>, Vec<Setting>) {
    let mut host = FaultyHost::new(&host_for(&plan()));
    let scene = Scene::new();
    scene.keep(plan(), &mut host);
    let journal = std::fs::read(journal_file(scene.journal.directory()).expect("a journal")).expect("reads");
    let length: usize = journal.split_inclusive(|&b| b == b'\n').take(lines).map(<[u8]>::len).sum();
    let filler = usize::try_from(JOURNAL_BYTES_MAX).expect("a length") - length;
    let asked = TransactionOrigin { command: asked().command + &"x".repeat(filler), ..asked() };

    let scene = Scene::new();
    let mut host = FaultyHost::new(&host_for(&plan()));
    let outcome = match apply::commit(plan(), &mut host, &scene.journal, &asked, Allow::default()) {
        Ok(held) => held.keep().map_err(Failed::Keep),
        Err(error) => Err(Failed::Commit(*error.fault, error.host)),
    };
    let left = host.settings.clone();
    // A transaction that was undone but whose undo could not be recorded must not block the next one.
    if outcome.is_err() {
        scene.keep(plan(), &mut host);
    }
    (outcome, left)
}

#[test]
fn a_journal_that_is_full_at_any_line_lets_nothing_stay() {
    let before = host_for(&plan());
    // A complete journal has six lines: the begin record, two lines for each of two steps, and the decision.
    for lines in 0..6 {
        let (outcome, settings) = with_room_for(lines);
        assert_eq!(settings, before, "room for {lines} lines");
        match (lines, outcome.expect_err("the journal has no room")) {
            // No setting was written: either no line is on disk, or the first step could not be recorded.
            (0 | 1, Failed::Commit(CommitFault::Journal(JournalError::TooLong { .. }), host)) => {
                assert_eq!(host, UndoState::Unchanged);
            }
            (2..5, Failed::Commit(CommitFault::Journal(JournalError::TooLong { .. }), host)) => {
                assert_eq!(host, UndoState::Restored);
            }
            (5, Failed::Keep(KeepError { cause: JournalError::TooLong { .. }, undone, host })) => {
                assert_eq!(host, UndoState::Restored);
                assert!(matches!(undone.unrecorded.as_deref(), Some(JournalError::TooLong { .. })));
            }
            other => panic!("{other:?}"),
        }
    }
}
