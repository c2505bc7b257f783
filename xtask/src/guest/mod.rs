//! Guests: other kernels on this machine's files, for what the running kernel lacks.
//!
//! `--qemu` boots the distribution's newest kernel in an emulated machine, and `--patched` a kernel that is built here, with the
//! series of `kernel/`, in the same machine. docs/reference/guests.md says which test needs which, and what neither can show.

mod apt;
mod boot;
pub(crate) mod cache;
mod outcome;
mod patched;
mod qemu;
mod selftests;
mod source;
mod tests;
mod unpacked;

use std::path::PathBuf;
use std::time::Duration;

use crate::shell::Result;
pub(crate) use apt::Mirror;
use boot::{Guest, Order};
use cache::Cache;
pub(crate) use outcome::{Guests, Skipped};
use patched::Patched;
use qemu::Qemu;
pub(crate) use tests::{Making, smoke};
pub(crate) use unpacked::{install_wheel, is_unpacked, program, unpack};

const USAGE: &str = "usage: cargo xtask guest build [--qemu|--patched] [--patches DIRECTORY]
       cargo xtask guest boot [--qemu|--patched] [--patches DIRECTORY] [--limit SECONDS] [--env NAME=VALUE] [--] COMMAND...
       cargo xtask guest test [--qemu|--patched] [NAME]

build   make what boot needs, for --qemu and --patched or that one alone; it is kept in ${XDG_CACHE_HOME:-~/.cache}/netpolicy/guest
boot    run a command in a guest, on this machine's files (what it writes is gone with it); its exit code is ours
test    the tests that the running kernel cannot run, in --qemu and then in --patched, or in that one alone
--patched  the emulated machine with a kernel built here, with the series in kernel/, and its CPUs kept on ours
--patches  for --patched, after the series: every *.patch of a directory, in the order of their names
--limit    seconds that the command may take (600)";

/// How long a command may take, if nothing else was said.
const COMMAND_LIMIT: Duration = Duration::from_secs(600);

/// The guests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Qemu,
    Patched,
}

/// What was asked for on the command line.
#[derive(Debug, Default)]
struct Asked {
    kind: Option<Kind>,
    patches: Option<PathBuf>,
    limit: Option<Duration>,
    environment: Vec<(String, String)>,
    words: Vec<String>,
}

/// Builds, boots or tests.
pub(crate) fn run(arguments: &[String]) -> Result {
    let (task, rest) = arguments.split_first().ok_or(USAGE)?;
    let asked = Asked::read(rest)?;
    match task.as_str() {
        "build" if asked.words.is_empty() => build(&asked),
        "boot" if !asked.words.is_empty() => boot_and_run(asked),
        "test" if asked.words.len() <= 1 => tests::run(asked.kind, asked.words.first().map(String::as_str)),
        _ => Err(USAGE.to_owned()),
    }
}

impl Asked {
    fn read(words: &[String]) -> Result<Self> {
        let mut asked = Self::default();
        let mut words = words.iter();
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value\n{USAGE}"));
            match word.as_str() {
                "--qemu" => asked.kind = Some(Kind::Qemu),
                "--patched" => asked.kind = Some(Kind::Patched),
                "--patches" => asked.patches = Some(PathBuf::from(value()?)),
                "--limit" => {
                    let seconds = value()?.parse().map_err(|error| format!("--limit: {error}"))?;
                    asked.limit = Some(Duration::from_secs(seconds));
                }
                "--env" => {
                    let (name, value) = value()?.split_once('=').ok_or("--env wants NAME=VALUE")?;
                    asked.environment.push((name.to_owned(), value.to_owned()));
                }
                "--" => {
                    asked.words.extend(words.by_ref().cloned());
                }
                option if option.starts_with('-') => return Err(format!("no option {option}\n{USAGE}")),
                _ => {
                    asked.words.push(word.clone());
                    asked.words.extend(words.by_ref().cloned());
                }
            }
        }
        if asked.patches.is_some() && asked.kind == Some(Kind::Qemu) {
            return Err("--patches is for --patched: --qemu boots the distribution's own kernel".to_owned());
        }
        Ok(asked)
    }

    /// The patches, in the order of their names.
    fn patch_files(&self) -> Result<Vec<PathBuf>> {
        let Some(directory) = &self.patches else { return Ok(Vec::new()) };
        patched::in_order(directory)
    }
}

/// Makes one guest, or those that tests want.
fn build(asked: &Asked) -> Result {
    let cache = Cache::open()?;
    let further = asked.patch_files()?;
    let kinds = match asked.kind {
        Some(kind) => vec![kind],
        None if !further.is_empty() => vec![Kind::Patched],
        None => tests::FOR_TESTS.to_vec(),
    };
    for kind in kinds {
        let guest: Box<dyn Guest> = match kind {
            Kind::Qemu => Box::new(Qemu::build(&cache)?),
            Kind::Patched => Box::new(Qemu::patched(&cache, &Patched::patches(&further)?, true)?),
        };
        println!("{}", guest.described());
    }
    Ok(())
}

/// A guest that was made before, or is made now.
fn ready(cache: &Cache, kind: Kind, patches: &[PathBuf]) -> Result<Box<dyn Guest + Send + Sync>> {
    Ok(match kind {
        Kind::Qemu => match Qemu::ready(cache) {
            Some(guest) => Box::new(guest),
            None => Box::new(Qemu::build(cache)?),
        },
        Kind::Patched => Box::new(Qemu::patched(cache, &Patched::patches(patches)?, false)?),
    })
}

fn boot_and_run(asked: Asked) -> Result {
    boot::need_root()?;
    let cache = Cache::open()?;
    let guest = ready(&cache, asked.kind.unwrap_or(Kind::Qemu), &asked.patch_files()?)?;
    let order = Order {
        command: asked.words,
        environment: asked.environment,
        directory: std::env::current_dir().map_err(|error| format!("the current directory: {error}"))?,
        boot_limit: boot::BOOT_LIMIT,
        limit: asked.limit.unwrap_or(COMMAND_LIMIT),
    };
    let ended = boot::execute(&cache, guest.as_ref(), &order, &mut boot::print)?;
    eprintln!("guest: {}, up after {:.1} s", guest.described(), ended.booted_in.as_secs_f64());
    match ended.code {
        0 => Ok(()),
        // The command's exit code is the answer, not a failure of ours.
        code => std::process::exit(code),
    }
}

#[cfg(test)]
mod command_line {
    use super::*;

    fn read(line: &str) -> Result<Asked> {
        Asked::read(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_end_where_the_command_begins() {
        let asked = read("--qemu --limit 5 --env A=b=c ls --patched").expect("it is well formed");
        assert_eq!((asked.kind, asked.limit), (Some(Kind::Qemu), Some(Duration::from_secs(5))));
        assert_eq!(asked.words, ["ls", "--patched"]);
        assert_eq!(asked.environment, [("A".to_owned(), "b=c".to_owned())]);
        assert_eq!(read("-- --qemu").expect("after -- all are words").words, ["--qemu"]);
    }

    #[test]
    fn a_wrong_option_is_named() {
        for (line, named) in [
            ("--fast ls", "--fast"),
            ("--limit", "--limit"),
            ("--limit x ls", "--limit"),
            ("--env A ls", "--env"),
        ] {
            let error = read(line).expect_err("it is refused");
            assert!(error.contains(named), "{error}");
        }
        assert!(read("--qemu --patches p ls").expect_err("it is refused").contains("--patched"));
    }
}
