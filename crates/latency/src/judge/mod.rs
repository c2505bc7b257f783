//! Alternates settings on a running service, and judges them by the service's own traffic.
//!
//! This module parses candidates ([`Candidate`]), applies each by an ordinary transaction ([`Alternation`]),
//! measures windows until there is a verdict ([`Comparison`]), and records the measurements ([`PairRecord`]).
//! It prints nothing; both commands and the daemon use it. The statistics are in
//! `crate::measure::switchback`. A [`GuardedTrial`] judges a change that is to be kept, and reverts the
//! change if it harms a service.
//!
//! However a comparison ends, the host is restored: each switch is a transaction with a deadline, which the
//! journal can undo.

mod alternation;
mod before_after;
mod candidate;
mod comparison;
mod held;
mod judgement;
mod lock;
mod one_shot;
mod options;
mod progress;
mod proof;
mod record;
mod replay;
mod report;
mod trial;
mod truth_report;
mod tune_record;
mod tuning;

pub use crate::measure::tuning::{Aim, FINALISTS, Out, Ranking, Tuner, TunerStage, TunerStep, metric_of};
pub use alternation::{Alternation, Switched};
pub use candidate::{Candidate, CandidateSettings};
pub use comparison::{Chooser, Comparison, ComparisonProgress, ComparisonResult, Ended, Round};
pub use judgement::judgement;
pub use lock::ComparisonLock;
pub use options::ComparisonOptions;
pub use progress::{pairs, progress_words};
pub use proof::effects;
pub use record::{ComparisonHeader, PairRecord, RecordedComparison, RecordedRound};
pub use replay::Replayed;
pub use report::{ForesightReport, GuardReport};
pub use trial::{
    GuardedTrial, JudgedService, PolicyGuards, Proposal, SERVICES_MAX, ServiceForesight, TrialOutcome, guards,
};
pub use truth_report::{JudgeBenchReport, JudgedScenario};
pub use tune_record::{
    FinishedSearch as Tuned, RESUMES_WITHIN_SECONDS, Setup, TuneRecord, TunedRound, Unfinished, is_same_load,
    ordered,
};
pub use tuning::{Offer, VARIANTS_MAX, offers, section, variants};
