//! Maps the fields of a workload to the options that set them.

use model::Nanoseconds;
use model::pace::OutOfRange;
use session::{Exit, Fault};

/// Parses `5`, `0.8`, `800ms` or `5s`; a number without a unit is in seconds.
pub(super) fn span(text: &str) -> Result<Nanoseconds, String> {
    let with_unit =
        if text.ends_with(|c: char| c.is_ascii_digit()) { format!("{text}s") } else { text.to_owned() };
    with_unit.parse().map_err(|error: model::units::NotASpan| error.to_string())
}

/// Creates the error for an invalid workload, which names the responsible option. `size` is the option that
/// sets lengths.
pub(crate) fn impossible(error: &OutOfRange, size: &str) -> Fault {
    Fault::new(Exit::Usage, describe(error.option, size, &error.value, &error.range))
}

/// Formats the message: option, value, and valid range.
pub(crate) fn describe(option: &str, size: &str, value: &str, range: &str) -> String {
    let written = match option {
        "request-bytes" | "answer-bytes" | "op-bytes" => size,
        "write-share" => "--write-ratio",
        "set-share" => "--set-ratio",
        "span-bytes" => "--span",
        "window" => "--seconds",
        "connections-per-thread" => "--connections",
        // All other fields have the same names as their options.
        same => return format!("--{same} {value} is out of range: {range}"),
    };
    format!("{written} {value} is out of range: {range}")
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn what_is_out_of_range_is_named_as_it_was_written() {
        let of = |option| describe(option, "--block", "0", "1..=9");
        assert_eq!(of("request-bytes"), "--block 0 is out of range: 1..=9");
        assert_eq!(of("window"), "--seconds 0 is out of range: 1..=9");
        assert_eq!(of("flows"), "--flows 0 is out of range: 1..=9");
    }
}
