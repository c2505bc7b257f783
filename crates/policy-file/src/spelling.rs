//! Quotes names and values for policy files.

use std::fmt::Write;

/// Quotes a name or a value on one line.
pub fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04x}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// Quotes the name of a section or key, unless it is a plain word.
pub fn key(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(plain) { name.to_owned() } else { quoted(name) }
}

/// Formats a text as a TOML string, with the quotes that need the least escaping.
pub(crate) fn toml_string(text: &str) -> String {
    toml::Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_quoted_is_read_as_it_was() {
        for text in ["", "plain", "a\"b'c", "back\\slash\\x2d", "tab\tline\nend\u{7f}\u{85}", "Ünï [*]"] {
            let line = format!("{} = {}", key(text), quoted(text));
            assert_eq!(line.lines().count(), 1, "{line}");
            let read: toml::Table = line.parse().unwrap_or_else(|error| panic!("{line}: {error}"));
            assert_eq!(read[text].as_str(), Some(text), "{line}");
        }
    }
}
