//! The `netpolicy-tc` program, which `netpolicy tc` execs.

use std::process::ExitCode;

fn main() -> ExitCode {
    tc::main()
}
