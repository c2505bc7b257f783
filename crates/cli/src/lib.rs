//! The parts that netpolicy's programs share: global options, the context of a command, output, and the parts
//! of help, manual pages, schemas and completions that do not depend on a command.
//!
//! The program `netpolicy` has the commands that change and watch a host. All other commands are in separate
//! programs ([`programs`]), each of which passes its list of commands to [`tool::main`].
#![forbid(unsafe_code)]

pub mod child;
mod console;
mod context;
pub mod globals;
pub mod guard;
pub mod man;
mod own_files;
mod privileges;
pub mod programs;
pub mod schema;
pub mod tool;
mod usage;

pub use console::Console;
pub use context::Context;
pub use globals::{Color, Globals, Output};
pub use own_files::OwnFiles;
pub use privileges::{missing_privileges, say_if_denied};
pub use usage::{explain, parse};

/// The commands, in groups that follow the order in which an operator needs them.
pub const GROUPS: [(&str, &[&str]); 6] = [
    (
        "Observe",
        &["show", "doctor", "top", "watch", "status", "support-matrix", "report", "audit", "record", "diff"],
    ),
    ("Decide", &["init", "plan", "compare", "tune", "explain", "cat"]),
    ("Apply", &["apply", "try", "confirm", "verify", "rollback", "history"]),
    ("Keep", &["daemon", "set", "unset", "attach", "run", "sockets"]),
    ("Measure", &["bench", "sim", "lab"]),
    ("Tools", &["tc", "schema", "completions", "man"]),
];
