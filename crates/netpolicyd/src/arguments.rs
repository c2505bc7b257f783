//! The command line, from one table of options: what is read, and what `--help` prints.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::str::FromStr;

use daemon::{OnStop, Sockets, attach_service};
use model::{Nanoseconds, Pid};
use session::Session;
use session::guard_process::Watch;

/// The most words of a command line.
const WORDS_MAX: usize = 4096;

/// How data is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// As one JSON document.
    Json,
    /// As one JSON record per line.
    Jsonl,
}

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Keep the policy true.
    Daemon(Box<Arguments>),
    /// Inspect processes on behalf of the daemon.
    AttachService(AttachService),
    /// Put back what a daemon leaves that is killed while it judges a change. Started by the daemon.
    Guard(Box<Guard>),
    /// Print the options.
    Help,
    /// Print those of the attach service.
    HelpOfAttachService,
    /// Print the version.
    Version,
}

/// What is asked of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arguments {
    /// Its place on this host.
    pub session: Session,
    /// Where it serves.
    pub sockets: Sockets,
    /// The file of its own settings, instead of the usual one.
    pub config: Option<PathBuf>,
    /// What becomes of the settings when it is asked to end.
    pub on_stop: Option<OnStop>,
    /// What else may be done.
    pub allow: apply::Allow,
    /// Whether it pins interrupts, too, of which the driver does not say whose queue they are.
    pub inferred: bool,
    /// How data is printed.
    pub output: Output,
    /// Nothing is said but data and errors.
    pub quiet: bool,
    /// Details are said, too.
    pub verbose: bool,
}

/// What is asked of the attach service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachService {
    /// Where it is asked.
    pub socket: PathBuf,
    /// Nothing is said but errors.
    pub quiet: bool,
}

/// What the guard process of a daemon is started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The daemon's place on this host.
    pub session: Session,
    /// What it waits for.
    pub watch: Watch,
    /// Socket of the attach service, which inspects processes where the daemon lacks `CAP_SYS_PTRACE`.
    pub attach: Option<PathBuf>,
}

/// The word that starts a guard process, as in `netpolicy guard`.
const GUARD: &str = "guard";

/// The most options of a guard process: each has a value.
const GUARD_OPTIONS_MAX: usize = 64;

fn guard(mut words: impl Iterator<Item = OsString>) -> Result<Request, String> {
    let mut session = Session { command: "netpolicyd guard".to_owned(), ..Session::default() };
    let (mut deadline, mut holding, mut pipe, mut program, mut attach) = (None, Vec::new(), None, None, None);
    for _ in 0..GUARD_OPTIONS_MAX {
        let Some(word) = words.next() else { break };
        let option = text(GUARD, &word)?;
        let value = words.next().ok_or_else(|| format!("{GUARD}: {option} needs a value"))?;
        match option {
            "--deadline" => deadline = Some(Nanoseconds(parsed("deadline", &value, "a number")?)),
            "--state-dir" => session.state_dir = PathBuf::from(value),
            "--holding" => holding.push(parsed("holding", &value, "a descriptor")?),
            "--until-closed" => pipe = Some(parsed("until-closed", &value, "a descriptor")?),
            "--attach-socket" => attach = Some(PathBuf::from(value)),
            "--program" => program = Some(Pid(parsed("program", &value, "a process")?)),
            _ => return Err(format!("{GUARD} takes no {option}")),
        }
    }
    let deadline = deadline.ok_or_else(|| format!("{GUARD} needs a --deadline"))?;
    let watch = Watch { deadline, holding, until_closed: pipe.zip(program) };
    Ok(Request::Guard(Box::new(Guard { session, watch, attach })))
}

/// An option of the command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Its name, without the dashes.
    pub name: &'static str,
    /// Its one letter.
    pub letter: Option<char>,
    /// What its value is called; `None` where it takes none.
    pub value: Option<&'static str>,
    /// What it does; empty for one that help does not name.
    pub help: &'static str,
}

const fn flag(name: &'static str, help: &'static str) -> Flag {
    Flag { name, letter: None, value: None, help }
}

const fn takes(name: &'static str, value: &'static str, help: &'static str) -> Flag {
    Flag { name, letter: None, value: Some(value), help }
}

impl Flag {
    const fn short(self, letter: char) -> Self {
        Self { letter: Some(letter), ..self }
    }
}

