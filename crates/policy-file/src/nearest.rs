//! The name that was probably meant.

/// The candidate nearest to a word, if one is near enough to be worth naming: at most a third of its letters
/// differ, where swapping two neighbours counts as one difference, as do `-` for `_` and upper for lower case as none.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let plain = |text: &str| -> Vec<char> { text.to_lowercase().replace('-', "_").chars().collect() };
    let word = plain(word);
    if word.len() > WORD_CHARS_MAX {
        return None;
    }
    let near = candidates.into_iter().filter_map(|candidate| {
        let other = plain(candidate);
        let distance = distance(&word, &other);
        let whole_prefix = word.len() >= 3 && other.starts_with(&word);
        (distance <= other.len().max(word.len()).div_ceil(3) && distance < other.len() || whole_prefix)
            .then_some((distance, candidate))
    });
    near.min_by_key(|(distance, _)| *distance).map(|(_, candidate)| candidate)
}

/// Longer words are no misspelt keys, and are not compared.
const WORD_CHARS_MAX: usize = 64;

/// Optimal string alignment distance: insertions, deletions, substitutions and swaps of neighbours.
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let cost = usize::from(a[i - 1] != b[j - 1]);
            let mut least = (rows[i - 1][j] + 1).min(row[j - 1] + 1).min(rows[i - 1][j - 1] + cost);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

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
