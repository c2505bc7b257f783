//! Makes foreign text safe to print: finds characters that mislead a terminal or a reader, and shortens long
//! text.

use std::borrow::Cow;

/// Whether a character controls the terminal or changes the order in which text is read: control characters,
/// and the bidirectional formatting characters of Unicode.
pub fn is_misleading(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Removes the middle of a text that is longer than this many characters. The end is kept, because it usually
/// has the reason of an error.
pub fn shortened(text: &str, chars_max: usize) -> Cow<'_, str> {
    // Each character has at least one byte, so a text with few bytes need not be counted.
    let chars = if text.len() <= chars_max { 0 } else { text.chars().count() };
    if chars <= chars_max {
        return Cow::Borrowed(text);
    }
    let (head, tail) = (chars_max / 3, chars_max - chars_max / 3 - 1);
    let at = |place: usize| text.char_indices().nth(place).map_or(text.len(), |(at, _)| at);
    Cow::Owned(format!("{}…{}", &text[..at(head)], &text[at(chars - tail)..]))
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn escapes_and_changes_of_direction_mislead_and_letters_do_not() {
        for c in ['\0', '\n', '\x1b', '\x7f', '\u{9b}', '\u{202e}', '\u{2066}', '\u{200f}'] {
            assert!(is_misleading(c), "{c:?}");
        }
        for c in ['a', ' ', '\\', 'ä', 'ش', '字', '\u{200d}'] {
            assert!(!is_misleading(c), "{c:?}");
        }
    }

    #[test]
    fn of_a_text_that_is_too_long_both_ends_are_kept() {
        assert_eq!(shortened("äöü", 3), "äöü");
        assert_eq!(shortened("äöüabcde", 6), "äö…cde");
    }
}
