//! Keeps a policy on running processes until a signal or their exit, for `attach` and `run`.
//!
//! The initial settings are one transaction. The settings added when the process creates an epoll, forks or
//! receives on another queue form another transaction each time. Each transaction is kept as soon as it is
//! committed: the journal is then free for other programs, and if netpolicy is killed, its settings can be
//! rolled back by name. At the end all transactions are rolled back, newest first.
//!
//! Settings that a killed attachment left behind are restored first if this attachment also wants them
//! ([`takeover`]). Otherwise they would be recorded as the original values and never be restored.

mod takeover;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use apply::{AtExit, Journal, RollBackError, TransactionName, Undone};
use linux::Netns;
use linux::follow::{FollowEvent, FollowMethod, Follower};
use model::{Change, Intent, Plan, Policy, ProcessId, Recipes, Setting, Target};
use session::{Exit, Fault, HostState, clock, cycle};
use takeover::Takeover;

use crate::render::{EventReport, count};
use cli::Context;

/// The maximum time to wait for an event before signals are checked.
pub(crate) const TURN: Duration = Duration::from_millis(50);

/// The delay of an observation after an event, so that a server has time to create the rest of its epolls.
const LOOK_AFTER_EVENT: Duration = Duration::from_millis(20);

/// How often everything is observed again if there was no event: connections arrive on new queues, and a
/// reset may have cleared a queue's settings.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The divisor of the CPU time that observations may take: at most one part in this many. After a slow
/// observation, the next one waits longer.
const LOOK_SHARE: u32 = 50;

/// How soon a failed observation is retried, and how many consecutive failures are tolerated.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const FAILURES_MAX: u32 = 5;

/// The maximum number of transactions of one attachment that are in force at the same time. Only a process
/// that creates epolls in a loop exceeds it.
const TRANSACTIONS_MAX: usize = 4096;

/// The message when [`TRANSACTIONS_MAX`] is reached.
const FULL: &str = "the limit of 4096 transactions for one attachment is reached";

/// Whether an attachment with this many transactions may have one more.
const fn has_room(transactions: usize) -> bool {
    transactions < TRANSACTIONS_MAX
}

/// The stream on which an attachment reports events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventOutput {
    /// Standard output, as the data of the command.
    Stdout,
    /// Standard error, because standard output belongs to the started command.
    Stderr,
}

/// A policy on running processes. Dropping this value restores everything.
pub(crate) struct Attachment<'a> {
    context: &'a Context,
    output: EventOutput,
    journal: Journal,
    netns: Netns,
    /// The request. Each followed process becomes its target in turn.
    intent: Intent,
    recipes: Arc<Recipes>,
    follower: Follower,
    transactions: Vec<TransactionName>,
    takeover: Takeover,
    look_at: Instant,
    /// The number of consecutive failed observations.
    failures: u32,
    /// The notes that were already reported.
    reported: BTreeSet<String>,
    /// Whether any object that can be set was found.
    found: bool,
}

impl<'a> Attachment<'a> {
    /// Starts following a process. The first [`Attachment::look`] then applies the policy to everything that
    /// already exists.
    pub(crate) fn begin(
        context: &'a Context,
        output: EventOutput,
        netns: Netns,
        process: ProcessId,
        intent: Intent,
        at_the_end: AtExit,
    ) -> Result<Self, Fault> {
        let journal = context.session.journal()?.owned_by_session(at_the_end)?;
        let follower = Follower::new(&[process], FollowMethod::Auto)?;
        context.console.detail(&format!("Watching for new epolls via {}.", follower.how()));
        for refused in follower.refused() {
            context.console.detail(&format!("Faster method unavailable: {refused}"));
        }
        Ok(Self {
            context,
            output,
            journal,
            netns,
            intent,
            recipes: context.session.recipes()?,
            follower,
            transactions: Vec::new(),
            takeover: Takeover::default(),
            look_at: Instant::now(),
            failures: 0,
            reported: BTreeSet::new(),
            found: false,
        })
    }

    /// Waits for the next event of the processes, and handles it. Returns false when all processes have
    /// exited.
    pub(crate) fn turn(&mut self) -> Result<bool, Fault> {
        let wait = TURN.min(self.look_at.saturating_duration_since(Instant::now()));
        match self.next_event(wait)? {
            Some(event) => self.handle(event)?,
            None if Instant::now() >= self.look_at => self.look_again()?,
            None => {}
        }
        Ok(self.follower.followed().next().is_some())
    }

    fn next_event(&mut self, wait: Duration) -> Result<Option<FollowEvent>, Fault> {
        match self.follower.next(wait) {
            Err(error) if error.is_interrupted() => Ok(None),
            event => Ok(event?),
        }
    }

