//! Tests properties of all rules of `doctor`.

use std::collections::BTreeSet;

use model::NapiId;
use plan::doctor;
use plan::doctor::RULES;

use crate::doctor::{HEALTHY, memcached};
use crate::made::{Counted, delivered};

#[test]
fn every_rule_has_a_name_of_its_own_and_a_line_of_documentation() {
    let all = || RULES.iter().flat_map(|(_, rules)| rules.iter());
    let ids: BTreeSet<&str> = all().map(|rule| rule.id).collect();
    assert_eq!(ids.len(), all().count(), "two rules share a name");
    for rule in all() {
        assert!(rule.id.bytes().all(|b| b.is_ascii_lowercase() || b == b'-'), "{}", rule.id);
        assert!(rule.doc.ends_with('.') && !rule.doc.contains('\n'), "{}: {}", rule.id, rule.doc);
    }
}

#[test]
fn a_napi_never_gets_two_verdicts() {
    let host = memcached(&[259, 260], &[&[259, 260], &[260]]);
    let engagement: Vec<&str> = RULES
        .iter()
        .filter(|(family, _)| *family == "engagement")
        .flat_map(|(_, rules)| rules.iter())
        .map(|rule| rule.id)
        .collect();
    for share in 0..=100 {
        let counts = Counted { share, ..HEALTHY };
        let findings = doctor(&host, Some(&delivered([counts.on(259), counts.on(260)])), &[]);
        for napi in [259, 260].map(NapiId) {
            let name = format!("(napi {napi})");
            let verdicts =
                findings.iter().filter(|f| engagement.contains(&&*f.rule) && f.object.ends_with(&name));
            assert_eq!(verdicts.count(), 1, "{share} %");
        }
    }
}
