//! The experiment of the IRQ-suspension document on this machine: configurations by loads by rounds, each
//! cell through the whole cycle, with the distribution's memcached.
//!
//! Read in this order: [`args`] (options), [`load`] (offered load), [`layout`] (the CPUs of server and
//! client), [`lab_stage`] (one cell: start, observe, plan, commit, measure, restore, compare), [`watch`] (the
//! counters of a run).
//!
//! The experiments of the documents on threaded NAPI and on event busy polling, with netpolicy's own server:
//! [`exchange_args`] (options), [`configuration`] (the configurations), [`exchange_stage`] (one cell),
//! [`background`] (other work on the same CPUs).
//!
//! The evaluation of the NET-policy document: [`policies_args`] (options), [`mixture`] (how many workloads of
//! each kind), [`foreign`] (or a server of the operator's choice), [`tuning`] (what is compared),
//! [`policies_stage`] (one cell).
//!
//! The load generator against independent instruments: [`selfcheck_args`] (options), [`selfcheck_stage`] (one
//! run).
//!
//! Benches with the server on another machine are in [`crate::machines`].
//!
//! The estimates of `watch` against the ground truth on the wire: [`live_args`] (options), [`live_stage`]
//! (one run).

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
mod unnamed_file;
mod watch;
mod workqueue;

pub(crate) use background::{Background, Running as RunningBackground};
pub(crate) use error::BenchError;
pub use error::server_fault;
pub(crate) use exchange_args::{Case, Compares};
pub(crate) use exchange_stage::{ExchangeStage, threads};
pub(crate) use lab_stage::{
    LabStage, SPARE_CONNECTIONS, check_time, differences, interruptible, policy, preloaded, settings,
};
pub use layout::Layout;
pub(crate) use live_stage::{LiveStage, pace};
pub(crate) use mixture::Mixture;
pub(crate) use option::{describe, impossible};
pub(crate) use plain_stage::PlainStage;
pub(crate) use policies_args::Policies;
pub(crate) use policies_stage::{PoliciesStage, all_at_once, in_words};
pub(crate) use selfcheck_stage::{Client, Sample, SelfcheckStage, Tool};
pub(crate) use tuning::Tuning;
pub(crate) use unnamed_file::file_of_our_own;
pub(crate) use watch::{AtEdge, Meters, set_own_epoll};
pub(crate) use workqueue::InForce as WorkqueueInForce;

use model::DeliveryMode;

/// Returns the name of a configuration. As in the document, the kernel's default is *base*.
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
