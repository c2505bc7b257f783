//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use apply::TransactionName;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use clap_complete::ArgValueCandidates;

pub use crate::allow_args::AllowArgs;
pub use crate::api_args::{ApiSession, SocketArgs, StatusArgs, Unset, UnsetTarget};
pub use crate::compare_args::Compare;
use crate::completing;
pub use crate::daemon_args::{AttachService, DaemonArgs, OnStopArg};
pub use crate::fleet_args::{Audit, Report};
pub use crate::init_args::{Init, SupportMatrixArgs};
pub use crate::record_args::{Diff, FromArgs, Record};
use crate::request_args::word;
pub use crate::request_args::{BudgetArgs, DeliveryChoice, Kthread, PolicyWord};
pub use crate::schema_args::SchemaOf;
pub use crate::sockets_args::{SocketPolicies, SocketsCommand, SocketsDisable, SocketsEnable, UserChoice};
pub use crate::tune_args::Tune;
pub use crate::watch_args::WatchArgs;
pub use cli::{Color, Globals, Output};
use model::Limits;

/// Delivers packets to each workload according to a policy.
///
/// netpolicy derives queues, interrupts, NAPI settings and busy polling from the policy, applies them to the
/// running host as one transaction, verifies by counting that they are engaged, and can always restore
/// everything.
#[derive(Debug, Parser)]
#[command(
    name = "netpolicy",
    version,
    max_term_width = 100,
    propagate_version = false,
    after_long_help = "\
Examples:
  netpolicy show                         the packet path of this host
  netpolicy doctor                       problems of the packet path, and how to fix them
  netpolicy init                         a first policy file, from the running services
  netpolicy attach 812 --policy latency  short response times for a running server
  netpolicy run --delivery suspend20 -- memcached -t 4
                                         start a server whose IRQs stay masked while it is busy
  netpolicy plan                         what the policy files would change
  netpolicy try                          change it, for 60 s unless you confirm

Exit codes:
  0 done, or no drift        1 failed             2 command line or policy file wrong
  3 changes pending, drift   4 rolled back        5 rollback incomplete
  6 unsupported here         7 refused by a safety rule"
)]
pub struct Arguments {
    /// The global options.
    #[command(flatten)]
    pub globals: Globals,
    /// Set by the daemon only.
    #[command(flatten)]
    pub session: ApiSession,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Arguments {
    /// Parses the command line of this process. On an error or a request for help, prints a message or the
    /// help and exits.
    pub(crate) fn of_this_process() -> Self {
        cli::parse(crate::help::grouped(Self::command()))
    }
}

/// The subcommands.
#[derive(Debug, Subcommand)]
#[expect(missing_docs, reason = "see the help of each command")]
pub enum Command {
    Show(Show),
    Doctor(Doctor),
    Report(Report),
    Audit(Audit),
    Record(Record),
    Diff(Diff),
    Init(Init),
    SupportMatrix(SupportMatrixArgs),
    Top(Top),
    Watch(Box<WatchArgs>),
    Compare(Box<Compare>),
    Tune(Box<Tune>),
    Plan(PlanArgs),
    Apply(ApplyArgs),
    Try(Try),
    Confirm(Confirm),
    Verify(Verify),
    #[command(alias = "undo")]
    Rollback(Rollback),
    History(HistoryArgs),
    Explain(Explain),
    Set(Set),
    Unset(Unset),
    Status(StatusArgs),
    Attach(AttachArgs),
    Run(RunArgs),
    Daemon(DaemonArgs),
    /// Measure delivery modes with an application.
    Bench(OfTool),
    /// Predict response times, throughput and CPU use with a model of the receive path. Touches no host.
    Sim(OfTool),
    /// Create two hosts on this machine, one with memcached, for experiments.
    Lab(OfTool),
    #[command(name = "sockets")]
    SocketPolicies(SocketPolicies),
    Cat(Cat),
    /// Load, compare and dump filter rules as batch files of tc, with a result for every line.
    Tc(OfTool),
    Schema(SchemaArgs),
    Completions(Completions),
    Man(Man),
    #[command(hide = true)]
    AttachService(AttachService),
    #[command(hide = true)]
    Guard(cli::guard::GuardArgs),
}

/// The arguments of a command that another program implements ([`cli::programs`]).
#[derive(Debug, Args)]
pub struct OfTool {
    /// The arguments that are passed on to that program.
    #[arg(hide = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<OsString>,
}

/// Show the packet path: device, queue, NAPI, IRQ, CPU; and process, thread, epoll, sockets.
///
/// All values are read from the kernel at the time of the call. `?` marks relations that were inferred
/// because neither the kernel nor the driver reports it; `!` marks an epoll whose sockets receive from
/// several NAPIs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy show                          devices, and the processes with sockets on them
  netpolicy show --processes 812,813      these processes only
  netpolicy show --svg path.svg           draw the packet path
  netpolicy show --from host.json         a host that `netpolicy record` saved
  netpolicy -o json show | jq '.data.devices[].napis'")]
pub struct Show {
    /// Write the packet path to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Which processes to inspect.
    #[arg(long, value_name = "all|none|PID,...", default_value = "all", value_parser = which_processes)]
    pub processes: Which,
    /// The recording to read instead of this host.
    #[command(flatten)]
    pub from: FromArgs,
}

/// Which processes to inspect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Every process with Internet sockets.
    All,
    /// None.
    None,
    /// The processes with these pids.
    Pids(Vec<u32>),
}

