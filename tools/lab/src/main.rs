//! The `netpolicy-lab` program, which `netpolicy bench`, `sim` and `lab` become.

use std::process::ExitCode;

fn main() -> ExitCode {
    lab::main()
}
