//! The planner: decides the desired settings of a host, with reasons.
//!
//! This crate knows which delivery mode serves a policy, which queues, interrupts and epolls a workload uses,
//! in which order settings are written, and how counts show whether they are engaged. It does not know how a
//! setting is read or written, nor where a number came from: its input is a [`model::Host`], and its output
//! is data. Three things enforce this: its dependencies (`model`, and `thiserror` for the only error), the
//! `clippy.toml` next to `src/`, and `forbid(unsafe_code)`. Every iteration has a fixed order, so equal input
//! gives equal bytes.
//!
//! The data flow, with one producer for each type:
//!
//! ```text
//! Policy × Host      select   → Selection   the devices of each request
//! Policy × Host      place    → Placement   the objects of each request; refuses conflicts and exceeded budgets
//! Placement × Host   desired  → Desired     every knob with its value and its reason
//! Desired × Host     diff     → Plan        only the differences, in the order of writing
//! Search × Moment    next_try → Next        the next try for a service whose goal is missed
//! Host × Delivered   doctor   → [Finding]   what is set, what is engaged, and why not
//! ```
#![forbid(unsafe_code)]

mod affinity;
pub mod app_requests;
mod budget;
mod chosen;
mod claim;
mod cpu_locality;
mod desired;
mod diff;
mod divide;
mod division;
pub mod doctor;
mod driver_facts;
mod engaged;
mod evidence;
mod holders;
mod in_force;
mod index;
mod irqbalance;
mod known_bad;
mod kthread;
mod listeners;
mod nic;
mod no_napi;
mod objects;
mod order;
mod other_netns;
mod parameters;
mod place;
mod placed;
mod placement;
mod queue_claims;
mod queue_object;
mod queues_after;
mod recipe;
mod recreated_queues;
mod refusal;
mod resolved;
mod reuseport;
mod search;
mod second_stage;
mod selection;
mod share;
mod wanted;

pub use chosen::Chosen;
pub use desired::desired;
pub use diff::diff;
pub use division::{Division, Share};
pub use doctor::{RequestFacts, doctor, doctor_with};
pub use engaged::engaged_share;
pub use evidence::{JournalVerdict, evidence_on};
pub use holders::HELD;
pub use kthread::allowed_class;
pub use listeners::serves;
pub use no_napi::why_no_napi;
pub use other_netns::{listened_ports, without_packets};
pub use place::place;
pub use placed::{PlacedProcess, PlacedQueue, ServiceState};
pub use placement::{PlacedRequest, Placement};
pub use queue_object::{Objects, QueueObject};
pub use refusal::{Refusal, RefusalKind};
pub use resolved::Resolved;
pub use search::{Next, SearchInputs, next_try};
pub use second_stage::after_first_stage;
pub use selection::{Selection, select};
pub use wanted::{Desired, DesiredSetting, Explained};
