//! The `netpolicy-tc` program, which `netpolicy tc` becomes.

use std::process::ExitCode;

fn main() -> ExitCode {
    tc::main()
}