fn which_processes(text: &str) -> Result<Which, String> {
    match text {
        "all" => Ok(Which::All),
        "none" => Ok(Which::None),
        list => list
            .split(',')
            .map(|pid| {
                pid.trim()
                    .parse()
                    .map_err(|_| format!("`{pid}` is not a pid: write all, none, or pids as in 812,813"))
            })
            .collect::<Result<_, _>>()
            .map(Which::Pids),
    }
}

/// Report problems of the packet path, and their causes. Counts for some seconds in which context each NAPI
/// was polled (BPF on tracepoints), and names the cause if a setting is not engaged. Meanwhile measures the
/// response times of the policy files' services. Without a policy in force, suggests what to try. The most
/// helpful findings come first; facts that could not be determined come last. Exits with 3 if there are
/// problems.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy doctor                        observe for two seconds
  netpolicy doctor --all                  every finding, even if they exceed a screen
  netpolicy doctor --seconds 10           observe longer, for servers with little traffic
  netpolicy doctor --seconds 0            check only the settings; needs no BPF")]
pub struct Doctor {
    /// For how long to count packet delivery, in seconds; 0 only checks the settings.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u64).range(0..=3600), conflicts_with = "from")]
    pub seconds: u64,
    /// Which processes to inspect.
    #[arg(long, value_name = "all|none|PID,...", default_value = "all", value_parser = which_processes)]
    pub processes: Which,
    /// Print each finding with its evidence, even beyond 24 rows and 80 columns. Of many veths or causes, it
    /// names eight.
    #[arg(long)]
    pub all: bool,
    /// A recording.
    #[command(flatten)]
    pub from: FromArgs,
}

/// Print the changes that the policy files require, with reasons. Changes nothing; exits with 3 if changes
/// are pending.
#[derive(Debug, Args)]
pub struct PlanArgs {
    /// A recording.
    #[command(flatten)]
    pub from: FromArgs,
}

/// Apply the policy files, as one transaction.
#[derive(Debug, Args)]
pub struct ApplyArgs {
    /// Print the plan and stop.
    #[arg(long)]
    pub dry_run: bool,
    /// Apply immediately, even if a service of the policy files has a `guard`.
    #[arg(long)]
    pub no_guard: bool,
    /// Changes that are allowed only with an option.
    #[command(flatten)]
    pub allow: AllowArgs,
}

/// Apply the policy files, and roll back unless `confirm` is called in time.
///
/// The command exits when the settings are in force, and a separate process waits for `confirm`. The rollback
/// happens even if this command, its terminal or its connection dies. With --guard, the command judges the
/// change and exits with the verdict.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy try --seconds 120             apply; confirm within two minutes
  netpolicy confirm                       keep it
  netpolicy try --guard p99=+15%,cpu=+25% judge it on live traffic, and keep it unless it hurts")]
pub struct Try {
    /// How long `confirm` may take, in seconds; with --guard, how long to judge the change.
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Judge the change on live traffic instead of waiting for confirmation, and revert it (exit code 4) if a
    /// figure grows beyond its limit: p50, p90, p99 (response times) or cpu (CPU time per request).
    ///
    /// The new and the previous settings alternate in random order until the time is over. If requests stall,
    /// the settings are restored immediately.
    #[arg(long, value_name = "LIMITS")]
    pub guard: Option<Limits>,
    /// Judge only by this service, given as a name or a port. Default: all services of the policy files.
    #[arg(long, value_name = "SERVICE", requires = "guard", add = ArgValueCandidates::new(completing::served))]
    pub on: Vec<String>,
    /// Change nothing: show the plan, and how soon the guard would see a growth at the present noise.
    #[arg(long, requires = "guard")]
    pub dry_run: bool,
    /// Changes that are allowed only with an option.
    #[command(flatten)]
    pub allow: AllowArgs,
}

