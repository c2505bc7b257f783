//! The `netpolicyd` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    netpolicyd::main()
}