/// The options of the daemon, in the order of its help.
pub const FLAGS: &[Flag] = &[
    takes(
        "on-stop",
        "WHAT",
        "What happens to the settings when the daemon is stopped: keep or revert. SIGKILL always leaves them",
    ),
    takes("config", "FILE", "Read the daemon's own settings from this file instead of /etc/netpolicy/daemon.toml"),
    flag("allow-irreversible", "Also change settings whose old value the kernel does not take back"),
    flag("disruptive", "Also change settings that stop a queue or take the link down while they are written"),
    flag(
        "allow-inferred",
        "Also pin interrupts whose queue the driver does not state, inferred from their names or order",
    ),
    takes(
        "socket",
        "PATH",
        "Varlink socket (interface io.netpolicy) [default: /run/netpolicy/io.netpolicy; with a --state-dir, in that]",
    ),
    takes("api-group", "GID", "Group, by number, whose members may request changes like root"),
    takes(
        "metrics-socket",
        "PATH",
        "Socket that serves OpenMetrics over HTTP [default: /run/netpolicy/metrics; with a --state-dir, in that]; '' for none",
    ),
    takes(
        "metrics-file",
        "FILE",
        "Also write OpenMetrics to this file, for a textfile collector; its name ends in .prom",
    ),
    takes(
        "metrics-listen",
        "ADDRESS:PORT",
        "Also serve OpenMetrics over HTTP on this local address",
    ),
    takes(
        "attach-socket",
        "PATH",
        "Socket of the attach service, which inspects processes where the daemon lacks CAP_SYS_PTRACE",
    ),
    takes("output", "FORMAT", "How data is printed: for people (table), as one JSON document (json), or as one JSON record per line (jsonl)")
        .short('o'),
    takes(
        "netns",
        "NAME|PATH|pid:N",
        "The network namespace to work in: a name of `ip netns`, a path, or pid:N for a process's",
    ),
    takes("state-dir", "DIR", "Where transactions are journalled"),
    takes(
        "policy-file",
        "FILE",
        "Read this policy file instead of the drop-in directories. May be given more than once; the last one wins",
    ),
    takes(
        "policy-dir",
        "DIR",
        "Read the *.toml of this directory instead of the drop-in directories. May be given more than once; a file masks those of the same name in directories given before",
    ),
    takes("recipe-dir", "DIR", ""),
    takes("app-request-dir", "DIR", ""),
    takes("color", "WHEN", "Whether to use colour: auto, always or never. Taken as by `netpolicy daemon`; a log has none"),
    flag("verbose", "Print details to standard error").short('v'),
    flag("quiet", "Print only data and errors").short('q'),
    flag("help", "Print this").short('h'),
    flag("version", "Print the version").short('V'),
];

/// The word that asks for the attach service.
const ATTACH_SERVICE: &str = "attach-service";

/// Reads a command line, without the name of the program.
///
/// # Errors
/// What is wrong with it, as a sentence.
pub fn read(words: impl IntoIterator<Item = OsString>) -> Result<Request, String> {
    let words: Vec<OsString> = words.into_iter().take(WORDS_MAX + 1).collect();
    if words.len() > WORDS_MAX {
        return Err(format!("the command line has more than {WORDS_MAX} words"));
    }
    let typed = words.iter().map(|word| word.to_string_lossy().into_owned());
    let command = std::iter::once("netpolicyd".to_owned()).chain(typed).collect::<Vec<_>>().join(" ");
    let mut read = Read::default();
    let mut words = words.into_iter().peekable();
    if words.peek().is_some_and(|word| word == GUARD) {
        return guard(words.skip(1));
    }
    let mut is_attach_service = false;
    while let Some(word) = words.next() {
        if word == ATTACH_SERVICE && !is_attach_service {
            is_attach_service = true;
            continue;
        }
        for (flag, value) in flags_of(&word)? {
            let value = match (flag.value, value) {
                (None, None) => OsString::new(),
                (None, Some(_)) => return Err(format!("--{} takes no value", flag.name)),
                (Some(_), Some(value)) => value,
                (Some(what), None) => {
                    words.next().ok_or_else(|| format!("--{} needs a value: {what}", flag.name))?
                }
            };
            match flag.name {
                "help" if is_attach_service => return Ok(Request::HelpOfAttachService),
                "help" => return Ok(Request::Help),
                "version" => return Ok(Request::Version),
                _ => read.take(flag, value)?,
            }
        }
    }
    if is_attach_service {
        return read.attach_service();
    }
    read.daemon(command)
}

