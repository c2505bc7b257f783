//! A change that is judged while it stays in force, because it cannot be applied and undone every second.

use std::borrow::Cow;

use apply::{Allow, RollBackError, TransactionName};
use linux::{Kernel, Netns};
use model::{Nanoseconds, Plan, Policy};
use session::{Fault, Session, clock, cycle};

/// The maximum number of stages: one for queues, and one for the queues' settings.
const STAGES_MAX: usize = 2;

/// The change to apply.
#[derive(Clone, Debug)]
pub(crate) enum Proposed<'a> {
    /// Apply the changes that this policy requires on the host at the time of the commit, in stages.
    Policy(Cow<'a, Policy>),
    /// Apply these changes, in one transaction.
    Changes(Plan),
}

/// A change that was applied in one or more transactions, each with a deadline. Dropping this value rolls
/// back the transactions that were not confirmed.
#[derive(Debug)]
pub(crate) struct HeldChange<'a> {
    proposed: Proposed<'a>,
    netns: Netns,
    allow: Allow,
    session: &'a Session,
    transactions: Vec<TransactionName>,
    /// Whether the transactions must still be confirmed or rolled back.
    undecided: bool,
}

impl<'a> HeldChange<'a> {
    pub(crate) const fn new(
        proposed: Proposed<'a>,
        netns: Netns,
        allow: Allow,
        session: &'a Session,
    ) -> Self {
        Self { proposed, netns, allow, session, transactions: Vec::new(), undecided: false }
    }

    /// Applies the change. Unless it is confirmed, it is rolled back at `deadline`, a time since boot.
    pub(crate) fn commit(&mut self, deadline: Nanoseconds) -> Result<(), Fault> {
        self.undecided = true;
        for _ in 0..STAGES_MAX {
            let journal = self.session.journal()?;
            let (plan, again) = match &self.proposed {
                Proposed::Changes(plan) => (plan.clone(), false),
                Proposed::Policy(policy) => {
                    let planned = cycle::plan(policy, &self.netns)?;
                    cycle::refuse_second_stage(&planned, &journal, self.allow)?;
                    (planned.plan, planned.desired.first_stage)
                }
            };
            let asked = self.session.asked(Some(deadline));
            let held = cycle::hold(plan, &journal, &asked, self.allow, deadline)?;
            self.transactions.extend(held);
            if held.is_none() || !again {
                break;
            }
        }
        Ok(())
    }

    /// Forgets the transactions, which were rolled back, so that the change can be applied again.
    pub(crate) fn forget(&mut self) {
        self.transactions.clear();
    }

    /// Returns the transactions, oldest first.
    pub(crate) fn transactions(&self) -> &[TransactionName] {
        &self.transactions
    }

    /// Rolls back all transactions, newest first.
    pub(crate) fn roll_back(&mut self) -> Result<(), Fault> {
        let journal = self.session.journal()?;
        for name in self.transactions.iter().rev() {
            match journal.roll_back(*name, &mut Kernel::new(), clock::now()) {
                // An operator, or the deadline, has already rolled the transaction back.
                Ok(_) | Err(RollBackError::NothingToUndo { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.undecided = false;
        Ok(())
    }

    /// Makes the change permanent.
    pub(crate) fn confirm(&mut self) -> Result<Vec<TransactionName>, Fault> {
        let journal = self.session.journal()?;
        for name in &self.transactions {
            journal.confirm(*name, clock::now())?;
        }
        self.undecided = false;
        Ok(self.transactions.clone())
    }
}

impl Drop for HeldChange<'_> {
    fn drop(&mut self) {
        if self.undecided {
            // If this fails, the guard process restores each transaction from the journal at its deadline.
            let _best_effort = self.roll_back();
        }
    }
}
