//! The experiment of the IRQ-suspension document, on this machine: configurations by loads by rounds, each cell through
//! the whole cycle, with memcached as the distribution has it.
//!
//! Read in this order: [`args`] (what can be asked), [`load`] (how much is offered), [`layout`] (which CPUs are the
//! server's), [`lab_stage`] (one cell: start, observe, plan, commit, measure, put back, compare), [`watch`] (what is
//! counted meanwhile).
//!
//! And the experiments of the documents on threaded NAPI and on event busy polling, with a server of our own:
//! [`exchange_args`] (what can be asked), [`configuration`] (the configurations), [`exchange_stage`] (one cell), [`background`]
//! (what runs beside).
//!
//! And the evaluation of the NET-policy document: [`policies_args`] (what can be asked), [`mixture`] (how many workloads of
//! which kind), [`foreign`] (or a server of the operator's choice), [`tuning`] (what is compared), [`policies_stage`] (one cell).
//!
//! And the load generator against independent instruments: [`selfcheck_args`] (what can be asked), [`selfcheck_stage`] (one run).
//!
//! And what `watch` says, against the truth on the wire: [`live_args`] (what can be asked), [`live_stage`] (one run).

pub mod args;
mod background;
pub mod configuration;
mod error;
pub mod exchange_args;
mod exchange_stage;
pub mod foreign;
pub mod judge_args;
mod lab_stage;
mod layout;
pub mod live_args;
mod live_stage;
pub mod load;
pub mod mixture;
mod option;
mod plain_stage;
pub mod policies_args;
mod policies_stage;
pub mod selfcheck_args;
mod selfcheck_stage;
pub mod size;
pub mod tuning;
mod watch;

pub(crate) use error::BenchError;
pub use error::server_fault;
pub(crate) use exchange_args::{Case, Compares};
pub(crate) use exchange_stage::ExchangeStage;
pub(crate) use lab_stage::LabStage;
pub use layout::Layout;
pub(crate) use live_stage::{LiveStage, pace};
pub(crate) use mixture::Mixture;
pub(crate) use option::{describe, impossible};
pub(crate) use plain_stage::PlainStage;
pub(crate) use policies_args::Policies;
pub(crate) use policies_stage::PoliciesStage;
pub(crate) use selfcheck_stage::{Client, Sample, SelfcheckStage, Tool};
pub(crate) use tuning::Tuning;

use model::DeliveryMode;

/// The name of a configuration: the document calls the kernel's own way *base*.
pub(crate) fn label(mode: DeliveryMode) -> String {
    match mode {
        DeliveryMode::Interrupt => "base".to_owned(),
        DeliveryMode::Defer { .. }
        | DeliveryMode::NapiBusy
        | DeliveryMode::FullBusy
        | DeliveryMode::Suspend { .. }
        | DeliveryMode::EventBusy
        | DeliveryMode::UserBusy
        | DeliveryMode::Threaded
        | DeliveryMode::ThreadedBusy => mode.to_string(),
    }
}
