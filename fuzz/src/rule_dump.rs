//! Fuzzes a dumped rule: for any bytes from the kernel, the printed line means the same rule.

use tc_rules::{Batch, Expected, Filter, Table};

pub(crate) fn run(bytes: &[u8]) {
    let mut rule = Filter::default();
    if let Ok(Some(())) = rule.decode(bytes) {
        let mut table =
            Table::of([("d0".to_owned(), model::IfIndex(3)), ("d1".to_owned(), model::IfIndex(4))]);
        let _ = rule.words(&mut table);
        if let Some(line) = rule.line(&mut table) {
            let mut again = Batch::new(line.as_bytes());
            let Ok(Some((_, again))) = again.next_command(&mut table) else { panic!("{line}") };
            assert_eq!(again.rule().map(Filter::canonical), Some(rule.canonical()), "{line}");
        }
        let mut expected = Expected::default();
        expected.add(&rule, 1);
        assert!(matches!(expected.match_rule(&rule), tc_rules::RuleMatch::Expected(1)));
        assert!(matches!(expected.match_rule(&rule), tc_rules::RuleMatch::Again));
    }
}
