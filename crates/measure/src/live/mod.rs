//! What the windows of a live service say together: percentiles with intervals, and what cannot be judged.
//!
//! Read in this order: [`survival`] (percentiles of spans some of which have not ended), [`series`] (many windows, in bounded
//! memory), [`turnaround`] (what estimate C supposes), [`summary`] (what is shown), [`mod@doubts`] (what is not to be believed), [`mod@shows`]
//! (what they show of a goal and of where the time goes),
//! [`agreement`] (how well estimates agree with the truth, where it is known).

pub mod agreement;
pub mod doubts;
pub mod series;
pub mod shows;
pub mod summary;
pub mod survival;
pub mod turnaround;

pub use agreement::{Errors, Ordered, Trial};
pub use doubts::doubts;
pub use series::{Estimator, Series};
pub use shows::shows;
pub use summary::{Estimate, Percentiles, Summary};
pub use survival::Survival;
pub use turnaround::{Turnarounds, usual_size};