    fn handle(&mut self, event: FollowEvent) -> Result<(), Fault> {
        match event {
            FollowEvent::NewEpoll(epoll) => self.context.console.detail(&format!("{epoll}: seen")),
            FollowEvent::Child(child) => {
                self.report("child", child, format!("{child}: forked, now followed"))?
            }
            FollowEvent::Exec(process) => self.report("exec", process, format!("{process}: exec"))?,
            FollowEvent::Exit(process) => self.report("exit", process, format!("{process}: ended"))?,
        }
        self.look_at = self.look_at.min(Instant::now() + LOOK_AFTER_EVENT);
        Ok(())
    }

    fn report(&self, event: &'static str, object: impl ToString, summary: String) -> Result<(), Fault> {
        let report = EventReport::new(event, object, summary);
        match self.output {
            EventOutput::Stdout => self.context.console.report_done(&report),
            EventOutput::Stderr => {
                self.context.console.say(report.summary());
                Ok(())
            }
        }
    }

    /// Observes the host, plans, and commits the differences.
    pub(crate) fn look(&mut self) -> Result<(), Fault> {
        let began = Instant::now();
        let plan = self.planned()?;
        self.set(plan, began)
    }

    /// Does the first [`Attachment::look`], and repeats it after a transient failure: a child of the process
    /// exited in the meantime, or another attachment was faster.
    pub(crate) fn first_look(&mut self) -> Result<(), Fault> {
        for _ in 0..FAILURES_MAX {
            match self.look() {
                Err(fault) if fault.is_passing() => {
                    self.context.console.detail(&format!("trying again: {}", fault.cause));
                    self.listen(LOOK_AGAIN)?;
                }
                result => return result,
            }
        }
        self.look()
    }

