//! The global options.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use session::STATE_DIR;

/// The global options.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// The output format: text for people, one JSON document, or one JSON record per line.
    #[arg(short, long, global = true, hide_short_help = true, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    pub output: Output,
    /// The network namespace to work in: a name of `ip netns`, a path, or pid:N for that of a process.
    #[arg(long, global = true, hide_short_help = true, value_name = "NAME|PATH|pid:N")]
    pub netns: Option<String>,
    /// The directory in which transactions are journalled.
    #[arg(long, global = true, hide_short_help = true, value_name = "DIR", default_value = STATE_DIR)]
    pub state_dir: PathBuf,
    /// Read this policy file instead of the drop-in directories. May be given more than once; the last file
    /// takes precedence.
    #[arg(long, global = true, hide_short_help = true, value_name = "FILE", conflicts_with = "policy_dir")]
    pub policy_file: Vec<PathBuf>,
    /// Read the *.toml files in this directory instead of the drop-in directories. May be given more than
    /// once; a file masks those of the same name in directories given before.
    #[arg(long, global = true, hide_short_help = true, value_name = "DIR")]
    pub policy_dir: Vec<PathBuf>,
    /// Read the *.toml files in this directory as recipes that take precedence over the shipped ones, instead
    /// of those in the site's directories. May be given more than once, like --policy-dir.
    #[arg(long, global = true, hide_short_help = true, value_name = "DIR", hide = true)]
    pub recipe_dir: Vec<PathBuf>,
    /// The directory in a BPF file system that stores the requests of applications.
    #[arg(long, global = true, hide_short_help = true, hide = true, value_name = "DIR", default_value = linux::bpf::app_requests::RequestStore::DIRECTORY)]
    pub app_request_dir: PathBuf,
    /// When to use colour. If NO_COLOR is set in the environment, the default is never.
    #[arg(long, global = true, hide_short_help = true, value_enum, value_name = "WHEN")]
    pub color: Option<Color>,
    /// Print details to standard error.
    #[arg(short, long, global = true, hide_short_help = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// Print only data and errors.
    #[arg(short, long, global = true, hide_short_help = true, conflicts_with = "verbose")]
    pub quiet: bool,
}

impl Default for Globals {
    /// Returns the default values of all global options.
    fn default() -> Self {
        Self {
            output: Output::Table,
            netns: None,
            state_dir: STATE_DIR.into(),
            policy_file: Vec::new(),
            policy_dir: Vec::new(),
            recipe_dir: Vec::new(),
            app_request_dir: linux::bpf::app_requests::RequestStore::DIRECTORY.into(),
            color: None,
            verbose: 0,
            quiet: false,
        }
    }
}

/// The format in which data is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Output {
    /// Aligned text for people.
    Table,
    /// One JSON document.
    Json,
    /// One JSON record per line.
    Jsonl,
}

/// When to use colour.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Color {
    /// Use colour if standard output is a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}
