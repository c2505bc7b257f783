//! What every command works with: the operator's choices, and the way to speak to them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use apply::{Asked, Journal, Standing};
use linux::Netns;
use linux::bpf::wishes::WishStore;
use model::{Intent, Nanoseconds, Pid, Policy, Recipes};
use policy_file::{Merged, Mistakes, PolicyFile, RECIPE_DIRS, merge, parse};

use crate::api::{METRICS_SOCKET, SOCKET};
use crate::args::{self, Globals, quoted};
use crate::clock;
use crate::cycle::Planned;
use crate::drop_in::{DROP_IN_DIRS, Sources, read};
use crate::exit::Exit;
use crate::fault::Fault;
use crate::render::{Console, count};
use crate::state_dir;
use crate::wishes;

/// What every command works with.
#[derive(Debug)]
pub(crate) struct Context {
    /// The operator's choices.
    pub(crate) globals: Globals,
    /// The way to speak to them.
    pub(crate) console: Console,
}

/// Where the kernel tells which boot this is.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// How many transactions are remembered that are not in force any more.
const HISTORY_MAX: usize = 200;

impl Context {
    /// The context that the command line asks for.
    pub(crate) fn new(mut globals: Globals) -> Self {
        // The guard of a trial works in another directory, and a path that was printed is read in any.
        if let Ok(absolute) = std::path::absolute(&globals.state_dir) {
            globals.state_dir = absolute;
        }
        let console = Console::new(&globals);
        Self { globals, console }
    }

    /// The network namespace to work in.
    ///
    /// # Errors
    /// If there is no such namespace, or it may not be opened.
    pub(crate) fn netns(&self) -> Result<Netns, Fault> {
        let netns = match self.globals.netns.as_deref() {
            None => Netns::own(),
            Some(process) if process.starts_with("pid:") => {
                let pid = process["pid:".len()..].parse();
                let pid = pid.map_err(|_| {
                    Fault::new(Exit::Usage, format!("--netns {process}: write pid:N with a pid"))
                })?;
                Netns::of_process(Pid(pid))
            }
            Some(path) if path.contains('/') => Netns::at(Path::new(path)),
            Some(name) => Netns::named(name),
        };
        netns.map_err(Fault::from)
    }

    /// How commands are typed that shall reach this namespace and this journal from where the operator is.
    pub(crate) fn way(&self) -> plan::doctor::Way {
        let ours = format!("{}{}", self.globals.netns_option(), self.globals.state_dir_option());
        let mut file = None;
        if let Some(netns) = self.globals.netns.as_deref() {
            file = Some(match netns.strip_prefix("pid:") {
                Some(pid) => format!("/proc/{pid}/ns/net"),
                None if netns.contains('/') => quoted(netns),
                None => format!("/run/netns/{}", quoted(netns)),
            });
        }
        plan::doctor::Way { ours: ours.trim_end().to_owned(), netns: file }
    }

    /// The network namespace of a process, unless the operator named one.
    ///
    /// # Errors
    /// As [`Context::netns`], and if the process ended.
    pub(crate) fn netns_of(&self, process: Pid) -> Result<Netns, Fault> {
        match self.globals.netns {
            Some(_) => self.netns(),
            None => Ok(Netns::of_process(process)?),
        }
    }

    /// What applications ask for themselves and their sockets.
    pub(crate) fn wishes(&self) -> WishStore {
        WishStore::at(&self.globals.wish_dir)
    }

    /// The journal of transactions.
    ///
    /// # Errors
    /// If the kernel does not say which boot this is, and if others can write to the journal's directory.
    pub(crate) fn journal(&self) -> Result<Journal, Fault> {
        state_dir::check(&self.globals.state_dir)?;
        self.journal_in(&self.globals.state_dir)
    }

    /// A journal in another directory: that of a lab, which ends with the lab.
    ///
    /// # Errors
    /// If the kernel does not say which boot this is.
    pub(crate) fn journal_in(&self, state_dir: &Path) -> Result<Journal, Fault> {
        let boot_id = std::fs::read_to_string(BOOT_ID).map_err(|error| Fault::file(BOOT_ID, error))?;
        Ok(Journal::new(state_dir.join("journal"), boot_id))
    }