    /// Handles events for this time.
    fn listen(&mut self, time: Duration) -> Result<(), Fault> {
        let until = Instant::now() + time;
        while let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) {
            if let Some(event) = self.next_event(left)? {
                self.handle(event)?;
            }
        }
        Ok(())
    }

    fn set(&mut self, plan: Plan, began: Instant) -> Result<(), Fault> {
        self.commit(plan)?;
        self.failures = 0;
        self.look_at = Instant::now() + LOOK_EVERY.max(began.elapsed() * LOOK_SHARE);
        Ok(())
    }

    /// Repeats [`Attachment::look`], and tolerates failures. A process may exit or close an epoll between the
    /// event that reported it and the write. Such a failure leaves the host unchanged, and is ignored a
    /// limited number of times. A failed plan is also ignored: a device may be down or missing and return
    /// later, and until then the current settings stay.
    fn look_again(&mut self) -> Result<(), Fault> {
        let began = Instant::now();
        let looked = match self.planned() {
            Err(fault) if matches!(fault.exit, Exit::Failed | Exit::Unsupported) => {
                let why = fault.cause.to_string();
                if self.reported.insert(why.clone()) {
                    self.context.console.say(&format!("nothing can be set yet: {why}"));
                }
                self.look_at = Instant::now() + LOOK_EVERY;
                return Ok(());
            }
            Err(fault) => Err(fault),
            Ok(plan) => self.set(plan, began),
        };
        match looked {
            Err(fault) if fault.is_passing() && self.failures < FAILURES_MAX => {
                self.failures += 1;
                self.context.console.detail(&format!("trying again: {}", fault.cause));
                self.look_at = Instant::now() + LOOK_AGAIN;
                Ok(())
            }
            result => result,
        }
    }

    fn planned(&mut self) -> Result<Plan, Fault> {
        let mut processes: Vec<ProcessId> = self.follower.followed().collect();
        // Drop children whose exit the follower may not have seen yet. If no process is left, keep them: the
        // planner reports that.
        if processes.iter().any(lives) {
            processes.retain(lives);
        }
        let intents = processes
            .iter()
            .map(|process| Intent { target: Target::Task(process.pid), ..self.intent.clone() })
            .collect();
        let policy =
            Policy { intents, recipes: Arc::clone(&self.recipes), disruptive: false, inferred: false };
        let mut planned = cycle::plan(&policy, &self.netns)?;
        if self.takeover.put_back(&planned, &processes, &self.transactions, &self.journal, self.context)? {
            planned = cycle::plan(&policy, &self.netns)?;
        }
        self.found |= !planned.desired.wanted.is_empty();
        for note in planned.placement.parts.iter().flat_map(|part| &part.notes).chain(&planned.desired.notes)
        {
            if self.reported.insert(note.clone()) {
                match self.output {
                    EventOutput::Stdout => self.context.console.say(note),
                    EventOutput::Stderr => self.context.console.detail(note),
                }
            }
        }
        Ok(cycle::without_inherited(planned.plan))
    }

    fn commit(&mut self, plan: Plan) -> Result<(), Fault> {
        if plan.is_empty() {
            return Ok(());
        }
        if !has_room(self.transactions.len()) {
            let what = count(plan.changes().count(), "setting");
            if self.reported.insert(FULL.to_owned()) {
                self.context.console.say(&format!("{FULL}: {what} not applied, nor any later ones"));
            }
            return Ok(());
        }
        let changes: Vec<Change> = plan.changes().cloned().collect();
        let kept =
            cycle::keep(plan, &self.journal, &self.context.session.asked(None), apply::Allow::default())?;
        self.transactions.extend(kept);
        changes.iter().try_for_each(|change| self.report("set", change.to().object(), change.to_string()))
    }

    /// Whether any setting had to be changed.
    pub(crate) fn has_set(&self) -> bool {
        !self.transactions.is_empty()
    }

    /// The followed processes that are still running.
    pub(crate) fn followed(&self) -> impl Iterator<Item = ProcessId> + '_ {
        self.follower.followed()
    }

    /// Whether any object that can be set was found: a queue, an epoll, a thread.
    pub(crate) const fn has_found_something(&self) -> bool {
        self.found
    }

    /// Leaves everything in force, and returns the transactions.
    pub(crate) fn keep(mut self) -> Vec<TransactionName> {
        std::mem::take(&mut self.transactions)
    }

    /// Restores everything, and reports that.
    pub(crate) fn end(mut self) -> Result<(), Fault> {
        let undone = self.put_back()?;
        let total: usize = undone.iter().map(|undone| undone.changes.len()).sum();
        let left: Vec<String> = undone
            .iter()
            .flat_map(Undone::left_alone)
            .map(|(change, found)| {
                format!(
                    "not restored, another program has changed it: {} {} is {}",
                    change.to().object(),
                    change.to().knob(),
                    found.value()
                )
            })
            .collect();
        left.iter().for_each(|line| self.context.console.say(line));
        if total > 0 {
            self.context.console.say(&format!("Restored: {}.", count(total, "setting")));
        }
        Ok(())
    }

    /// Restores everything after a failure; the returned error says so.
    pub(crate) fn failed(mut self, fault: Fault) -> Fault {
        if self.transactions.is_empty() {
            return fault;
        }
        match self.put_back() {
            Ok(_) => fault.leaving(HostState::Restored),
            Err(worse) => {
                Fault { exit: worse.exit, host: worse.host, hint: worse.hint.or(fault.hint), ..fault }
            }
        }
    }

    /// Rolls back every transaction, newest first. If one cannot be fully rolled back, continues, because
    /// older ones may still be restored.
    fn put_back(&mut self) -> Result<Vec<Undone>, Fault> {
        let mut kernel = linux::Kernel::new();
        let (mut undone, mut failed) = (Vec::new(), Vec::new());
        while let Some(transaction) = self.transactions.pop() {
            match self.journal.roll_back(transaction, &mut kernel, clock::now()) {
                Ok(done) => undone.push(done),
                // An operator has already rolled back this transaction.
                Err(RollBackError::NothingToUndo { .. }) => {}
                Err(error) => failed.push((transaction, error)),
            }
        }
        self.unrestored(failed).map_or(Ok(undone), Err)
    }

    /// Returns the error for transactions that could not be rolled back. It lists the settings that stay in
    /// force and the commands that restore them.
    fn unrestored(&self, failed: Vec<(TransactionName, RollBackError)>) -> Option<Fault> {
        let (mut stuck, mut names) = (Vec::new(), Vec::new());
        for (name, error) in &failed {
            if let RollBackError::Incomplete { undone, .. } = error {
                stuck.extend(undone.stuck());
                names.push(*name);
            }
        }
        let hint = session::recovery_commands(&stuck, &names);
        let mut faults = failed.into_iter().map(|(name, error)| self.left_in_force(name, error));
        let mut first = faults.next()?;
        for Fault { host, .. } in faults {
            match (&mut first.host, host) {
                (HostState::NotRestored { stuck, .. }, HostState::NotRestored { stuck: more, .. }) => {
                    stuck.extend(more);
                }
                (first, host @ HostState::NotRestored { .. }) => *first = host,
                _ => {}
            }
        }
        Some(Fault { hint: hint.or(first.hint.take()), ..first })
    }

    /// Returns the error for a transaction that could not be rolled back, so that its settings stay in force.
    fn left_in_force(&self, name: TransactionName, error: RollBackError) -> Fault {
        let fault = Fault::from(error);
        if matches!(fault.host, HostState::NotRestored { .. }) {
            return fault;
        }
        let transaction = self.journal.transaction(name).ok();
        let changes = transaction.iter().flat_map(apply::Transaction::live_changes);
        let should_be =
            |from: &Setting| format!("{}: {} should be {}", from.object(), from.knob(), from.value());
        let stuck = changes.map(|change| should_be(change.from())).collect();
        let undo = transaction.as_ref().map(apply::Transaction::undo_script);
        Fault { exit: Exit::NotRestored, ..fault.leaving(HostState::NotRestored { stuck, undo }) }
    }
}

impl Drop for Attachment<'_> {
    fn drop(&mut self) {
        if self.transactions.is_empty() {
            return;
        }
        match self.put_back() {
            Ok(_) => self.context.console.say("Everything was restored."),
            Err(fault) => self.context.console.fault(&fault),
        }
    }
}

/// Whether a process is still running.
fn lives(process: &ProcessId) -> bool {
    linux::process::identify(process.pid).is_ok_and(|now| now.started == process.started)
}
