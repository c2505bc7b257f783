//! A real host as a recorded one, which tests plan for, judge and undo.

use crate::shell::{self, Result};

/// Where recorded hosts are.
const HOSTS: &str = "crates/netpolicy/tests/hosts";

const USAGE: &str = "usage: cargo xtask record CAPTURE NAME ORIGIN

CAPTURE  what `netpolicy -o json show --processes none` printed as root on that host
NAME     what it is called in crates/netpolicy/tests/hosts: lower-case letters, digits and dashes
ORIGIN   what machine it is, in one line: `c5n.large of AWS, ena`";

/// Scrubs a capture and keeps it. The tests of recorded hosts then run with it.
pub(crate) fn run(arguments: &[String]) -> Result {
    let [capture, name, origin] = arguments else { return Err(USAGE.to_owned()) };
    let capture = std::path::absolute(capture).map_err(|error| format!("{capture}: {error}"))?;
    let mut record = shell::cargo();
    record.args(["run", "--quiet", "--package", "netpolicy", "--example", "record_host", "--"]);
    record.arg(capture).args([HOSTS, name, origin]);
    shell::run(&mut record)
}
