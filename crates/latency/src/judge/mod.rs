//! Settings that alternate on a service that runs, judged by its own traffic.
//!
//! This room knows what the candidates are ([`Candidate`]), brings each into force by the ordinary transaction
//! ([`Alternation`]), measures windows and ends when enough is known ([`Comparison`]), and keeps what was measured ([`PairRecord`]). It prints
//! nothing, and knows no command line: a command and a daemon may use it alike. What windows come to is
//! `measure::switchback`'s. A [`Trial`] judges a change that is to be kept, and restores it where it hurts a service.
//!
//! However it ends, the host is as it was before: each switch is a transaction that the journal can undo, with a deadline.

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
mod record;
mod replay;
mod report;
mod trial;
mod truth_report;

pub use alternation::{Alternation, Switched};
pub use candidate::{Candidate, Wanted};
pub use comparison::{Comparison, Ended, Progress, Round, Shown};
pub use judgement::judgement;
pub use lock::ComparisonLock;
pub use options::Options;
pub use progress::{pairs, progress_words};
pub use record::{Header, PairRecord, Recorded, Recording};
pub use replay::Replayed;
pub use report::GuardReport;
pub use trial::{Guards, Outcome, Proposal, SERVICES_MAX, Trial, Watched, guards, metric_of};
pub use truth_report::{JudgeBenchReport, JudgedScenario};