    /// Forgets the oldest transactions that are not in force any more, beyond a number that tells enough.
    pub(crate) fn forget_old_transactions(&self) {
        match self.journal().and_then(|journal| Ok(journal.forget_all_but(HISTORY_MAX)?)) {
            Ok(0) => {}
            Ok(forgotten) => {
                self.console.detail(&format!("forgotten: {}", count(forgotten, "old transaction")))
            }
            Err(fault) => self.console.detail(&format!("old transactions are kept: {}", fault.cause)),
        }
    }

    /// Where the daemon of this journal is asked. Whether others can write there is for whoever asks to check.
    pub(crate) fn api_socket(&self) -> PathBuf {
        self.beside_journal("io.netpolicy", SOCKET)
    }

    /// The same, to ask: a daemon that somebody else can put there is none to be asked.
    ///
    /// # Errors
    /// If others can write to the journal's directory.
    pub(crate) fn trusted_api_socket(&self) -> Result<PathBuf, Fault> {
        state_dir::check(&self.globals.state_dir)?;
        Ok(self.api_socket())
    }

    /// Where its metrics are.
    pub(crate) fn metrics_socket(&self) -> PathBuf {
        self.beside_journal("metrics", METRICS_SOCKET)
    }

    /// Two daemons with two journals do not take each other's sockets.
    fn beside_journal(&self, name: &str, usual: &str) -> PathBuf {
        let own = !self.globals.state_dir_option().is_empty();
        if own { self.globals.state_dir.join(name) } else { PathBuf::from(usual) }
    }

    /// What the journal notes of this command.
    pub(crate) fn asked(&self, deadline: Option<Nanoseconds>) -> Asked {
        Asked {
            at: clock::now(),
            command: command_line(),
            kernel_release: rustix::system::uname().release().to_string_lossy().into_owned(),
            netpolicy: env!("CARGO_PKG_VERSION").to_owned(),
            deadline,
        }
    }

    /// The policy files, merged.
    ///
    /// # Errors
    /// Files that cannot be read, and all mistakes of those that can.
    pub(crate) fn policy(&self) -> Result<Merged, Fault> {
        let sources = self.sources();
        let wrong = |path: PathBuf, error| Fault { exit: Exit::Usage, ..Fault::file(path, error) };
        // A default directory may be missing; one that was named is a mistake then.
        for dir in &self.globals.policy_dir {
            std::fs::metadata(dir).map_err(|error| wrong(dir.clone(), error))?;
        }
        let texts = read(&sources).map_err(|(path, error)| wrong(path, error))?;
        let (mut files, mut mistakes): (Vec<PolicyFile>, _) = (Vec::new(), Vec::new());
        for (name, text) in &texts {
            match parse(name, text) {
                Ok(file) => files.push(file),
                Err(Mistakes(more)) => mistakes.extend(more),
            }
        }
        if !mistakes.is_empty() {
            return Err(Fault::new(Exit::Usage, Mistakes(mistakes)));
        }
        self.console.detail(&format!("{} from {}", count(files.len(), "policy file"), described(&sources)));
        let merged = merge(&files).map_err(|mistakes| Fault::new(Exit::Usage, mistakes))?;
        Ok(Merged { recipes: self.recipes()?, ..merged })
    }

    /// What the policies come to: the recipes that are shipped, and over them the site's.
    ///
    /// # Errors
    /// Files that cannot be read, and all mistakes of those that can.
    pub(crate) fn recipes(&self) -> Result<Arc<Recipes>, Fault> {
        let dirs = match self.globals.recipe_dir.as_slice() {
            [] => RECIPE_DIRS.map(PathBuf::from).to_vec(),
            given => given.to_vec(),
        };
        let texts = read(&Sources::Dirs(dirs))
            .map_err(|(path, error)| Fault { exit: Exit::Usage, ..Fault::file(path, error) })?;
        policy_file::recipes(&texts).map(Arc::new).map_err(|mistakes| Fault::new(Exit::Usage, mistakes))
    }

