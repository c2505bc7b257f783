//! Formats a number with its noun: `1 queue`, `2 queues`.

/// Formats a number of objects: `1 warning`, `2 warnings`, `2 processes`.
pub fn count(number: usize, thing: &str) -> String {
    let ending = match number {
        1 => "",
        _ if thing.ends_with('s') => "es",
        _ => "s",
    };
    format!("{number} {thing}{ending}")
}

#[cfg(test)]
mod test {
    use super::count;

    #[test]
    fn one_thing_is_one_and_none_are_many() {
        assert_eq!([0, 1, 2].map(|n| count(n, "warning")), ["0 warnings", "1 warning", "2 warnings"]);
        assert_eq!([1, 65].map(|n| count(n, "process")), ["1 process", "65 processes"]);
    }
}
