//! The `netpolicy` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    netpolicy::main()
}
