//! A dumped rule.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rules::{Filter, Table, Wanted};

fuzz_target!(|bytes: &[u8]| {
    let mut rule = Filter::default();
    if let Ok(Some(())) = rule.decode(bytes) {
        let _ = rule.words(&mut Table::default());
        let mut wanted = Wanted::default();
        wanted.add(&rule, 1);
        assert!(matches!(wanted.strike(&rule), rules::Found::Wanted(1)));
    }
});
