//! The `netpolicy-lab` program, which `netpolicy bench`, `sim` and `lab` exec.

use std::process::ExitCode;

fn main() -> ExitCode {
    lab::main()
}