/// The options of one word (`-qv` has two), with the value that is written in the same word.
fn flags_of(word: &OsStr) -> Result<Vec<(&'static Flag, Option<OsString>)>, String> {
    let unknown = || format!("`{}` is not an option of netpolicyd", word.to_string_lossy());
    let bytes = word.as_encoded_bytes();
    if let Some(long) = bytes.strip_prefix(b"--") {
        let end = long.iter().position(|&byte| byte == b'=').unwrap_or(long.len());
        let name = std::str::from_utf8(&long[..end]).map_err(|_| unknown())?;
        let flag = FLAGS.iter().find(|flag| flag.name == name).ok_or_else(unknown)?;
        // Byte for byte: a path need not be UTF-8.
        let value = (end < long.len()).then(|| OsString::from_vec(long[end + 1..].to_vec()));
        return Ok(vec![(flag, value)]);
    }
    let letters = bytes.strip_prefix(b"-").filter(|letters| !letters.is_empty()).ok_or_else(unknown)?;
    let letters = std::str::from_utf8(letters).map_err(|_| unknown())?;
    let mut found = Vec::new();
    for (at, letter) in letters.char_indices() {
        let flag = FLAGS.iter().find(|flag| flag.letter == Some(letter)).ok_or_else(unknown)?;
        let rest = &letters[at + letter.len_utf8()..];
        if flag.value.is_some() && !rest.is_empty() {
            found.push((flag, Some(rest.strip_prefix('=').unwrap_or(rest).into())));
            break;
        }
        found.push((flag, None));
    }
    Ok(found)
}

/// What was read so far.
#[derive(Debug, Default)]
struct Read {
    session: Session,
    sockets: ReadSockets,
    config: Option<PathBuf>,
    on_stop: Option<OnStop>,
    allow: apply::Allow,
    inferred: bool,
    output: Output,
    quiet: bool,
    verbose: bool,
    /// The options that were given.
    given: Vec<&'static str>,
}

/// The sockets and files that were named so far.
#[derive(Debug, Default)]
struct ReadSockets {
    api: Option<PathBuf>,
    api_group: Option<u32>,
    metrics: Option<PathBuf>,
    metrics_file: Option<PathBuf>,
    metrics_address: Option<SocketAddr>,
    attach: Option<PathBuf>,
}

/// Options that may be given more than once.
const REPEATED: [&str; 4] = ["policy-file", "policy-dir", "recipe-dir", "verbose"];

/// What the attach service takes.
const OF_ATTACH_SERVICE: [&str; 2] = ["socket", "quiet"];

impl Read {
    fn take(&mut self, flag: &'static Flag, value: OsString) -> Result<(), String> {
        let name = flag.name;
        if self.given.contains(&name) && !REPEATED.contains(&name) {
            return Err(format!("--{name} is given twice"));
        }
        self.given.push(name);
        let path = || PathBuf::from(value.clone());
        match name {
            "on-stop" => {
                self.on_stop =
                    Some(one_of(name, &value, &[("keep", OnStop::Keep), ("revert", OnStop::Revert)])?);
            }
            "config" => self.config = Some(path()),
            "allow-irreversible" => self.allow.irreversible = true,
            "disruptive" => self.allow.disruptive = true,
            "allow-inferred" => self.inferred = true,
            "socket" => self.sockets.api = Some(path()),
            "api-group" => self.sockets.api_group = Some(parsed(name, &value, "a number")?),
            "metrics-socket" => self.sockets.metrics = Some(path()),
            "metrics-file" => self.sockets.metrics_file = Some(path()),
            "metrics-listen" => {
                self.sockets.metrics_address = Some(parsed(name, &value, "an address with a port")?)
            }
            "attach-socket" => self.sockets.attach = Some(path()),
            "output" => {
                let formats = [("table", Output::Table), ("json", Output::Json), ("jsonl", Output::Jsonl)];
                self.output = one_of(name, &value, &formats)?;
            }
            "netns" => self.session.netns = Some(text(name, &value)?.to_owned()),
            "state-dir" => {
                let absolute = std::path::absolute(path());
                self.session.state_dir = absolute.map_err(|error| format!("--state-dir: {error}"))?;
            }
            "policy-file" => self.session.policy_files.push(path()),
            "policy-dir" => self.session.policy_dirs.push(path()),
            "recipe-dir" => self.session.recipe_dirs.push(path()),
            "app-request-dir" => self.session.app_request_dir = path(),
            "verbose" => self.verbose = true,
            "quiet" => self.quiet = true,
            // A log has no colours.
            "color" => one_of(name, &value, &["auto", "always", "never"].map(|when| (when, ())))?,
            _ => {}
        }
        Ok(())
    }

