//! What all programs with some of netpolicy's commands share.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, CommandFactory, Parser, Subcommand};
use serde_json::Value;
use session::{Exit, Fault};

use crate::guard::{self, GuardArgs};
use crate::{Context, Globals, man, missing_privileges, say_if_denied, schema};

/// The name of a command, and a function that returns the schema of its output.
pub type CommandSchema = (&'static str, fn() -> Value);

/// netpolicy's command line, with only the commands of one program.
#[derive(Debug, Parser)]
#[command(name = "netpolicy", version, max_term_width = 100, propagate_version = false)]
struct Line<C: Subcommand> {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Words<C>,
}

#[derive(Debug, Subcommand)]
enum Words<C: Subcommand> {
    #[command(flatten)]
    Own(C),
    #[command(hide = true)]
    Man(Pages),
    #[command(hide = true)]
    Schema(Schemas),
    #[command(hide = true)]
    Guard(GuardArgs),
}

/// Like `netpolicy man`, for this program's commands.
#[derive(Debug, Args)]
struct Pages {
    #[arg(long)]
    dir: PathBuf,
}

/// Like `netpolicy schema`, for this program's commands.
#[derive(Debug, Args)]
struct Schemas {
    of: Option<String>,
    #[arg(long)]
    dir: Option<PathBuf>,
}

/// Runs a program with these commands.
#[must_use]
pub fn main<C: Subcommand>(
    schemas: &[CommandSchema],
    run: fn(&C, &Context) -> Result<Exit, Fault>,
) -> ExitCode {
    // If a shell requests completions, this call answers the request and exits.
    clap_complete::CompleteEnv::with_factory(Line::<C>::command).complete();
    let line: Line<C> = crate::parse(Line::<C>::command());
    let context = Context::new(line.globals);
    let ended = match &line.command {
        Words::Own(command) => run(command, &context),
        Words::Guard(arguments) => guard::run(arguments, &context),
        Words::Man(Pages { dir }) => {
            let mut pages = Line::<C>::command().disable_help_subcommand(true);
            pages.build();
            let mut commands = pages.get_subcommands().filter(|command| !command.is_hide_set());
            commands.try_for_each(|command| man::write_command(command, dir)).map(|()| Exit::Done)
        }
        Words::Schema(Schemas { of, dir: None }) => {
            let named = schemas.iter().find(|(name, _)| Some(*name) == of.as_deref());
            named.map_or_else(
                || Err(Fault::new(Exit::Usage, "this program has no such schema")),
                |(_, make)| schema::print(&make(), &context),
            )
        }
        Words::Schema(Schemas { dir: Some(dir), .. }) => {
            let write = |(name, make): &CommandSchema| schema::write(name, &make(), dir);
            schemas.iter().try_for_each(write).map(|()| Exit::Done)
        }
    };
    say_if_denied(missing_privileges(), &ended, &context);
    context.end(ended)
}

/// Returns the commands of this program, as they appear in netpolicy's command line.
#[must_use]
pub fn commands<C: Subcommand>() -> Vec<clap::Command> {
    C::augment_subcommands(clap::Command::new("netpolicy")).get_subcommands().cloned().collect()
}
