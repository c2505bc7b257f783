//! A batch file of tc: every line is read, and what is read is encoded, put into words and read again.
#![no_main]

use libfuzzer_sys::fuzz_target;
use rules::attr::AttrBuf;
use rules::batch::ReadError;
use rules::{Batch, Filter, Table};

fuzz_target!(|bytes: &[u8]| {
    let mut table = Table::of([("d0".to_owned(), model::IfIndex(3)), ("d1".to_owned(), model::IfIndex(4))]);
    let mut batch = Batch::new(bytes);
    let mut out = AttrBuf::new();
    loop {
        match batch.next_command(&mut table) {
            Ok(Some((line, command))) => {
                out.clear();
                command.encode(line, 0, &mut out);
                let Some(rule) = command.rule().filter(|rule| rule.verb == rules::Verb::Add).cloned() else { continue };
                if let Some(words) = rule.words(&mut table) {
                    let mut again = Batch::new(words.as_bytes());
                    let Ok(Some((_, again))) = again.next_command(&mut table) else { panic!("{words}") };
                    assert_eq!(again.rule().map(Filter::canonical), Some(rule.canonical()), "{words}");
                }
            }
            Ok(None) | Err(ReadError::Io(_)) => return,
            Err(ReadError::Mistake(_)) => {}
        }
    }
});