    fn daemon(self, command: String) -> Result<Request, String> {
        self.refuse_both("policy-file", "policy-dir")?;
        self.refuse_both("quiet", "verbose")?;
        let sockets = Sockets {
            api: self.sockets.api,
            api_group: self.sockets.api_group,
            metrics: self.sockets.metrics,
            metrics_file: self.sockets.metrics_file,
            metrics_address: self.sockets.metrics_address,
            attach: self.sockets.attach.unwrap_or_else(|| attach_service::SOCKET.into()),
        };
        Ok(Request::Daemon(Box::new(Arguments {
            session: Session { command, ..self.session },
            sockets,
            config: self.config,
            on_stop: self.on_stop,
            allow: self.allow,
            inferred: self.inferred,
            output: self.output,
            quiet: self.quiet,
            verbose: self.verbose,
        })))
    }

    fn attach_service(self) -> Result<Request, String> {
        if let Some(name) = self.given.iter().find(|name| !OF_ATTACH_SERVICE.contains(name)) {
            return Err(format!("{ATTACH_SERVICE} takes no --{name}"));
        }
        let socket = self.sockets.api.unwrap_or_else(|| attach_service::SOCKET.into());
        Ok(Request::AttachService(AttachService { socket, quiet: self.quiet }))
    }

    fn refuse_both(&self, one: &str, other: &str) -> Result<(), String> {
        let both = self.given.contains(&one) && self.given.contains(&other);
        if both { Err(format!("--{one} cannot be used with --{other}")) } else { Ok(()) }
    }
}

fn text<'v>(name: &str, value: &'v OsStr) -> Result<&'v str, String> {
    value.to_str().ok_or_else(|| format!("--{name} {}: not UTF-8", value.to_string_lossy()))
}

fn parsed<T: FromStr>(name: &str, value: &OsStr, what: &str) -> Result<T, String> {
    let text = text(name, value)?;
    text.parse().map_err(|_| format!("--{name} {text}: not {what}"))
}

fn one_of<T: Copy>(name: &str, value: &OsStr, all: &[(&str, T)]) -> Result<T, String> {
    let text = text(name, value)?;
    let found = all.iter().find(|(word, _)| *word == text).map(|(_, found)| *found);
    found.ok_or_else(|| {
        let words: Vec<&str> = all.iter().map(|(word, _)| *word).collect();
        format!("--{name} {text}: one of {}", words.join(", "))
    })
}

/// The options, as `--help` prints them.
pub fn help() -> String {
    let mut text = "\
Keep the policy in force through restarts, hotplug and resets.

Usage: netpolicyd [OPTIONS]                  as `netpolicy daemon`
       netpolicyd attach-service [OPTIONS]   as `netpolicy attach-service`: --socket, --quiet

Options:
"
    .to_owned();
    for flag in FLAGS.iter().filter(|flag| !flag.help.is_empty()) {
        describe(flag, flag.help, &mut text);
    }
    text
}

/// The options of the attach service, as `attach-service --help` prints them.
pub fn help_of_attach_service() -> String {
    let mut text = "\
Inspect processes on behalf of the daemon, which then needs no CAP_SYS_PTRACE.

Usage: netpolicyd attach-service [OPTIONS]   as `netpolicy attach-service`

Options:
"
    .to_owned();
    for flag in FLAGS.iter().filter(|flag| OF_ATTACH_SERVICE.contains(&flag.name) || flag.name == "help") {
        match flag.name {
            "socket" => {
                let words = format!("Where it is asked [default: {}]", attach_service::SOCKET);
                describe(flag, &words, &mut text);
            }
            _ => describe(flag, flag.help, &mut text),
        }
    }
    text
}

fn describe(flag: &Flag, help: &str, text: &mut String) {
    let letter = flag.letter.map(|letter| format!("-{letter}, ")).unwrap_or_default();
    let value = flag.value.map(|value| format!(" <{value}>")).unwrap_or_default();
    text.push_str(&format!("  {letter}--{}{value}\n          {help}\n", flag.name));
}

#[cfg(test)]
mod test {
    use super::*;

    fn typed(line: &str) -> Result<Request, String> {
        read(line.split_whitespace().map(OsString::from))
    }

