//! Finds the name that the user probably meant.

/// Returns the candidate that is closest to a word; `None` if none is close. At most a third of the letters
/// may differ, unless the candidate begins with the word. Two swapped letters count as one difference; `-`
/// instead of `_`, or a letter in the other case, as none.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| text.to_lowercase().replace('-', "_");
    let word = plain(word);
    if word.chars().count() > WORD_CHARS_MAX {
        return None;
    }
    let near = candidates.into_iter().filter_map(|candidate| {
        let other = plain(candidate);
        let distance = strsim::osa_distance(&word, &other);
        let (length, other_length) = (word.chars().count(), other.chars().count());
        let whole_prefix = length >= 3 && other.starts_with(&word);
        (distance <= other_length.max(length).div_ceil(3) && distance < other_length || whole_prefix)
            .then_some((distance, candidate))
    });
    near.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

/// The maximum length of a word to compare. A longer word is not a misspelt key.
const WORD_CHARS_MAX: usize = 64;

#[cfg(test)]
mod test {
    use super::*;

    const WORDS: [&str; 4] = ["policy", "delivery", "gro_flush_timeout", "goal"];

    #[test]
    fn a_slip_of_the_finger_finds_its_word() {
        for (word, meant) in [
            ("polcy", "policy"),
            ("Policy", "policy"),
            ("poilcy", "policy"),
            ("gro-flush-timeout", "gro_flush_timeout"),
            ("gro_flush", "gro_flush_timeout"),
            ("gaol", "goal"),
        ] {
            assert_eq!(nearest(word, WORDS), Some(meant), "{word}");
        }
    }

    #[test]
    fn a_word_like_none_of_them_finds_none() {
        for word in ["x", "interrupt", "", "zzzzzz", &"p".repeat(10_000)] {
            assert_eq!(nearest(word, WORDS), None, "{word}");
        }
    }
}
