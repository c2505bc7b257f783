//! Formats time spans and estimates for people.

use crate::measure::live::Estimate;

/// Formats a time span, given in nanoseconds: `41.3us`, `812us`, `14ms`.
pub fn span(nanoseconds: f64) -> String {
    match nanoseconds {
        ns if ns < 9_950.0 => format!("{:.1}us", ns / 1e3),
        ns if ns < 9.95e6 => format!("{:.0}us", ns / 1e3),
        ns if ns < 9.95e9 => format!("{:.0}ms", ns / 1e6),
        ns => format!("{:.0}s", ns / 1e9),
    }
}

/// Formats an estimate without its interval: `118us`, `>2400us` for a lower bound, `-` if there is none.
pub fn short(estimate: Option<Estimate>) -> String {
    estimate.map_or_else(
        || "-".to_owned(),
        |found| format!("{}{}", if found.at_least { ">" } else { "" }, span(found.interval.estimate)),
    )
}

/// Formats how long ago something happened: `4 s ago`.
pub fn ago(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s ago"),
        120..7_200 => format!("{} min ago", seconds / 60),
        7_200..172_800 => format!("{} h ago", seconds / 3_600),
        _ => format!("{} days ago", seconds / 86_400),
    }
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_was_measured_long_ago_is_said_in_the_largest_unit_that_has_two_of_it() {
        assert_eq!(
            [3, 119, 120, 7_300, 200_000].map(ago),
            ["3 s ago", "119 s ago", "2 min ago", "2 h ago", "2 days ago"]
        );
    }
}