    /// These requests with the recipes, and with what the operator allows.
    ///
    /// # Errors
    /// As [`Context::recipes`].
    pub(crate) fn policy_of(&self, intents: Vec<Intent>, allow: args::Allow) -> Result<Policy, Fault> {
        Ok(Policy { intents, recipes: self.recipes()?, disruptive: allow.disruptive })
    }

    /// As [`Context::policy`], for commands that make no sense without one.
    ///
    /// # Errors
    /// As [`Context::policy`], and if nothing is asked for.
    pub(crate) fn required_policy(&self) -> Result<Merged, Fault> {
        let merged = self.policy()?;
        if merged.sections.is_empty() {
            let looked = described(&self.sources());
            return Err(Fault::new(
                Exit::Usage,
                format!("there is no policy: no file in {looked} asks for anything"),
            )
            .hint("write one, or say it without a file: netpolicy set device eth0 latency"));
        }
        Ok(merged)
    }

    /// What the files ask for, and what applications in this namespace ask for by themselves.
    ///
    /// # Errors
    /// As [`Context::policy`], if the wishes cannot be read, and if nobody asks for anything.
    pub(crate) fn whole_policy(&self, netns: &Netns) -> Result<Policy, Fault> {
        let policy = wishes::joined(self.policy()?.policy(), netns, self)?;
        if policy.intents.is_empty() {
            self.required_policy()?;
        }
        Ok(policy)
    }

    /// Tells what a placement leaves out, and what could not be read on the way.
    pub(crate) fn tell(&self, planned: &Planned) {
        for part in &planned.placement.parts {
            for note in &part.notes {
                self.console.say(&format!("{}: {note}", part.intent.target));
            }
        }
        planned.desired.notes.iter().for_each(|note| self.console.say(note));
        planned.desired.left_out.iter().for_each(|note| self.console.detail(note));
        if let Some((micros, because)) = &planned.desired.wake_latency {
            self.console.detail(&format!(
                "cpu_dma_latency {micros} us is in force only while somebody holds it: the daemon, `attach` or `run` ({})",
                because.why
            ));
        }
        for unread in &planned.host.unread {
            self.console.detail(&format!("not read: {}: {}", unread.what, unread.why));
        }
    }

    /// Says which trials are under way. What is as it was asked may be so by a trial, which takes it away again.
    pub(crate) fn tell_of_trials(&self) {
        // Whoever may not read the journal has no trials in it.
        let Ok(history) = self.journal().and_then(|journal| Ok(journal.history()?)) else { return };
        for trial in history.transactions.iter().filter(|t| matches!(t.standing(), Standing::HeldUntil(_))) {
            let name = trial.name();
            self.console.say(&format!(
                "{name} is on trial and will be put back unless `netpolicy confirm` keeps it."
            ));
        }
    }

    /// The directories that the policy files are in; `of` gives the one of a file.
    pub(crate) fn policy_directories(&self, of: impl Fn(&Path) -> PathBuf) -> Vec<PathBuf> {
        match self.sources() {
            Sources::Dirs(directories) => directories,
            Sources::Files(files) => files.iter().map(|file| of(file)).collect(),
        }
    }

    fn sources(&self) -> Sources {
        if !self.globals.policy_file.is_empty() {
            Sources::Files(self.globals.policy_file.clone())
        } else if !self.globals.policy_dir.is_empty() {
            Sources::Dirs(self.globals.policy_dir.clone())
        } else {
            Sources::Dirs(DROP_IN_DIRS.map(PathBuf::from).to_vec())
        }
    }
}

fn described(sources: &Sources) -> String {
    let (Sources::Dirs(paths) | Sources::Files(paths)) = sources;
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// The command, as the operator typed it.
fn command_line() -> String {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    std::iter::once("netpolicy".to_owned()).chain(words).collect::<Vec<_>>().join(" ")
}
