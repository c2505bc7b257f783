//! Fuzzes a batch file of tc: every parsed line is encoded, formatted and parsed again. The encoded message
//! is decoded as a kernel dump would be, and its formatted words mean the same.

use netlink::attr::AttrBuf;
use tc_rules::batch::ReadError;
use tc_rules::{Batch, Filter, Table};

/// The bytes of a message before its body.
const HEADER_BYTES: usize = 16;

/// The offset of a rule's handle in the body. A message without a handle has no rule.
const HANDLE: std::ops::Range<usize> = 8..12;

pub(crate) fn run(bytes: &[u8]) {
    let mut table = Table::of([("d0".to_owned(), model::IfIndex(3)), ("d1".to_owned(), model::IfIndex(4))]);
    let mut batch = Batch::new(bytes);
    let mut out = AttrBuf::new();
    loop {
        match batch.next_command(&mut table) {
            Ok(Some((line, command))) => {
                out.clear();
                command.encode(line, 0, &mut out);
                let Some(rule) = command.rule().filter(|rule| rule.verb == tc_rules::Verb::Add).cloned()
                else {
                    continue;
                };
                if let Some(words) = rule.words(&mut table) {
                    let mut again = Batch::new(words.as_bytes());
                    let Ok(Some((_, again))) = again.next_command(&mut table) else { panic!("{words}") };
                    assert_eq!(again.rule().map(Filter::canonical), Some(rule.canonical()), "{words}");
                }
                let Some(body) = out.as_bytes().get(HEADER_BYTES..) else {
                    panic!("a message without a body")
                };
                let (mut body, mut dumped) = (body.to_vec(), Filter::default());
                if rule.handle == 0 {
                    body[HANDLE].copy_from_slice(&1_u32.to_ne_bytes());
                }
                // The kernel pads short values, such as labels.
                if let Ok(Some(())) = dumped.decode(&body)
                    && let Some(words) = dumped.words(&mut table)
                {
                    let mut again = Batch::new(words.as_bytes());
                    let Ok(Some((_, again))) = again.next_command(&mut table) else { panic!("{words}") };
                    assert_eq!(again.rule().map(Filter::canonical), Some(dumped.canonical()), "{words}");
                }
            }
            Ok(None) | Err(ReadError::Io(_)) => return,
            Err(ReadError::Mistake(_)) => {}
        }
    }
}
