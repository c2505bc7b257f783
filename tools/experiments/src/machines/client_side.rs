//! Applies a delivery mode to the client's machine (`--both-sides`): to its device, by a transaction with a
//! guard, as on the server. The epolls of the client's threads are set when each thread starts.

use apply::{Allow, Journal, TransactionName};
use linux::{Kernel, Netns, Processes};
use model::{DeliveryMode, Host, IfIndex, Nanoseconds, Policy, PolicyName};
use session::guard_process::Guardian;
use session::{Exit, Fault, HostState, clock, cycle, expire};

use super::device::{observe, planned};
use crate::Context;
use crate::bench::tuning::requests;
use crate::bench::{differences, settings};

/// This machine as the client.
pub(crate) struct ClientSide<'a> {
    context: &'a Context<'a>,
    netns: Netns,
    device: IfIndex,
    name: String,
    journal: Journal,
    held: Option<Held>,
}

/// The settings in force.
struct Held {
    transaction: Option<TransactionName>,
    guard: Guardian,
    before: Host,
}

impl<'a> ClientSide<'a> {
    /// Prepares this machine, and restores settings that an earlier bench may have left in force.
    pub(crate) fn new(
        context: &'a Context<'a>,
        netns: &Netns,
        device: IfIndex,
        name: String,
    ) -> Result<Self, Fault> {
        (context.refuse_beside_daemon)(context.session)?;
        expire::roll_back_expired(context.session, context.console, expire::Who::Guard)?;
        let journal = context.session.journal()?;
        Ok(Self { context, netns: netns.again()?, device, name, journal, held: None })
    }

    /// Applies a delivery mode to the device; a guard restores it after this time.
    pub(crate) fn apply(&mut self, mode: DeliveryMode, within: Nanoseconds) -> Result<(), Fault> {
        let before = self.observe()?;
        let policy =
            Policy { intents: requests(PolicyName::None, Some(mode), &self.name, &[]), ..Policy::default() };
        let plan = planned(&self.netns, self.device, &policy)?;
        let deadline = Nanoseconds(clock::now().since_boot.0.saturating_add(within.0));
        let guard = Guardian::start(self.context.session, deadline, &[self.netns.again()?])?;
        let asked = self.context.session.asked(Some(deadline));
        let transaction = cycle::hold(plan, &self.journal, &asked, Allow::default(), deadline)?;
        self.held = Some(Held { transaction, guard, before });
        Ok(())
    }

    /// Restores the device, and compares it with its earlier state.
    pub(crate) fn restore(&mut self) -> Result<(), Fault> {
        let Some(Held { transaction, guard, before }) = self.held.take() else { return Ok(()) };
        if let Some(transaction) = transaction {
            match self.journal.roll_back(transaction, &mut Kernel::new(), clock::now()) {
                // `NothingToUndo`: the guard process has already rolled it back.
                Ok(_) | Err(apply::RollBackError::NothingToUndo { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        let wrong = differences(&settings(&before), &settings(&self.observe()?));
        guard.dismiss();
        self.context.session.forget_old_transactions(self.context.console);
        if wrong.is_empty() {
            return Ok(());
        }
        let words = format!("left changed: {}", wrong.join(", "));
        let stuck = HostState::NotRestored { stuck: wrong, undo: None };
        Err(Fault::new(Exit::NotRestored, words).leaving(stuck))
    }

    fn observe(&self) -> Result<Host, Fault> {
        observe(&self.netns, self.device, &Processes::None)
    }
}

impl Drop for ClientSide<'_> {
    fn drop(&mut self) {
        // If this fails, the guard process restores the host.
        let _ = self.restore();
    }
}