/// Keep the settings that `try` applied.
#[derive(Debug, Args)]
pub struct Confirm {
    /// The transaction to confirm; by default, the one on trial.
    #[arg(value_name = "ID")]
    pub id: Option<TransactionName>,
}

/// Compare the host with the applied settings. Exits with 3 if it has drifted.
#[derive(Debug, Args)]
pub struct Verify {
    /// A recording.
    #[command(flatten)]
    pub from: FromArgs,
}

/// Restore the values from before a transaction.
///
/// A value that another program has changed since is kept and reported. The journal covers all network
/// namespaces, so --netns is not needed, and rollback works even if a namespace no longer exists.
#[derive(Debug, Args)]
pub struct Rollback {
    /// The transaction to roll back; by default, the last one in force.
    #[arg(value_name = "ID")]
    pub id: Option<TransactionName>,
    /// Do not roll back: print a shell script that undoes everything in force, newest first, without netpolicy.
    ///
    /// It runs the undo.sh of each transaction, so the state directory must still be there.
    #[arg(long, conflicts_with = "id")]
    pub script: bool,
}

/// List the transactions of this host.
#[derive(Debug, Args)]
#[command(after_help = "\
States of a transaction:
  unfinished           in progress, or its program was killed
  kept                 in force until `netpolicy rollback` or the daemon ends it
  owned                in force until its `attach` or `run` exits, which rolls it back
  abandoned            in force: its `attach` or `run` was killed before it rolled it back
  held                 on trial: rolled back unless `netpolicy confirm` keeps it
  confirmed            was on trial, and is kept
  rolled back          undone
  rollback incomplete  undone, except for some settings
  rebooted since       ended by a reboot
  unreadable           its journal is damaged; its undo.sh still works")]
pub struct HistoryArgs {
    /// Draw the standing proofs in this file, as an HTML page: each effect with its interval over time.
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
    /// A recording.
    #[command(flatten)]
    pub from: FromArgs,
}

/// Explain why each setting has its value: who requested it, by which rule, in which transaction.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy explain                       every setting that the policy decides
  netpolicy explain 'eth0 rx-0'           one object, named as in other commands
  netpolicy explain eth0                  a device and its queues
  netpolicy explain latency               the settings of a policy, and why
  netpolicy explain packets-on-no-napi    what a finding of `doctor` means
  netpolicy explain setting rx-usecs      meaning, values, kernel and undo of a setting, by its name or key")]
pub struct Explain {
    /// What to explain: an object, or the beginning of its name; a policy; a finding; or `setting` and the
    /// name of a setting.
    #[arg(value_name = "OBJECT|POLICY|FINDING|setting", add = ArgValueCandidates::new(completing::explained))]
    pub object: Option<String>,
    /// The setting to explain, by its name or by its key in policy files.
    #[arg(value_name = "NAME", requires = "object")]
    pub setting: Option<String>,
    /// A recording.
    #[command(flatten)]
    pub from: FromArgs,
}

/// Give one device, service or process a policy, without a file.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy set device eth0 latency       a policy: netpolicy chooses the delivery mode
  netpolicy set device eth0 defer50       a delivery mode, for experts
  netpolicy set device eth0 threaded --kthread-cpus irq --kthread-class fifo:50
  netpolicy set service redis-server latency
  netpolicy set service 6379 latency      the process that listens on this port
  netpolicy set task 812 suspend20        a running process and the queues that it receives from")]
pub struct Set {
    /// The device, service or process to configure.
    #[command(subcommand)]
    pub target: SetTarget,
    /// Changes that are allowed only with an option.
    #[command(flatten)]
    pub allow: AllowArgs,
    /// The budget.
    #[command(flatten)]
    pub cost: BudgetArgs,
    /// How the kernel threads of NAPIs are scheduled.
    #[command(flatten)]
    pub kthread: Kthread,
}

/// A setting of a device, both as typed and as parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicWord {
    /// `rx-usecs=8`
    pub text: String,
    /// The parsed request.
    pub request: model::NicRequest,
}

fn nic_word(text: &str) -> Result<NicWord, String> {
    policy_file::setting(text).map(|request| NicWord { text: text.to_owned(), request })
}

