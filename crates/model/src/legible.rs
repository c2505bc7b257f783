//! Characters of names that a terminal or a reader would take for something else: any user can choose names of processes.

/// Whether a character steers a terminal, or changes the order in which the text around it is read: control characters, and the
/// bidirectional formatting characters of Unicode.
pub fn is_misleading(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
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
}