    fn daemon(line: &str) -> Arguments {
        match typed(line) {
            Ok(Request::Daemon(arguments)) => *arguments,
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn without_options_it_keeps_the_hosts_policy_with_the_usual_journal_and_sockets() {
        let arguments = daemon("");
        let usual = Session { command: "netpolicyd".to_owned(), ..Session::default() };
        assert_eq!(arguments.session, usual);
        assert_eq!(arguments.sockets.attach.to_str(), Some(attach_service::SOCKET));
        assert_eq!((arguments.on_stop, arguments.config), (None, None));
    }

    #[test]
    fn a_guard_process_is_started_with_what_the_daemon_gives_it() {
        let line = "guard --deadline 7 --state-dir /s --holding 5 --holding 6 --until-closed 8 --program 9 --attach-socket /a";
        let Ok(Request::Guard(guard)) = typed(line) else { panic!("{:?}", typed(line)) };
        let Guard { session, watch, attach } = *guard;
        assert_eq!(attach, Some(PathBuf::from("/a")));
        assert_eq!(session.state_dir, PathBuf::from("/s"));
        assert_eq!((watch.deadline, watch.holding), (Nanoseconds(7), vec![5, 6]));
        assert_eq!(watch.until_closed, Some((8, Pid(9))));
        assert!(typed("guard --deadline soon").is_err() && typed("guard --socket /s").is_err());
    }

    #[test]
    fn a_value_stands_in_the_same_word_or_in_the_next() {
        let apart = daemon("--state-dir /s --on-stop revert -o jsonl --policy-dir /a --policy-dir /b -v");
        let joined = daemon("--state-dir=/s --on-stop=revert -ojsonl --policy-dir=/a --policy-dir=/b -v");
        assert_eq!(
            Session { command: String::new(), ..apart.session },
            Session { command: String::new(), ..joined.session.clone() }
        );
        assert_eq!(joined.session.policy_dirs, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!((joined.on_stop, joined.output), (Some(OnStop::Revert), Output::Jsonl));
        assert!(joined.verbose && !joined.quiet);
        assert_eq!(
            joined.session.command,
            "netpolicyd --state-dir=/s --on-stop=revert -ojsonl --policy-dir=/a --policy-dir=/b -v"
        );
        assert_eq!(
            read(["--metrics-socket", ""].map(OsString::from)).map(|request| match request {
                Request::Daemon(arguments) => arguments.sockets.metrics,
                _ => None,
            }),
            Ok(Some(PathBuf::new()))
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (line, said) in [
            ("--on-stop never", "--on-stop never: one of keep, revert"),
            ("--api-group wheel", "--api-group wheel: not a number"),
            ("--quiet=yes", "--quiet takes no value"),
            ("--state-dir", "--state-dir needs a value: DIR"),
            ("--state-dir=", "--state-dir: cannot make an empty path absolute"),
            ("--netns a --netns b", "--netns is given twice"),
            ("--quiet --verbose", "--quiet cannot be used with --verbose"),
            ("--policy-file a --policy-dir b", "--policy-file cannot be used with --policy-dir"),
            ("--color red", "--color red: one of auto, always, never"),
            ("--keep", "`--keep` is not an option of netpolicyd"),
            ("daemon", "`daemon` is not an option of netpolicyd"),
            ("-", "`-` is not an option of netpolicyd"),
            ("attach-service --netns a", "attach-service takes no --netns"),
        ] {
            assert_eq!(typed(line), Err(said.to_owned()), "{line}");
        }
    }

    #[test]
    fn the_attach_service_is_asked_for_with_one_word() {
        let asked = AttachService { socket: "/run/a".into(), quiet: true };
        assert_eq!(typed("attach-service --socket /run/a -q"), Ok(Request::AttachService(asked)));
    }

    #[test]
    fn help_and_the_version_win_over_what_stands_behind_them() {
        assert_eq!([typed("--help --nonsense"), typed("-qV x")], [Ok(Request::Help), Ok(Request::Version)]);
        insta::assert_snapshot!(help());
    }

    #[test]
    fn the_attach_service_prints_the_options_that_it_takes() {
        assert_eq!(typed("attach-service -q --help"), Ok(Request::HelpOfAttachService));
        insta::assert_snapshot!(help_of_attach_service(), @r"
        Inspect processes on behalf of the daemon, which then needs no CAP_SYS_PTRACE.

        Usage: netpolicyd attach-service [OPTIONS]   as `netpolicy attach-service`

        Options:
          --socket <PATH>
                  Where it is asked [default: /run/netpolicy/attach]
          -q, --quiet
                  Print only data and errors
          -h, --help
                  Print this
        ");
    }
}