/// The target of `set`.
#[derive(Debug, Subcommand)]
pub enum SetTarget {
    /// A network device.
    Device {
        /// The name.
        #[arg(value_name = "NAME", add = ArgValueCandidates::new(completing::devices))]
        name: String,
        /// A policy or a delivery mode.
        #[arg(value_name = "POLICY|MODE", value_parser = word, add = ArgValueCandidates::new(completing::words))]
        request: PolicyWord,
        /// Another setting of the device, as in `settings` of a policy file: rx-usecs=8, rx-gro=off.
        #[arg(long = "setting", value_name = "NAME=VALUE", value_parser = nic_word)]
        settings: Vec<NicWord>,
    },
    /// A service: its current processes and, with a daemon, later ones.
    Service {
        /// The service: a service of the policy files, a unit, an executable, or a port.
        #[arg(value_name = "NAME|PORT", add = ArgValueCandidates::new(completing::served))]
        name: String,
        /// A policy or a delivery mode.
        #[arg(value_name = "POLICY|MODE", value_parser = word, add = ArgValueCandidates::new(completing::words))]
        request: PolicyWord,
    },
    /// A process and the receive queues from which it receives.
    Task {
        /// The pid.
        #[arg(value_name = "PID", add = ArgValueCandidates::new(completing::processes))]
        pid: u32,
        /// A policy or a delivery mode.
        #[arg(value_name = "POLICY|MODE", value_parser = word, add = ArgValueCandidates::new(completing::words))]
        request: PolicyWord,
    },
}

/// Show live which context delivers packets: by queue, process and CPU.
///
/// For each receive queue: packets and polls per second, the batch, and the shares of packets polled after an
/// interrupt, after the NAPI's timer, by the application and by a kernel thread. Counts 50 ms of every
/// second, and measures the response times of the policy files' services for a tenth of it. Where counting is
/// not possible, only settings are shown.
#[derive(Debug, Args)]
#[command(after_help = "\
Keys: s sort, / filter, arrows scroll, p pause, ? explain the columns, q quit.

Examples:
  netpolicy top                           on a terminal of 80x24 or more
  netpolicy --netns pid:812 top           in the network namespace of a process
  netpolicy -o json top --once | jq '.data.queues[] | select(.suspended)'")]
pub struct Top {
    /// Print one sample and exit.
    #[arg(long)]
    pub once: bool,
    /// The seconds between two samples, 1 to 3600.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = whole_seconds)]
    pub interval: u16,
}

/// The longest interval of `top` in seconds: an hour.
const INTERVAL_SECONDS_MAX: u16 = 3600;

/// Parses `top`'s interval.
fn whole_seconds(text: &str) -> Result<u16, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=INTERVAL_SECONDS_MAX).contains(seconds));
    seconds.ok_or_else(|| format!("expected whole seconds, 1 to {INTERVAL_SECONDS_MAX}"))
}

/// Give a running process and its queues a policy for as long as this command runs.
///
/// The process is not stopped: the parameters of its epolls are set from outside, and so are those of new
/// epolls and of child processes. Everything is restored when this command is interrupted or the process
/// exits. If this command is killed (SIGKILL), the settings stay until `netpolicy rollback`, or until the
/// next attach or run for the same settings.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy attach 812 --delivery suspend20
  netpolicy attach memcached --policy latency
  netpolicy attach --port 11211 --policy latency
  netpolicy attach 812 --policy latency --once  set it and exit; `netpolicy rollback` undoes it")]
pub struct AttachArgs {
    /// The process, given by its pid or by its service: a service of the policy files, a unit, an executable.
    #[arg(value_name = "PID|SERVICE", add = ArgValueCandidates::new(completing::attachable), value_parser = attached, required_unless_present = "port", conflicts_with = "port")]
    pub process: Option<Attached>,
    /// Select the process that listens on this port.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Option<u16>,
    /// The policy or delivery mode.
    #[command(flatten)]
    pub asked: DeliveryChoice,
    /// The budget.
    #[command(flatten)]
    pub cost: BudgetArgs,
    /// How the kernel threads of NAPIs are scheduled.
    #[command(flatten)]
    pub kthread: Kthread,
    /// While this command runs, keep CPUs out of idle states whose exit latency is longer than this, in
    /// microseconds.
    #[arg(long, value_name = "US", conflicts_with_all = ["keep", "once"], value_parser = clap::value_parser!(u32).range(..=i64::from(linux::WakeLatency::MICROS_MAX)))]
    pub cpu_dma_latency: Option<u32>,
    /// Leave the settings in force when this command exits.
    #[arg(long)]
    pub keep: bool,
    /// Set everything once, leave it in force, and do not follow the process.
    #[arg(long, conflicts_with = "keep")]
    pub once: bool,
}

