//! Lines about qdiscs and classes that are unrelated to rules: only tc understands them.

use crate::words::{Spans, Words, abbreviates};

/// A line that can be passed to tc unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreign {
    /// The text of the line, without comments, and with its continuation lines joined.
    pub text: String,
    /// Whether the line deletes an object.
    pub removes: bool,
}

impl Foreign {
    /// Returns the line if it changes a qdisc or a class. `clsact` and `ingress`, which rules attach to, are
    /// excluded: this crate handles them and their errors.
    pub(crate) fn of(text: &str, spans: &Spans) -> Option<Self> {
        let mut words = Words::new(text, spans);
        let mut word = || {
            let word = words.peek();
            words.skip();
            word
        };
        let (about, verb) = (word()?, word()?);
        let is_about = ["qdisc", "class"].into_iter().any(|object| abbreviates(about, object));
        let verb = ["add", "change", "replace", "link", "delete"]
            .into_iter()
            .find(|name| abbreviates(verb, name))?;
        let is_ours = std::iter::from_fn(word).any(|word| matches!(word, "clsact" | "ingress"));
        (is_about && !is_ours).then(|| Self { text: text.trim().to_owned(), removes: verb == "delete" })
    }
}

#[cfg(test)]
mod test {
    use crate::Table;
    use crate::batch::ReadError;
    use crate::{Batch, Command};
    use model::IfIndex;

    #[test]
    fn lines_of_disciplines_and_classes_are_for_tc_where_that_is_wanted() {
        let handed = |line: &str| {
            let mut table = Table::of([("d0".to_owned(), IfIndex(3))]);
            let mut batch = Batch::new(line.as_bytes()).with_foreign(true);
            match batch.next_command(&mut table) {
                Ok(Some((_, Command::Foreign(foreign)))) => Some((foreign.text.clone(), foreign.removes)),
                Ok(_) => None,
                Err(ReadError::Mistake(mistake)) => {
                    assert!(!mistake.is_foreign, "{mistake}");
                    None
                }
                Err(ReadError::Io(error)) => panic!("{error}"),
            }
        };
        let line = "qdisc add dev d0 root handle 1: htb default 10";
        assert_eq!(handed(line), Some((line.to_owned(), false)));
        // As in tc, `c` abbreviates class, not chain.
        for line in [
            "c add dev d0 parent 1: classid 1:10 htb rate 1mbit",
            "q replace dev d0 root tbf",
            "class link dev d0",
        ] {
            assert_eq!(handed(line), Some((line.to_owned(), false)));
        }
        let joined = handed(" class del \\\n dev d0 classid 1:10 # gone");
        assert_eq!(joined, Some(("class del  dev d0 classid 1:10".to_owned(), true)));
        for ours in [
            "qdisc add dev d0 clsact",
            "qdisc add dev d0 clsact hadnle ffff:",
            "qdisc show",
            "filter add dev d0 fw",
            "q",
        ] {
            assert_eq!(handed(ours), None, "{ours}");
        }
        // Unless foreign lines are enabled, the line is an error that is marked as foreign.
        let mut table = Table::default();
        let Err(ReadError::Mistake(mistake)) = Batch::new(line.as_bytes()).next_command(&mut table) else {
            panic!("wrong")
        };
        assert!(mistake.is_foreign);
    }
}
