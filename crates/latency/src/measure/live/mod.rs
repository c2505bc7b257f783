//! Evaluates many windows of a live service: percentiles with intervals, and the limits of their validity.
//!
//! Read in this order: [`survival`] (percentiles of spans, some of which have not ended), [`series`] (many
//! windows in bounded memory), [`turnaround`] (the basis of estimate C), [`summary`] (the displayed figures),
//! [`mod@caveats`] (limits of the measurement), [`mod@findings`] (goals, and the dominant stage),
//! [`agreement`] (how well estimates agree with the truth, where it is known).

pub mod agreement;
pub mod caveats;
pub mod findings;
pub mod series;
pub mod summary;
pub mod survival;
pub mod turnaround;

pub use agreement::{AgreementRun, Errors, Ordered};
pub use caveats::{Unpaired, caveats};
pub use findings::findings;
pub use series::{Estimate, Estimator, Series, Unit};
pub use summary::{Percentiles, Summary};
pub use survival::Survival;
pub use turnaround::Turnarounds;
