//! Maps the fields of a workload to the options that set them.

use model::pace::OutOfRange;
use session::{Exit, Fault};

/// The error for an invalid workload, naming the responsible option. `size` is the option that sets lengths.
pub(crate) fn impossible(error: &OutOfRange, size: &str) -> Fault {
    Fault::new(Exit::Usage, describe(error.option, size, &error.value, &error.range))
}

/// The message: option, value, and valid range.
pub(crate) fn describe(option: &str, size: &str, value: &str, range: &str) -> String {
    let written = match option {
        "request-bytes" | "answer-bytes" | "op-bytes" => size,
        "write-share" => "--write-ratio",
        "set-share" => "--set-ratio",
        "span-bytes" => "--span",
        "window" => "--seconds",
        "connections-per-thread" => "--connections",
        // The other fields have the names of their options.
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
