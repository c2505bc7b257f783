//! Numbers of things, in words.

/// So many of a thing: `1 warning`, `2 warnings`.
pub fn count(number: usize, thing: &str) -> String {
    let ending = if number == 1 { "" } else { "s" };
    format!("{number} {thing}{ending}")
}

#[cfg(test)]
mod test {
    use super::count;

    #[test]
    fn one_thing_is_one_and_none_are_many() {
        assert_eq!([0, 1, 2].map(|n| count(n, "warning")), ["0 warnings", "1 warning", "2 warnings"]);
    }
}
