//! Guests: other kernels that boot with this machine's files, for tests that the running kernel cannot run.
//! `--qemu` boots the distribution's newest kernel in an emulated machine. `--patched` boots, in the same
//! machine, a kernel built here with the patch series of `kernel/`. docs/reference/guests.md lists which test
//! needs which guest, and the limits of both.

mod apt;
mod bench;
mod boot;
pub(crate) mod cache;
mod outcome;
mod patched;
mod qemu;
mod selftests;
mod tests;
mod unpacked;

use std::path::PathBuf;
use std::time::Duration;

use crate::options::Options;
use crate::shell::Result;
pub(crate) use apt::Mirror;
pub(crate) use bench::smoke as second_machine;
use boot::{Guest, Order};
use cache::Cache;
pub(crate) use outcome::{Guests, Kind, Skipped};
use qemu::guest;
pub(crate) use tests::{Making, smoke};
pub(crate) use unpacked::{Wheel, unpack};

const USAGE: &str = "usage: cargo xtask guest build [--qemu|--patched] [--patches DIRECTORY]
       cargo xtask guest boot [--qemu|--patched] [--patches DIRECTORY] [--limit SECONDS] [--env NAME=VALUE] [--] COMMAND...
       cargo xtask guest bench [--qemu|--patched] [--patches DIRECTORY] [--queues N|--e1000e USECS] [--limit SECONDS] [--] BENCH...
       cargo xtask guest test [--qemu|--patched] [NAME]

build   make what boot needs, for --qemu and --patched or that one alone; it is kept in ${XDG_CACHE_HOME:-~/.cache}/netpolicy/guest
boot    run a command in a guest, on this machine's files (what it writes is gone with it); its exit code is ours
bench   netpolicy bench BENCH..., with the guest as the server's machine and the client on this one
test    the tests that the running kernel cannot run, in --qemu and then in --patched, or in that one alone
--patched  the emulated machine with a kernel built here, with the series in kernel/, and its CPUs kept on ours
--patches  for --patched, after the series: every *.patch of a directory, in the order of their names
--queues   queues of the guest's NIC (1)
--e1000e   the guest's NIC is an e1000e with this rx-usecs; 1 and 3 are its driver's adaptive moderation
--limit    seconds that the command may take (600)";

/// The default time limit of a command, in seconds.
const COMMAND_LIMIT_SECONDS: u64 = 600;

/// The command line.
struct Asked {
    kind: Option<Kind>,
    options: Options,
}

/// Runs `cargo xtask guest`: builds or boots guests, or runs benches or tests in them.
pub(crate) fn run(arguments: &[String]) -> Result {
    let (task, rest) = arguments.split_first().ok_or(USAGE)?;
    let asked = Asked::read(rest)?;
    match task.as_str() {
        "build" if asked.options.words.is_empty() => build(&asked),
        "boot" if !asked.options.words.is_empty() => boot_and_run(asked),
        "bench" if !asked.options.words.is_empty() => bench::run(&asked),
        "test" if asked.options.words.len() <= 1 => {
            tests::run(asked.kind, asked.options.words.first().map(String::as_str))
        }
        _ => Err(USAGE.to_owned()),
    }
}

impl Asked {
    fn read(words: &[String]) -> Result<Self> {
        let valued = ["--patches", "--limit", "--env", "--queues", "--e1000e"];
        let options = Options::read(words, &["--qemu", "--patched"], &valued, USAGE)?;
        let kind = match (options.has("--qemu"), options.has("--patched")) {
            (true, true) => return Err(format!("--qemu or --patched, not both\n{USAGE}")),
            (true, false) => Some(Kind::Qemu),
            (false, true) => Some(Kind::Patched),
            (false, false) => None,
        };
        if options.has("--patches") && kind == Some(Kind::Qemu) {
            return Err("--patches is for --patched: --qemu boots the distribution's own kernel".to_owned());
        }
        Ok(Self { kind, options })
    }

    /// Returns the patches in the directory of `--patches`, in the order of their names.
    fn patch_files(&self) -> Result<Vec<PathBuf>> {
        let directory = self.options.path("--patches");
        directory.map_or(Ok(Vec::new()), |directory| patched::in_order(&directory))
    }
}

/// Builds one guest, or all guests that tests need.
fn build(asked: &Asked) -> Result {
    let cache = Cache::open()?;
    let further = asked.patch_files()?;
    let kinds = match asked.kind {
        Some(kind) => vec![kind],
        None if !further.is_empty() => vec![Kind::Patched],
        None => tests::FOR_TESTS.to_vec(),
    };
    for kind in kinds {
        println!("{}", guest(&cache, kind, &further, true)?.described());
    }
    Ok(())
}

fn boot_and_run(asked: Asked) -> Result {
    boot::need_root()?;
    let cache = Cache::open()?;
    let guest = guest(&cache, asked.kind.unwrap_or(Kind::Qemu), &asked.patch_files()?, false)?;
    let split = |pair: &str| pair.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let environment = asked.options.values("--env").map(|pair| split(pair).ok_or("--env wants NAME=VALUE"));
    let environment = environment.collect::<std::result::Result<_, _>>()?;
    let limit = Duration::from_secs(asked.options.number("--limit", COMMAND_LIMIT_SECONDS)?);
    let order = Order {
        command: asked.options.words,
        environment,
        directory: std::env::current_dir().map_err(|error| format!("the current directory: {error}"))?,
        boot_limit: boot::BOOT_LIMIT,
        limit,
    };
    let ended = boot::execute(&cache, &guest, &order, &mut boot::print)?;
    eprintln!("guest: {}, up after {:.1} s", guest.described(), ended.booted_in.as_secs_f64());
    pass_on(ended.code)
}

/// Exits with the exit code of a command in a guest, unless it is 0: its failure is not an error of xtask.
fn pass_on(code: i32) -> Result {
    match code {
        0 => Ok(()),
        code => std::process::exit(code),
    }
}