/// The target of `attach`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attached {
    /// The process with this pid.
    Pid(u32),
    /// The process of this service.
    Service(String),
}

/// Parses the target of `attach`: a word that starts with a digit is a pid.
fn attached(text: &str) -> Result<Attached, String> {
    match text.starts_with(|c: char| c.is_ascii_digit()) {
        true => text
            .parse()
            .map(Attached::Pid)
            .map_err(|_| format!("expected a whole number from 0 to {}, or the name of a service", u32::MAX)),
        false => Ok(Attached::Service(text.to_owned())),
    }
}

/// Start a command under a policy, and restore everything when it ends.
///
/// It works like `attach`, from the first epoll on. The exit code is the command's own, or 128 plus the
/// signal that killed it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  netpolicy run --delivery suspend20 -- memcached -t 4
  netpolicy run --delivery fullbusy --polling-cpus 1 -- redis-server")]
pub struct RunArgs {
    /// The policy or delivery mode.
    #[command(flatten)]
    pub asked: DeliveryChoice,
    /// The budget.
    #[command(flatten)]
    pub cost: BudgetArgs,
    /// How the kernel threads of NAPIs are scheduled.
    #[command(flatten)]
    pub kthread: Kthread,
    /// While this command runs, keep CPUs out of idle states whose exit latency is longer than this, in
    /// microseconds.
    #[arg(long, value_name = "US", value_parser = clap::value_parser!(u32).range(..=i64::from(linux::WakeLatency::MICROS_MAX)))]
    pub cpu_dma_latency: Option<u32>,
    /// The command and its arguments.
    #[arg(value_name = "CMD", required = true, last = true)]
    pub command: Vec<std::ffi::OsString>,
}

/// Print the policy files as one, with the origin of every value.
#[derive(Debug, Args)]
pub struct Cat {
    /// Also print the devices and processes of this host that each section currently matches.
    #[arg(long)]
    pub resolved: bool,
}

/// Print the JSON Schema of policy files, of recipe files, or of JSON output.
#[derive(Debug, Args)]
pub struct SchemaArgs {
    /// The format to describe.
    #[arg(value_enum, value_name = "WHAT", default_value_t = SchemaOf::PolicyFile)]
    pub of: SchemaOf,
    /// Write all schemas to a directory, as NAME.json, for packagers.
    #[arg(long, value_name = "DIR", conflicts_with = "of")]
    pub dir: Option<std::path::PathBuf>,
}

/// The shells for which completions exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Shell {
    /// Bash.
    Bash,
    /// Elvish.
    Elvish,
    /// Fish.
    Fish,
    /// PowerShell.
    Powershell,
    /// Zsh.
    Zsh,
}

impl Shell {
    /// Returns the shell's name in `clap_complete`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Elvish => "elvish",
            Self::Fish => "fish",
            Self::Powershell => "powershell",
            Self::Zsh => "zsh",
        }
    }
}

/// Print completions for a shell.
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  netpolicy completions bash > /usr/share/bash-completion/completions/netpolicy

The script calls netpolicy for values: policies, delivery modes, devices, processes, services.")]
pub struct Completions {
    /// The shell.
    #[arg(value_enum)]
    pub shell: Shell,
}

/// Write the manual pages below a directory: `man8` and `man5`.
#[derive(Debug, Args)]
pub struct Man {
    /// The directory.
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
}

#[cfg(test)]
mod test {
    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn what_is_no_number_is_answered_with_the_numbers_that_are_taken() {
        for (line, said) in [
            ("doctor --seconds x", "'x' for '--seconds <N>': expected a whole number from 0 to 3600"),
            ("doctor --seconds=1.5", "'1.5' for '--seconds <N>': expected a whole number from 0 to 3600"),
            (
                "attach 8l2 --policy cpu",
                "'8l2' for '[PID|SERVICE]': expected a whole number from 0 to 4294967295, or the name",
            ),
            ("attach 812 --policy cpu --cpu-dma-latency 5us", "expected a whole number from 0 to 2000000000"),
        ] {
            let words: Vec<OsString> =
                std::iter::once("netpolicy").chain(line.split(' ')).map(Into::into).collect();
            let error = Arguments::try_parse_from(&words).expect_err("a mistake");
            let answer = cli::explain::<Arguments>(error, &words).to_string();
            assert!(answer.contains(said) && !answer.contains("invalid digit"), "{line}: {answer}");
        }
    }
}
