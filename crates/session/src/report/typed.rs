//! Adds options to the commands in messages, so that the commands use this session's journal and namespace.

/// The commands that read or write the journal.
const OF_JOURNAL: [&str; 12] = [
    "apply", "attach", "compare", "confirm", "history", "rollback", "run", "set", "status", "tune", "unset",
    "verify",
];

/// The commands that need the option for the namespace, because no transaction tells them the namespace.
const OF_NETNS: [&str; 14] = [
    "apply", "compare", "doctor", "explain", "init", "plan", "set", "show", "status", "top", "try", "tune",
    "unset", "watch",
];

/// Adds the options that select this session's journal and namespace to each command in a text, if the
/// command needs them.
pub fn typed(words: &str, journal: &str, netns: &str) -> String {
    const PROGRAM: &str = "netpolicy ";
    let mut parts = words.split(PROGRAM);
    let mut typed = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let command = part.split(|c: char| !c.is_ascii_lowercase() && c != '-').next().unwrap_or_default();
        typed.push_str(PROGRAM);
        if OF_NETNS.contains(&command) {
            typed.push_str(netns);
        }
        if OF_JOURNAL.contains(&command) {
            typed.push_str(journal);
        }
        typed.push_str(part);
    }
    typed
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn a_command_that_needs_the_journal_is_printed_as_it_must_be_typed() {
        let said = |words: &str| typed(words, "--state-dir /tmp/s ", "");
        assert_eq!(
            said("netpolicy attach 7 --policy cpu"),
            "netpolicy --state-dir /tmp/s attach 7 --policy cpu"
        );
        assert_eq!(
            said("see `netpolicy history`, netpolicy rollback ID"),
            "see `netpolicy --state-dir /tmp/s history`, netpolicy --state-dir /tmp/s rollback ID"
        );
        assert_eq!(
            typed(
                "netpolicy set device v0 interrupt; netpolicy show; netpolicy rollback",
                "--state-dir s ",
                "--netns w "
            ),
            "netpolicy --netns w --state-dir s set device v0 interrupt; netpolicy --netns w show; \
             netpolicy --state-dir s rollback"
        );
        for as_it_is in ["netpolicy show", "netpolicy attach-service: at work", "netpolicy daemon: at work"] {
            assert_eq!(said(as_it_is), as_it_is);
        }
    }
}
